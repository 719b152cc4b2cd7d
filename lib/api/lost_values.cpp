// What a run of debug mode says of values that quantising lost.
#include <fmt/format.h>

#include "api/precision.hpp"

namespace heed::api {
namespace {

// "3 values of Q, the first in batch entry 0, head 1, row 5, column 7"
std::string words_of_lost(const quantise::Pass& pass, const quantise::TensorPass& t, const char* name,
                          const quantise::Lost& lost) {
  const auto dim = static_cast<unsigned long long>(t.dim);
  const auto rows = static_cast<unsigned long long>(quantise::most_rows(pass.rows, t.are_keys != 0));
  const auto heads = static_cast<unsigned long long>(t.heads);
  const unsigned long long row = lost.first / dim, head = row / rows;
  return fmt::format("{} value{} of {}, the first in batch entry {}, head {}, row {}, column {}", lost.count,
                     lost.count == 1 ? "" : "s", name, head / heads, head % heads, row % rows, lost.first % dim);
}

}  // namespace

void expect_none_lost(const quantise::Pass& pass, const quantise::Mode& mode,
                      const std::array<quantise::Lost, 3>& lost) {
  std::string all;
  unsigned long long count = 0;
  const char* const names[] = {"Q", "K", "V"};
  const quantise::TensorPass* const tensors[] = {&pass.q, &pass.k, &pass.v};
  for (std::size_t i = 0; i < lost.size(); ++i) {
    if (lost[i].count == 0) continue;
    count += lost[i].count;
    all += fmt::format("{}{}", all.empty() ? "" : ", and ", words_of_lost(pass, *tensors[i], names[i], lost[i]));
  }
  if (count == 0) return;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format("{} lost {}: what is infinite, becomes infinite{}, or lies beyond the largest element times its "
                  "scale factor has no element; O is written with them as they became. Give smaller values, or "
                  "leave precision out",
                  mode.name, all,
                  mode.smooths && mode.rotates ? " where K's mean is taken out and rows are rotated"
                  : mode.smooths               ? " where K's mean is taken out"
                  : mode.rotates               ? " where rows are rotated"
                                               : ""),
      std::to_string(count));
}

}  // namespace heed::api
