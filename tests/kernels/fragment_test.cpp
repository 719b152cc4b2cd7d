// The fragment maps, by doing a warp's work on the host: tiles laid out in shared memory, ldmatrix, mma, and back.
#include "kernels/tile/fragment.hpp"

#include <array>
#include <set>

#include "base/random.hpp"
#include "kernels/tile/shared_tile.hpp"
#include "testing.hpp"

namespace heed::tile {
namespace {

constexpr int kLanes = 32;

// What ldmatrix.x4 gives each lane: registers of two elements. `address(lane)` is the byte offset of the 16-byte row a
// lane names.
using Registers = std::array<std::array<std::array<int, 2>, 4>, kLanes>;
template <typename Address>
Registers ldmatrix_x4(const std::vector<int>& shared, const Address& address, bool transposed) {
  Registers r;
  for (int matrix = 0; matrix < 4; ++matrix) {
    int tile[8][8];
    for (int row = 0; row < 8; ++row) {
      const int offset = address(8 * matrix + row);
      EXPECT_EQ(offset % 16, 0);
      for (int column = 0; column < 8; ++column)
        tile[row][column] = shared[static_cast<std::size_t>(offset / 2 + column)];
    }
    for (int lane = 0; lane < kLanes; ++lane)
      for (int half = 0; half < 2; ++half)
        r[static_cast<std::size_t>(lane)][static_cast<std::size_t>(matrix)][static_cast<std::size_t>(half)] =
            transposed ? tile[2 * (lane % 4) + half][lane / 4] : tile[lane / 4][2 * (lane % 4) + half];
  }
  return r;
}

// Elements of a (rows, dim) tile are numbered 1000 * row + column.
std::vector<int> numbered_tile(SharedLayout layout, int dim, int rows) {
  std::vector<int> shared(static_cast<std::size_t>(tile_bytes(layout, dim, rows) / 2), -1);
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < dim; ++column)
      shared[static_cast<std::size_t>(chunk_offset(layout, dim, row, column / 8) / 2 + column % 8)] =
          1000 * row + column;
  return shared;
}

class Fragments : public ::testing::TestWithParam<std::tuple<SharedLayout, int>> {};

TEST_P(Fragments, QueryBlockIsTheAOperand) {
  const auto [layout, dim] = GetParam();
  const std::vector<int> shared = numbered_tile(layout, dim, 32);
  for (const int row : {0, 16})
    for (int k = 0; k < dim / 16; ++k) {
      const Registers r = ldmatrix_x4(
          shared,
          [&, l = layout, d = dim](int lane) {
            const Coordinate at = ldmatrix_a_address(lane);
            return chunk_offset(l, d, row + at.row, 2 * k + at.column / 8);
          },
          false);
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i)
          for (int half = 0; half < 2; ++half) {
            const Coordinate element = a_element(lane, i, half);
            ASSERT_EQ(r[static_cast<std::size_t>(lane)][static_cast<std::size_t>(i)][static_cast<std::size_t>(half)],
                      1000 * (row + element.row) + 16 * k + element.column);
          }
    }
}

TEST_P(Fragments, KeyBlockIsTwoBOperands) {
  const auto [layout, dim] = GetParam();
  const std::vector<int> shared = numbered_tile(layout, dim, 32);
  for (int n = 0; n < 4; n += 2)
    for (int k = 0; k < dim / 16; ++k) {
      const Registers r = ldmatrix_x4(
          shared,
          [&, l = layout, d = dim](int lane) {
            const Coordinate at = ldmatrix_k_address(lane);
            return chunk_offset(l, d, 8 * n + at.row, 2 * k + at.column / 8);
          },
          false);
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i)
          for (int half = 0; half < 2; ++half) {
            const Coordinate element = b_element(lane, i % 2, half);  // row is the head dim, column the key
            ASSERT_EQ(r[static_cast<std::size_t>(lane)][static_cast<std::size_t>(i)][static_cast<std::size_t>(half)],
                      1000 * (8 * (n + i / 2) + element.column) + 16 * k + element.row);
          }
    }
}

TEST_P(Fragments, ValueBlockIsTwoTransposedBOperands) {
  const auto [layout, dim] = GetParam();
  const std::vector<int> shared = numbered_tile(layout, dim, 32);
  for (int k = 0; k < 2; ++k)
    for (int n = 0; n < dim / 8; n += 2) {
      const Registers r = ldmatrix_x4(
          shared,
          [&, l = layout, d = dim](int lane) {
            const Coordinate at = ldmatrix_v_address(lane);
            return chunk_offset(l, d, 16 * k + at.row, n + at.column / 8);
          },
          true);
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i)
          for (int half = 0; half < 2; ++half) {
            const Coordinate element = b_element(lane, i % 2, half);  // row is the key, column the value column
            ASSERT_EQ(r[static_cast<std::size_t>(lane)][static_cast<std::size_t>(i)][static_cast<std::size_t>(half)],
                      1000 * (16 * k + element.row) + 8 * (n + i / 2) + element.column);
          }
    }
}

// ldmatrix reads 8 rows of 16 bytes at a time: free of conflicts when they lie in 8 different groups of 4 banks.
TEST_P(Fragments, BankConflictsAreWhatTheLayoutSays) {
  const auto [layout, dim] = GetParam();
  for (int chunk = 0; chunk < dim / 8; ++chunk)
    for (int row = 0; row < 32; row += 8) {
      std::set<int> groups;
      for (int i = 0; i < 8; ++i) groups.insert(chunk_offset(layout, dim, row + i, chunk) / 16 % 8);
      EXPECT_EQ(groups.size(), layout == SharedLayout::linear ? 1U : 8U);
    }
}

TEST_P(Fragments, EveryChunkHasItsOwnPlace) {
  const auto [layout, dim] = GetParam();
  std::set<int> offsets;
  for (int row = 0; row < 64; ++row)
    for (int chunk = 0; chunk < dim / 8; ++chunk) {
      const int offset = chunk_offset(layout, dim, row, chunk);
      EXPECT_LE(offset + 16, tile_bytes(layout, dim, 64));
      EXPECT_TRUE(offsets.insert(offset).second);
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Fragments,
                         ::testing::Combine(::testing::Values(SharedLayout::linear, SharedLayout::swizzled,
                                                              SharedLayout::padded),
                                            ::testing::Values(64, 128)));

// Two neighbouring accumulators, packed, are the A operand of the next product: the heart of keeping P in registers.
TEST(Fragment, AccumulatorsBecomeTheAOperand) {
  for (int lane = 0; lane < kLanes; ++lane)
    for (int r = 0; r < 4; ++r)
      for (int half = 0; half < 2; ++half) {
        // forward.cuh: register r packs elements (2 (r % 2), 2 (r % 2) + 1) of n-tile r / 2
        const Coordinate from = accumulator_element(lane, 2 * (r % 2) + half);
        EXPECT_EQ(a_element(lane, r, half), (Coordinate{from.row, from.column + 8 * (r / 2)}));
      }
}

TEST(Fragment, LanesShareNoElement) {
  std::set<std::pair<int, int>> a, d;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r)
      for (int half = 0; half < 2; ++half) a.insert({a_element(lane, r, half).row, a_element(lane, r, half).column});
    for (int i = 0; i < 4; ++i) d.insert({accumulator_element(lane, i).row, accumulator_element(lane, i).column});
  }
  EXPECT_EQ(a.size(), 256U);
  EXPECT_EQ(d.size(), 128U);
}

// Of tf32: ldmatrix of 16-byte chunks brings A and B as mma takes them.
TEST_P(Fragments, ChunksOfFp32AreOperandsOfTf32) {
  const auto [layout, dim] = GetParam();
  const int width = 2 * dim;  // a row's elements take the room of so many of 16 bits
  const auto element_at = [](int row, int chunk, int word) { return 1000 * row + 4 * chunk + word; };
  std::vector<int> shared(static_cast<std::size_t>(tile_bytes(layout, width, 32) / 4), -1);
  for (int row = 0; row < 32; ++row)
    for (int column = 0; column < dim; ++column)
      shared[static_cast<std::size_t>(chunk_offset(layout, width, row, column / 4) / 4 + column % 4)] =
          element_at(row, column / 4, column % 4);
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int lane = 0; lane < kLanes; ++lane) {
      // What lane `lane` gets of matrix `matrix`: word lane % 4 of the row that lane 8 * matrix + lane / 4 names.
      const Coordinate a = ldmatrix_a_address(8 * matrix + lane / 4);
      const auto at = [&, l = layout](const Coordinate& c, int row, int chunk) {
        return shared[static_cast<std::size_t>(chunk_offset(l, width, row + c.row, chunk + c.column / 8) / 4 +
                                               lane % 4)];
      };
      const Coordinate wanted_a = a_element_tf32(lane, matrix);
      EXPECT_EQ(at(a, 16, 2), 1000 * (16 + wanted_a.row) + 8 + wanted_a.column);
      const Coordinate k = ldmatrix_k_address(8 * matrix + lane / 4);
      const Coordinate wanted_b = b_element_tf32(lane, matrix % 2);
      EXPECT_EQ(at(k, 16, 2), 1000 * (16 + 8 * (matrix / 2) + wanted_b.column) + 8 + wanted_b.row);
    }
}

// P V of fp32: A's columns and B's rows are the same keys, and what a lane's accumulators hold are neighbours.
TEST(FragmentsOfFp32, KeysAndColumnsOfValuesAgree) {
  std::set<std::pair<int, int>> seen;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Coordinate a = a_element_tf32(lane, r);
      const Coordinate s = accumulator_element(lane, probability_register_fp32(r));
      EXPECT_EQ(a.row, s.row);
      // Column k of A is the key that row k of B is.
      for (int other = 0; other < kLanes; ++other)
        for (int half = 0; half < 2; ++half)
          if (b_element_tf32(other, half).row == a.column) {
            EXPECT_EQ(value_key_fp32(other, half), s.column);
          }
    }
    for (int n = 0; n < 8; ++n)
      for (int i = 0; i < 4; ++i) {
        const int row = accumulator_element(lane, i).row;
        const int column = out_column_fp32(lane, n, i % 2);
        EXPECT_TRUE(seen.insert({row, column}).second);
        // B's column: the one of four tiles whose values the lane that holds it read side by side.
        EXPECT_EQ(column, n / 4 * 32 + 4 * accumulator_element(lane, i).column + n % 4);
      }
  }
  EXPECT_EQ(seen.size(), 16U * 64U);
}

// The 16 bytes that eight lanes read at once of V lie in eight groups of banks.
TEST(FragmentsOfFp32, ValuesAreReadWithoutBankConflicts) {
  for (const SharedLayout layout : {SharedLayout::swizzled, SharedLayout::padded})
    for (const int dim : {64, 128, 256})
      for (int first = 0; first < kLanes; first += 8)
        for (int key = 0; key < 2; ++key) {
          std::set<int> groups;
          for (int lane = first; lane < first + 8; ++lane)
            groups.insert(chunk_offset(layout, 2 * dim, value_key_fp32(lane, key), lane / 4) / 16 % 8);
          EXPECT_EQ(groups.size(), 8U);
        }
}

}  // namespace
}  // namespace heed::tile
