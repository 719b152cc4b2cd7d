/// fwd_sm90_decode: few queries, many keys, grouped heads, on Hopper. Bound by memory: every key and value is read
/// once.
///
/// The query rows that share a key head are one matrix of group_size * len_q packed rows (config.hpp: PackedRow), cut
/// into tiles of block_m. A tile of rows and all its keys are a job; the key tiles of all jobs are one line that is cut
/// into equal ranges, one a block (config.hpp: Share), so that all multiprocessors end at the same time whatever the
/// shape. Within a block:
///
///   warps that compute   all take every tile, each some keys and then some columns (columns.cuh), or groups of them
///                        take whole tiles in turn (tiles.cuh)
///   producer warp        one lane asks for tile after tile, by bulk tensor copies into a ring of stages (block.cuh).
///                        By tiles it may be absent: every group then asks for its own, as it has read a stage
///   helping warps        count the block in where it shares a job, and let the L2 fetch the next job's queries. By
///                        tiles they merge partial results while the groups go on
///
/// The ring runs on over the ends of jobs: while partial results meet, the next job's keys are under way. Those of
/// blocks meet in global memory. There every word is valid by itself, zero until it is written and never written as
/// zero (word_of): the block that merges reads it until it is there, and leaves zero. So no word needs a fence, and the
/// order in which words arrive does not matter. After Flash-Decoding (Dao et al. 2023), without its second kernel.
///
/// The block that is counted in last at a job merges. A job's first block is counted in shortly before it has read all
/// of its segment (kCountedAhead), the others when they begin theirs, so that it is the first block where all run at a
/// time. Its own part does not travel, and comes last in the sum whoever merges.
///
/// No block waits for ever, however few run at a time and in whichever order. A block waits for others in receive()
/// alone, for words of a job that all its blocks were counted in at: those that it waits for have begun. They send
/// without waiting for anybody, unless they are themselves in receive(), of an earlier job: blocks work through jobs in
/// ascending order. By induction over jobs, from the first, which has none before it, every wait ends.
///
/// A word is written once, read by one thread (row maximum and sum: by lanes of one warp) and then cleared by it, all
/// in one launch. The end of a launch orders what it cleared before all of the next; so does griddepcontrol.wait, which
/// returns once the launch before has ended, where the next begins before that.
#pragma once

#include "kernels/sm90/decode/columns.cuh"
#include "kernels/sm90/decode/tiles.cuh"

namespace heed::sm90_decode {

template <bool kByColumns, const Config& kConfig, const Problem& kProblem>
struct Chosen {
  using Type = ByTiles<kConfig, kProblem>;
};
template <const Config& kConfig, const Problem& kProblem>
struct Chosen<true, kConfig, kProblem> {
  using Type = ByColumns<kConfig, kProblem>;
};

template <const Config& kConfig, const Problem& kProblem>
using Forward = typename Chosen<by_columns(kConfig), kConfig, kProblem>::Type;

}  // namespace heed::sm90_decode
