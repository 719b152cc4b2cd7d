// What the C interface refuses of features before it looks for a program, each by its value, and how it spells them.
#include "c_library.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_refused;

constexpr std::int64_t kTooMany = std::int64_t{1} << 31;

std::string text_of(const heed_problem& p) {
  std::string text(heed_problem_text(&p, nullptr, 0), '\0');
  heed_problem_text(&p, text.data(), text.size() + 1);
  return text;
}

TEST(Features, SoftcapsThatCannotBeAreRefused) {
  heed_problem p = cpu_problem();
  for (const auto& [value, words] : {std::pair{-1.0, "softcap is -1;"}, std::pair{std::nan(""), "softcap is nan;"},
                                     std::pair{INFINITY + 0.0, "softcap is inf;"},
                                     std::pair{1e-40, "softcap is 1e-40;"}, std::pair{1e31, "softcap is 1e+31;"}}) {
    p.softcap = value;
    expect_refused(p, HEED_INVALID_PROBLEM, words);
  }
}

TEST(Features, DropoutThatCannotBeIsRefused) {
  heed_problem p = cpu_problem();
  for (const auto& [value, words] : {std::pair{-0.1, "dropout is -0.1;"}, std::pair{std::nan(""), "dropout is nan;"},
                                     std::pair{1.5, "dropout is 1.5;"}, std::pair{INFINITY + 0.0, "dropout is inf;"}}) {
    p.dropout = value;
    expect_refused(p, HEED_INVALID_PROBLEM, words);
  }
}

TEST(Features, RelativeBiasesThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b2h4l8k16d16:fp32:relative=32/128");
  p.relative_buckets = 33;
  expect_refused(p, HEED_INVALID_PROBLEM, "a relative-position bias of 33 buckets; it has 4 to 1024");
  p.flags |= HEED_RELATIVE_PAST;
  p.relative_max_distance = 3;
  expect_refused(p, HEED_INVALID_PROBLEM, "up to a distance of 3; with 33 buckets it is 17 to 65536");
  p.relative_max_distance = 128;
  EXPECT_EQ(text_of(p), "b2h4l8k16d16:fp32:relative=33/128/past");
  p.flags &= ~HEED_HAS_RELATIVE_BIAS;
  expect_refused(p, HEED_INVALID_ARGUMENT, "HEED_RELATIVE_PAST is given without HEED_HAS_RELATIVE_BIAS");
}

TEST(Features, NormsThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b2h4l8k16d16:fp32:out_norm=1e-5");
  for (const double eps : {0.0, -1e-5, 1e-31, 1e31, double{NAN}, double{INFINITY}}) {
    p.out_norm_eps = eps;
    expect_refused(p, HEED_INVALID_PROBLEM, "the eps of a norm of output rows is");
  }
  p.out_norm_eps = 1e-5;
  p.flags = HEED_OUT_NORM_BY_HEAD;
  expect_refused(p, HEED_INVALID_ARGUMENT, "HEED_OUT_NORM_BY_HEAD is given without HEED_HAS_OUT_NORM");
  p.flags = 0;
  expect_refused(p, HEED_INVALID_ARGUMENT, "out_norm_eps is 1e-05 without HEED_HAS_OUT_NORM");
}

TEST(Features, GatesThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b2h4l8k16d16:fp32:out_gate=element");
  p.out_gate_strides.dim = 2;
  expect_refused(p, HEED_INVALID_ARGUMENT, "out_gate_strides.dim is 2; it must be 1");
  p.out_gate_strides.dim = 1;
  p.out_gate_strides.head = -1;
  expect_refused(p, HEED_INVALID_ARGUMENT, "the head stride of the output gate is -1");
  p.out_gate_strides.head = std::int64_t{1} << 61;
  expect_refused(p, HEED_INVALID_PROBLEM, "the strides of the output gate reach beyond 2^60 bytes");
  // Shared among whatever there is.
  p.out_gate_strides = {};
  EXPECT_EQ(text_of(p), "b2h4l8k16d16:fp32:out_gate=head");
  p.out_gate_strides.row = 16;
  p.flags = 0;
  expect_refused(p, HEED_INVALID_ARGUMENT, "out_gate_strides are given without HEED_HAS_OUT_GATE");
}

TEST(Features, BiasesThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b2h4l8k16d16:fp32", HEED_HAS_BIAS);
  for (const int dtype : {-1, 7, 44}) {
    p.dtype_bias = dtype;
    expect_refused(p, HEED_INVALID_ARGUMENT, fmt::format("dtype_bias {} is no heed_dtype", dtype));
  }
  for (const int dtype : {HEED_FP8_E4M3, HEED_FP8_E5M2, HEED_INT8}) {
    p.dtype_bias = dtype;
    expect_refused(p, HEED_UNSUPPORTED, fmt::format("dtype_bias {} is an 8-bit type", dtype));
  }
  p.dtype_bias = HEED_BOOL;
  for (const auto& [name, stride] : {std::pair{"batch", &heed_strides::batch}, std::pair{"head", &heed_strides::head},
                                     std::pair{"row", &heed_strides::row}, std::pair{"dim", &heed_strides::dim}}) {
    p.bias_strides = {};
    p.bias_strides.*stride = -3;
    expect_refused(p, HEED_INVALID_ARGUMENT, fmt::format("the {} stride of the bias is -3", name));
    p.bias_strides.*stride = std::numeric_limits<std::int64_t>::max();
    expect_refused(p, HEED_INVALID_PROBLEM, "the strides of the bias reach beyond 2^60 bytes");
  }
  // Of a dtype that is not asked for nothing is read.
  p.flags = 0;
  p.bias_strides = {};
  p.dtype_bias = 44;
  EXPECT_EQ(text_of(p), "b2h4l8k16d16:fp32");
}

TEST(Features, FlagsThatContradictEachOtherAreRefused) {
  expect_refused(cpu_problem("b1h1l8d16:fp32", HEED_ALIBI_BY_BATCH), HEED_INVALID_ARGUMENT,
                 "HEED_ALIBI_BY_BATCH is given without HEED_HAS_ALIBI");
  heed_problem p = cpu_problem("b1h1l8d16:fp32", HEED_RAGGED | HEED_KEY_LENGTHS);
  p.total_q = p.total_k = 8;
  expect_refused(p, HEED_INVALID_ARGUMENT, "HEED_KEY_LENGTHS is given beside HEED_RAGGED");
  p.flags |= HEED_PAGED;
  p.page_size = p.pages = 4;
  expect_refused(p, HEED_INVALID_ARGUMENT, "total_k is 8, and keys lie in pages");
  p.total_k = 0;
  EXPECT_EQ(text_of(p), "b1h1l8d16:fp32:key_lengths:ragged:page=4");
}

TEST(Features, TotalsThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b3h2l8k16d16:fp32", HEED_RAGGED);
  p.total_k = 16;
  for (const std::int64_t total : {std::int64_t{-5}, std::int64_t{0}, std::int64_t{7}, kTooMany}) {
    p.total_q = total;
    expect_refused(p, HEED_INVALID_PROBLEM,
                   fmt::format("total_q is {}; it must be 8 to 2^31 - 1, for an entry may have len_q = 8 rows", total));
  }
  p.total_q = 8;
  for (const std::int64_t total : {std::int64_t{-5}, std::int64_t{15}, kTooMany}) {
    p.total_k = total;
    expect_refused(p, HEED_INVALID_PROBLEM, fmt::format("total_k is {}; it must be 16 to", total));
  }
  p.total_k = 16;
  EXPECT_EQ(text_of(p), "b3h2l8k16d16:fp32:blhd:ragged");
  p.total_q = kTooMany - 1;
  p.heads = p.heads_kv = 1 << 20;
  p.len_q = p.len_k = 1;
  expect_refused(p, HEED_INVALID_PROBLEM, "Q would have 3.6e+16 elements");
}

TEST(Features, PagesThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b3h2l8k50d16:fp32", HEED_PAGED);
  p.pages = 10;
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, (std::int64_t{1} << 20) + 1}) {
    p.page_size = size;
    expect_refused(p, HEED_INVALID_PROBLEM, fmt::format("page_size is {}; with HEED_PAGED", size));
  }
  p.page_size = 16;
  for (const std::int64_t pages : {std::int64_t{0}, std::int64_t{-1}, kTooMany}) {
    p.pages = pages;
    expect_refused(p, HEED_INVALID_PROBLEM, fmt::format("pages is {}; with HEED_PAGED", pages));
  }
  p.pages = 1;
  for (const std::int64_t stride : {-1, 1, 3}) {
    p.page_table_stride = stride;
    expect_refused(p, HEED_INVALID_PROBLEM,
                   fmt::format("page_table_stride is {}; len_k = 50 keys take 4 pages of 16", stride));
  }
  p.page_table_stride = std::numeric_limits<std::int64_t>::max();
  expect_refused(p, HEED_INVALID_PROBLEM, "the strides of the page table reach beyond 2^60 bytes");
  p.page_table_stride = 0;
  EXPECT_EQ(text_of(p), "b3h2l8k50d16:fp32:page=16");
  p.pages = kTooMany - 1;
  p.page_size = 1 << 20;
  expect_refused(p, HEED_INVALID_PROBLEM, "K would have 7.21e+16 elements");
}

TEST(Features, ListsOfBlocksThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b3h2l300k500d16:fp32:blocks=64x128", HEED_HAS_BLOCKS);
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-64}, std::int64_t{32}, std::int64_t{256}}) {
    heed_problem wrong = p;
    wrong.block_rows = size;
    expect_refused(wrong, HEED_INVALID_PROBLEM, fmt::format("block_rows is {}; with HEED_HAS_BLOCKS", size));
    wrong = p;
    wrong.block_keys = size;
    expect_refused(wrong, HEED_INVALID_PROBLEM, fmt::format("block_keys is {}; with HEED_HAS_BLOCKS", size));
  }
  for (const std::int64_t most : {std::int64_t{0}, std::int64_t{-1}, (std::int64_t{1} << 24) + 1}) {
    heed_problem wrong = p;
    wrong.block_most = most;
    expect_refused(wrong, HEED_INVALID_PROBLEM, fmt::format("block_most is {}; with HEED_HAS_BLOCKS", most));
  }
  heed_problem wrong = p;
  wrong.block_index_strides.dim = 2;
  expect_refused(wrong, HEED_INVALID_ARGUMENT, "the numbers of a list of blocks must follow each other");
  wrong = p;
  wrong.block_count_strides.head = -1;
  expect_refused(wrong, HEED_INVALID_ARGUMENT, "the head stride of block_counts is -1");
  wrong = p;
  wrong.block_index_strides.row = std::numeric_limits<std::int64_t>::max();
  expect_refused(wrong, HEED_INVALID_PROBLEM, "the strides of block_indices reach beyond 2^60 bytes");
  EXPECT_EQ(text_of(p), "b3h2l300k500d16:fp32:blocks=64x128");
}

TEST(Features, AreSpelledAsTheCommandLineDoes) {
  for (const char* text : {"b2h4hkv2l8k50d16:fp32:softcap=30",
                           "b2h4l8k50d16:bf16:bias=fp16/hlk",
                           "b2h4l8k50d16:fp16:bias=fp32",
                           "b2h4l8k50d16:fp16:bias=bool/bk",
                           "b2h4l8k50d16:fp16:bias=bf16/l",
                           "b2h4l8k50d16:fp32:alibi:sinks:key_lengths",
                           "b2h4l8k50d16:fp16:causal_bottom_right:ragged",
                           "b2h4l8k50d16:fp16:window=9/3:blhd:ragged",
                           "b2h4l8k50d16:fp16:softcap=2.5:bias=bool/bhlk:alibi:sinks:key_lengths:page=16",
                           "b2h4l8k50d16:fp16:blhd:key_lengths:ragged:page=16",
                           "b2h4l200k300d16:fp16:blocks=128",
                           "b2h4l8k50d16:fp16:causal_top_left:prefix=50",
                           "b2h4l8k50d16:fp16:dropout=0.1",
                           "b2h4l8k50d16:fp16:out_norm=1e-05",
                           "b2h4l8k50d16:fp16:blhd:ragged:out_norm=0.5/h:out_gate=element",
                           "b2h4l8k50d16:fp16:ragged:out_gate=head",
                           "b2h4l8k50d16:fp16:out_gate=head",
                           "b2h4l8k50d16:fp16:relative=32/128",
                           "b2h4l8k50d16:fp16:relative=32/128/past:alibi",
                           "b2h4l200k300d16:fp16:sinks:blocks=64x128//bh"})
    EXPECT_EQ(text_of(cpu_problem(text)), to_string(parse_workload(text))) << text;
}

}  // namespace
}  // namespace heed
