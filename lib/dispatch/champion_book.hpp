/// Which variant to run for a workload: the winners of finished searches, as `heed champions` writes them to
/// tuned/champions.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed::dispatch {

class ChampionBook {
 public:
  /// @param name of the file, for messages
  /// @throws Error(usage) for text that is no such document
  static ChampionBook parse(std::string_view text, std::string_view name);

  /// The variant that the book names as the champion of a workload on a device, as parse_variant reads it; or, where
  /// the book says nothing of that device, of the first other device of its architecture. Nothing where a search on
  /// that device found nothing faster than its base, and where the book knows no champion.
  [[nodiscard]] std::optional<std::string> find(const Workload& workload, std::string_view arch,
                                                std::string_view device) const;

 private:
  struct Entry {
    std::string workload;  ///< in its canonical text
    std::string arch;
    std::string device;
    std::string variant;  ///< empty where nothing beat the base
  };
  std::vector<Entry> entries_;
};

}  // namespace heed::dispatch
