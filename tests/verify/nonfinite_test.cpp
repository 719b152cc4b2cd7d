// NaN, infinity and scores beyond fp32: what must show, what must not, and how the gate tells.
#include "verify/nonfinite.hpp"

#include <fmt/format.h>

#include <cmath>

#include "testing.hpp"
#include "verify/scenario.hpp"

namespace heed::verify {
namespace {

// A scene of one blemish in head 0, with everything as a perfect kernel leaves it.
Scenario blemished(const Workload& w, Blemish blemish, std::int64_t key, std::uint64_t seed = 4) {
  InputValues values = make_inputs(w, InputClass::normal, 3);
  Random random(seed);
  apply(blemish, w, values, 0, 0, key, random);
  return {w, values};
}

std::size_t rows_that_show(const Scenario& s) {
  std::size_t rows = 0;
  for (const RowLimit& row : s.reference.tolerance.rows) rows += row.finite ? 0 : 1;
  return rows;
}

TEST(NonFinite, WhatARowSeesMustShow) {
  struct Case {
    Blemish blemish;
    std::size_t rows;  // of the first head, of 16 under the mask, that see key 9
  };
  for (const char* text : {"b1h2l16d8:bf16:causal_top_left", "b1h2l16d8:fp32:causal_top_left"})
    for (const Case& c :
         {Case{Blemish::query_nan, 1}, Case{Blemish::key_nan, 7}, Case{Blemish::value_nan, 7},
          Case{Blemish::value_inf, 7}, Case{Blemish::scores_above, 16}, Case{Blemish::scores_below, 16}}) {
      Scenario s = blemished(parse_workload(text), c.blemish, 9);
      const std::string name = fmt::format("{} {}", text, static_cast<int>(c.blemish));
      EXPECT_EQ(s.compare().finding, Finding::none) << name << s.compare().text;
      EXPECT_EQ(rows_that_show(s), c.rows) << name;
      // Zeros where it should show; NaN where it should not.
      std::size_t shows = 0;
      std::size_t clean = 0;
      for (std::size_t i = 0; i < 32; ++i) (s.reference.tolerance.rows[i].finite ? clean : shows) = i;
      Scenario swallowed = s;
      for (std::int64_t d = 0; d < 8; ++d) swallowed.set(s.reference.rows[shows], d, 0.0F);
      EXPECT_EQ(swallowed.compare().finding, Finding::swallowed_nan) << name;
      EXPECT_THAT(swallowed.compare().text, ::testing::HasSubstr("must show"));
      Scenario leaked = s;
      leaked.set(s.reference.rows[clean], 3, NAN);
      EXPECT_EQ(leaked.compare().finding, Finding::not_finite) << name;
      // Rows beside it are judged as ever.
      Scenario inexact = s;
      inexact.set(s.reference.rows[clean], 3, 7.0F);
      EXPECT_EQ(inexact.compare().finding, Finding::inexact) << name;
    }
}

TEST(NonFinite, ALogSumExpOfARowOfNaNIsNaNWhereThatIsPromised) {
  Scenario s = blemished(parse_workload("b1h1l16d8:bf16"), Blemish::query_nan, 0);
  for (std::size_t i = 0; i < 16; ++i)
    if (!s.reference.tolerance.rows[i].finite) s.set_lse(s.reference.rows[i], -INFINITY);
  EXPECT_EQ(s.compare().finding, Finding::swallowed_nan);
  s.reference.lse_shows = false;
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
}

// A key that the mask hides from rows 0 to 14 and row 15 sees.
TEST(NonFinite, AHiddenKeyReachesNoOtherRow) {
  Scenario s = blemished(parse_workload("b1h1l16d8:fp16:causal_top_left"), Blemish::value_nan, 15);
  EXPECT_EQ(rows_that_show(s), 1U);
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  s.set({0, 0, 14}, 2, NAN);
  EXPECT_EQ(s.compare().finding, Finding::not_finite);
}

TEST(NonFinite, AnUnwrittenRowIsNotTakenForNaN) {
  Scenario s = blemished(parse_workload("b1h1l16d8:fp16"), Blemish::key_nan, 3);
  std::memset(s.after.data() + s.scene.o().offset, 0xff, 16);
  EXPECT_EQ(s.compare().finding, Finding::unwritten_output);
}

TEST(NonFinite, NothingIsAskedThatADtypeCannotHold) {
  for (const char* text : {"b1h1l16d8:fp16", "b1h1l16d8:bf16:scale=1e-30", "b1h1l16d8:bf16:scale=1e-10",
                           "b1h1l16d8:fp32:causal_top_left", "b1h1l20k10d8:fp32:causal_bottom_right"}) {
    const Workload w = parse_workload(text);
    for (const auto& blemishes : {seen_by_all(w), hidden_from_some(w)})
      for (const Blemish blemish : blemishes) {
        Scenario s = blemished(w, blemish, 0);
        for (int seed = 5; rows_that_show(s) == 0 && seed < 9; ++seed)  // a query that sees nothing shows nothing
          s = blemished(w, blemish, 0, static_cast<std::uint64_t>(seed));
        EXPECT_GT(rows_that_show(s), 0U) << text << static_cast<int>(blemish);
        EXPECT_EQ(s.compare().finding, Finding::none) << text << s.compare().text;
      }
  }
}

}  // namespace
}  // namespace heed::verify
