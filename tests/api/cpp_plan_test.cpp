// The C++ layer over the C interface: sentences as exceptions, and plans that move.
#include "heed/plan.hpp"

#include <type_traits>

#include "testing.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<c::Plan> && !std::is_copy_assignable_v<c::Plan>);
static_assert(std::is_nothrow_move_constructible_v<c::Plan> && std::is_nothrow_move_assignable_v<c::Plan>);

// A problem without queries needs no program.
heed_problem without_queries() {
  heed_problem p = c::problem();
  p.len_q = 0;
  return p;
}

TEST(CppPlan, ARefusalIsAnExceptionWithItsStatusAndSentence) {
  heed_problem p = c::problem();
  p.flags = HEED_SCALED;
  try {
    const c::Plan plan(p);
    FAIL() << "a flag without its tensors was taken";
  } catch (const c::Error& error) {
    EXPECT_EQ(error.status(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("HEED_SCALED is given, and none of Q, K and V has elements of 8 bits"));
  }
  heed_options o = c::options();
  o.threads = -1;
  EXPECT_THROW(c::Plan(without_queries(), o), c::Error);
}

TEST(CppPlan, APlanMovesAndTheOneItLeftRefuses) {
  c::Plan first(without_queries());
  ASSERT_TRUE(first);
  c::Plan second(std::move(first));
  EXPECT_TRUE(second);
  EXPECT_EQ(second.info().workspace_bytes, 0U);
  second.prepare(nullptr);
  second.run(c::tensors());
  EXPECT_EQ(second.run_many(nullptr, 0), 0);
  c::Plan third;
  EXPECT_FALSE(third);
  EXPECT_THROW((void)third.info(), c::Error);
  third = std::move(second);
  EXPECT_NE(third.get(), nullptr);
}

TEST(CppPlan, AnExplanationIsWhole) {
  heed_problem p = c::problem();
  p.flags = HEED_SCALED;
  const std::string text = c::explain(p);
  EXPECT_THAT(text, HasSubstr("HEED_INVALID_ARGUMENT: HEED_SCALED is given"));
  EXPECT_THAT(text, ::testing::EndsWith("\n"));
}

}  // namespace
}  // namespace heed
