#include "quantise/modes.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/text.hpp"
#include "quantise/quantise_rows.hpp"
#include "workload/quantised.hpp"

namespace heed::quantise {
namespace {

constexpr std::array<Mode, 9> kModes = {{
    {"int8", "q/int8/block32+k/int8/block64", false, false, "Q and K in int8 by blocks of 32 and 64 rows"},
    {"int8_smooth", "q/int8/block32+k/int8/block64", true, false,
     "Q and K in int8 by blocks of 32 and 64 rows, K without its mean (SageAttention)"},
    {"int8_token_smooth", "qk/int8/token", true, false, "Q and K in int8 by rows, K without its mean"},
    {"int8_fp8_smooth", "q/int8/block32+k/int8/block64+v/e4m3/channel", true, false,
     "Q and K in int8 by blocks of 32 and 64 rows, K without its mean, V in e4m3 by channels (SageAttention2)"},
    {"fp8", "qkv/e4m3/head", false, false, "all in e4m3 by heads"},
    {"fp8_smooth", "qkv/e4m3/head", true, false, "all in e4m3 by heads, K without its mean"},
    {"fp8_rotated", "qkv/e4m3/head", false, true, "all in e4m3 by heads, Q and K rotated (FlashAttention-3)"},
    {"fp8_smooth_rotated", "qkv/e4m3/head", true, true, "all in e4m3 by heads, K without its mean, Q and K rotated"},
    {"fp8_block_smooth_rotated", "q/e4m3/block64+k/e4m3/block128+v/e4m3/channel", true, true,
     "Q and K in e4m3 by blocks of 64 and 128 rows, K without its mean, both rotated, V in e4m3 by channels"},
}};

}  // namespace

std::span<const Mode> modes() {
  return kModes;
}

const Mode& find_mode(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Mode& mode : kModes) {
    if (mode.name == name) return mode;
    names.push_back(mode.name);
  }
  throw Error(ErrorCode::usage, fmt::format("unknown mode \"{}\"; {}", name, one_of(name, names)), std::string(name));
}

Workload quantised_by(const Workload& workload, const Mode& mode) {
  const std::string text = to_string(workload);
  if (workload.quantised)
    throw Error(ErrorCode::invalid_workload,
                fmt::format("{} is quantised already; a mode says how the inputs of one that is not are", text), text);
  if (mode.smooths && (workload.softcap != 0 || workload.sinks))
    throw Error(ErrorCode::unsupported,
                fmt::format("{} takes the mean of K out, which moves all scores of a row: with {} that is another "
                            "result; take a mode without smoothing",
                            mode.name, workload.sinks ? "attention sinks" : "a softcap"),
                std::string(mode.name));
  if (mode.rotates && !std::has_single_bit(static_cast<std::uint64_t>(workload.dim)))
    throw Error(ErrorCode::unsupported,
                fmt::format("{} rotates rows by a Hadamard matrix, whose size is a power of two; the head dim is {}",
                            mode.name, workload.dim),
                std::to_string(workload.dim));
  if (mode.rotates && workload.dim > kMostDim)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} rotates rows of at most {} elements; the head dim is {}", mode.name, kMostDim, workload.dim),
        std::to_string(workload.dim));
  Workload quantised = workload;
  quantised.quantised = parse_quantised(text, mode.tensors);
  validate(quantised);
  return quantised;
}

std::string error_words(const Mode& mode) {
  std::string words;
  for (const MeasuredError& error : measured_errors())
    if (error.mode == mode.name)
      words += fmt::format("{}{:.1e} {}", words.empty() ? "" : ", ", error.rel_rms, error.inputs);
  return words.empty() ? "not measured" : fmt::format("relative RMS error of O on {}: {}", measured_workload(), words);
}

}  // namespace heed::quantise
