// Chains of launches: who feeds whom, and what is said of what comes back.
#include "verify/chain.hpp"

#include <cstring>
#include <set>

#include "device/device.hpp"
#include "testing.hpp"
#include "worker/worker.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

LaunchPlan plan_with_counters() {
  LaunchPlan plan;
  plan.grid = {4, 1, 1};
  plan.workspace_bytes = 100;
  plan.semaphores = 3;
  return plan;
}

// What launches leave that write 0.25 everywhere.
std::vector<std::byte> written(const Chain& chain, const Workload& w) {
  std::vector<std::byte> image = chain.image();
  const auto elements = static_cast<std::size_t>(w.batch * w.heads * w.len_q * w.dim);
  for (const worker::Launch& launch : chain.launches())
    for (std::size_t i = 0; i < elements; ++i) store_element(w.dtype, image.data() + launch.o, i, 0.25F);
  return image;
}

TEST(Chain, EveryInputIsFedByTheLaunchBefore) {
  const Workload w = parse_workload("b1h2l40d16:fp16");
  const Chain chain(w, plan_with_counters(), 7);
  EXPECT_LE(chain.image().size(), chain_bytes(w, plan_with_counters()));
  const std::vector<worker::Launch>& all = chain.launches();
  ASSERT_EQ(all.size(), 7U);
  std::set<std::uint64_t> outputs;
  int fed[3] = {0, 0, 0};
  const std::uint64_t bytes = static_cast<std::uint64_t>(w.heads * w.len_q * w.dim) * 2;
  for (std::size_t n = 0; n < all.size(); ++n) {
    EXPECT_TRUE(outputs.insert(all[n].o).second);
    ASSERT_LE(all[n].o + bytes, chain.image().size());
    EXPECT_EQ(all[n].o % 256, 0U);
    for (std::uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(chain.image()[all[n].o + i], std::byte{0xff});
    EXPECT_EQ(all[n].workspace, all[0].workspace) << "shared, as in one stream of an engine";
    EXPECT_EQ(all[n].semaphores, all[0].semaphores);
    EXPECT_EQ(all[n].grid, (std::array<std::uint32_t, 3>{4, 1, 1}));
    if (n == 0) continue;
    const std::uint64_t before = all[n - 1].o;
    EXPECT_EQ((all[n].q == before) + (all[n].k == before) + (all[n].v == before), 1) << n;
    fed[0] += all[n].q == before, fed[1] += all[n].k == before, fed[2] += all[n].v == before;
  }
  EXPECT_THAT(fed, ::testing::Each(2));
}

TEST(Chain, KeysOfAnotherShapeAreNotFed) {
  const Chain chain(parse_workload("b1h4hkv2l40d16:fp16"), plan_with_counters(), 7);
  for (std::size_t n = 1; n < chain.launches().size(); ++n) {
    EXPECT_EQ(chain.launches()[n].q, chain.launches()[n - 1].o);
    EXPECT_EQ(chain.launches()[n].k, chain.launches()[0].k);
  }
}

TEST(Chain, DifferencesAreFoundAndNamed) {
  const Workload w = parse_workload("b1h2l40d16:fp16");
  const Chain chain(w, plan_with_counters(), 7);
  const std::vector<std::byte> waited = written(chain, w);
  const auto found = [&](bool exact, const auto& change) {
    std::vector<std::byte> after = waited;
    change(after);
    return chain.compare(waited.data(), after.data(), exact);
  };
  const std::uint64_t third = chain.launches()[2].o;
  EXPECT_EQ(found(true, [](auto&) {}).finding, Finding::none);
  const auto poison = [&](auto& image) { std::memset(image.data() + third + 34, 0xff, 2); };
  for (const bool exact : {true, false}) {
    const Chain::Difference d = found(exact, poison);
    EXPECT_EQ(d.finding, Finding::broken_chain);
    EXPECT_THAT(d.text, ::testing::HasSubstr("launch 3 of 7"));
    EXPECT_THAT(d.text, ::testing::HasSubstr("element 17 of O is"));
    EXPECT_THAT(d.text, ::testing::HasSubstr("0.25 where each is waited for"));
  }
  const auto rounding = [&](auto& image) { store_element(w.dtype, image.data() + third, 3, 0.2502F); };
  EXPECT_EQ(found(true, rounding).finding, Finding::broken_chain);
  EXPECT_EQ(found(false, rounding).finding, Finding::none);
  const std::uint64_t bytes = static_cast<std::uint64_t>(w.heads * w.len_q * w.dim) * 2;
  EXPECT_EQ(found(true, [&](auto& image) { image[third + bytes + 5] ^= std::byte{1}; }).finding,
            Finding::wrote_outside);
  EXPECT_EQ(found(true, [&](auto& image) { image[chain.launches()[0].semaphores + 4] = std::byte{1}; }).finding,
            Finding::left_counters);
  EXPECT_EQ(found(true, [&](auto& image) { image[chain.launches()[0].k] ^= std::byte{1}; }).finding,
            Finding::input_modified);
}

TEST(Chain, RunsOnWhatIsSmallEnough) {
  const DeviceFacts device = gpu_limits("sm_90a");
  const auto chosen = [&](const char* text) {
    const Workload workload = parse_workload(text);
    std::vector<std::string> texts;
    for (const Workload& w : chain_workloads(parse_variant("fwd_sm80", workload, device), workload, device)) {
      EXPECT_LE(chain_bytes(w, LaunchPlan{}), 16U << 20);
      texts.push_back(to_string(w));
    }
    return texts;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(chosen("b1h8l512d64"), ElementsAre("b1h8l512d64:fp16"));
  EXPECT_THAT(chosen("b4h32l4096d128"), ElementsAre("b1h8l512d128:fp16"));
  EXPECT_THAT(chosen("b8h32hkv4l1k8192d128"), ElementsAre("b1h8hkv1l1k512d128:fp16", "b1h8l1d128:fp16"));
  EXPECT_THAT(chosen("b1h2l100k200d64"), ElementsAre("b1h2l100k200d64:fp16", "b1h2l100d64:fp16"));
  // A program for fixed sizes runs no smaller one.
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload large = parse_workload("b64h12l128d64");
  const auto of = [&](const char* variant) {
    return chain_workloads(parse_variant(variant, large, hopper), large, hopper);
  };
  EXPECT_THAT(of("fwd_sm90_persistent"), ElementsAre(parse_workload("b1h8l128d64")));
  EXPECT_THAT(of("fwd_sm90_persistent:specialize=shape"), ElementsAre(large));
}

}  // namespace
}  // namespace heed::verify
