/// Whether an entry of a book may be run: what `heed book import` and `heed book verify` ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/command.hpp"
#include "dispatch/book.hpp"

namespace heed::cli {

struct BookFinding {
  std::string refused;                ///< why it may not be run; empty where it may
  std::vector<std::string> warnings;  ///< what is worth knowing of one that may
};

/// The kernel contract, the architecture, the variant and its legality, and the binary itself: that it is of that
/// architecture, holds the machine code that its record names, and keeps to the contract. Of the program of another CPU
/// the binary alone.
BookFinding check_entry(const dispatch::BookEntry& entry);

/// What became of an entry at the gate.
struct GateFinding {
  enum class State { passed, failed, skipped };
  State state = State::passed;
  std::string why;  ///< the failed check and its reason, or why this machine cannot run the entry
};
std::string_view to_string(GateFinding::State state);

/// The gate's cases of the entry's workload on the binary of the book, which is not built again. An entry of another
/// architecture than that of this machine's device is skipped.
GateFinding gate_entry(const dispatch::BookEntry& entry, const MachineOptions& machine);

}  // namespace heed::cli
