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
  EXPECT_GE(texts.size(), 190U);
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

TEST(HeldBack, StaysWithinTheMemory) {
  const Workload workload = parse_workload("b2h4l256d64");
  const Variant variant = parse_variant("fwd_cpu", workload, cpu_facts());
  for (const Workload& w : drawn("b2h4l256d64", 3, 300000)) EXPECT_LE(scene_bytes(variant, w, cpu_facts()), 300000U);
  EXPECT_TRUE(drawn("b2h4l256d64", 3, 10).empty());
}

}  // namespace
}  // namespace heed::verify
