// Lists of launches between two processes.
#include <array>
#include <cstring>

#include "heed/heed.hpp"
#include "json/integer.hpp"
#include "worker/protocol.hpp"

namespace heed::worker {
namespace {

constexpr std::array<std::uint64_t Launch::*, 7> kTensorAddresses = {
    &Launch::q, &Launch::k, &Launch::v, &Launch::o, &Launch::lse, &Launch::workspace, &Launch::semaphores};

std::uint64_t Launch::*address(std::size_t index) {
  return index < kTensorAddresses.size() ? kTensorAddresses.at(index)
                                         : kFeatureAddresses.at(index - kTensorAddresses.size());
}

// Whether nothing but addresses and scale differs. Of unequal padding it says that more does.
bool is_like(const Launch& first, const Launch& other) {
  FeatureParams scaled = other.shape;
  scaled.scale = first.shape.scale;
  return std::memcmp(&scaled, &first.shape, sizeof scaled) == 0 && other.mask == first.mask &&
         other.k_element == first.k_element && other.v_element == first.v_element && other.grid == first.grid &&
         other.k_box_rows == first.k_box_rows && other.v_box_rows == first.v_box_rows;
}

}  // namespace

nlohmann::json launches_to_json(const std::vector<Launch>& launches) {
  nlohmann::json list = nlohmann::json::array();
  for (const Launch& launch : launches) {
    if (list.empty() || !is_like(launches.front(), launch)) {
      list.push_back(launch);
      continue;
    }
    auto differs = nlohmann::json::array({launch.shape.scale});  // then index and value of each address that is another
    for (std::size_t i = 0; i < kTensorAddresses.size() + kFeatureAddresses.size(); ++i)
      if (launch.*address(i) != launches.front().*address(i)) {
        differs.push_back(i);
        differs.push_back(launch.*address(i));
      }
    list.push_back(std::move(differs));
  }
  return list;
}

std::vector<Launch> launches_from_json(const nlohmann::json& json) {
  std::vector<Launch> launches;
  for (const nlohmann::json& one : json) {
    if (!one.is_array()) {
      launches.push_back(one.get<Launch>());
      continue;
    }
    if (launches.empty() || one.size() % 2 == 0)
      throw Error(ErrorCode::worker, "a list of launches begins with a whole one, and others have pairs of numbers");
    Launch launch = launches.front();
    launch.shape.scale = one.at(0).get<float>();
    for (std::size_t i = 1; i < one.size(); i += 2) {
      const auto index = integer<std::uint32_t>(one.at(i));
      if (index >= kTensorAddresses.size() + kFeatureAddresses.size())
        throw Error(ErrorCode::worker, "a launch has no such address", std::to_string(index));
      launch.*address(index) = integer<std::uint64_t>(one.at(i + 1));
    }
    launches.push_back(launch);
  }
  return launches;
}

}  // namespace heed::worker
