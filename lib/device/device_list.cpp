#include "device/device_list.hpp"

#include <fmt/format.h>

#include <charconv>
#include <set>
#include <string>

#include "base/text.hpp"
#include "heed/heed.hpp"

namespace heed {
namespace {

constexpr int kLast = 1023;
constexpr const char* kForm = "a list is numbers and ranges with commas between, as 0-3,5, or all";

int number_in(const std::string& text, const std::string& item) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0)
    throw Error(ErrorCode::usage,
                item.empty() ? fmt::format("--devices has an empty item; {}", kForm)
                             : fmt::format("--devices \"{}\" is no device; {}", item, kForm),
                item);
  if (value > kLast)
    throw Error(ErrorCode::usage,
                fmt::format("--devices names device {}; {} is the last that there can be", value, kLast), item);
  return value;
}

}  // namespace

std::vector<DeviceNumbers> parse_device_list(std::string_view text) {
  std::vector<DeviceNumbers> devices;
  for (const std::string& part : split(std::string(text), ',')) {
    const std::string item(trim(part));
    if (const std::size_t dash = item.find('-'); dash != std::string::npos && dash > 0) {
      const int first = number_in(item.substr(0, dash), item);
      const int last = number_in(item.substr(dash + 1), item);
      if (last < first)
        throw Error(ErrorCode::usage, fmt::format("--devices {} ends before it begins; write {}-{}", item, last, first),
                    item);
      for (int number = first; number <= last; ++number) devices.push_back({number});
      continue;
    }
    DeviceNumbers& device = devices.emplace_back();
    for (const std::string& number : split(item, '+')) device.push_back(number_in(number, item));
  }
  std::set<int> seen;
  for (const DeviceNumbers& device : devices)
    for (const int number : device)
      if (!seen.insert(number).second)
        throw Error(ErrorCode::usage, fmt::format("--devices {} lists {} twice; once is enough", text, number),
                    std::to_string(number));
  return devices;
}

}  // namespace heed
