/// Whether an entry of a book may be run: what `heed book import` and `heed book verify` ask.
#pragma once

#include <optional>
#include <string>
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

/// The gate on the binary of the book. @return why it fails; empty where it passes; nothing where this machine cannot
/// run it, with the reason in `skipped`
std::optional<std::string> gate_entry(const dispatch::BookEntry& entry, const MachineOptions& machine,
                                      std::string& skipped);

}  // namespace heed::cli
