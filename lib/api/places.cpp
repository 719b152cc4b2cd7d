#include "api/places.hpp"

#include <fmt/format.h>

namespace heed::api {
namespace {

[[noreturn]] void refuse(const char* name, std::int64_t at, std::int64_t number, const std::string& wanted) {
  throw Error(ErrorCode::usage, fmt::format("{}[{}] is {}; {}", name, at, number, wanted), std::to_string(number));
}

void expect_begins(const char* name, const std::int32_t* begins, std::int64_t batch, std::int64_t total,
                   std::int64_t longest) {
  std::int64_t before = 0;
  for (std::int64_t b = 0; b <= batch; ++b) {
    const std::int64_t begin = begins[b];
    if (begin < before) refuse(name, b, begin, fmt::format("it must be {} or more", before));
    if (begin > total) refuse(name, b, begin, fmt::format("the tensor has rows 0 to {}", total - 1));
    if (b > 0 && begin - before > longest)
      refuse(name, b, begin,
             fmt::format("entry {} has {} rows, and the plan takes {}", b - 1, begin - before, longest));
    before = begin;
  }
}

}  // namespace

std::int64_t table_numbers(const Problem& problem) {
  return problem.pages_of_entry() == 0 ? 0
                                       : (problem.workload.batch - 1) * problem.table_stride + problem.pages_of_entry();
}

void expect_places(const Problem& problem, const Places& places) {
  const Workload& w = problem.workload;
  if (places.cu_seqlens_q != nullptr)
    expect_begins("cu_seqlens_q", places.cu_seqlens_q, w.batch, problem.total_q, w.len_q);
  if (places.cu_seqlens_k != nullptr)
    expect_begins("cu_seqlens_k", places.cu_seqlens_k, w.batch, problem.total_k, w.len_k);
  for (std::int64_t b = 0; b < w.batch; ++b) {
    const std::int64_t room =
        places.cu_seqlens_k == nullptr ? w.len_k : places.cu_seqlens_k[b + 1] - places.cu_seqlens_k[b];
    const std::int64_t used = places.seqused_k == nullptr ? room : places.seqused_k[b];
    if (used < 0 || used > room) refuse("seqused_k", b, used, fmt::format("an entry has 0 to {} keys", room));
    if (places.page_table == nullptr) continue;
    for (std::int64_t page = 0; page * w.page_size < used; ++page) {
      const std::int64_t at = b * problem.table_stride + page;
      const std::int32_t number = places.page_table[at];
      if (number < 0 || number >= problem.pages)
        refuse("page_table", at, number, fmt::format("there are pages 0 to {}", problem.pages - 1));
    }
  }
}

}  // namespace heed::api
