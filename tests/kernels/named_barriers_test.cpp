// The maps from what named barriers are for to their ids: no id twice, and none that there is not.
#include "kernels/attention/named_barriers.hpp"

#include "kernels/sm80/decode/config.hpp"
#include "kernels/sm80/forward/config.hpp"
#include "kernels/sm90/decode/config.hpp"
#include "kernels/sm90/split/legality.hpp"
#include "sm90_persistent_configs.hpp"
#include "testing.hpp"

namespace heed {
namespace {

enum class Use { first, second };
using Barriers = attention::NamedBarriers<Use, 2>;

TEST(NamedBarriers, BrokenMapsAreCaught) {
  EXPECT_TRUE(attention::are_disjoint(Barriers{{{1, 3}, {4, 12}}}));
  EXPECT_TRUE(attention::are_disjoint(Barriers{{{1, 15}, {}}})) << "a use without ids";
  EXPECT_FALSE(attention::are_disjoint(Barriers{{{1, 3}, {3, 1}}})) << "both have 3";
  EXPECT_FALSE(attention::are_disjoint(Barriers{{{2, 1}, {2, 1}}}));
  EXPECT_FALSE(attention::are_disjoint(Barriers{{{0, 1}, {}}})) << "0 is __syncthreads";
  EXPECT_FALSE(attention::are_disjoint(Barriers{{{15, 2}, {}}})) << "there is no 16";
  EXPECT_FALSE(attention::are_disjoint(Barriers{{{-1, 1}, {}}}));
}

// As those of every config that can be launched are.
TEST(NamedBarriers, OfPersistentConfigs) {
  using namespace sm90_persistent;
  Random random(21);
  int legal = 0;
  for (int i = 0; i < 60'000; ++i) {
    const Problem problem{
        .element = Element::fp16, .head_dim = 64, .mask = random.chance(0.5) ? MaskKind::causal : MaskKind::none};
    const Config c = canonical(random_config(random), problem);
    if (is_legal(c, problem, 227 * 1024, 228 * 1024) != Illegal::no) continue;
    ++legal;
    ASSERT_TRUE(attention::are_disjoint(named_barriers(c))) << c.m_warpgroups << " consumer warpgroups, " << c.kv_groups
                                                            << " KV groups, " << c.virtual_ctas << " virtual CTAs";
  }
  EXPECT_GT(legal, 1000);
}

TEST(NamedBarriers, OfSplitConfigs) {
  for (const int kv_groups : {1, 2}) {
    const sm90_split::Config c{.kv_groups = kv_groups};
    EXPECT_TRUE(attention::are_disjoint(sm90_split::named_barriers(c)));
  }
}

TEST(NamedBarriers, OfDecodeConfigs) {
  for (const auto split : {sm90_decode::GroupSplit::kv_tiles, sm90_decode::GroupSplit::columns}) {
    const sm90_decode::Config c{.group_split = split};
    EXPECT_TRUE(attention::are_disjoint(sm90_decode::named_barriers(c)));
  }
}

TEST(NamedBarriers, OfGroupsOfWarps) {
  for (const int kv_groups : {1, 2, 15, 16}) {
    const sm80::Config forward{.block_m = 64, .warp_rows = 16, .kv_groups = kv_groups};
    EXPECT_EQ(attention::are_disjoint(sm80::named_barriers(forward)), kv_groups <= 15);
    const sm80_decode::Config decode{.block_m = 64, .warp_rows = 16, .kv_groups = kv_groups};
    EXPECT_EQ(attention::are_disjoint(sm80_decode::named_barriers(decode)), kv_groups <= 15);
  }
  // Groups of one warp have none.
  const sm80_decode::Config of_one_warp{.block_m = 16, .warp_rows = 16, .kv_groups = 16};
  EXPECT_TRUE(attention::are_disjoint(sm80_decode::named_barriers(of_one_warp)));
}

}  // namespace
}  // namespace heed
