/// The table of tuned champions: the winners of finished searches as text, without their binaries, as `heed champions`
/// writes them to tuned/champions.json. Where the book (dispatch/book.hpp) holds programs, this holds their names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/provenance.hpp"
#include "heed/heed.hpp"

namespace heed::dispatch {

/// An entry of the table.
struct TunedEntry {
  std::string workload;  ///< in its canonical text
  std::string arch;
  std::string variant;  ///< in the names of when it was stored; empty where nothing beat the base
  Provenance provenance;
};

class TunedTable {
 public:
  /// @param name of the file, for messages
  /// @throws Error(usage) for text that is no such document
  static TunedTable parse(std::string_view text, std::string_view name);

  /// The variant that the table names as the champion of a workload on a device, as parse_variant reads it; or, where
  /// the table says nothing of that device, of the first other device of its architecture. Nothing where a search on
  /// that device found nothing faster than its base, and where the table knows no champion.
  [[nodiscard]] std::optional<std::string> find(const Workload& workload, std::string_view arch,
                                                std::string_view device) const;

  /// Champions, then bases that nothing beat.
  [[nodiscard]] const std::vector<TunedEntry>& entries() const { return entries_; }

 private:
  std::vector<TunedEntry> entries_;
};

}  // namespace heed::dispatch
