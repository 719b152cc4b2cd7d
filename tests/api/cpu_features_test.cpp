// Features on a CPU, through the C interface alone: results against the oracle, addresses that are wrong, and which
// program runs.
#include <array>

#include "cpu_programs.hpp"
#include "feature_case.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_status;
using testing_support::FeatureCase;
using testing_support::TemporaryFolder;

// A file with programs of fwd_cpu that have all features: of head dim 16 for each mask, and one of 32 for copies.
class CpuFeatures : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    testing_support::write_cpu_programs(file(),
                                        {"b1h2l33k50d16:fp32", "b1h2l33k50d16:fp32:causal_top_left",
                                         "b1h2l33k50d16:fp32:window=9/3", "b1h2l33k50d32:fp32:causal_top_left"},
                                        kAllFeatures);
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string file() { return folder_->file("heed.programs"); }
  static heed_plan* plan_of(const heed_problem& problem, int debug = 0) {
    static const std::string path = file();
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    o.debug = debug;
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&problem, &o, &plan), HEED_OK) << heed_last_error();
    return plan;
  }
  static std::string reason_of(const heed_plan* plan) {
    heed_plan_info info;
    heed_plan_info_init(&info);
    EXPECT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    return info.reason;
  }
  static void run(const heed_problem& problem, const heed_tensors& tensors) {
    heed_plan* plan = plan_of(problem);
    ASSERT_NE(plan, nullptr);
    heed_plan_info info;
    heed_plan_info_init(&info);
    ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    std::vector<unsigned char> room(info.workspace_bytes + 256, 0xff);
    void* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
    EXPECT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(heed_plan_run(plan, &tensors, workspace, nullptr), HEED_OK) << heed_last_error();
    heed_plan_destroy(plan);
  }
  static void run_and_check(const std::string& text) {
    FeatureCase one(text);
    run(one.problem(), one.tensors());
    one.check();
  }
  // Everything that a run wrote.
  static std::vector<std::byte> outputs_of(FeatureCase& one, const heed_problem& problem, const heed_tensors& tensors) {
    run(problem, tensors);
    return one.memory();
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* CpuFeatures::folder_ = nullptr;

const std::string kShape = "b3h4hkv2l37k51d16:fp32";

TEST_F(CpuFeatures, AreWhatTheOracleSays) {
  for (const char* features : {"",
                               ":softcap=3",
                               ":bias=fp32",
                               ":bias=fp16/hlk",
                               ":bias=bf16/bk",
                               ":bias=bool/blk",
                               ":bias=bool/bk",
                               ":alibi",
                               ":sinks",
                               ":key_lengths",
                               ":ragged",
                               ":page=7",
                               ":page=16:key_lengths",
                               ":page=1:ragged",
                               ":softcap=2:bias=fp32:alibi:sinks:page=8:ragged",
                               ":softcap=2:bias=bool/bhlk:alibi:sinks:ragged:blhd",
                               ":relative=32/128",
                               ":relative=8/20/past",
                               ":relative=16/40:alibi:bias=fp16/hlk:ragged",
                               ":dropout=0.3",
                               ":dropout=1",
                               ":bias=bool/bk:sinks:page=8:ragged:dropout=0.5"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=9/3", ":window_top_left=9/3"})
      run_and_check(kShape + mask + features);
}

TEST_F(CpuFeatures, ListsOfBlocksAreWhatTheOracleSays) {
  for (const char* blocks :
       {":blocks=64/density0.4@3", ":blocks=64x128/window0+random1@2/bh", ":sinks:blocks=128x64/density0.3/h",
        ":key_lengths:blocks=64/stride2/b", ":ragged:blocks=64/window0", ":page=16:bias=bool/bk:blocks=64/wavefront2"})
    for (const char* mask : {"", ":causal_bottom_right", ":window=90/3"})
      run_and_check(std::string("b3h4hkv2l137k251d16:fp32") + mask + blocks);
}

TEST_F(CpuFeatures, PrefixesAreWhatTheOracleSays) {
  for (const char* features : {"", ":key_lengths", ":ragged:bias=bool/bhlk", ":page=8:blocks=64/density0.5@3"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=9/3"})
      run_and_check(std::string("b4h4hkv2l37k71d16:fp32") + mask + ":prefix=40" + features);
  FeatureCase one("b2h2l9k21d16:fp32:causal_top_left:prefix=20");
  heed_tensors t = one.tensors();
  const heed_problem p = one.problem();
  const auto output = [&](const std::vector<std::int32_t>& lengths) {
    t.prefix_lengths = lengths.data();
    return outputs_of(one, p, t);
  };
  EXPECT_EQ(output({-7, 4000}), output({0, 21}));
}

// Numbers that stand for no block, counts beyond the room and below 0: in any order.
TEST_F(CpuFeatures, NumbersOfBlocksThatThereAreNotShowNothing) {
  FeatureCase one("b1h1l130k200d16:fp32:blocks=64");
  heed_tensors t = one.tensors();
  heed_problem p = one.problem();
  p.block_most = 3;
  p.block_index_strides = {0, 0, 3, 1};
  const auto output = [&](const std::vector<std::int32_t>& counts, const std::vector<std::int32_t>& numbers) {
    t.block_counts = counts.data();
    t.block_indices = numbers.data();
    return outputs_of(one, p, t);
  };
  EXPECT_EQ(output({3, 100, -5}, {-1, 2, 1 << 30, 4, 0, 3, 0, 1, 2}), output({1, 2, 0}, {2, 0, 0, 0, 3, 0, 0, 0, 0}));
}

// More queries than keys, so that masks at the bottom right hide whole rows.
TEST_F(CpuFeatures, RowsThatSeeNothingAreZeros) {
  for (const char* features : {":sinks", ":key_lengths", ":ragged:sinks", ":bias=bool/bk:sinks"})
    run_and_check(std::string("b3h2l41k9d16:fp32:causal_bottom_right") + features);
}

// Rows of 20 elements are copied to rows of 32: ragged ones as those of one entry, pages as they lie.
TEST_F(CpuFeatures, PassThroughCopies) {
  for (const char* features : {":softcap=3:bias=fp16/hlk", ":alibi:sinks:key_lengths", ":ragged:blhd", ":ragged:sinks",
                               ":page=7:key_lengths", ":page=16:ragged:bias=fp32"}) {
    const std::string text = std::string("b3h4hkv2l37k51d20:fp32:causal_bottom_right") + features;
    FeatureCase one(text);
    heed_plan* plan = plan_of(one.problem());
    EXPECT_THAT(reason_of(plan), ::testing::HasSubstr("rows of 20 elements to rows of 32"));
    heed_plan_destroy(plan);
    run(one.problem(), one.tensors());
    one.check();
  }
}

// The slopes of each entry are those that all entries of a problem of its own would have.
TEST_F(CpuFeatures, AlibiSlopesMayDifferByEntry) {
  FeatureCase one("b2h4l9k21d16:fp32:alibi");
  const std::vector<float> slopes = {0.5F, 0.25F, 1, 2, 0.1F, 0.2F, 0.3F, 0.4F};
  heed_tensors t = one.tensors();
  heed_problem p = one.problem();
  const auto output = [&](const float* first) {
    t.alibi_slopes = first;
    run(p, t);
    const auto* const o = reinterpret_cast<const float*>(t.o);
    return std::vector<float>(o, o + 2 * p.o_strides.batch);
  };
  const std::vector<float> first = output(slopes.data()), second = output(slopes.data() + 4);
  p.flags |= HEED_ALIBI_BY_BATCH;
  const std::vector<float> both = output(slopes.data());
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 9 * 16; ++i) {
        const auto at = static_cast<std::size_t>(b * p.o_strides.batch + h * p.o_strides.head + i);
        ASSERT_EQ(both[at], (b == 0 ? first : second)[at]) << b << ' ' << h << ' ' << i;
      }
}

TEST_F(CpuFeatures, NumbersThatCannotBeCountAsTheNearest) {
  FeatureCase one("b2h2l9k21d16:fp32:key_lengths:page=8");
  heed_tensors t = one.tensors();
  heed_problem p = one.problem();
  p.page_table_stride = 4;
  const auto output = [&](const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& pages) {
    t.seqused_k = lengths.data();
    t.page_table = pages.data();
    return outputs_of(one, p, t);
  };
  const auto last = static_cast<std::int32_t>(p.pages - 1);
  EXPECT_EQ(output({-7, 4000}, {0, 0, 0, -1, -9, 1, 1 << 30, -1}), output({0, 21}, {0, 0, 0, 0, 0, 1, last, 0}));
}

TEST_F(CpuFeatures, NumbersThatCannotBeAreNamedInDebugging) {
  FeatureCase one("b2h2l9k21d16:fp32:key_lengths:page=8");
  heed_tensors t = one.tensors();
  const std::vector<std::int32_t> lengths = {21, 3}, pages = {0, 1, 5, 99, -1, -1};
  t.seqused_k = lengths.data();
  t.page_table = pages.data();
  heed_plan* plan = plan_of(one.problem(), 1);
  std::vector<unsigned char> room(1 << 16);
  expect_status(heed_plan_run(plan, &t, room.data(), nullptr), HEED_INVALID_ARGUMENT,
                "page_table[3] is 99; there are pages 0 to 7");
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatures, RowsWithoutKeysHaveTheirSink) {
  heed_problem p = cpu_problem("b2h3l5k1d16:fp32:sinks", HEED_WANTS_LSE | HEED_HAS_SINKS);
  p.len_k = 0;
  std::vector<float> o(2 * 3 * 5 * 16, 7), lse(2 * 3 * 5, 7);
  const std::vector<float> sinks = {1, -2, 3};
  heed_tensors t;
  heed_tensors_init(&t);
  t.o = o.data();
  t.lse = lse.data();
  heed_plan* plan = plan_of(p);
  expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the address of sinks is null");
  t.sinks = sinks.data();
  ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  for (const float value : o) ASSERT_EQ(value, 0);
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_EQ(lse[i], sinks[i / 5 % 3]);
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatures, ASinkThatIsNotANumberChangesAllOfItsHead) {
  for (const int len_q : {2, 40}) {
    heed_problem p = cpu_problem(fmt::format("b1h2l{}k9d16:fp32:sinks", len_q), HEED_WANTS_LSE | HEED_HAS_SINKS);
    const auto count = static_cast<std::size_t>(2 * len_q);
    std::vector<float> q(count * 16, 0.5F), k(2 * 9 * 16, 0.25F), v(2 * 9 * 16, 3), o(count * 16, 7), lse(count, 7);
    const std::vector<float> sinks = {NAN, -INFINITY};
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = q.data();
    t.k = k.data();
    t.v = v.data();
    t.o = o.data();
    t.lse = lse.data();
    t.sinks = sinks.data();
    heed_plan* plan = plan_of(p);
    std::vector<unsigned char> room(1 << 20);
    ASSERT_EQ(heed_plan_run(plan, &t, room.data(), nullptr), HEED_OK) << heed_last_error();
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_first = i < count / 2;
      ASSERT_EQ(std::isnan(lse[i]), is_first) << i;
      for (std::size_t d = 0; d < 16; ++d)
        if (is_first)
          ASSERT_TRUE(std::isnan(o[i * 16 + d])) << i;
        else
          ASSERT_NEAR(o[i * 16 + d], 3, 1e-5) << i;
    }
    heed_plan_destroy(plan);
  }
}

// A head dim without a program runs on copies, which lie in the workspace.
TEST_F(CpuFeatures, AWorkspaceLiesApartFromTensors) {
  heed_problem p = cpu_problem("b1h2l6k6d12:fp32:causal_top_left");
  heed_plan* plan = plan_of(p);
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  ASSERT_GT(info.workspace_bytes, 0U);
  alignas(256) static std::array<float, 1 << 16> room;
  const auto at = [&](std::size_t bytes) { return reinterpret_cast<char*>(room.data()) + bytes; };
  const std::size_t behind = (info.workspace_bytes + 255) / 256 * 256;
  ASSERT_LT(behind + 4096, sizeof room);
  for (int overlapping = -1; overlapping < 4; ++overlapping) {
    const auto place = [&](int tensor) {
      return at(tensor == overlapping ? 0 : behind + 1024 * static_cast<std::size_t>(tensor));
    };
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = place(0);
    t.k = place(1);
    t.v = place(2);
    t.o = place(3);
    if (overlapping < 0)
      EXPECT_EQ(heed_plan_run(plan, &t, room.data(), nullptr), HEED_OK) << heed_last_error();
    else
      expect_status(heed_plan_run(plan, &t, room.data(), nullptr), HEED_INVALID_ARGUMENT,
                    std::string("the workspace overlaps ") + "QKVO"[overlapping]);
  }
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatures, RaggedRowsWithoutKeysAreZeros) {
  heed_problem p = cpu_problem("b2h3l5k1d16:fp32:ragged", HEED_WANTS_LSE | HEED_RAGGED);
  p.len_k = p.total_k = 0;
  p.total_q = 7;
  p.o_strides = {};
  std::vector<float> o(7 * 3 * 16 + 1, 7), lse(3 * 7 + 1, 7);
  heed_tensors t;
  heed_tensors_init(&t);
  t.o = o.data();
  t.lse = lse.data();
  heed_plan* plan = plan_of(p);
  ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  for (std::size_t i = 0; i + 1 < o.size(); ++i) ASSERT_EQ(o[i], 0);
  for (std::size_t i = 0; i + 1 < lse.size(); ++i) ASSERT_EQ(lse[i], -INFINITY);
  EXPECT_EQ(o.back() + lse.back(), 14) << "past the last row";
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatures, NormsAndGatesAreWhatTheOracleSays) {
  for (const char* features : {":out_norm=1e-05", ":out_norm=0.01/h", ":out_gate=element", ":out_gate=head",
                               ":out_norm=1e-05/h:out_gate=element", ":sinks:ragged:out_norm=0.1:out_gate=element",
                               ":key_lengths:out_norm=0.1/h:out_gate=head", ":ragged:blhd:out_gate=element",
                               ":bias=bool/bk:page=8:ragged:dropout=0.5:out_norm=1e-05:out_gate=head"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=9/3"}) {
      FeatureCase one(kShape + mask + features);
      run(one.problem(), one.tensors());
      one.check(3e-4);  // a norm multiplies by some ten what is off by 3e-5
    }
}

TEST_F(CpuFeatures, RowsThatSeeNothingAreZerosBehindANorm) {
  FeatureCase one("b1h2l30k20d16:fp32:causal_bottom_right:out_norm=1e-20:out_gate=element");
  run(one.problem(), one.tensors());
  one.check(3e-4);
  for (int i = 0; i < 10 * 16; ++i) ASSERT_EQ(static_cast<const float*>(one.tensors().o)[i], 0) << i;
}

// Each tensor of a feature in turn is null, lies between two elements, is given to a problem without, or is written to.
TEST_F(CpuFeatures, AddressesThatCannotBeAreNamed) {
  const auto expect = [](FeatureCase& one, const heed_problem& p, const std::string& words, auto change) {
    heed_tensors t = one.tensors();
    change(t);
    heed_plan* plan = plan_of(p);
    std::vector<unsigned char> room(512);
    void* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
    expect_status(heed_plan_run(plan, &t, workspace, nullptr), HEED_INVALID_ARGUMENT, words);
    heed_plan_destroy(plan);
  };
  FeatureCase plain(kShape);
  const auto each = [&](const std::string& features, const std::string& name, auto heed_tensors::*tensor) {
    FeatureCase one(kShape + features);
    const heed_problem p = one.problem();
    expect(one, p, "the address of " + name + " is null", [&](heed_tensors& t) { t.*tensor = nullptr; });
    const auto moved = [&](std::ptrdiff_t bytes) {
      return [tensor, bytes](heed_tensors& t) {
        const auto address = reinterpret_cast<std::uintptr_t>(t.*tensor) + static_cast<std::uintptr_t>(bytes);
        t.*tensor = reinterpret_cast<std::remove_reference_t<decltype(t.*tensor)>>(address);
      };
    };
    expect(one, p, name + " lies at", moved(1));
    expect(one, p, "O overlaps " + name,
           [&](heed_tensors& t) { t.o = const_cast<void*>(static_cast<const void*>(t.*tensor)); });
    expect(plain, plain.problem(), name + " is given, which is of problems with",
           [&](heed_tensors& t) { t.*tensor = static_cast<std::remove_reference_t<decltype(t.*tensor)>>(t.q); });
  };
  each(":bias=fp16", "bias", &heed_tensors::bias);
  each(":sinks", "sinks", &heed_tensors::sinks);
  each(":alibi", "alibi_slopes", &heed_tensors::alibi_slopes);
  each(":ragged", "cu_seqlens_q", &heed_tensors::cu_seqlens_q);
  each(":ragged", "cu_seqlens_k", &heed_tensors::cu_seqlens_k);
  each(":key_lengths", "seqused_k", &heed_tensors::seqused_k);
  each(":page=8", "page_table", &heed_tensors::page_table);
  each(":causal_top_left:prefix=8", "prefix_lengths", &heed_tensors::prefix_lengths);
  each(":relative=32/128", "relative_bias", &heed_tensors::relative_bias);
  each(":out_gate=element", "out_gate", &heed_tensors::out_gate);
  each(":out_norm=1e-5", "out_norm_weight", &heed_tensors::out_norm_weight);
  each(":blocks=64", "block_counts", &heed_tensors::block_counts);
  each(":blocks=64", "block_indices", &heed_tensors::block_indices);
  FeatureCase paged(kShape + ":ragged:page=8");
  expect(paged, paged.problem(), "cu_seqlens_k is given, which is of problems with HEED_RAGGED, without HEED_PAGED",
         [](heed_tensors& t) { t.cu_seqlens_k = t.cu_seqlens_q; });
}

// A batch in parts is the batch, seeds change what is dropped, and the last of them is another than the first.
TEST_F(CpuFeatures, DropoutFollowsFromItsNumbersAlone) {
  FeatureCase one("b2h2l37k51d16:fp32:dropout=0.5");
  const heed_problem p = one.problem();
  heed_tensors t = one.tensors();
  const std::vector<std::byte> whole = outputs_of(one, p, t);
  EXPECT_EQ(outputs_of(one, p, t), whole);
  const auto rows = [&](std::int64_t entry) {
    const auto* const o = static_cast<const float*>(one.tensors().o) + entry * p.o_strides.batch;
    return std::vector<float>(o, o + 37 * 16);
  };
  const std::vector<float> second = rows(1);
  heed_problem half = p;
  half.batch = 1;
  const auto move = [&](auto& address, std::int64_t elements) {
    using Address = std::remove_reference_t<decltype(address)>;
    address = static_cast<Address>(static_cast<void*>(
        const_cast<float*>(static_cast<const float*>(static_cast<const void*>(address))) + elements));
  };
  move(t.q, p.q_strides.batch), move(t.k, p.k_strides.batch), move(t.v, p.v_strides.batch);
  move(t.o, p.o_strides.batch), move(t.lse, 2 * 37);
  run(half, t);
  EXPECT_NE(rows(1), second) << "the second entry's rows as those of a first one";
  ++t.dropout_first_entry;
  run(half, t);
  EXPECT_EQ(rows(1), second);
  for (std::uint64_t heed_tensors::*word : {&heed_tensors::dropout_seed, &heed_tensors::dropout_offset}) {
    heed_tensors other = t;
    other.*word ^= std::uint64_t{1} << 63;
    run(half, other);
    EXPECT_NE(rows(1), second);
  }
}

TEST_F(CpuFeatures, NumbersOfDropoutThatCannotBeAreNamed) {
  FeatureCase one(kShape + ":dropout=0.5"), plain(kShape);
  const auto expect = [](FeatureCase& with, const std::string& words, auto change) {
    heed_tensors t = with.tensors();
    change(t);
    heed_plan* plan = plan_of(with.problem());
    expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, words);
    heed_plan_destroy(plan);
  };
  const std::string of_none = "a seed, an offset or a first entry of dropout is given";
  expect(plain, of_none, [](heed_tensors& t) { t.dropout_seed = 1; });
  expect(plain, of_none, [](heed_tensors& t) { t.dropout_offset = 1; });
  expect(plain, of_none, [](heed_tensors& t) { t.dropout_first_entry = 1; });
  expect(one, "dropout_first_entry is -1;", [](heed_tensors& t) { t.dropout_first_entry = -1; });
  expect(one, "dropout_first_entry is 2147483647;", [](heed_tensors& t) { t.dropout_first_entry = 0x7fffffff; });
  expect(one, "reserved fields of heed_tensors", [](heed_tensors& t) { t.reserved_dropout = 1; });
  expect(one, "reserved fields of heed_tensors", [](heed_tensors& t) { t.reserved_flags = 1; });
}

TEST_F(CpuFeatures, RowsPastARaggedTensorAreRefused) {
  FeatureCase one(kShape + ":ragged");
  const heed_problem p = one.problem();
  const heed_tensors good = one.tensors();
  heed_plan* plan = plan_of(p);
  const auto refused = [&](auto heed_tensors::*array, std::int64_t total, const std::string& name) {
    for (const std::int64_t wrong :
         {std::int64_t{-1}, total + 1, std::int64_t{std::numeric_limits<std::int32_t>::min()}}) {
      std::vector<std::int32_t> begins = {0, 1, static_cast<std::int32_t>(wrong), 2};
      heed_tensors t = good;
      t.*array = begins.data();
      expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT,
                    fmt::format("{}[2] is {}; the tensor has rows 0 to {}", name, wrong, total - 1));
    }
  };
  refused(&heed_tensors::cu_seqlens_q, p.total_q, "cu_seqlens_q");
  refused(&heed_tensors::cu_seqlens_k, p.total_k, "cu_seqlens_k");
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatures, APlanSaysWhatElseItsProgramCanDo) {
  FeatureCase one(kShape + ":softcap=3:sinks");
  heed_plan* plan = plan_of(one.problem());
  for (const char* const words : {"it was built with biases or a mask tensor and ALiBi slopes and lengths of", "paged",
                                  "lists of blocks of keys and prefixes that all rows see and dropout and tables of",
                                  "relative-position biases and norms of output rows and output gates too"})
    EXPECT_THAT(reason_of(plan), ::testing::HasSubstr(words));
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_EQ(info.flops, 2.0 * 2 * 16 * 3 * 4 * 37 * 51);
  heed_plan_destroy(plan);
}

}  // namespace
}  // namespace heed
