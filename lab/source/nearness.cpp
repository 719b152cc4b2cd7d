#include "source/nearness.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "compile/embedded.hpp"
#include "source/editable.hpp"

namespace heed::source {
namespace {

constexpr int kOfOthers = 1000;  // steps to a file of other values: more than any chain of includes has

enum class Speaks { of_nothing, of_config, of_others };

// "/kernels/sm90/x/kv_tiles" holds "kv_tiles" as a whole word, or several in a row.
bool has_words(const std::string& name, const std::string& words) {
  return ("_" + name + "_").find("_" + words + "_") != std::string::npos;
}

// Names of a file and of the folders that it lies in below the family's.
std::vector<std::string> names_of(const std::string& path, const std::string& family_folder) {
  const std::string below = path.starts_with(family_folder) ? path.substr(family_folder.size()) : path;
  std::vector<std::string> names = split(below, '/');
  names.back() = names.back().substr(0, names.back().rfind('.'));
  return names;
}

std::string name_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  return file.substr(0, file.rfind('.'));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

// Whether the names differ in exactly one word, of two or more.
bool differ_in_a_word(const std::string& a, const std::string& b) {
  const std::vector<std::string> left = split(a, '_');
  const std::vector<std::string> right = split(b, '_');
  if (left.size() != right.size() || left.size() < 2) return false;
  int others = 0;
  for (std::size_t i = 0; i < left.size(); ++i) others += left[i] == right[i] ? 0 : 1;
  return others == 1;
}

class Graph {
 public:
  explicit Graph(const Variant& variant)
      : variant_(variant), folder_(std::string(variant.family->folder()) + "/"), unit_(variant.unit()) {
    const Config& config = variant.config;
    const std::vector<Knob>& knobs = variant.family->knobs();
    for (std::size_t i = 0; i < std::min(knobs.size(), config.size()); ++i)
      for (std::size_t n = 0; n < knobs[i].names.size(); ++n) {
        const std::string& name = knobs[i].names[n];
        if (name.size() < 4) continue;  // "on", "off", "q": words of anything
        (knobs[i].values[n] == config[i] ? of_config_ : of_others_).insert(name);
      }
  }

  std::map<std::string, Nearness> walk() {
    std::map<std::string, int> steps;
    using Open = std::pair<int, std::string>;
    std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
    open.emplace(0, std::string(Overlay::kEntry));
    while (!open.empty()) {
      const auto [far, path] = open.top();
      open.pop();
      if (!steps.emplace(path, far).second) continue;
      const std::vector<std::string> included = compile::includes_of(text_of(path));
      for (const std::string& one : included)
        if (compile::device_files().contains(one) && !steps.contains(one)) open.emplace(far + cost(one, included), one);
    }
    std::map<std::string, Nearness> all;
    for (const auto& [path, text] : editable(*variant_.family)) {
      const auto at = steps.find(path);
      const int far = at == steps.end() ? std::numeric_limits<int>::max() : at->second;
      all[path] = {.steps = far, .is_of_others = far >= kOfOthers};
    }
    return all;
  }

 private:
  [[nodiscard]] std::string_view text_of(const std::string& path) const {
    return path == Overlay::kEntry ? std::string_view(unit_) : compile::device_file(path, variant_.overlay.get());
  }

  [[nodiscard]] Speaks speaks(const std::string& path) const {
    Speaks all = Speaks::of_nothing;
    for (const std::string& name : names_of(path, folder_)) {
      for (const std::string& value : of_config_)
        if (has_words(name, value)) return Speaks::of_config;
      for (const std::string& value : of_others_)
        if (has_words(name, value)) all = Speaks::of_others;
    }
    return all;
  }

  [[nodiscard]] int cost(const std::string& path, const std::vector<std::string>& beside) const {
    switch (speaks(path)) {
      case Speaks::of_config:
        return 0;
      case Speaks::of_others:
        return kOfOthers;
      case Speaks::of_nothing:
        break;
    }
    for (const std::string& other : beside)
      if (folder_of(other) == folder_of(path) && differ_in_a_word(name_of(other), name_of(path)) &&
          speaks(other) == Speaks::of_config)
        return kOfOthers;
    return 1;
  }

  const Variant& variant_;
  std::string folder_;
  std::string unit_;  // what stands before the entry includes the family's files
  std::set<std::string> of_config_;
  std::set<std::string> of_others_;
};

}  // namespace

std::map<std::string, Nearness> nearness_of(const Variant& variant) {
  return Graph(variant).walk();
}

}  // namespace heed::source
