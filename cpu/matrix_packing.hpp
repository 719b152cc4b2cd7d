/// Q, K and V packed into tiles of bf16 pieces for fwd_cpu's tile products (unit=matrix; matrix_forward.hpp draws
/// them).
#pragma once

#include "cpu/config.hpp"
#include "cpu/matrix_products.hpp"
#include "cpu/pieces.hpp"
#include "cpu/rows.hpp"

#if defined(__x86_64__) && defined(__AVX512F__)

namespace heed::cpu {

/// The packed operands of one block of query rows and one tile of keys. Distances are in bytes.
template <Config kConfig, Problem kProblem>
struct MatrixPacking {
  static constexpr MatrixShape kShape = matrix_shape(kConfig, kProblem);
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kPieces = kShape.pieces;
  static constexpr int kRows = MatrixShape::kGroupRows;
  static constexpr int kColumns = kShape.columns;
  static constexpr int kDepth = kShape.depth;
  static constexpr int kKeys = kConfig.block_n;
  static constexpr long long kQueryRow = kDepth * 2;
  static constexpr long long kQueryPiece = kConfig.block_m * kQueryRow;
  static constexpr long long kKeyStep = tiles::kTileBytes;
  static constexpr long long kKeyColumn = kKeyStep * (kDepth / 32);
  static constexpr long long kKeyPiece = kKeyColumn * (kKeys / 16);
  static constexpr long long kValueColumn = tiles::kTileBytes;
  static constexpr long long kValueStep = kValueColumn * (kColumns / 16);
  static constexpr long long kValuePiece = kValueStep * (kKeys / 32);
  static constexpr bool kPages = kProblem.features.pages;
  using Memory = Stored<kProblem.element>;

  char* queries;              ///< (pieces, block_m, depth)
  char* keys;                 ///< (pieces, block_n / 16, depth / 32) tiles
  char* values;               ///< (pieces, block_n / 32, columns / 16) tiles
  bool queries_split = true;  ///< whether every number is a sum of pieces; so below
  bool keys_split = true;
  bool values_split = true;

  /// Of the product Q K^T, from row number `row` of the block on.
  [[nodiscard]] Operands of_scores(int row) const {
    return {queries + row * kQueryRow, kQueryRow, kQueryPiece, keys, kKeyColumn, kKeyStep, kKeyPiece};
  }
  /// Of the product P V, P in `weights`.
  [[nodiscard]] Operands of_values(const char* weights, long long row, long long piece) const {
    return {weights, row, piece, values, kValueColumn, kValueStep, kValuePiece};
  }

  static Vec load(const Memory* row, int column, int end) { return load_part<kProblem.element>(row, column, end); }

  /// @param query pointer to a row of the block
  template <typename RowOf>
  void pack_queries(int rows, const RowOf& query) {
    IntVec largest{};
    for (int row = 0; row < (rows + kRows - 1) / kRows * kRows; ++row) {
      const Memory* from = query(min(row, rows - 1));
      const int end = row < rows ? kDim : 0;
      for (int d = 0; d < kDepth; d += 32) {
        const Vec even = load(from, d, end);
        const Vec odd = load(from, d + 16, end);
        largest = larger(largest, larger(magnitude_bits(even), magnitude_bits(odd)));
        Pairs pieces[kPieces];
        split_inputs(even, odd, pieces);
        for (int i = 0; i < kPieces; ++i)
          *reinterpret_cast<Pairs*>(queries + i * kQueryPiece + row * kQueryRow + d * 2) = pieces[i];
      }
    }
    queries_split = kPieces == 1 || !any(largest >= kLeastUnsplittable);
  }

  /// Tiles of K^T for `count` keys of a tile, key(j) the j-th: row i of a tile holds elements i and 16 + i of 16 keys.
  template <typename RowOf>
  void pack_keys(int count, const RowOf& key) {
    IntVec largest{};
    for (int j = 0; j < (count + 31) / 32 * 32; j += 16)
      for (int d = 0; d < kDepth; d += 32) {
        IntVec rows[kPieces][16];
        for (int r = 0; r < 16; ++r) {
          const int end = j + r < count ? kDim : 0;
          const Memory* from = key(kPages ? min(j + r, count - 1) : j + r);
          const Vec even = load(from, d, end);
          const Vec odd = load(from, d + 16, end);
          if (kPieces > 1) largest = larger(largest, larger(magnitude_bits(even), magnitude_bits(odd)));
          Pairs pieces[kPieces];
          split_inputs(even, odd, pieces);
          for (int i = 0; i < kPieces; ++i) rows[i][r] = pieces[i];
        }
        for (int i = 0; i < kPieces; ++i) {
          transpose(rows[i]);
          auto* to = reinterpret_cast<IntVec*>(keys + i * kKeyPiece + j / 16 * kKeyColumn + d / 32 * kKeyStep);
          for (int r = 0; r < 16; ++r) to[r] = rows[i][r];
        }
      }
    keys_split = kPieces == 1 || !any(largest >= kLeastUnsplittable);
  }

  /// Tiles of V, value(j) the j-th row of the tile: row i of a tile holds 16 columns of keys i and 16 + i.
  template <typename RowOf>
  void pack_values(int count, long long row_stride, const RowOf& value) {
    IntVec largest{};
    for (int j = 0; j < count; j += 32)
      for (int d = 0; d < kColumns; d += 16)
        for (int r = 0; r < 16; ++r) {
          const Memory* from = value(kPages ? min(j + r, count - 1) : j + r);
          const Memory* next = kPages ? value(min(j + 16 + r, count - 1)) : from + 16 * row_stride;
          const Vec even = load(from, d, j + r < count ? kDim : 0);
          const Vec odd = load(next, d, j + 16 + r < count ? kDim : 0);
          largest = larger(largest, larger(magnitude_bits(even), magnitude_bits(odd)));
          Pairs pieces[kPieces];
          split_inputs(even, odd, pieces);
          for (int i = 0; i < kPieces; ++i)
            reinterpret_cast<Pairs*>(values + i * kValuePiece + j / 32 * kValueStep + d / 16 * kValueColumn)[r] =
                pieces[i];
        }
    values_split = !any(largest >= kLeastUnsplittable);
  }

 private:
  static constexpr int min(int a, int b) { return a < b ? a : b; }
};

}  // namespace heed::cpu

#endif
