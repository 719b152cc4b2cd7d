/// The pass that quantises Q, K and V (quantise_rows.hpp): the program of a GPU, and the same on a CPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quantise/quantise_rows.hpp"

namespace heed::quantise {

/// Name of the pass's program in files of programs, and of its entry.
inline constexpr std::string_view kQuantiseProgram = "quantise";
inline constexpr const char* kQuantiseEntry = "heed_quantise";
/// Those of the program of Stage::lost, which debug mode runs.
inline constexpr std::string_view kLostProgram = "quantise_lost";
inline constexpr const char* kLostEntry = "heed_quantise_lost";

/// Their translation units. The device sources that they include are made known to compilers by the first call.
const std::string& quantise_source();
const std::string& lost_source();

/// Pieces of work of a stage, which do not depend on each other.
long long pieces_of(const Pass& pass, Stage stage);
/// One of them, in this thread.
void run_piece(const Pass& pass, Stage stage, long long piece);
/// All stages up to the elements, in this thread. The words of `largest` are zeroed first.
void quantise_on_host(const Pass& pass);

/// The last of them alone, in this thread: of tensors whose factors are given (TensorPass::largest is null).
void quantise_by_given_factors(const Pass& pass);

/// Signs of a rotation, as many as `dim`. @param seed of equal values the same signs
void draw_signs(std::uint64_t seed, int dim, unsigned (&signs)[kSignWords]);
/// row *= S H / sqrt(n) for n = row.size(), a power of two up to kMostDim.
void rotate(std::span<float> row, const unsigned (&signs)[kSignWords]);

/// Pass::norm
float rotation_norm(int dim);

/// A tensor whose `is_wide` is as its address and strides are.
TensorPass with_width(TensorPass tensor, const Rows& rows);

}  // namespace heed::quantise
