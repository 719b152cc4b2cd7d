/// The addresses of fwd_sm90_stream's shared memory: SharedPlan and BarrierPlan, where a block's begins.
#pragma once

#include "kernels/stream/shared_plan.hpp"

namespace heed::stream {

/// Which of a block's teams this is; where it is the only one, no register holds that.
template <int kTeams>
struct Team {
  int team;
};
template <>
struct Team<1> {
  static constexpr int team = 0;
};

/// Where things lie in a block's shared memory; with several teams in one team's.
template <const Config& kConfig, const Problem& kProblem>
struct Layout : Team<kConfig.teams> {
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  using Team<kConfig.teams>::team;
  unsigned shared;  ///< where the team's begins

  /// @param block_shared where the block's begins
  __device__ __forceinline__ static Layout of_team(unsigned block_shared, int team) {
    if constexpr (kConfig.teams == 1)
      return {{}, block_shared};
    else
      return {{team}, block_shared + team * kPlan.team_bytes};
  }

  /// From the team's start to its barriers, or what lies behind them.
  __device__ __forceinline__ unsigned behind(int offset) const {
    if constexpr (kConfig.teams == 1) return shared + offset;
    return shared + offset - team * (kPlan.team_bytes - kPlan.team_barriers);
  }
  __device__ __forceinline__ unsigned barrier(int index) const { return behind(kPlan.barriers) + 8 * index; }
  __device__ __forceinline__ unsigned queries_barrier(int stage, int row_group) const {
    return barrier(kBarriers.queries + stage * kConfig.row_groups + row_group);
  }
  __device__ __forceinline__ unsigned queries_freed(int stage) const {
    return barrier(kBarriers.queries_freed + stage);
  }
  __device__ __forceinline__ unsigned ring_barrier(int group, int stage) const {
    return barrier(kBarriers.ring + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned ring_freed(int group, int stage) const {
    return barrier(kBarriers.ring_freed + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned inbox(int row_group) const { return barrier(kBarriers.inbox + row_group); }
  __device__ __forceinline__ unsigned queries(int stage) const { return shared + kPlan.q + stage * kPlan.query_bytes; }
  __device__ __forceinline__ unsigned keys(int group, int stage) const {
    return shared + kPlan.ring + (2 * group * kConfig.stages + stage) * kPlan.operand;
  }
  __device__ __forceinline__ unsigned values(int group, int stage) const {
    return shared + kPlan.ring + ((2 * group + 1) * kConfig.stages + stage) * kPlan.operand;
  }
  /// A thread's first 16 bytes of what row groups 2 `pair` and 2 `pair` + 1 hand over.
  __device__ __forceinline__ unsigned help(int pair, int group, int thread) const {
    return shared + kPlan.help + (pair * kConfig.key_groups + group) * kPlan.help_bytes + thread * 16;
  }
  __device__ __forceinline__ unsigned row_tile(int stage) const { return behind(kPlan.row_tiles) + 16 * stage; }
};

}  // namespace heed::stream
