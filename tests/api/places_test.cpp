// Lengths, begins of entries and page tables that do not fit, as heed_options.debug names them.
#include "api/places.hpp"

#include <fmt/format.h>

#include <vector>

#include "api/problem.hpp"
#include "testing.hpp"

namespace heed::api {
namespace {

using Numbers = std::vector<std::int32_t>;

void expect_refused(const Problem& problem, const Places& places, const std::string& words) {
  try {
    expect_places(problem, places);
    FAIL() << "nothing was refused; " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(std::string(error.what()), words);
  }
}

TEST(Places, PagesThatThePoolDoesNotHaveAreNamedWhereKeysAreUsed) {
  Problem problem;
  problem.workload = parse_workload("b2h2l9k40d16:fp32:key_lengths:page=16");
  problem.pages = 6;
  problem.table_stride = 4;
  const Numbers lengths = {17, 40}, fit = {5, 0, 99, -1, 1, 2, 3};
  EXPECT_EQ(table_numbers(problem), 7);
  expect_places(problem, {.seqused_k = lengths.data(), .page_table = fit.data()});
  for (const std::int32_t wrong : {6, -1, 1 << 30}) {
    Numbers pages = fit;
    pages[6] = wrong;
    expect_refused(problem, {.seqused_k = lengths.data(), .page_table = pages.data()},
                   fmt::format("page_table[6] is {}; there are pages 0 to 5", wrong));
  }
  expect_refused(problem, {.page_table = fit.data()}, "page_table[2] is 99; there are pages 0 to 5");
}

TEST(Places, LengthsBeyondTheTableAreNamed) {
  Problem problem;
  problem.workload = parse_workload("b2h2l9k40d16:fp32:key_lengths");
  for (const std::int32_t wrong : {41, -1}) {
    const Numbers lengths = {40, wrong};
    expect_refused(problem, {.seqused_k = lengths.data()},
                   fmt::format("seqused_k[1] is {}; an entry has 0 to 40 keys", wrong));
  }
}

TEST(Places, BeginsThatDecreaseOrRunOverAreNamed) {
  Problem problem;
  problem.workload = parse_workload("b3h2l9k40d16:fp32:ragged");
  problem.total_q = 20;
  problem.total_k = 100;
  const auto refused = [&](const Numbers& begins, const std::string& words) {
    expect_refused(problem, {.cu_seqlens_q = begins.data()}, words);
  };
  const Numbers queries = {0, 9, 9, 15}, keys = {0, 40, 41, 81};
  expect_places(problem, {.cu_seqlens_q = queries.data(), .cu_seqlens_k = keys.data()});
  refused({0, 9, 8, 15}, "cu_seqlens_q[2] is 8; it must be 9 or more");
  refused({-1, 9, 9, 15}, "cu_seqlens_q[0] is -1; it must be 0 or more");
  refused({0, 9, 18, 21}, "cu_seqlens_q[3] is 21; the tensor has rows 0 to 19");
  refused({0, 10, 10, 15}, "cu_seqlens_q[1] is 10; entry 0 has 10 rows, and the plan takes 9");
  const Numbers used = {40, 2, 3};
  expect_refused(problem, {.cu_seqlens_k = keys.data(), .seqused_k = used.data()},
                 "seqused_k[1] is 2; an entry has 0 to 1 keys");
}

}  // namespace
}  // namespace heed::api
