// Which quantised problem runs in place of a caller's, and why none does.
#include "api/precision.hpp"

#include <fmt/format.h>

#include "padding/padding.hpp"
#include "workload/quantised.hpp"

namespace heed::api {
namespace {

TensorLayout dense(const TensorSizes& s) {
  return {{s.heads * s.rows * s.dim, s.rows * s.dim, s.dim}, 1};
}

// Of ragged tensors factors of rows are those of the one tensor.
TensorScales scales_of(const std::optional<QuantisedTensor>& tensor, const TensorSizes& sizes, std::int64_t batch) {
  if (!tensor) return {};
  const bool by_rows = tensor->by == ScaleBy::block || tensor->by == ScaleBy::token;
  const Strides strides =
      scale_sizes(*tensor, by_rows ? sizes.batch : batch, sizes.heads, sizes.rows, sizes.dim).strides();
  return {.at = nullptr,
          .strides = {strides.batch, strides.head, strides.row},
          .rows = static_cast<int>(tensor->rows),
          .channel = tensor->by == ScaleBy::channel ? 1 : 0,
          .first_row = 0,
          .reserved = 0};
}

// Whether no program reads V as the caller has it.
bool must_copy(const Problem& problem) {
  if (problem.v.step != 1) return true;
  if (problem.device == DeviceKind::cpu) return false;
  const TensorSizes sizes = problem.v_sizes();
  const auto unit = static_cast<std::int64_t>(kGpuAlignment / size_of(problem.workload.dtype));
  for (const auto& [count, stride] : {std::pair{sizes.batch, problem.v.batch}, std::pair{sizes.heads, problem.v.head},
                                      std::pair{sizes.rows, problem.v.row}})
    if (count > 1 && (stride == 0 || stride % unit != 0)) return true;
  return false;
}

PrecisionDecision quantised(const Problem& problem, const quantise::Mode& mode, std::int64_t dim, std::int64_t dim_v) {
  PrecisionDecision decision;
  decision.mode = &mode;
  Problem& inner = decision.inner = problem;
  const Workload& from = problem.workload;
  const bool is_padded = dim != from.dim || dim_v != from.dim_v;
  if (is_padded) inner.workload = padding::padded(from, dim, dim_v);
  inner.workload.layout = Layout::bhld;
  inner.workload.quantised = quantise::quantised_by(from, mode).quantised;
  const Workload& w = inner.workload;
  inner.q = dense(inner.q_sizes());
  inner.k = dense(inner.k_sizes());
  decision.copies_v = !w.quantised->v && (is_padded || must_copy(problem));
  if (w.quantised->v || decision.copies_v) inner.v = dense(inner.v_sizes());
  decision.copies_o = dim_v != from.dim_v;
  if (decision.copies_o) inner.o = dense(inner.o_sizes());
  inner.q_scales = scales_of(w.quantised->q, inner.q_sizes(), w.batch);
  inner.k_scales = scales_of(w.quantised->k, inner.k_sizes(), w.batch);
  inner.v_scales = scales_of(w.quantised->v, inner.v_sizes(), w.batch);
  inner.has_own_factors = true;
  return decision;
}

PrecisionDecision decide_by(const Problem& problem, const quantise::Mode& mode, const Options& options,
                            const DeviceFacts& device) {
  const Workload& w = problem.workload;
  if (w.page_size > 0)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} quantises Q, K and V in each run, and keys in pages are a cache that outlives it; "
                    "quantise the pages as they are written, in 8 bits with scale factors of your own, and give "
                    "them so: dtype_k, dtype_v and HEED_SCALED with k_scale and v_scale, in Python k_scale= and "
                    "v_scale= of heed.attention, without precision",
                    mode.name),
        to_string(w));
  const bool by_blocks = mode.tensors.find("/block") != std::string_view::npos;
  if (w.ragged && by_blocks)
    throw Error(ErrorCode::unsupported,
                fmt::format("{} has a scale factor for each block of rows ({}), and entries of a ragged batch begin "
                            "within blocks; take a mode by heads or by rows",
                            mode.name, mode.tensors),
                to_string(w));
  (void)quantise::quantised_by(w, mode);  // says what the mode would change
  Options chosen = options;
  chosen.precision.clear();
  std::vector<std::pair<std::int64_t, std::int64_t>> dims = {{w.dim, w.dim_v}};
  // What a caller brings is for the problem as it is.
  if (options.variant.empty())
    for (const std::int64_t dim : padding::padded_dims(w))
      if (dim != w.dim || dim != w.dim_v) dims.emplace_back(dim, dim);
  std::optional<Error> refusal;
  for (const auto& [dim, dim_v] : dims) {
    try {
      PrecisionDecision decision = quantised(problem, mode, dim, dim_v);
      decision.choice = decide(decision.inner, chosen, device).choice;
      decision.choice.reason =
          fmt::format("{}: {}; {}", mode.name, words_of(*decision.inner.workload.quantised), decision.choice.reason);
      return decision;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      if (!refusal) refusal = error;
    }
  }
  throw Error(*refusal);
}

}  // namespace

PrecisionDecision decide_precision(const Problem& problem, const Options& options, const DeviceFacts& device) {
  const quantise::Mode& mode = quantise::find_mode(options.precision);
  if (problem.is_empty || !problem.has_keys) {
    PrecisionDecision decision;
    decision.mode = &mode;
    decision.is_plain = true;
    if (!problem.is_empty) (void)quantise::quantised_by(problem.workload, mode);
    Options plain = options;
    plain.precision.clear();
    decision.choice = decide(problem, plain, device).choice;
    return decision;
  }
  try {
    return decide_by(problem, mode, options, device);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported || !options.variant.empty()) throw;
    std::string served;
    for (const quantise::Mode& other : quantise::modes()) {
      try {
        if (&other != &mode) {
          (void)decide_by(problem, other, options, device);
          served += fmt::format("{}{}", served.empty() ? "" : ", ", other.name);
        }
      } catch (const Error&) {
        continue;
      }
    }
    throw Error(error.code(),
                fmt::format("{}; {}", error.what(),
                            served.empty() ? "no precision mode is served here: leave precision out"
                                           : "the modes that are served here: " + served),
                error.value());
  }
}

std::string precision_lines(std::string_view name) {
  const quantise::Mode& mode = quantise::find_mode(name);
  return fmt::format("precision {}: {}; quantised={}\nerror     {}\n", mode.name, mode.words, mode.tensors,
                     quantise::error_words(mode));
}

}  // namespace heed::api
