/// Chains: launches that feed each other, one straight after the other, as an engine that runs layers issues them.
///
/// Single launches cannot show that a kernel reads its inputs before the launch before it has written them, or that two
/// launches share workspace, semaphores or scratch memory. A chain lies in one image:
///
///   | scene of the first launch | O of the second | guard | O of the third | guard | ...
///
/// Launch n takes the output of launch n - 1 for its Q, or in turn for its K and V where their shapes are equal; all
/// other inputs, workspace and semaphores are those of the scene. Every output is poisoned before.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "verify/scene.hpp"

namespace heed::verify {

/// Launches of a chain: each of Q, K and V is fed twice.
inline constexpr int kChainLaunches = 7;

class Chain {
 public:
  /// @param plan of the workload, whose dim_v must equal dim
  Chain(const Workload& workload, const LaunchPlan& plan, std::uint64_t seed);

  [[nodiscard]] const std::vector<std::byte>& image() const { return image_; }
  [[nodiscard]] const std::vector<worker::Launch>& launches() const { return launches_; }

  /// What the launches left, against what the same launches left that were waited for.
  struct Difference {
    Finding finding = Finding::none;  ///< broken_chain, or a forbidden write
    std::string text;                 ///< "launch 3 of 7: O differs at element 17 (nan instead of 0.25)"
  };
  /// @param exact bit for bit; else within what rounding may do to every element
  [[nodiscard]] Difference compare(const std::byte* waited, const std::byte* after, bool exact) const;

 private:
  Scene scene_;
  std::vector<std::byte> image_;
  std::vector<worker::Launch> launches_;
  std::vector<std::uint64_t> outputs_;  // offsets
};

/// The workload that a chain of a variant runs on: the workload itself where a chain of it is small enough, else one
/// like it with fewer heads and rows, if the variant runs that. Where K and V have not the shape of Q, a second one in
/// which they have.
std::vector<Workload> chain_workloads(const Variant& variant, const Workload& workload, const DeviceFacts& device);

/// Bytes of a chain's image at most.
std::uint64_t chain_bytes(const Workload& workload, const LaunchPlan& plan);

}  // namespace heed::verify
