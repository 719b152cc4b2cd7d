#include "quantise/quantise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/random.hpp"
#include "compile/embedded.hpp"
#include "kernels/element.hpp"
#include "workload/elements.hpp"

namespace heed::quantise {

std::span<const compile::EmbeddedFile> device_sources();

namespace {

using Row = std::array<float, kMostDim>;
constexpr int kLanes = 32;

static_assert(static_cast<int>(Element::fp16) == static_cast<int>(Dtype::fp16) &&
              static_cast<int>(Element::bf16) == static_cast<int>(Dtype::bf16) &&
              static_cast<int>(Element::fp32) == static_cast<int>(Dtype::fp32));

// A row as it is.
void load(const TensorPass& t, long long offset, float* row) {
  const auto dtype = static_cast<Dtype>(t.element);
  if (t.from_step == 1)
    load_elements(dtype, t.from, static_cast<std::size_t>(offset), static_cast<std::size_t>(t.dim), row);
  else
    for (int d = 0; d < t.dim; ++d)
      row[d] = load_element(dtype, t.from, static_cast<std::size_t>(offset + d * t.from_step));
}

const float* mean_of(const Pass& pass, int entry, int head) {
  return pass.mean + (static_cast<long long>(entry) * pass.k.heads + head) * pass.k.dim;
}

// Smoothed and rotated.
void load_prepared(const Pass& pass, const TensorPass& t, const EntryRows& rows, int entry, int head, int row,
                   float* to) {
  load(t, offset_of(t.from_strides, rows.first, entry, head, row), to);
  if (&t == &pass.k && pass.mean != nullptr) {
    const float* const mean = mean_of(pass, entry, head);
    for (int d = 0; d < t.dim; ++d) to[d] -= mean[d];
  }
  if (t.is_rotated != 0) rotate({to, static_cast<std::size_t>(t.dim)}, pass.signs);
}

// Chunks of rows of an entry's head.
struct Piece {
  int entry;
  int head;
  int chunk;
};
Piece piece_of(const Rows& rows, const TensorPass& t, long long index) {
  const int chunks = chunks_of(most_rows(rows, t.are_keys != 0));
  return {static_cast<int>(index / chunks / t.heads), static_cast<int>(index / chunks % t.heads),
          static_cast<int>(index % chunks)};
}
long long pieces_of_tensor(const Pass& pass, const TensorPass& t) {
  if (t.to == nullptr) return 0;
  return static_cast<long long>(pass.rows.batch) * t.heads * chunks_of(most_rows(pass.rows, t.are_keys != 0));
}

template <typename Body>
void for_rows(const EntryRows& rows, int chunk, const Body& body) {
  const int end = std::min(rows.end, (chunk + 1) * kChunkRows);
  for (int row = std::max(rows.begin, chunk * kChunkRows); row < end; ++row) body(row);
}

void add_sums(const Pass& pass, const Piece& at) {
  const TensorPass& k = pass.k;
  const EntryRows rows = rows_of(pass.rows, true, at.entry);
  const int chunks = chunks_of(most_rows(pass.rows, true));
  double* const sums = pass.sums + ((static_cast<long long>(at.entry) * k.heads + at.head) * chunks + at.chunk) * k.dim;
  std::fill_n(sums, k.dim, 0.0);
  Row row;
  for_rows(rows, at.chunk, [&](int j) {
    load(k, offset_of(k.from_strides, rows.first, at.entry, at.head, j), row.data());
    for (int d = 0; d < k.dim; ++d)
      sums[d] += std::isfinite(row[static_cast<std::size_t>(d)]) ? row[static_cast<std::size_t>(d)] : 0.0F;
  });
}

void take_mean(const Pass& pass, int entry, int head) {
  const TensorPass& k = pass.k;
  const EntryRows rows = rows_of(pass.rows, true, entry);
  const int chunks = chunks_of(most_rows(pass.rows, true));
  const long long of_head = static_cast<long long>(entry) * k.heads + head;
  for (int d = 0; d < k.dim; ++d) {
    double sum = 0;
    for (int c = 0; c < chunks; ++c) sum += pass.sums[(of_head * chunks + c) * k.dim + d];
    pass.mean[of_head * k.dim + d] = rows.begin < rows.end ? static_cast<float>(sum / (rows.end - rows.begin)) : 0.0F;
  }
}

void raise(unsigned& largest, unsigned magnitude) {
  std::atomic_ref<unsigned> shared(largest);
  unsigned known = shared.load(std::memory_order_relaxed);
  while (known < magnitude && !shared.compare_exchange_weak(known, magnitude, std::memory_order_relaxed)) {
  }
}

void find_largest(const Pass& pass, const TensorPass& t, const Piece& at) {
  const EntryRows rows = rows_of(pass.rows, t.are_keys != 0, at.entry);
  Row row;
  std::array<unsigned, kMostDim> most{};
  long long index = -1;
  const int columns = t.scales.channel != 0 ? t.dim : 1;
  const auto flush = [&] {
    for (int d = 0; d < columns && index >= 0; ++d)
      if (most[static_cast<std::size_t>(d)] != 0) raise(t.largest[index + d], most[static_cast<std::size_t>(d)]);
    std::fill_n(most.begin(), columns, 0U);
  };
  for_rows(rows, at.chunk, [&](int r) {
    load_prepared(pass, t, rows, at.entry, at.head, r, row.data());
    if (const long long own = factor_index(t.scales, rows.first, at.entry, at.head, r); own != index) {
      flush();
      index = own;
    }
    for (int d = 0; d < t.dim; ++d) {
      unsigned& known = most[t.scales.channel != 0 ? static_cast<std::size_t>(d) : 0];
      known = std::max(known, magnitude_of(row[static_cast<std::size_t>(d)], t.to_element));
    }
  });
  flush();
}

// scale * q.mean, in the order of a warp: lanes add the products of their elements, and each other's sums by halves.
float shift_of(const Pass& pass, const float* q, const float* mean) {
  const int each = elements_of_lane(pass.q.to_dim);
  std::array<float, kLanes> sums{};
  for (int d = 0; d < pass.q.dim; ++d) {
    float& sum = sums[static_cast<std::size_t>(d / each)];
    const float product = q[d] * mean[d];
    sum = sum + product;
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] = sums[lane] + sums[lane + half];
  return pass.scale * sums[0];
}

void write_elements(const Pass& pass, const TensorPass& t, const Piece& at) {
  const EntryRows rows = rows_of(pass.rows, t.are_keys != 0, at.entry);
  Row row;
  for_rows(rows, at.chunk, [&](int r) {
    load_prepared(pass, t, rows, at.entry, at.head, r, row.data());
    const long long index = factor_index(t.scales, rows.first, at.entry, at.head, r);
    unsigned char* const to = t.to + offset_of(t.to_strides, rows.first, at.entry, at.head, r);
    float factor = factor_at(t, index);
    for (int d = 0; d < t.dim; ++d) {
      if (t.scales.channel != 0) factor = factor_at(t, index + d);
      to[d] = element_of(row[static_cast<std::size_t>(d)], factor, t.to_element);
    }
    std::fill(to + t.dim, to + t.to_dim, static_cast<unsigned char>(0));
    if (&t != &pass.q || pass.shift == nullptr) return;
    load(t, offset_of(t.from_strides, rows.first, at.entry, at.head, r), row.data());
    const float* const mean = mean_of(pass, at.entry, at.head / (pass.q.heads / pass.k.heads));
    pass.shift[shift_index(pass, rows.first, at.entry, at.head, r)] = shift_of(pass, row.data(), mean);
  });
}

void count_lost(const Pass& pass, const TensorPass& t, const Piece& at) {
  const EntryRows rows = rows_of(pass.rows, t.are_keys != 0, at.entry);
  Row given, prepared;
  Lost own{0, kNoneLost};
  for_rows(rows, at.chunk, [&](int r) {
    load(t, offset_of(t.from_strides, rows.first, at.entry, at.head, r), given.data());
    load_prepared(pass, t, rows, at.entry, at.head, r, prepared.data());
    const long long index = factor_index(t.scales, rows.first, at.entry, at.head, r);
    for (int d = 0; d < t.dim; ++d) {
      const auto column = static_cast<std::size_t>(d);
      const float factor = factor_of(t.largest[index + (t.scales.channel != 0 ? d : 0)], t.to_element);
      if (!is_lost(given[column], prepared[column], factor, t.to_element)) continue;
      ++own.count;
      own.first = std::min(own.first, lost_index(pass.rows, t, at.entry, at.head, r, d));
    }
  });
  if (own.count == 0) return;
  Lost& all = pass.lost[&t == &pass.q ? 0 : &t == &pass.k ? 1 : 2];
  std::atomic_ref<unsigned long long>(all.count).fetch_add(own.count, std::memory_order_relaxed);
  std::atomic_ref<unsigned long long> first(all.first);
  unsigned long long known = first.load(std::memory_order_relaxed);
  while (known > own.first && !first.compare_exchange_weak(known, own.first, std::memory_order_relaxed)) {
  }
}

std::string source_of(const char* header, const char* entry, const char* function) {
  compile::add_device_files(device_sources());
  return fmt::format(
      "#include \"lib/quantise/{}\"\n\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ heed::quantise::Pass pass) {{\n"
      "  heed::quantise::{}(pass);\n"
      "}}\n",
      header, kQuantiseThreads, entry, function);
}

constexpr long long kFactorsOfPiece = 4096;
constexpr long long kShiftsOfPiece = 16384;

long long factor_pieces(const TensorPass& t) {
  return t.to == nullptr ? 0 : (t.count + kFactorsOfPiece - 1) / kFactorsOfPiece;
}

void write_factors(const TensorPass& t, long long piece) {
  const long long end = std::min(t.count, (piece + 1) * kFactorsOfPiece);
  for (long long i = piece * kFactorsOfPiece; i < end; ++i) t.factors[i] = factor_of(t.largest[i], t.to_element);
}

}  // namespace

const std::string& quantise_source() {
  static const std::string source = source_of("quantise_pass.cuh", kQuantiseEntry, "quantise");
  return source;
}

const std::string& lost_source() {
  static const std::string source = source_of("lost_rows.cuh", kLostEntry, "count_lost_values");
  return source;
}

long long pieces_of(const Pass& pass, Stage stage) {
  const TensorPass* const all[] = {&pass.q, &pass.k, &pass.v};
  long long pieces = 0;
  switch (stage) {
    case Stage::sums:
      return pass.sums == nullptr ? 0 : pieces_of_tensor(pass, pass.k);
    case Stage::means:
      return pass.sums == nullptr ? 0 : static_cast<long long>(pass.rows.batch) * pass.k.heads;
    case Stage::largest:
      for (const TensorPass* t : all) pieces += pieces_of_tensor(pass, *t);
      return pieces;
    case Stage::elements:
      for (const TensorPass* t : all) pieces += pieces_of_tensor(pass, *t) + factor_pieces(*t);
      return pieces;
    case Stage::lost:
      for (const TensorPass* t : all) pieces += pass.lost == nullptr ? 0 : pieces_of_tensor(pass, *t);
      return pieces;
    case Stage::lse:
      return pass.shift == nullptr ? 0 : (pass.shift_count + kShiftsOfPiece - 1) / kShiftsOfPiece;
  }
  return 0;
}

void run_piece(const Pass& pass, Stage stage, long long piece) {
  if (stage == Stage::sums) return add_sums(pass, piece_of(pass.rows, pass.k, piece));
  if (stage == Stage::means)
    return take_mean(pass, static_cast<int>(piece / pass.k.heads), static_cast<int>(piece % pass.k.heads));
  if (stage == Stage::lse) {
    const long long end = std::min(pass.shift_count, (piece + 1) * kShiftsOfPiece);
    for (long long i = piece * kShiftsOfPiece; i < end; ++i) pass.lse[i] = shifted(pass.lse[i], pass.shift[i]);
    return;
  }
  for (const TensorPass* t : {&pass.q, &pass.k, &pass.v}) {
    const long long own = pieces_of_tensor(pass, *t);
    if (piece < own) {
      const Piece at = piece_of(pass.rows, *t, piece);
      if (stage == Stage::lost) return count_lost(pass, *t, at);
      return stage == Stage::largest ? find_largest(pass, *t, at) : write_elements(pass, *t, at);
    }
    piece -= own;
    if (stage != Stage::elements) continue;
    const long long factors = factor_pieces(*t);
    if (piece < factors) return write_factors(*t, piece);
    piece -= factors;
  }
}

void quantise_by_given_factors(const Pass& pass) {
  for (long long piece = 0; piece < pieces_of(pass, Stage::elements); ++piece) run_piece(pass, Stage::elements, piece);
}

void quantise_on_host(const Pass& pass) {
  for (const TensorPass* t : {&pass.q, &pass.k, &pass.v})
    if (t->to != nullptr) std::fill_n(t->largest, t->count, 0U);
  for (const Stage stage : {Stage::sums, Stage::means, Stage::largest, Stage::elements})
    for (long long piece = 0; piece < pieces_of(pass, stage); ++piece) run_piece(pass, stage, piece);
}

void draw_signs(std::uint64_t seed, int dim, unsigned (&signs)[kSignWords]) {
  std::fill(std::begin(signs), std::end(signs), 0U);
  Random random(seed);
  for (int d = 0; d < dim; ++d)
    if (random.chance(0.5)) signs[d / 32] |= 1U << (d % 32);
}

void rotate(std::span<float> row, const unsigned (&signs)[kSignWords]) {
  const std::size_t n = row.size();
  for (std::size_t i = 0; i < n; ++i)
    if (changes_sign(signs, static_cast<int>(i))) row[i] = -row[i];
  for (std::size_t half = 1; half < n; half *= 2)
    for (std::size_t begin = 0; begin < n; begin += 2 * half)
      for (std::size_t i = begin; i < begin + half; ++i) {
        const float sum = row[i] + row[i + half];
        row[i + half] = row[i] - row[i + half];
        row[i] = sum;
      }
  const float norm = rotation_norm(static_cast<int>(n));
  for (float& x : row) x *= norm;
}

float rotation_norm(int dim) {
  return 1 / std::sqrt(static_cast<float>(dim));
}

TensorPass with_width(TensorPass t, const Rows& rows) {
  const int bytes = bytes_of(static_cast<Element>(t.element));
  constexpr int kUnit = 16;
  const auto fits = [&](long long count, long long stride) { return count == 1 || stride * bytes % kUnit == 0; };
  const bool is_wide = t.from_step == 1 && t.dim % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.from) % kUnit == 0 &&
                       fits(rows.batch, t.from_strides.batch) && fits(t.heads, t.from_strides.head) &&
                       fits(2, t.from_strides.row);
  t.is_wide = is_wide ? 1 : 0;
  return t;
}

}  // namespace heed::quantise
