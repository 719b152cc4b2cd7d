#include "variant/knob.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text.hpp"
#include "heed/heed.hpp"

namespace heed {
namespace {

std::vector<std::string> texts_of(const Knob& knob) {
  std::vector<std::string> texts;
  for (const int value : knob.values) texts.push_back(knob.text_of(value));
  return texts;
}

}  // namespace

std::string Knob::text_of(int value) const {
  const int index = index_of(value);
  return is_named() && index >= 0 ? names[static_cast<std::size_t>(index)] : std::to_string(value);
}

int Knob::index_of(int value) const {
  const auto found = std::find(values.begin(), values.end(), value);
  return found == values.end() ? -1 : static_cast<int>(found - values.begin());
}

bool Knob::acts(Bound bound) const {
  return std::find(acts_on.begin(), acts_on.end(), bound) != acts_on.end();
}

int Knob::parse(std::string_view text) const {
  const std::vector<std::string> texts = texts_of(*this);
  for (std::size_t i = 0; i < texts.size(); ++i)
    if (texts[i] == text) return values[i];
  throw Error(ErrorCode::usage,
              fmt::format("knob {} cannot be \"{}\"; it takes {}", name, text, fmt::join(texts, ", ")),
              std::string(text));
}

std::string to_string(const std::vector<Knob>& knobs, const Config& config) {
  std::string text;
  for (std::size_t i = 0; i < knobs.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? "" : ",", knobs[i].name, knobs[i].text_of(config.at(i)));
  return text;
}

std::string to_compact_string(const std::vector<Knob>& knobs, const Config& config) {
  // Ids are columns of tables and names of files, which may have 255 bytes.
  constexpr std::size_t kMost = 80;
  std::string text;
  int left_out = 0;
  for (std::size_t i = 0; i < knobs.size(); ++i) {
    if (config.at(i) == knobs[i].standard) continue;
    const std::string one = fmt::format("{}={}", knobs[i].name, knobs[i].text_of(config[i]));
    if (left_out > 0 || text.size() + one.size() > kMost)
      ++left_out;
    else
      text += (text.empty() ? "" : ",") + one;
  }
  if (left_out > 0) text += fmt::format(",+{}", left_out);
  return text.empty() ? "standard" : text;
}

Config parse_config(const std::vector<Knob>& knobs, const Config& defaults, std::string_view text) {
  Config config = defaults;
  if (text.empty()) return config;
  std::vector<bool> given(knobs.size(), false);
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string_view name = std::string_view(part).substr(0, equals);
    const auto knob = std::find_if(knobs.begin(), knobs.end(), [&](const Knob& k) { return k.name == name; });
    if (knob == knobs.end()) {
      std::vector<std::string_view> known;
      for (const Knob& k : knobs) known.push_back(k.name);
      throw Error(ErrorCode::usage, fmt::format("unknown knob \"{}\"; {}", name, one_of(name, known)),
                  std::string(name));
    }
    if (equals == std::string::npos)
      throw Error(ErrorCode::usage,
                  fmt::format("knob {} needs a value, as in {}={}", name, name, knob->text_of(knob->values.front())),
                  part);
    const auto index = static_cast<std::size_t>(knob - knobs.begin());
    if (given[index]) throw Error(ErrorCode::usage, fmt::format("knob {} is given twice", name), part);
    given[index] = true;
    config.at(index) = knob->parse(std::string_view(part).substr(equals + 1));
  }
  return config;
}

std::vector<std::string> knobs_acting_on(const std::vector<Knob>& knobs, Bound bound) {
  std::vector<std::string> names;
  for (const Knob& knob : knobs)
    if (knob.acts(bound)) names.push_back(knob.name);
  return names;
}

double space_size(const std::vector<Knob>& knobs) {
  double size = 1;
  for (const Knob& knob : knobs) size *= static_cast<double>(knob.values.size());
  return size;
}

}  // namespace heed
