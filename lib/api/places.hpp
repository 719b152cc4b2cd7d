/// What says where keys and rows lie, looked at number by number before a run: heed_options.debug. Without it numbers
/// that do not fit are read as the nearest that do, on every device.
#pragma once

#include "api/problem.hpp"

namespace heed::api {

/// On the host. Null: the problem has none.
struct Places {
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
  const std::int32_t* seqused_k = nullptr;
  const std::int32_t* page_table = nullptr;
};

/// @throws Error(usage) naming the first number that does not fit: begins that decrease, or are not within the tensor's
/// rows, entries longer than len_q or len_k, pages of used keys that the pool does not have
void expect_places(const Problem& problem, const Places& places);

/// Numbers of each of them: (batch + 1), (batch + 1), (batch), and of the page table.
std::int64_t table_numbers(const Problem& problem);

}  // namespace heed::api
