/// fwd_cpu: the knobs, what is legal, and the scratch a thread needs. Shared by the host and by the candidates the host
/// compiler builds; includes nothing but the contract and the element types.
#pragma once

#include "kernels/contract.hpp"
#include "kernels/element.hpp"

namespace heed::cpu {

/// How 2^x is computed: a polynomial on [-0.5, 0.5] times a power of two put into the exponent bits.
enum class Exp2 {
  degree3,  ///< largest relative error 1.0e-4
  degree4,  ///< 2.9e-6
  degree5,  ///< 1.9e-7
  degree6,  ///< 1.0e-7, near the rounding of fp32 itself
};

/// Order in which blocks of query rows are handed to threads.
enum class LoopOrder {
  heads_outer,  ///< all row blocks of a head one after another: its keys stay in the caches
  rows_outer,   ///< the first row block of every head, then the second
};

/// When partial sums are multiplied by 2^(old maximum - new maximum).
enum class Rescale {
  always,
  when_grown,  ///< only if a row's maximum grew in this tile
};

/// What computes the products.
enum class Unit {
  vector,  ///< fused multiply-adds of fp32
  matrix,  ///< tiles of bf16 (Intel AMX); fp16 and fp32 as sums of bf16 pieces
};

/// What lies in the lanes of the vector unit.
enum class Lanes {
  queries,  ///< for many: K and V are broadcast, and no step needs a shuffle
  columns,  ///< of the head dim, for few queries: rows of all query heads that read one key head share a block
};

/// A function of the element type, known when a candidate is built.
template <typename Function>
constexpr int of_element(Element element, const Function& function) {
  switch (element) {
    case Element::fp16:
      return function(ElementTraits<Element::fp16>());
    case Element::bf16:
      return function(ElementTraits<Element::bf16>());
    case Element::fp32:
      return function(ElementTraits<Element::fp32>());
    case Element::e4m3:
      return function(ElementTraits<Element::e4m3>());
    case Element::e5m2:
      return function(ElementTraits<Element::e5m2>());
    case Element::int8:
      return function(ElementTraits<Element::int8>());
  }
  return 0;
}
constexpr int element_bytes(Element element) {
  return of_element(element, [](auto traits) { return traits.bytes; });
}
/// bf16 numbers, of 8 bits each, that an element is the sum of (pieces.hpp).
constexpr int pieces_of(Element element) {
  return of_element(element, [](auto traits) { return (traits.digits + 7) / 8; });
}

/// One point of the space. Every field changes speed, never results beyond the rounding the gate allows.
struct Config {
  Unit unit = Unit::vector;
  int block_m = 128;     ///< query rows a block: K and V are read (and converted to fp32) once a block
  int block_n = 64;      ///< keys a tile
  int tile_rows = 4;     ///< register tile: keys (Q K^T) or value columns (P V) held at once
  int tile_vectors = 2;  ///< register tile: vectors of queries held at once
  int unroll = 1;        ///< steps of the innermost loop written out
  Exp2 exp2 = Exp2::degree5;
  Rescale rescale = Rescale::when_grown;
  LoopOrder loop_order = LoopOrder::heads_outer;
  /// Blocks of the matrix unit hold rows of all query heads that read one key head, one head after another, as
  /// FlashAttention's pack_gqa: K and V are read once for all of them. Off: rows of one query head.
  bool pack_gqa = false;
  Lanes lanes = Lanes::queries;
  int split_keys = 0;  ///< lanes=columns: keys of a part at least, where the keys of a block are divided; 0: never
  int prefetch = 0;    ///< key rows fetched ahead of their use; 0: leave it to the hardware
  int threads = 1;
  constexpr bool operator==(const Config&) const = default;
};

/// The vector unit as legality and scratch sizes see it.
struct Machine {
  int lanes;      ///< fp32 values a vector register
  int registers;  ///< vector registers
  int processors;
  bool matrix_unit;  ///< a process may use AMX's bf16 tiles
};

/// Rows of a block rounded up to whole register tiles of queries.
constexpr int queries_per_group(const Config& config, const Machine& machine) {
  return config.tile_vectors * machine.lanes;
}

enum class Illegal {
  no,
  registers,
  row_block,
  key_block,
  threads,
  head_dim,
  unit,
  pack_gqa,
  group_block,
  listed_blocks,
  quantised,
  lanes,
  split_keys
};

constexpr Illegal is_legal(const Config& config, const Problem& problem, const Machine& machine) {
  if (config.threads < 1 || config.threads > machine.processors) return Illegal::threads;
  if (problem.head_dim < 1 || problem.head_dim > 512) return Illegal::head_dim;
  // A block's rows walk one list where queries lie in the lanes.
  if (config.lanes == Lanes::queries && problem.features.blocks &&
      (kLeastBlock % config.block_m != 0 || config.pack_gqa))
    return Illegal::listed_blocks;
  if (config.lanes == Lanes::columns) {
    if (config.unit == Unit::matrix) return Illegal::lanes;
    return config.pack_gqa ? Illegal::pack_gqa : Illegal::no;
  }
  if (config.split_keys != 0) return Illegal::split_keys;
  if (config.unit == Unit::matrix) {
    if (!machine.matrix_unit) return Illegal::unit;
    if (problem.inputs.quantised) return Illegal::quantised;
    return config.block_m % 32 == 0 && config.block_n % 32 == 0 ? Illegal::no : Illegal::group_block;
  }
  if (config.pack_gqa) return Illegal::pack_gqa;
  // accumulators, one row of vectors and one broadcast value
  if (config.tile_rows * config.tile_vectors + config.tile_vectors + 1 > machine.registers) return Illegal::registers;
  if (config.block_m % queries_per_group(config, machine) != 0) return Illegal::row_block;
  if (config.block_n < config.tile_rows) return Illegal::key_block;
  return Illegal::no;
}

/// Scratch of one thread, in floats, each part a multiple of 16 floats (64 bytes).
struct Scratch {
  long long query;    ///< (groups, head_dim, queries): Q transposed and scaled
  long long out;      ///< (groups, head_dim, queries): O transposed, not yet divided by the row sums
  long long maximum;  ///< (groups, queries)
  long long sum;      ///< (groups, queries)
  long long scores;   ///< (block_n, queries)
  long long keys;     ///< (block_n, head_dim): K converted to fp32; unused when it lies in memory as fp32
  long long values;   ///< (block_n, head_dim): the same for V
  long long total;
};

constexpr Scratch scratch_plan(const Config& config, const Problem& problem, int lanes) {
  const auto round = [](long long floats) { return (floats + 15) / 16 * 16; };
  const long long queries = static_cast<long long>(config.tile_vectors) * lanes;
  const bool in_place =
      element_bytes(problem.element) == sizeof(float) && !problem.features.pages && !problem.inputs.quantised;
  const long long converted = in_place ? 0 : round(static_cast<long long>(config.block_n) * problem.head_dim);
  Scratch plan{};
  plan.query = 0;
  plan.out = plan.query + round(static_cast<long long>(config.block_m) * problem.head_dim);
  plan.maximum = plan.out + round(static_cast<long long>(config.block_m) * problem.head_dim);
  plan.sum = plan.maximum + round(config.block_m);
  plan.scores = plan.sum + round(config.block_m);
  plan.keys = plan.scores + round(config.block_n * queries);
  plan.values = plan.keys + converted;
  plan.total = plan.values + converted;
  return plan;
}

/// Sizes of what the matrix unit works on.
struct MatrixShape {
  static constexpr int kGroupRows = 32;  ///< query rows whose scores are held at once: 2 tiles
  int pieces;                            ///< bf16 numbers an element is the sum of
  int depth;                             ///< head dim rounded up to whole products
  int columns;                           ///< head dim rounded up to pairs of tiles
};

constexpr MatrixShape matrix_shape(const Config&, const Problem& problem) {
  const int pieces = pieces_of(problem.element);
  const int rounded = (problem.head_dim + 31) / 32 * 32;
  return {pieces, rounded, rounded};
}

/// Scratch of one thread on the matrix unit, in bytes, each part at a multiple of 64.
struct MatrixScratch {
  long long queries;  ///< (pieces, block_m, depth) bf16
  long long keys;     ///< (pieces, block_n, depth) bf16, in tiles
  long long values;   ///< (pieces, block_n, columns) bf16, in tiles
  long long weights;  ///< (pieces, 32, block_n + 32) bf16
  long long scores;   ///< (32, block_n + 16) fp32
  long long out;      ///< (block_m, columns) fp32, not yet divided by the row sums
  long long sums;     ///< (block_m, 16) fp32
  long long maximum;  ///< (block_m) fp32
  long long total;
};

constexpr MatrixScratch matrix_scratch(const Config& config, const Problem& problem) {
  const MatrixShape shape = matrix_shape(config, problem);
  const long long rows = MatrixShape::kGroupRows;
  MatrixScratch plan{};
  plan.queries = 0;
  plan.keys = plan.queries + 2LL * shape.pieces * config.block_m * shape.depth;
  plan.values = plan.keys + 2LL * shape.pieces * config.block_n * shape.depth;
  plan.weights = plan.values + 2LL * shape.pieces * config.block_n * shape.columns;
  plan.scores = plan.weights + 2LL * shape.pieces * rows * (config.block_n + 32);
  plan.out = plan.scores + 4LL * rows * (config.block_n + 16);
  plan.sums = plan.out + 4LL * config.block_m * shape.columns;
  plan.maximum = plan.sums + 64LL * config.block_m;
  plan.total = plan.maximum + 4LL * config.block_m;
  return plan;
}

}  // namespace heed::cpu
