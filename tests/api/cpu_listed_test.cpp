// heed_options.listing on a CPU: masks and biases whose hidden blocks are not read, through the C interface alone.
#include "cpu_programs.hpp"
#include "feature_case.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_refused;
using testing_support::FeatureCase;
using testing_support::TemporaryFolder;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A file with programs of fwd_cpu that take lists beside a bias, of head dim 16.
class CpuListed : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    Features features;
    features.bias = features.blocks = features.lengths = features.prefix = features.sinks = true;
    testing_support::write_cpu_programs(
        folder_->file("heed.programs"),
        {"b1h2l33k50d16:fp32", "b1h2l33k50d16:fp32:causal_top_left", "b1h2l33k50d16:fp32:window=9/3"}, features);
  }
  static void TearDownTestSuite() { delete folder_; }

  static heed_options options(int listing) {
    static const std::string path = folder_->file("heed.programs");
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    o.listing = listing;
    return o;
  }
  static heed_plan_info run(const heed_problem& problem, const heed_tensors& tensors, int listing) {
    const heed_options o = options(listing);
    heed_plan* plan = nullptr;
    heed_plan_info info;
    heed_plan_info_init(&info);
    EXPECT_EQ(heed_plan_create(&problem, &o, &plan), HEED_OK) << heed_last_error();
    EXPECT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    std::vector<unsigned char> room(info.workspace_bytes + 256, 0xff);
    void* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
    EXPECT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(heed_plan_run(plan, &tensors, workspace, nullptr), HEED_OK) << heed_last_error();
    info.family = info.variant = info.origin = info.precision = "";
    is_listed_ = std::string(info.reason).find("a pass over the bias") != std::string::npos;
    info.reason = "";
    heed_plan_destroy(plan);
    return info;
  }

  static TemporaryFolder* folder_;
  static bool is_listed_;
};
TemporaryFolder* CpuListed::folder_ = nullptr;
bool CpuListed::is_listed_ = false;

// A row of one head and entry, or all of them, by strides of 0; documents that follow each other see themselves alone.
std::vector<unsigned char> documents(std::int64_t len_q, std::int64_t len_k, std::int64_t each) {
  std::vector<unsigned char> mask(static_cast<std::size_t>(len_q * len_k));
  for (std::int64_t i = 0; i < len_q; ++i)
    for (std::int64_t j = 0; j < len_k; ++j)
      mask[static_cast<std::size_t>(i * len_k + j)] =
          i / each == j / each ? static_cast<unsigned char>(2 + i % 200) : 0;
  return mask;
}

// The tensors of a workload without a bias, and a bias of the test's own.
struct Own {
  explicit Own(const std::string& text) : one(text), problem(one.problem()), tensors(one.tensors()) {}
  [[nodiscard]] float* o() { return static_cast<float*>(tensors.o); }
  [[nodiscard]] std::int64_t o_index(std::int64_t h, std::int64_t row) const {
    return h * problem.o_strides.head + row * problem.o_strides.row;
  }
  void set_bias(int dtype, const void* bias, heed_strides strides) {
    problem.flags |= HEED_HAS_BIAS;
    problem.dtype_bias = dtype;
    problem.bias_strides = strides;
    tensors.bias = bias;
  }
  // O and log-sum-exps of one batch entry.
  [[nodiscard]] std::vector<float> outputs() {
    std::vector<float> all;
    for (std::int64_t h = 0; h < problem.heads; ++h)
      for (std::int64_t i = 0; i < problem.len_q; ++i) {
        all.insert(all.end(), o() + o_index(h, i), o() + o_index(h, i) + problem.dim_v);
        all.push_back(tensors.lse[h * problem.len_q + i]);
      }
    return all;
  }
  FeatureCase one;
  heed_problem problem;
  heed_tensors tensors;
};

void expect_same(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(b[i]))
      ASSERT_EQ(a[i], b[i]) << i;
    else
      ASSERT_NEAR(a[i], b[i], 1e-5) << i;
  }
}

TEST_F(CpuListed, AreWhatTheOracleSays) {
  for (const char* features : {":bias=bool/blk", ":bias=bool/hlk", ":bias=bool/lk", ":bias=bool/bk", ":bias=fp32/lk",
                               ":bias=fp16/blk", ":bias=bf16/k", ":bias=bool/bl", ":bias=fp32:sinks",
                               ":bias=bool/blk:key_lengths", ":bias=bool/lk:ragged", ":bias=fp16/hlk:prefix=40"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=9/3"}) {
      FeatureCase one(std::string("b2h4hkv2l137k251d16:fp32") + mask + features);
      run(one.problem(), one.tensors(), HEED_LIST_ALWAYS);
      EXPECT_TRUE(is_listed_);
      one.check();
    }
}

// Every number of rows and keys modulo a block, the same as without lists, for documents that lie anywhere in blocks.
TEST_F(CpuListed, EveryNumberOfRowsAndKeysIsWhatItIsWithoutLists) {
  for (std::int64_t rest = 0; rest < 64; rest += 3)
    for (const char* mask : {"", ":causal_top_left"}) {
      Own own(fmt::format("b1h2l{}k{}d16:fp32{}", 65 + rest, 128 + rest * 29 % 64, mask));
      const std::vector<unsigned char> bias = documents(own.problem.len_q, own.problem.len_k, 40 + rest);
      own.set_bias(HEED_BOOL, bias.data(), {0, 0, own.problem.len_k, 1});
      run(own.problem, own.tensors, HEED_LIST_OFF);
      EXPECT_FALSE(is_listed_);
      const std::vector<float> without = own.outputs();
      run(own.problem, own.tensors, HEED_LIST_ALWAYS);
      EXPECT_TRUE(is_listed_);
      expect_same(own.outputs(), without);
    }
}

// Keys and values of blocks that are hidden from all rows of a block are not read for it.
TEST_F(CpuListed, NanInHiddenBlocksReachesNoRow) {
  Own own("b1h2l128k256d16:fp32");
  std::vector<float> bias(128 * 256, 0);
  for (std::int64_t i = 0; i < 128; ++i)
    for (std::int64_t j = 0; j < 256; ++j)
      if (j / 64 == 1 || (j / 64 == 2 && i < 64) || (i + j) % 7 == 0)
        bias[static_cast<std::size_t>(i * 256 + j)] = i % 2 == 0 ? -kInfinity : -std::numeric_limits<float>::max();
  own.set_bias(HEED_FP32, bias.data(), {0, 0, 256, 1});
  run(own.problem, own.tensors, HEED_LIST_ALWAYS);
  const std::vector<float> clean = own.outputs();
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t j = 64; j < 128; ++j)
      for (const auto& [tensor, strides] :
           {std::pair{own.tensors.k, own.problem.k_strides}, std::pair{own.tensors.v, own.problem.v_strides}})
        const_cast<float*>(static_cast<const float*>(tensor))[h * strides.head + j * strides.row + j % 16] = NAN;
  run(own.problem, own.tensors, HEED_LIST_ALWAYS);
  EXPECT_EQ(own.outputs(), clean);
  // Without lists their weights of 0 would meet it.
  run(own.problem, own.tensors, HEED_LIST_OFF);
  EXPECT_TRUE(std::isnan(own.o()[0]) || std::isnan(own.o()[1]) || std::isnan(own.o()[15]));
}

TEST_F(CpuListed, RowsThatSeeNothingAreZeros) {
  Own own("b1h2l150k200d16:fp32");
  std::vector<unsigned char> bias = documents(150, 200, 50);
  for (std::int64_t i = 60; i < 140; ++i)
    for (std::int64_t j = 0; j < 200; ++j) bias[static_cast<std::size_t>(i * 200 + j)] = 0;
  own.set_bias(HEED_BOOL, bias.data(), {0, 0, 200, 1});
  run(own.problem, own.tensors, HEED_LIST_ALWAYS);
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < 150; ++i) {
      const bool sees = i < 60 || i >= 140;
      const float* const row = own.o() + own.o_index(h, i);
      EXPECT_EQ(std::all_of(row, row + 16, [](float x) { return x == 0; }), !sees) << i;
      EXPECT_EQ(own.tensors.lse[h * 150 + i] == -kInfinity, !sees) << i;
    }
  std::fill(bias.begin(), bias.end(), static_cast<unsigned char>(0));
  run(own.problem, own.tensors, HEED_LIST_ALWAYS);
  for (std::int64_t i = 0; i < 300; ++i) EXPECT_EQ(own.tensors.lse[i], -kInfinity);
}

// What a caller lists as full is not read, and without a bias such a number stands for no block.
TEST_F(CpuListed, TheBiasOfFullBlocksOfACallerIsNotRead) {
  Own own("b1h1l64k200d16:fp32");
  own.problem.flags |= HEED_HAS_BLOCKS;
  own.problem.block_rows = own.problem.block_keys = 64;
  own.problem.block_most = 4;
  own.problem.block_count_strides = {0, 0, 1, 0};
  own.problem.block_index_strides = {0, 0, 4, 1};
  const std::vector<std::int32_t> counts = {3};
  std::vector<std::int32_t> numbers = {0, 2, 3, 1};
  own.tensors.block_counts = counts.data();
  own.tensors.block_indices = numbers.data();
  run(own.problem, own.tensors, HEED_LIST_AUTO);
  const std::vector<float> three = own.outputs();
  numbers = {0, 2, HEED_FULL_BLOCK + 3, 1};
  run(own.problem, own.tensors, HEED_LIST_AUTO);
  EXPECT_NE(own.outputs(), three);
  std::vector<float> bias(64 * 200, 0);
  for (std::size_t i = 0; i < bias.size(); ++i)
    if (i % 200 >= 128) bias[i] = NAN;
  own.set_bias(HEED_FP32, bias.data(), {0, 0, 200, 1});
  numbers = {HEED_FULL_BLOCK + 3, 0, HEED_FULL_BLOCK + 2, 1};
  run(own.problem, own.tensors, HEED_LIST_ALWAYS);
  EXPECT_FALSE(is_listed_);
  expect_same(own.outputs(), three);
}

TEST_F(CpuListed, AutoListsWhereItPays) {
  const auto listed = [](const std::string& text, int listing = HEED_LIST_AUTO) {
    const heed_problem p = cpu_problem(text);
    const heed_options o = options(listing);
    std::string said(heed_explain(&p, &o, nullptr, 0) + 1, ' ');
    heed_explain(&p, &o, said.data(), said.size());
    EXPECT_THAT(said, ::testing::HasSubstr("runs      fwd_cpu")) << text;
    return said.find("; before each launch a pass over the bias lists the blocks of 64 x 64 scores") !=
           std::string::npos;
  };
  EXPECT_TRUE(listed("b1h2l256k512d16:fp32:bias=bool/blk"));
  EXPECT_TRUE(listed("b1h2l256k512d16:fp32:bias=bool/bhlk"));
  EXPECT_TRUE(listed("b1h2l256k512d16:fp32:causal_bottom_right:bias=fp16/blk"));
  EXPECT_FALSE(listed("b1h2l256k512d16:fp32:bias=fp16/bhlk"));
  EXPECT_FALSE(listed("b1h1l256k512d16:fp32:bias=fp32/blk"));
  EXPECT_FALSE(listed("b1h2l255k512d16:fp32:bias=bool/blk"));
  EXPECT_FALSE(listed("b1h2l256k511d16:fp32:bias=bool/blk"));
  EXPECT_FALSE(listed("b1h2l256k512d16:fp32"));
  EXPECT_FALSE(listed("b1h2l256k512d16:fp32:bias=bool/blk", HEED_LIST_OFF));
  EXPECT_TRUE(listed("b1h2l1k5d16:fp32:bias=fp32/bhlk", HEED_LIST_ALWAYS));
  EXPECT_FALSE(listed("b1h2l256k512d16:fp32:bias=bool/blk:blocks=64/window1", HEED_LIST_ALWAYS));
}

TEST_F(CpuListed, ListsLieInTheWorkspace) {
  Own own("b1h2l130k200d16:fp32");
  const std::vector<unsigned char> bias = documents(130, 200, 70);
  own.set_bias(HEED_BOOL, bias.data(), {0, 0, 200, 1});
  const heed_plan_info without = run(own.problem, own.tensors, HEED_LIST_OFF);
  const heed_plan_info with = run(own.problem, own.tensors, HEED_LIST_ALWAYS);
  EXPECT_EQ(with.workspace_bytes, without.workspace_bytes + 512);  // 3 counts, 3 lists of 4 numbers
  EXPECT_EQ(with.workspace_zeroed, without.workspace_zeroed);
  EXPECT_EQ(with.flops, without.flops);
  EXPECT_EQ(with.can_be_dependent, 0U);
}

TEST_F(CpuListed, WrongOptionsAreSentences) {
  heed_options o = options(3);
  expect_refused(cpu_problem(), HEED_INVALID_ARGUMENT, "3 is no heed_listing", &o);
}

}  // namespace
}  // namespace heed
