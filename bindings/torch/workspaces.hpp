/// Memory beside the tensors that a plan takes for a run (heed_plan_info.workspace_bytes).
#pragma once

#include <heed/heed.h>

#include "call.hpp"
#include "plans.hpp"

namespace heed::torch {

/// A prepared workspace, which lives until the run is queued: PyTorch's allocator gives freed memory to later work of
/// the same stream alone.
class Workspace {
 public:
  /// That of the stream, which plans share that zero as much of it; of a stream that is being captured into a CUDA
  /// graph one of that graph, prepared by a node of it. @throws std::runtime_error
  Workspace(const PlanEntry& entry, const Call& call, void* stream);

  /// Null where the plan takes none.
  [[nodiscard]] void* address() const { return address_; }

 private:
  Tensor own_;
  void* address_ = nullptr;
};

/// Gives the streams' workspaces back to PyTorch's allocator.
void free_workspaces();

}  // namespace heed::torch
