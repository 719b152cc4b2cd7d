// Plans on a GPU of problems with features, with a stand-in for the driver: the parameters that a kernel gets.
#include "stub_gpu.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

using testing_support::expect_refused;
using testing_support::expect_status;
using testing_support::gpu_problem;
using testing_support::launched;
using testing_support::Made;
using testing_support::Memory;
using testing_support::StubPrograms;

constexpr const char* kFamily = "fwd_sm80";
const std::string kShape = "b2h4hkv2l128k192d64:fp16";

class GpuFeatures : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!(find_family(kFamily).features() == kAllFeatures)) GTEST_SKIP() << kFamily << " has no features";
  }
  // An address in memory that no launch writes to.
  template <typename T>
  const T* at(std::size_t offset) {
    return reinterpret_cast<const T*>(static_cast<const unsigned char*>(memory_.workspace) + offset);
  }
  FeatureParams seen_of(const heed_problem& p) {
    const Made made(p, kFamily);
    EXPECT_EQ(heed_plan_run(made.plan, &memory_.t, memory_.workspace, nullptr), HEED_OK) << heed_last_error();
    return memory_.seen();
  }
  Memory memory_;
};

TEST_F(GpuFeatures, ScoresAreChangedAsTheProblemSays) {
  heed_problem p = gpu_problem(kShape + ":causal_bottom_right:softcap=30:bias=bf16/hlk:alibi:sinks", HEED_WANTS_LSE);
  memory_.t.bias = at<void>(2);
  memory_.t.alibi_slopes = at<float>(1 << 20);
  memory_.t.sinks = at<float>((1 << 20) + 64);
  FeatureParams seen = seen_of(p);
  EXPECT_EQ(seen.softcap, 30);
  EXPECT_EQ(seen.bias, memory_.t.bias);
  EXPECT_EQ(seen.bias_element, static_cast<int>(BiasElement::bf16));
  EXPECT_EQ(seen.bias_batch, 0);
  EXPECT_EQ(seen.bias_head, 128 * 192);
  EXPECT_EQ(seen.bias_row, 192);
  EXPECT_EQ(seen.bias_key, 1);
  EXPECT_EQ(seen.alibi_slopes, memory_.t.alibi_slopes);
  EXPECT_EQ(seen.alibi_batch, 0);
  EXPECT_EQ(seen.sinks, memory_.t.sinks);
  EXPECT_EQ(seen.lse_batch, 4 * 128);
  EXPECT_EQ(seen.lse_head, 128);
  EXPECT_EQ(seen.aligned_to_the_end, 1);
  EXPECT_EQ(seen.cu_seqlens_q, nullptr);
  EXPECT_EQ(seen.page_table, nullptr);
  p.flags |= HEED_ALIBI_BY_BATCH;
  p.mask = HEED_MASK_CAUSAL_TOP_LEFT;
  seen = seen_of(p);
  EXPECT_EQ(seen.alibi_batch, 4);
  EXPECT_EQ(seen.aligned_to_the_end, 0);
}

// With keys in front that no row sees the bias begins where the keys do.
TEST_F(GpuFeatures, BiasesOfKeysThatNoRowSeesAreCutOff) {
  heed_problem p = gpu_problem("b2h4hkv2l16k192d64:fp16:causal_bottom_right:window=15:bias=fp32/bk");
  memory_.t.bias = at<void>(0);
  const FeatureParams seen = seen_of(p);
  EXPECT_EQ(seen.len_k, 31);
  EXPECT_EQ(seen.bias, at<float>(161 * 4));
}

TEST_F(GpuFeatures, RaggedTensorsHaveTheirTotals) {
  heed_problem p = gpu_problem(kShape + ":ragged:causal_bottom_right", HEED_WANTS_LSE);
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = {};
  p.total_q = 200;
  p.total_k = 300;
  memory_.t.cu_seqlens_q = at<std::int32_t>(4);
  memory_.t.cu_seqlens_k = at<std::int32_t>(16);
  const FeatureParams seen = seen_of(p);
  EXPECT_EQ(seen.cu_seqlens_q, memory_.t.cu_seqlens_q);
  EXPECT_EQ(seen.cu_seqlens_k, memory_.t.cu_seqlens_k);
  EXPECT_EQ(seen.seqused_k, nullptr);
  EXPECT_EQ(seen.q_strides.head, 64);
  EXPECT_EQ(seen.q_strides.row, 4 * 64);
  EXPECT_EQ(seen.k_strides.row, 2 * 64);
  EXPECT_EQ(seen.lse_head, 200);
  EXPECT_EQ(seen.total_q, 200);
  EXPECT_EQ(seen.total_k, 300);
  EXPECT_EQ(seen.len_q, 128);
  EXPECT_EQ(seen.len_k, 192);
  // What is read ends with the last row: an output right behind lies apart, one in its last rows does not.
  const Made made(p, kFamily);
  heed_tensors t = memory_.t;
  t.o = const_cast<char*>(static_cast<const char*>(t.k) + 300 * 2 * 64 * 2);
  EXPECT_EQ(heed_plan_run(made.plan, &t, memory_.workspace, nullptr), HEED_OK) << heed_last_error();
  t.o = static_cast<char*>(t.o) - 16;
  expect_status(heed_plan_run(made.plan, &t, memory_.workspace, nullptr), HEED_INVALID_ARGUMENT, "O overlaps K");
}

TEST_F(GpuFeatures, PagesAreFoundByTheTable) {
  heed_problem p = gpu_problem(kShape + ":key_lengths:page=16");
  p.pages = 50;
  p.page_table_stride = 20;
  memory_.t.seqused_k = at<std::int32_t>(4);
  memory_.t.page_table = at<std::int32_t>(64);
  const FeatureParams seen = seen_of(p);
  EXPECT_EQ(seen.seqused_k, memory_.t.seqused_k);
  EXPECT_EQ(seen.page_table, memory_.t.page_table);
  EXPECT_EQ(seen.page_table_batch, 20);
  EXPECT_EQ(seen.page_size, 16);
  EXPECT_EQ(seen.pages, 50);
  EXPECT_EQ(seen.k_strides.batch, 2 * 16 * 64) << "from page to page";
  EXPECT_EQ(seen.len_k, 192);
}

// Entries of a later launch find their lengths, biases, slopes and pages behind those of the launches before.
TEST_F(GpuFeatures, LaunchesOfABatchHaveTheirEntriesArrays) {
  constexpr std::int64_t kStep = 65535;
  heed_problem p = gpu_problem("b65537h2l1d64:fp16:ragged:key_lengths:page=1:bias=fp16/bh:alibi", HEED_WANTS_LSE);
  p.flags |= HEED_ALIBI_BY_BATCH;
  const Made made(p, kFamily);
  ASSERT_NE(made.plan, nullptr);
  std::vector<unsigned char> tensors(3 * 65537 * 2 * 64 * 2 + 4096);
  unsigned char* const begin = tensors.data() + (256 - reinterpret_cast<std::uintptr_t>(tensors.data()) % 256) % 256;
  heed_tensors t;
  heed_tensors_init(&t);
  const std::size_t bytes = std::size_t{65537} * 2 * 64 * 2;
  t.q = begin;
  t.k = t.v = begin + bytes;
  t.o = begin + 2 * bytes;
  const std::vector<float> numbers(4 * 65538);
  t.lse = const_cast<float*>(numbers.data());
  std::vector<std::int32_t> others(6 * 65538);
  t.bias = others.data();
  t.alibi_slopes = reinterpret_cast<float*>(others.data() + 2 * 65538);
  t.cu_seqlens_q = others.data() + 4 * 65538;
  t.seqused_k = others.data() + 5 * 65538;
  t.page_table = others.data() + 65538;
  const int before = launched();
  ASSERT_EQ(heed_plan_run(made.plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 2);
  FeatureParams seen;
  std::memcpy(&seen, t.o, sizeof seen);  // of the last launch: rows are found from the tensor's first
  EXPECT_EQ(seen.batch, 2);
  EXPECT_EQ(seen.q, t.q);
  EXPECT_EQ(seen.k, t.k);
  EXPECT_EQ(seen.lse, t.lse);
  EXPECT_EQ(seen.bias, static_cast<const unsigned short*>(t.bias) + 2 * kStep);
  EXPECT_EQ(seen.alibi_slopes, t.alibi_slopes + 2 * kStep);
  EXPECT_EQ(seen.cu_seqlens_q, t.cu_seqlens_q + kStep);
  EXPECT_EQ(seen.seqused_k, t.seqused_k + kStep);
  EXPECT_EQ(seen.page_table, t.page_table + kStep);
}

// Heads of a later launch find their sinks, slopes and biases behind those of the launches before, and ragged rows of
// log-sum-exps behind those of all rows of the heads before.
TEST_F(GpuFeatures, LaunchesOfHeadsHaveTheirHeadsArrays) {
  heed_problem p = gpu_problem(
      "b2h65537hkv1l1d64:fp16:ragged:key_lengths:page=1:bias=fp16/h:sinks:alibi:relative=32/128:out_norm=1/"
      "h:out_gate=element",
      HEED_WANTS_LSE);
  p.total_q = 2;
  const Made made(p, kFamily);
  ASSERT_NE(made.plan, nullptr);
  std::vector<unsigned char> tensors(2 * 65537 * 2 * 64 * 2 + 4096);
  unsigned char* const begin = tensors.data() + (256 - reinterpret_cast<std::uintptr_t>(tensors.data()) % 256) % 256;
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = begin;
  t.k = t.v = begin;
  t.o = begin + std::size_t{65537} * 2 * 64 * 2;
  std::vector<float> lse(2 * 65537);
  std::vector<float> others(3 * 65538);
  const std::vector<float> tables(32 * 65537);
  const std::vector<float> weights(64 * 65537);
  t.lse = lse.data();
  t.relative_bias = tables.data();
  t.out_norm_weight = weights.data();
  t.out_gate = begin;
  t.bias = others.data();
  t.alibi_slopes = others.data() + 65538;
  t.sinks = others.data() + 2 * 65538;
  std::vector<std::int32_t> lengths(8);
  t.cu_seqlens_q = t.seqused_k = t.page_table = lengths.data();
  const int before = launched();
  ASSERT_EQ(heed_plan_run(made.plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 2);
  FeatureParams seen;
  std::memcpy(&seen, static_cast<unsigned char*>(t.o) + p.o_strides.head * 2 * 65535, sizeof seen);
  EXPECT_EQ(seen.heads, 2);
  EXPECT_EQ(seen.heads_kv, 1);
  EXPECT_EQ(seen.batch, 2);
  EXPECT_EQ(seen.k, t.k);
  EXPECT_EQ(seen.lse, t.lse + 2 * 65535);
  EXPECT_EQ(seen.bias, static_cast<const unsigned short*>(t.bias) + 65535);
  EXPECT_EQ(seen.alibi_slopes, t.alibi_slopes + 65535);
  EXPECT_EQ(seen.sinks, t.sinks + 65535);
  EXPECT_EQ(seen.relative_bias, t.relative_bias + 32 * 65535);
  EXPECT_EQ(seen.out_norm_weight, t.out_norm_weight + 64 * 65535);
  EXPECT_EQ(seen.out_gate, begin + p.out_gate_strides.head * 2 * 65535);
  EXPECT_EQ(seen.cu_seqlens_q, t.cu_seqlens_q);
}

TEST_F(GpuFeatures, ManyHeadsWithDropoutAreRefused) {
  const heed_problem p = gpu_problem("b1h65536l1d64:fp16:dropout=0.1");
  const heed_options o = testing_support::with_image("fwd_sm80");
  heed_plan* plan = nullptr;
  EXPECT_EQ(heed_plan_create(&p, &o, &plan), HEED_UNSUPPORTED);
  EXPECT_THAT(heed_last_error(), ::testing::HasSubstr("65536 heads by 1 batch entries exceed the grid limit"));
}

TEST_F(GpuFeatures, ALogSumExpOfSinksWithoutKeysIsRefused) {
  heed_problem p = gpu_problem(kShape + ":sinks", HEED_WANTS_LSE);
  p.len_k = 0;
  expect_refused(p, HEED_UNSUPPORTED, "a log-sum-exp of sinks without keys");
}

// Pages of 80 elements a row are copied as they lie, ragged rows as those of one entry.
class GpuFeatureCopies : public StubPrograms {
 protected:
  void SetUp() override {
    if (!(find_family(kFamily).features() == kAllFeatures)) GTEST_SKIP() << kFamily << " has no features";
    const DeviceFacts device = dispatch::representative_gpu("sm_90a");
    const Workload w = with_features(parse_workload("b1h1l128d128"), kAllFeatures);
    const Family& family = find_family(kFamily);
    dispatch::ProgramFileWriter writer("0123");
    dispatch::ProgramRecord record;
    record.arch = "sm_90a";
    record.workload = to_string(w);
    record.variant = describe(make_variant(family, family.default_config(w, device), w));
    writer.add(record, testing_support::kImage);
    record.workload = {};
    record.variant = padding::kCopyProgram;
    writer.add(record, testing_support::kImage);
    write_file_atomically(path_, writer.bytes(), ErrorCode::store);
    heed_options_init(&options_);
    options_.programs = path_.c_str();
  }
};

TEST_F(GpuFeatureCopies, RaggedQueriesAndPagesAreCopied) {
  heed_problem p = gpu_problem("b2h4hkv2l128k192d80:fp16:ragged:key_lengths:page=16");
  p.q_strides = p.o_strides = {};
  p.total_q = 150;
  p.pages = 30;
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("rows of 80 elements to rows of 128"));
  Memory memory;
  auto* const k = static_cast<unsigned short*>(const_cast<void*>(memory.t.k));
  for (int i = 0; i < 30 * 2 * 16 * 80; ++i) k[i] = static_cast<unsigned short>(i);
  std::vector<std::int32_t> arrays(100);
  memory.t.cu_seqlens_q = arrays.data();
  memory.t.seqused_k = arrays.data() + 3;
  memory.t.page_table = arrays.data() + 5;
  std::vector<unsigned char> room(info.workspace_bytes + 256, 0xee);
  unsigned char* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
  ASSERT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
  ASSERT_EQ(heed_plan_run(plan, &memory.t, workspace, nullptr), HEED_OK) << heed_last_error();
  // The stand-in writes the parameters to the padded output, (heads, total_q, 128); its first row came back.
  FeatureParams seen{};
  std::memcpy(&seen, memory.t.o, 80 * 2);
  std::memcpy(&seen, seen.o, sizeof seen);
  EXPECT_EQ(seen.q_strides.row, 128);
  EXPECT_EQ(seen.q_strides.head, 150 * 128);
  EXPECT_EQ(seen.k_strides.batch, 2 * 16 * 128);
  EXPECT_EQ(seen.pages, 30);
  EXPECT_EQ(seen.cu_seqlens_q, memory.t.cu_seqlens_q);
  EXPECT_EQ(seen.page_table, memory.t.page_table);
  const auto* const padded = static_cast<const unsigned short*>(seen.k);
  const auto line = static_cast<std::size_t>((29 * 2 + 1) * 16 + 15);  // the pool's last
  for (std::size_t c = 0; c < 128; ++c)
    ASSERT_EQ(padded[line * 128 + c], c < 80 ? static_cast<unsigned short>(line * 80 + c) : 0) << c;
  heed_plan_destroy(plan);
}

}  // namespace
}  // namespace heed
