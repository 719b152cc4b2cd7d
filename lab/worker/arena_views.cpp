#include "worker/arena_views.hpp"

#include <map>

#include "base/check.hpp"

namespace heed::worker {

std::vector<PageRange> pages_in_reach(std::span<const CpuLaunch> launches, const std::byte* image, std::uint64_t bytes,
                                      std::uint64_t page) {
  std::map<std::uint64_t, bool> starts;  // offset of a tensor, whether it is written
  const auto add = [&](const void* tensor, bool written) {
    if (tensor == nullptr) return;
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(tensor) - image);
    HEED_CHECK(offset < bytes);
    bool& known = starts.try_emplace(offset, written).first->second;
    known = known || written;
  };
  for (const CpuLaunch& launch : launches) {
    const FeatureParams& p = launch.params;
    for (const void* input :
         {p.q, p.k, p.v, p.bias, static_cast<const void*>(p.alibi_slopes), static_cast<const void*>(p.sinks),
          static_cast<const void*>(p.cu_seqlens_q), static_cast<const void*>(p.cu_seqlens_k),
          static_cast<const void*>(p.seqused_k), static_cast<const void*>(p.page_table),
          static_cast<const void*>(p.block_counts), static_cast<const void*>(p.block_indices),
          static_cast<const void*>(p.prefix_lengths), static_cast<const void*>(p.relative_bias),
          static_cast<const void*>(p.q_scales.at), static_cast<const void*>(p.k_scales.at),
          static_cast<const void*>(p.v_scales.at), p.out_gate, static_cast<const void*>(p.out_norm_weight)})
      add(input, false);
    for (const void* output : {static_cast<const void*>(p.o), static_cast<const void*>(p.lse),
                               static_cast<const void*>(p.workspace), static_cast<const void*>(p.semaphores)})
      add(output, true);
  }
  std::vector<PageRange> ranges;
  for (auto at = starts.begin(); at != starts.end(); ++at) {
    const auto next = std::next(at);
    const std::uint64_t end = next == starts.end() ? (bytes + page - 1) / page * page : next->first / page * page;
    PageRange range{at->first / page * page, end, at->second};
    if (range.end <= range.begin) range.end = range.begin + page;
    if (!ranges.empty() && ranges.back().end > range.begin) {  // both have a part of one page
      PageRange& before = ranges.back();
      if (before.writable || !range.writable)
        range.begin = before.end;
      else
        before.end = range.begin;
      if (before.end <= before.begin) ranges.pop_back();
      if (range.end <= range.begin) continue;
    }
    if (!ranges.empty() && ranges.back().end == range.begin && ranges.back().writable == range.writable)
      ranges.back().end = range.end;
    else
      ranges.push_back(range);
  }
  return ranges;
}

}  // namespace heed::worker
