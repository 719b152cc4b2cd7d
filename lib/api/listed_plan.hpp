/// Plans that look at a boolean mask or a bias once before each launch, and compute the blocks of scores that it leaves
/// (lib/listing).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "api/plan.hpp"
#include "listing/listing.hpp"

namespace heed::api {

/// The problem with lists of blocks that runs in place of a caller's.
struct ListedDecision {
  Problem inner;  ///< the caller's, with lists of the pass
  Choice choice;  ///< for that one, or for its first launch
  Choice lister;  ///< the pass's program; of a CPU nothing
};
/// Nothing where the problem is run as it is: heed_options.listing says so, it has no bias or has lists of its own, the
/// caller names a variant, a pass would not pay (pays_to_list), or no program takes it with lists.
std::optional<ListedDecision> decide_listed(const Problem& problem, const Options& options, const DeviceFacts& device);

/// Whether HEED_LIST_AUTO lists the blocks of a problem with a bias: those of 256 rows and 512 keys or more. Of values
/// that are added only where heads share them, as they do those of masks that models write as numbers; a bias of each
/// head hides little, and is as much to read again as the scores are to compute.
bool pays_to_list(const Problem& problem);

std::unique_ptr<Plan> make_listed_plan(const Problem& problem, ListedDecision decision, const Options& options);

/// Runs passes.
class Lister {
 public:
  virtual ~Lister() = default;
  Lister(const Lister&) = delete;
  Lister& operator=(const Lister&) = delete;
  /// Queues a pass; on a CPU it is done on return. @return microseconds on a CPU, else 0
  virtual double list(const listing::Pass& pass, void* stream) const = 0;

 protected:
  Lister() = default;
};
/// @param program of choose_lister
std::unique_ptr<Lister> make_gpu_lister(const Problem& problem, const Choice& program);
/// The pass's program for a device. @throws Error(unsupported), Error(programs)
Choice choose_lister(const Options& options, const DeviceFacts& device);

}  // namespace heed::api
