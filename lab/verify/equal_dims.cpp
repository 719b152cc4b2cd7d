#include "verify/equal_dims.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace heed::verify {
namespace {

// Rows of `from` columns become rows of `to`.
void widen(Values& values, std::int64_t from, std::int64_t to) {
  if (from == to) return;
  const std::int64_t rows = static_cast<std::int64_t>(values.size()) / from;
  Values wide(static_cast<std::size_t>(rows * to));
  std::fill(wide.begin(), wide.end(), 0.0F);
  for (std::int64_t row = 0; row < rows; ++row) std::copy_n(values.begin() + row * from, from, wide.begin() + row * to);
  values = std::move(wide);
}

}  // namespace

Workload with_equal_dims(const Workload& workload, InputValues& values) {
  if (workload.dim == workload.dim_v) return workload;
  if (workload.dim_v < workload.dim && (workload.out_norm || workload.out_gate != OutGate::none))
    throw Error(ErrorCode::unsupported,
                fmt::format("norms and gates of O are of as many columns as the kernel has, {}, and V has {}; leave "
                            "them out, or give V of {} columns",
                            workload.dim, workload.dim_v, workload.dim),
                to_string(workload));
  Workload equal = workload;
  equal.dim = equal.dim_v = std::max(workload.dim, workload.dim_v);
  equal.scale = workload.softmax_scale();
  widen(values.q, workload.dim, equal.dim);
  widen(values.k, workload.dim, equal.dim);
  widen(values.v, workload.dim_v, equal.dim);
  return equal;
}

}  // namespace heed::verify
