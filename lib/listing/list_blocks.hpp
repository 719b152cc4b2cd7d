/// Lists of the blocks of keys that a boolean mask or a bias leaves: what a pass over it is told, on every device.
///
/// The tensor is looked at once by blocks of 64 rows and 64 keys, as FlexAttention's create_block_mask does
/// (torch.nn.attention.flex_attention). Of what the mask of the problem lets a row see, the bias of a block
///
///     hides all         the block is in no list: its keys are not read
///     shows all, as is  it is listed as a full block (kFullBlock): the bias is not read there
///     else              it is listed
///
/// so that attention over the lists, with the bias, is attention over all keys. Lists are in order of keys. What heads,
/// entries or rows share of the tensor, by a stride of 0, they share of the lists.
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/attention/mask.hpp"

namespace heed::listing {

inline constexpr int kBlock = kLeastBlock;  ///< rows, and keys

/// The parameter of the entry `heed_list_blocks`.
struct Pass {
  const void* bias;
  long long bias_batch;  ///< strides in elements
  long long bias_head;
  long long bias_row;
  long long bias_key;
  int* counts;   ///< (batch, heads, row_blocks), dense
  int* indices;  ///< (batch, heads, row_blocks, most), dense
  int batch;     ///< 1 where entries share a tensor, and so on
  int heads;
  int row_blocks;
  int most;   ///< numbers that a list has room for: blocks of len_k keys
  int len_q;  ///< 1 where rows share
  int len_k;
  int element;  ///< a BiasElement
  /// Scores that the bounds of the mask hide do not count. MaskKind::none where they differ among what shares a list,
  /// or where lengths of entries or prefixes move them: lists are longer then, not wrong.
  int mask;
  int left_offset;
  int right_offset;
  int is_wide;  ///< whether every 16 bytes of a row of a block lie at a multiple of 16 bytes
};

inline constexpr int kListThreads = 256;

/// Bytes of a number of the bias.
HEED_HOST_DEVICE constexpr int bias_bytes(const Pass& pass) {
  return bytes_of(static_cast<BiasElement>(pass.element));
}
/// Lists that a pass makes.
HEED_HOST_DEVICE constexpr long long lists_of(const Pass& pass) {
  return static_cast<long long>(pass.batch) * pass.heads * pass.row_blocks;
}

/// What a bias does to scores, as bits.
inline constexpr unsigned kHides = 1;
inline constexpr unsigned kShows = 2;    ///< as they are
inline constexpr unsigned kChanges = 4;  ///< and shows them
/// Nothing more can be found of a block with both.
inline constexpr unsigned kPartial = kHides | kShows;

/// By the bits of one number: 0 of a boolean one hides, and -infinity and the most negative finite number of the others
/// do (features.hpp).
template <BiasElement kElement>
HEED_HOST_DEVICE constexpr unsigned effect_of(unsigned bits) {
  if constexpr (kElement == BiasElement::boolean) {
    return bits == 0 ? kHides : kShows;
  } else {
    constexpr unsigned kSign = 1U << (8 * BiasTraits<kElement>::bytes - 1);
    constexpr unsigned kInfinity = BiasTraits<kElement>::minus_infinity;
    if ((bits & (kSign - 1)) == 0) return kShows;
    return bits == kInfinity || bits == kInfinity - 1 ? kHides : kChanges;
  }
}

/// Whether a block whose scores have these effects is listed, and as a full one.
HEED_HOST_DEVICE constexpr bool is_listed(unsigned effects) {
  return (effects & (kShows | kChanges)) != 0;
}
HEED_HOST_DEVICE constexpr int number_of(int block, unsigned effects) {
  return effects == kShows ? block + kFullBlock : block;
}

/// Which list of which tensor comes `index`-th.
struct ListPlace {
  int entry;
  int head;
  int block;  ///< of rows
};
HEED_HOST_DEVICE constexpr ListPlace place_of(const Pass& pass, long long index) {
  return {static_cast<int>(index / pass.row_blocks / pass.heads),
          static_cast<int>(index / pass.row_blocks % pass.heads), static_cast<int>(index % pass.row_blocks)};
}

/// The first number of a head's tensor.
HEED_HOST_DEVICE inline const char* bias_of_head(const Pass& pass, const ListPlace& at) {
  return static_cast<const char*>(pass.bias) +
         (at.entry * pass.bias_batch + at.head * pass.bias_head) * bias_bytes(pass);
}

/// Of the keys of block `block` those that row `row` may see: [begin, end), counted from the tensor's first.
struct KeysOfRow {
  int begin;
  int end;
};
HEED_HOST_DEVICE constexpr KeysOfRow keys_of_row(const Pass& pass, int row, int block) {
  const auto mask = static_cast<MaskKind>(pass.mask);
  const int first = hidden_keys(mask, row, pass.left_offset, pass.len_k);
  const int last = visible_keys(mask, row, pass.right_offset, pass.len_k);
  const int begin = block * kBlock;
  return {first > begin ? first : begin, last < begin + kBlock ? last : begin + kBlock};
}

}  // namespace heed::listing
