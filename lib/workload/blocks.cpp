#include "workload/blocks.hpp"

#include <algorithm>

#include "base/random.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

namespace heed {
namespace {

constexpr std::int32_t kNoBlock = 0x3fffffff;  // behind a list that has all blocks

std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return (length + block - 1) / block;
}

// Numbers [first, last] of the blocks of the own keys of a block of rows; may lie outside of the keys.
struct OwnBlocks {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

OwnBlocks own_blocks(const Workload& w, std::int64_t row_block) {
  const BlockPattern& p = *w.blocks;
  // Without a mask as at the bottom right.
  const std::int64_t moved = w.mask == Mask::none ? w.len_k - w.len_q : w.own_key(0);
  const std::int64_t end = std::min(w.len_q, (row_block + 1) * p.rows);
  return {floor_divided(row_block * p.rows + moved, p.keys), floor_divided(end - 1 + moved, p.keys)};
}

// Sets what the parts without chance name.
void name_blocks(const Workload& w, std::int64_t row_block, std::vector<char>& seen) {
  const BlockPattern& p = *w.blocks;
  const auto keys = static_cast<std::int64_t>(seen.size());
  const OwnBlocks own = own_blocks(w, row_block);
  const bool names_any = names_any_block(p);
  for (std::int64_t key = 0; key < keys; ++key) {
    const std::int64_t away = key < own.first ? own.first - key : key > own.last ? key - own.last : 0;
    bool is_seen = !names_any || key < p.globals || row_block < p.globals;
    if (p.window) is_seen = is_seen || (away <= *p.window * p.dilation && away % p.dilation == 0);
    if (p.stride > 0) is_seen = is_seen || away % p.stride == 0;
    if (p.wavefront > 0) is_seen = is_seen || (row_block + key) % p.wavefront == 0;
    if (is_seen) seen[static_cast<std::size_t>(key)] = 1;
  }
}

void draw_blocks(const BlockPattern& p, Random& random, std::vector<char>& seen) {
  if (p.density > 0)
    for (char& block : seen) block = random.chance(p.density) ? 1 : block;
  for (std::int64_t i = 0; i < p.random; ++i) seen[random.below(seen.size())] = 1;
}

// Scores that the mask leaves rows [row, row_end) of keys [key, key_end).
double scores_within(const Workload& w, std::int64_t row, std::int64_t row_end, std::int64_t key,
                     std::int64_t key_end) {
  if (row >= row_end || key >= key_end) return 0;
  const KeySpan span = key_span(mask_kind(w), mask_bounds(w), static_cast<int>(row), static_cast<int>(row_end));
  if (key >= span.full_begin && key_end <= span.full_end)
    return static_cast<double>(row_end - row) * static_cast<double>(key_end - key);
  double scores = 0;
  if (key >= std::max<std::int64_t>(span.end, w.prefix) || key_end <= span.begin) return scores;
  for (std::int64_t r = row; r < row_end; ++r) {
    const KeyRange keys = w.keys_of(r);
    scores += static_cast<double>(std::max<std::int64_t>(0, std::min(key_end, keys.end) - std::max(key, keys.begin)));
  }
  return scores;
}

}  // namespace

bool names_any_block(const BlockPattern& p) {
  return p.window || p.globals > 0 || p.random > 0 || p.stride > 0 || p.wavefront > 0 || p.density > 0;
}

bool BlockLists::has(std::int64_t entry, std::int64_t head, std::int64_t row_block, std::int64_t key_block) const {
  const std::size_t at = list(entry, head, row_block);
  const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(at) * most;
  return std::binary_search(begin, begin + counts[at], static_cast<std::int32_t>(key_block));
}

BlockLists block_lists(const Workload& w) {
  const BlockPattern& p = *w.blocks;
  BlockLists lists{
      .batch = p.by_batch ? w.batch : 1, .heads = p.by_head ? w.heads : 1, .rows = blocks_of(w.len_q, p.rows)};
  const std::int64_t keys = blocks_of(w.len_k, p.keys);
  std::vector<std::vector<std::int32_t>> all;
  std::vector<std::int32_t> behind;  // what follows each list
  for (std::int64_t i = 0; i < lists.batch * lists.heads; ++i) {
    Random random(substream(p.seed, static_cast<std::uint64_t>(i)));
    for (std::int64_t row_block = 0; row_block < lists.rows; ++row_block) {
      std::vector<char> seen(static_cast<std::size_t>(keys));
      name_blocks(w, row_block, seen);
      draw_blocks(p, random, seen);
      std::vector<std::int32_t>& list = all.emplace_back();
      behind.push_back(kNoBlock);
      for (std::int64_t key = 0; key < keys; ++key)
        if (seen[static_cast<std::size_t>(key)] != 0)
          list.push_back(static_cast<std::int32_t>(key));
        else
          behind.back() = static_cast<std::int32_t>(key);
      lists.most = std::max(lists.most, static_cast<std::int64_t>(list.size()) + 1);
    }
  }
  lists.numbers.reserve(all.size() * static_cast<std::size_t>(lists.most));
  for (std::size_t i = 0; i < all.size(); ++i) {
    lists.counts.push_back(static_cast<std::int32_t>(all[i].size()));
    all[i].resize(static_cast<std::size_t>(lists.most), behind[i]);
    lists.numbers.insert(lists.numbers.end(), all[i].begin(), all[i].end());
  }
  return lists;
}

double listed_scores(const Workload& w) {
  constexpr std::int64_t kMostEntries = 4096;  // of many entries as many are looked at as tell the sum
  const BlockPattern& p = *w.blocks;
  if (!names_any_block(p)) {
    Workload dense = w;
    dense.blocks.reset();
    return dense.visible_scores();
  }
  const bool are_equal = !p.by_batch && !w.has_lengths() && w.prefix == 0;
  Workload some = w;
  some.batch = are_equal ? 1 : std::min(w.batch, kMostEntries);
  const BlockLists lists = block_lists(some);
  const std::vector<EntryLengths> lengths = lengths_of(some);
  const std::vector<std::int32_t> prefixes = prefix_lengths_of(some);
  double sum = 0;
  for (std::int64_t b = 0; b < some.batch; ++b) {
    Workload entry = entry_of(w, lengths[static_cast<std::size_t>(b)]);
    if (!prefixes.empty()) entry.prefix = prefixes[static_cast<std::size_t>(b)];
    for (std::int64_t h = 0; h < lists.heads; ++h)
      for (std::int64_t row = 0; row < blocks_of(entry.len_q, p.rows); ++row) {
        const std::size_t at = lists.list(b, h, row);
        const std::int64_t row_end = std::min(entry.len_q, (row + 1) * p.rows);
        for (std::int64_t i = 0; i < lists.counts[at]; ++i) {
          const std::int64_t key =
              p.keys * lists.numbers[at * static_cast<std::size_t>(lists.most) + static_cast<std::size_t>(i)];
          sum += scores_within(entry, row * p.rows, row_end, key, std::min(entry.len_k, key + p.keys));
        }
      }
  }
  const std::int64_t heads_of_a_list = w.heads / lists.heads;
  return sum * static_cast<double>(heads_of_a_list) * static_cast<double>(w.batch) / static_cast<double>(some.batch);
}

}  // namespace heed
