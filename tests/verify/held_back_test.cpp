// Shapes that the gate draws for each run.
#include <set>

#include "device/device.hpp"
#include "testing.hpp"
#include "verify/gate.hpp"

namespace heed::verify {
namespace {

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 32;

std::vector<Workload> drawn(const std::string& shape, std::uint64_t seed, std::uint64_t most = kPlenty) {
  const Workload workload = parse_workload(shape);
  return held_back(parse_variant("fwd_cpu", workload, cpu_facts()), workload, cpu_facts(), seed, most);
}

TEST(HeldBack, TheSameSeedDrawsTheSameShapesAndAnotherOthers) {
  EXPECT_EQ(drawn("b2h4l256d64", 1), drawn("b2h4l256d64", 1));
  std::set<std::string> texts;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (const Workload& w : drawn("b2h4l256d64", seed)) texts.insert(to_string(w));
  EXPECT_GE(texts.size(), 240U);
}

TEST(HeldBack, EveryDrawHasAScaleOfItsOwnAndFitsTheProgram) {
  for (const char* shape :
       {"b2h4l256d64", "b1h8hkv2l77k300d80:fp32:causal_bottom_right:window=40", "b1h2l64d64:key_lengths:page=16"}) {
    const Workload workload = parse_workload(shape);
    const Variant variant = parse_variant("fwd_cpu", workload, cpu_facts());
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<Workload> all = drawn(shape, seed);
      ASSERT_EQ(all.size(), static_cast<std::size_t>(kHeldBack)) << shape;
      EXPECT_TRUE(all.front().scale.has_value());
      for (const Workload& w : all) {
        EXPECT_NO_THROW(validate(w)) << to_string(w);
        EXPECT_TRUE(variant.runs(w)) << to_string(w);
      }
    }
  }
}

TEST(HeldBack, SomeAreAsLongAsTheWorkloadAndOneHasMoreHeads) {
  for (const char* shape :
       {"b1h2l300d64", "b2h4l256d64", "b1h8hkv2l2000k3000d64:causal_bottom_right", "b4h8hkv1l1k900d64"}) {
    const Workload workload = parse_workload(shape);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      std::int64_t longest = 0;
      bool has_entries = false, has_heads = false;
      for (const Workload& w : drawn(shape, seed)) {
        longest = std::max(longest, w.len_k);
        has_entries = has_entries || w.batch > 3;
        has_heads = has_heads || w.heads > 12;
        EXPECT_LE(w.flops(), std::max(1.1e9, 0.2 * workload.flops())) << to_string(w);
      }
      EXPECT_GE(longest, workload.len_k * 9 / 10);
      EXPECT_LE(longest, workload.len_k * 2);
      EXPECT_TRUE(has_entries && has_heads);
    }
    const Variant variant = parse_variant("fwd_cpu", workload, cpu_facts());
    EXPECT_LE(2 * scene_bytes(variant, with_many_heads(workload), cpu_facts()),
              gate_arena_bytes(variant, workload, cpu_facts()));
  }
}

TEST(HeldBack, NumbersOfFeaturesAreOthers) {
  std::set<double> caps, scales;
  std::set<std::int64_t> pages;
  int shared = 0, without = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (const Workload& w : drawn("b2h2l64k150d64:softcap=2:page=16:bias=fp32/hlk", seed)) {
      caps.insert(w.softcap);
      pages.insert(w.page_size);
      if (w.scale) scales.insert(*w.scale);
      if (w.bias) shared += w.bias->by_batch ? 0 : 1;
      without += w.softcap == 0 ? 1 : 0;
    }
  EXPECT_GT(caps.size(), 50U);
  EXPECT_GE(pages.size(), 8U);
  EXPECT_GT(shared, 20);
  EXPECT_LT(shared, 230);
  EXPECT_GT(without, 5);
  EXPECT_TRUE(scales.contains(1.0));
  EXPECT_GT(scales.size(), 60U);
  EXPECT_GT(*scales.rbegin(), 1.5);
}

TEST(HeldBack, StaysWithinTheMemory) {
  const Workload workload = parse_workload("b2h4l256d64");
  const Variant variant = parse_variant("fwd_cpu", workload, cpu_facts());
  for (const Workload& w : drawn("b2h4l256d64", 3, 300000)) EXPECT_LE(scene_bytes(variant, w, cpu_facts()), 300000U);
  EXPECT_TRUE(drawn("b2h4l256d64", 3, 10).empty());
}

}  // namespace
}  // namespace heed::verify
