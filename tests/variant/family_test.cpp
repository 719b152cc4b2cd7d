#include "variant/family.hpp"

#include <set>

#include "base/random.hpp"
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/dispatch_table.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

using testing_support::case_table;
using testing_support::expect_error;

// A device of each kind, GPU limits without a GPU.
std::vector<DeviceFacts> some_devices() {
  std::vector<DeviceFacts> all = {cpu_facts()};
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) all.push_back(gpu_limits(arch));
  return all;
}

TEST(Families, EveryCaseIsRefusedWithAReasonOrHasALegalDefault) {
  for (const Family* family : families())
    for (const DeviceFacts& device : some_devices())
      for (const Workload& workload : case_table()) {
        if (const auto reason = family->refuses(workload, device)) {
          EXPECT_FALSE(reason->empty());
          continue;
        }
        const Config config = family->default_config(workload, device);
        EXPECT_EQ(family->is_illegal(config, workload, device), std::nullopt)
            << family->name() << " on " << device.name << ": " << to_string(workload);
        const LaunchPlan plan = family->plan(config, workload, device);
        EXPECT_GT(plan.threads, 0U);
        EXPECT_GT(plan.grid[0], 0U);
        EXPECT_TRUE(!plan.tensor_maps || plan.tensor_maps->problem == problem_of(workload)) << family->name();
        EXPECT_TRUE((!plan.tensor_maps && !plan.supports_pdl) || device.compute_capability >= 90) << family->name();
        EXPECT_NE(family->prelude(config, problem_of(workload)).find("kConfig{"), std::string::npos);
        EXPECT_NE(family->entry().find(plan.entry), std::string::npos);
      }
}

// Rules over rows, processors and head dims meet in places that no case is made for.
TEST(Families, DefaultsAreLegalWhateverTheNumbersOfRowsAndProcessors) {
  int defaults = 0;
  const auto check = [&](const Workload& workload, const DeviceFacts& device) {
    for (const Family* family : families()) {
      if (family->refuses(workload, device)) continue;
      ++defaults;
      EXPECT_NO_THROW({
        const Config config = family->default_config(workload, device);
        EXPECT_EQ(family->is_illegal(config, workload, device), std::nullopt);
      }) << family->name()
         << " on " << device.processors << " processors of " << device.name << ": " << to_string(workload);
    }
  };
  for (const int processors : {58, 78, 114, 132})
    for (const char* arch : {"sm_89", "sm_90a"}) {
      DeviceFacts device = gpu_limits(arch);
      device.processors = processors;
      for (const int batch_heads : {1, 6, 32, 130, 300})
        for (const int len_q : {1, 16, 64, 100, 128, 192, 300, 1024, 2000, 4096})
          for (const int len_k : {64, 400, 2048})
            for (const int dim : find_family("fwd_sm90_persistent").head_dims().listed)
              for (const Mask mask : {Mask::none, Mask::causal_top_left}) {
                Workload workload;
                workload.heads = workload.heads_kv = batch_heads;
                workload.len_q = len_q;
                workload.len_k = len_k;
                workload.dim = workload.dim_v = dim;
                workload.mask = mask;
                check(workload, device);
              }
    }
  EXPECT_GT(defaults, 10000);
}

TEST(Families, RefuseOtherDevicesAndUnsupportedShapes) {
  const Family& gpu = find_family("fwd_sm80");
  const Family& cpu = find_family("fwd_cpu");
  const DeviceFacts hopper = gpu_limits("sm_90a");
  EXPECT_THAT(*gpu.refuses(parse_workload("l8d64"), cpu_facts()), ::testing::HasSubstr("NVIDIA"));
  EXPECT_THAT(*cpu.refuses(parse_workload("l8d64"), hopper), ::testing::HasSubstr("CPU"));
  EXPECT_THAT(*gpu.refuses(parse_workload("l8d80"), hopper), ::testing::HasSubstr("head dim 80"));
  EXPECT_EQ(gpu.refuses(parse_workload("l8d64:fp32"), hopper), std::nullopt);
  EXPECT_THAT(*gpu.refuses(parse_workload("l8d64dv128"), hopper), ::testing::HasSubstr("value dim"));
  EXPECT_THAT(*cpu.refuses(parse_workload("l8d1024"), cpu_facts()), ::testing::HasSubstr("512"));
  const Workload window = parse_workload("l8d64:causal_top_left:window=3");
  EXPECT_EQ(cpu.refuses(window, cpu_facts()), std::nullopt);
  for (const Family* family : families())
    if (family->device() == DeviceKind::cuda) {
      if (family->name() == "fwd_sm90_fp8") continue;  // quantised inputs alone
      if (family->name() == "ladder")
        EXPECT_THAT(*family->refuses(window, hopper),
                    ::testing::HasSubstr("the mask window is not supported; it computes none and causal"));
      else
        EXPECT_EQ(family->refuses(window, hopper), std::nullopt) << family->name();
      EXPECT_EQ(family->refuses(parse_workload("l8d64:window=-1/3"), hopper), std::nullopt) << "a right bound alone";
    }
  DeviceFacts old = hopper;
  old.compute_capability = 75;
  EXPECT_THAT(*gpu.refuses(parse_workload("l8d64"), old), ::testing::HasSubstr("7.5"));
}

TEST(Elements, AnUnknownOneIsAnError) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32}) {
    EXPECT_EQ(facts_of(dtype).name, to_string(dtype));
    EXPECT_EQ(static_cast<std::size_t>(facts_of(dtype).bytes), size_of(dtype));
    EXPECT_EQ(find_element(to_string(dtype)).element, facts_of(dtype).element);
    EXPECT_EQ(facts_of(facts_of(dtype).element).dtype, dtype);
  }
  EXPECT_EQ(facts_of(Element::fp16).roundoff, 0x1p-11);
  EXPECT_EQ(facts_of(Element::bf16).roundoff, 0x1p-8);
  EXPECT_EQ(facts_of(Element::fp16).largest, 65504);
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32, Dtype::e4m3, Dtype::e5m2, Dtype::int8}) {
    const auto smallest = static_cast<float>(facts_of(dtype).smallest);
    EXPECT_EQ(round_to(dtype, smallest), smallest) << to_string(dtype);
    EXPECT_EQ(round_to(dtype, 0.49F * smallest), 0) << to_string(dtype);
  }
  testing_support::expect_error(ErrorCode::internal, "7 is no element type", [] { (void)facts_of(Element{7}); });
  testing_support::expect_error(ErrorCode::internal, "7 is no dtype", [] { (void)facts_of(Dtype{7}); });
  testing_support::expect_error(ErrorCode::usage, "unknown element type \"fp8\"", [] { (void)find_element("fp8"); });
  testing_support::expect_error(ErrorCode::usage, "unknown kind of mask", [] { (void)parse_mask_kind("band"); });
  testing_support::expect_error(ErrorCode::internal, "7 is no kind of mask", [] { (void)to_string(MaskKind{7}); });
}

// A program for the sizes of a launch has those of the keys that are left of it.
TEST(Families, SizesAreWithoutKeysThatNobodySees) {
  const Workload w = parse_workload("b2h8hkv2l4k700d64:causal_bottom_right:window=99");
  EXPECT_EQ(sizes_of(w).len_k, 103);
  EXPECT_EQ(sizes_of(w).left_offset, 0);
  EXPECT_EQ(sizes_of(w).right_offset, 99);
  EXPECT_EQ(whole_sizes_of(w).len_k, 700);
  EXPECT_EQ(whole_sizes_of(w).left_offset, 597);
  EXPECT_EQ(to_string(sized_problem_of(w)), "fp16_d64_window_b2h8hkv2l4k103o99");
  const Workload top = parse_workload("l40k50d64:window_top_left=9/2");
  EXPECT_EQ(to_string(sized_problem_of(top)), "fp16_d64_window_b1h1hkv1l40k50o2f-9");
  EXPECT_THAT(literal(sized_problem_of(top)),
              ::testing::HasSubstr(".mask = heed::MaskKind::window, .sizes = {.batch = 1, .heads = 1, .heads_kv = 1, "
                                   ".len_q = 40, .len_k = 50, .right_offset = 2, .left_offset = -9}"));
  const Workload plain = parse_workload("b2h8hkv2l4k700d64");
  EXPECT_EQ(sizes_of(plain), whole_sizes_of(plain));
}

TEST(CpuDefaults, FollowTheUnitTheRegistersAndTheShape) {
  const Family& cpu = find_family("fwd_cpu");
  const auto chosen = [&](const char* text, int lanes, int registers, bool matrix, int processors) {
    DeviceFacts device = cpu_facts();
    device.lanes = lanes;
    device.registers = registers;
    device.matrix_unit = matrix;
    device.processors = processors;
    const Workload workload = parse_workload(text);
    return describe(make_variant(cpu, cpu.default_config(workload, device), workload));
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(chosen("b1h8l512d64:fp32", 16, 32, true, 2), HasSubstr("unit=matrix,block_m=512,block_n=256"));
  EXPECT_THAT(chosen("b1h8l512d64:bf16", 16, 32, true, 64), HasSubstr("unit=matrix,block_m=32"));
  EXPECT_THAT(chosen("b1h32hkv8l5k4096d128:bf16", 16, 32, true, 2), HasSubstr("pack_gqa=on"));
  EXPECT_THAT(chosen("b1h32hkv8l5k4096d128:bf16", 16, 32, true, 2), HasSubstr("unit=matrix"));
  EXPECT_THAT(chosen("b1h8l512d64:fp32", 16, 32, false, 2), HasSubstr("tile_rows=4,tile_vectors=4,unroll=2"));
  EXPECT_THAT(chosen("b1h8l512d64:fp32:causal_top_left", 16, 32, false, 2), HasSubstr("tile_rows=8,tile_vectors=2"));
  EXPECT_THAT(chosen("b1h8l512d64:fp32", 8, 16, false, 2), HasSubstr("tile_rows=6,tile_vectors=2"));
  EXPECT_THAT(chosen("b1h8l17k512d64:fp32", 8, 16, false, 2), HasSubstr("tile_rows=6,tile_vectors=2"));
  for (const char* few : {"b1h8l1k512d64:fp32", "b1h32hkv8l1k4096d128:bf16", "b1h8l16d64:causal_bottom_right"})
    for (const int lanes : {4, 8, 16})
      for (const bool matrix : {false, true})
        EXPECT_THAT(chosen(few, lanes, 32, matrix, 2),
                    ::testing::AllOf(HasSubstr("unit=vector"), HasSubstr("lanes=columns,split_keys=512,prefetch=32")))
            << few;
  for (const char* text : {"b1h1l1d1", "b1h4hkv2l7k300d512:bf16", "b64h12l128d64", "b1h1l5000d96:fp32:causal_top_left"})
    for (const int lanes : {4, 8, 16})
      for (const int registers : {16, 32})
        for (const int processors : {1, 2, 5, 128})
          EXPECT_FALSE(chosen(text, lanes, registers, false, processors).empty());
  // The rows of a block walk one list, of 64 rows.
  for (const int rows : {1, 20, 30, 44, 60, 150, 1000})
    for (const int lanes : {4, 8, 16})
      for (const int registers : {16, 32}) {
        const std::string listed = "b1h2l" + std::to_string(rows) + "k200d16:fp32:blocks=64/window1";
        EXPECT_FALSE(chosen(listed.c_str(), lanes, registers, false, 2).empty()) << listed;
      }
}

TEST(Families, IllegalConfigsSayWhy) {
  const Workload workload = parse_workload("b1h8l512d64");
  const DeviceFacts ada = gpu_limits("sm_89");
  const auto reason = [&](const std::string& text) {
    const Variant variant = parse_variant(text, workload, ada);
    return variant.is_illegal(workload, ada).value_or("legal");
  };
  EXPECT_THAT(reason("fwd_sm80:block_n=128,stages=4,kv_groups=4"), ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason("fwd_sm80:block_m=128,kv_groups=8"), ::testing::HasSubstr("1024"));
  EXPECT_THAT(reason("fwd_sm80:block_m=16,warp_rows=32"), ::testing::HasSubstr("no multiple"));
  EXPECT_THAT(reason("fwd_sm80:kv_groups=2,epilogue=direct"), ::testing::HasSubstr("same program"));
  EXPECT_THAT(reason("fwd_sm80:warp_rows=32,block_n=128,block_m=128,kv_groups=1,min_blocks=4,stages=1"),
              ::testing::HasSubstr("do not fit"));
  EXPECT_THAT(reason("fwd_sm80:overlap=on,split_wait=on"), ::testing::HasSubstr("split_wait=off"));
  EXPECT_THAT(reason("fwd_sm80:overlap=on,split_wait=off,stages=1"), ::testing::HasSubstr("two or more stages"));
  EXPECT_THAT(reason("fwd_sm80:rescale=stale_tile,exp2=poly_half"), ::testing::HasSubstr("exp2=hardware"));
  EXPECT_THAT(reason("fwd_sm80:late_loads=on,split_wait=off,stages=1"), ::testing::HasSubstr("two or more stages"));
  EXPECT_THAT(reason("fwd_sm80:pipeline_sync=stage,split_wait=off,stages=1"),
              ::testing::HasSubstr("two or more stages"));
  EXPECT_THAT(reason("fwd_sm80:pipeline_sync=stage,split_wait=on,stages=2"), ::testing::HasSubstr("split_wait=off"));
  EXPECT_THAT(reason("fwd_sm80:pipeline_sync=stage,split_wait=off,stages=2,block_m=32,warp_rows=32"),
              ::testing::HasSubstr("two or more warps a group"));
  EXPECT_EQ(reason("fwd_sm80"), "legal");
}

TEST(Families, RandomLegalConfigsKeepTheirPromises) {
  Random random(4);
  for (const Family* family : families()) {
    const DeviceFacts device = family->device() == DeviceKind::cpu ? cpu_facts() : gpu_limits("sm_90a");
    Workload workload = parse_workload("b2h8hkv2l300k400d128:bf16:causal_top_left");
    if (family->name() == "fwd_sm90_fp8")
      workload = parse_workload("b2h8hkv2l300k400d128:bf16:causal_top_left:quantised=qkv/e4m3/head");
    if (family->refuses(workload, device)) workload.len_q = 16;
    ASSERT_EQ(family->refuses(workload, device), std::nullopt) << family->name();
    int legal = 0;
    for (int i = 0; i < 5000; ++i) {
      const std::vector<Knob>& knobs = variant_knobs(*family);
      Config drawn;
      for (const Knob& knob : knobs) drawn.push_back(knob.values[random.below(knob.values.size())]);
      const Variant variant = canonical(variant_of(*family, drawn, workload), workload);
      const Config values = values_of(variant);
      EXPECT_EQ(values_of(canonical(variant, workload)), values) << describe(variant);
      for (std::size_t k = 0; k < values.size(); ++k) EXPECT_GE(knobs[k].index_of(values[k]), 0);
      if (variant.is_illegal(workload, device)) continue;
      ++legal;
      EXPECT_EQ(values_of(parse_variant(describe(variant), workload, device)), values);
      const LaunchPlan plan = variant.plan(workload, device);
      if (family->device() == DeviceKind::cuda) {
        EXPECT_LE(plan.threads, 1024U);
        EXPECT_LE(plan.shared_bytes, device.shared_bytes_per_block);
        EXPECT_EQ(plan.threads % 32, 0U);
      }
    }
    EXPECT_GT(legal, 50) << family->name();
  }
}

TEST(Families, PortableWarpsMeetAtStagesOnHopper) {
  const auto default_of = [](const char* shape, const char* arch) {
    const Family& family = find_family("fwd_sm80");
    return to_string(family.knobs(), family.default_config(parse_workload(shape), gpu_limits(arch)));
  };
  EXPECT_THAT(default_of("b1h32l1024d128", "sm_90a"), ::testing::HasSubstr("pipeline_sync=stage"));
  EXPECT_THAT(default_of("b1h32l1024d128:fp16:causal_top_left", "sm_90a"), ::testing::HasSubstr("pipeline_sync=stage"));
  EXPECT_THAT(default_of("b2h8l4096d128:fp16:causal_top_left", "sm_90a"), ::testing::HasSubstr("pipeline_sync=group"));
  EXPECT_THAT(default_of("b4h16l512d64", "sm_90a"), ::testing::HasSubstr("pipeline_sync=group"));
  for (const char* arch : {"sm_80", "sm_89"})
    EXPECT_THAT(default_of("b1h32l1024d128", arch), ::testing::HasSubstr("pipeline_sync=group")) << arch;
}

TEST(Families, ACustomSourceMayAskForMoreOfItsLaunch) {
  const Workload workload = parse_workload("b1h8l512d64");
  const DeviceFacts device = gpu_limits("sm_90a");
  Variant variant = parse_variant("fwd_sm80", workload, device);
  LaunchPlan expected = variant.family->plan(variant.config, workload, device);
  EXPECT_EQ(variant.plan(workload, device), expected);
  variant.extras = {.semaphores = 5, .shared_bytes = 64, .supports_pdl = true};
  expected.semaphores = 5;
  expected.shared_bytes += 64;
  expected.supports_pdl = true;
  EXPECT_EQ(variant.plan(workload, device), expected);
}

TEST(Families, AWorkloadChoosesItsFamily) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const auto chosen = [&](const char* shape) { return default_family(parse_workload(shape), hopper).name(); };
  EXPECT_EQ(chosen("b8h32hkv4l1k8192d128"), "fwd_sm90_decode");
  EXPECT_EQ(chosen("b8h32hkv4l4k8192d128:bf16"), "fwd_sm90_decode");
  EXPECT_EQ(chosen("b2h64hkv8l11k929d128:bf16:causal_bottom_right"), "fwd_sm90_persistent");  // short keys, many heads
  EXPECT_EQ(chosen("b8h32hkv4l17k8192d128"), "fwd_sm90_persistent");                          // too many queries
  EXPECT_EQ(default_family(parse_workload("b8h32hkv4l1k8192d128"), gpu_limits("sm_89")).name(), "fwd_sm80_decode");
  EXPECT_EQ(chosen("b1h8l512d64"), "fwd_sm90_split");
  EXPECT_EQ(chosen("b1h16l256d128"), "fwd_sm90_split");
  EXPECT_EQ(chosen("b1h8l1024d64"), "fwd_sm90_persistent");  // 128 tiles of 64 rows: split in two they are two waves
  EXPECT_EQ(chosen("b64h12l128d64"), "fwd_sm90_persistent");
  // Causal: two small blocks a multiprocessor, long row tiles beside short ones.
  EXPECT_EQ(chosen("b1h8l1024d64:causal_top_left"), "fwd_sm90_persistent");
  EXPECT_EQ(chosen("b4h8l256d64:causal_top_left"), "fwd_sm90_split");  // few keys
  EXPECT_EQ(chosen("b64h12l128d64:causal_top_left"), "fwd_sm90_persistent");
  EXPECT_EQ(chosen("b1h8l2048d64:causal_top_left"), "fwd_sm90_persistent");
  EXPECT_EQ(chosen("b1h8l1024d128:causal_top_left"), "fwd_sm90_persistent");
  EXPECT_EQ(chosen("h128hkv1l16k64d64"), "fwd_sm90_persistent");  // 2048 packed rows
  EXPECT_EQ(chosen("l1k64d80"), "fwd_sm90_decode");               // any multiple of 8
  EXPECT_EQ(default_family(parse_workload("b1h8l512d64"), gpu_limits("sm_89")).name(), "fwd_sm80");
  // None runs it: each family's reason is the answer, and equal reasons come once.
  testing_support::expect_error(ErrorCode::unsupported,
                                "fwd_sm90_persistent, fwd_sm90_split, fwd_sm90_fp8: it needs the instructions of",
                                [] { default_family(parse_workload("l1k64d80"), gpu_limits("sm_89")); });
  for (const char* words : {"no family runs b1h1l64d257:fp16 on",
                            "fwd_sm80, fwd_sm90_fp8: head dim 257 is not supported; it takes 64 and 128",
                            "fwd_sm90_split: head dim 257 is not supported; it takes multiples of 8 up to 256"})
    testing_support::expect_error(ErrorCode::unsupported, words,
                                  [&] { default_family(parse_workload("l64d257"), hopper); });
  for (const char* decode : {"fwd_sm80_decode", "fwd_sm90_decode"})
    EXPECT_FALSE(find_family(decode).made_for(parse_workload("l1k64d64"), hopper).empty());
  EXPECT_TRUE(find_family("fwd_sm80").made_for(parse_workload("l1k64d64"), hopper).empty());
  EXPECT_EQ(default_family(parse_workload("l1k64d64"), cpu_facts()).name(), "fwd_cpu");
}

// The first row whose family runs the workload decides; a row without a family of the registry would be dead.
TEST(Families, TheDispatchTableDecides) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  for (const DispatchRow& row : dispatch_table()) {
    EXPECT_EQ(&find_family(row.family().name()), &row.family());
    EXPECT_FALSE(row.reason.empty()) << row.family().name();
  }
  for (const char* words : {"l1k64d64", "b1h8l512d64", "b4h32l4096d128", "b1h8l512d64:fp16:quantised=qkv/e4m3/head"}) {
    const Workload workload = parse_workload(words);
    const Family& chosen = default_family(workload, hopper);
    for (const DispatchRow& row : dispatch_table()) {
      if (row.family().refuses(workload, hopper) || !row.holds(workload, hopper)) continue;
      EXPECT_EQ(&row.family(), &chosen) << words;
      EXPECT_EQ(chosen.made_for(workload, hopper), row.reason) << words;
      break;
    }
  }
}

// Grids count heads and batch entries in dimensions that end at 65535; blocks that take tile after tile do not.
TEST(Families, OnlyGridsThatCountBatchEntriesEndAtTheirLimit) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload many = parse_workload("b70000h1l128d64");
  for (const char* name : {"fwd_sm80", "fwd_sm90_split"})
    EXPECT_THAT(find_family(name).refuses(many, hopper).value_or(""), ::testing::HasSubstr("grid limit of 65535"));
  const Workload decoding = parse_workload("b70000h8hkv1l1k256d64");
  EXPECT_THAT(find_family("fwd_sm80_decode").refuses(decoding, hopper).value_or(""),
              ::testing::HasSubstr("70000 batch"));
  for (const auto& [name, workload] : {std::pair{"fwd_sm90_persistent", many}, {"fwd_sm90_decode", decoding}}) {
    const Family& family = find_family(name);
    SCOPED_TRACE(name);
    EXPECT_EQ(family.refuses(workload, hopper).value_or(""), "");
    const Config config = family.default_config(workload, hopper);
    EXPECT_EQ(family.is_illegal(config, workload, hopper).value_or(""), "");
    const LaunchPlan plan = family.plan(config, workload, hopper);
    EXPECT_LE(plan.grid[1], 65535U);
    EXPECT_LE(plan.grid[2], 65535U);
  }
  const Variant one_tile = parse_variant("fwd_sm90_persistent:scheduler=single_tile", many, hopper);
  EXPECT_THAT(one_tile.is_illegal(many, hopper).value_or(""),
              ::testing::HasSubstr("grid limit of 65535 each; write scheduler=static_persistent"));
}

TEST(Families, ASearchTakesAllThatRunTheWorkload) {
  const auto searched = [](const char* shape, const DeviceFacts& device) {
    std::vector<std::string> names;
    for (const Family* family : searched_families(parse_workload(shape), device)) names.emplace_back(family->name());
    return names;
  };
  const DeviceFacts hopper = gpu_limits("sm_90a");
  EXPECT_THAT(searched("b1h8l512d64", hopper),
              ::testing::ElementsAre("fwd_sm90_split", "fwd_sm80", "fwd_sm90_persistent"));
  EXPECT_THAT(searched("b8h32hkv4l1k8192d128", hopper),
              ::testing::ElementsAre("fwd_sm90_decode", "fwd_sm80", "fwd_sm80_decode", "fwd_sm90_persistent",
                                     "fwd_sm90_split"));
  EXPECT_THAT(searched("b1h8l512d64", gpu_limits("sm_89")), ::testing::ElementsAre("fwd_sm80"));
  testing_support::expect_error(ErrorCode::unsupported, "fwd_sm80: head dim 80 is not supported",
                                [&] { searched("l1k64d80", gpu_limits("sm_89")); });
  EXPECT_THAT(searched("l1k64d64", cpu_facts()), ::testing::ElementsAre("fwd_cpu"));
}

TEST(Families, IdsAreReadableAndDifferent) {
  const Workload workload = parse_workload("b1h8l512d64");
  const DeviceFacts device = gpu_limits("sm_90a");
  std::set<std::string> ids;
  for (const char* text : {"fwd_sm80", "fwd_sm80:block_n=128", "fwd_sm80:exp2=poly_half"})
    ids.insert(parse_variant(text, workload, device).id());
  for (const char* shape : {"b1h8l512d64:bf16", "b1h8l512d128", "b1h8l512d64:causal_top_left"})
    ids.insert(parse_variant("fwd_sm80", parse_workload(shape), device).id());
  EXPECT_EQ(ids.size(), 6U);
  // Lengths and batch are run-time facts: the same binary.
  EXPECT_EQ(parse_variant("fwd_sm80", parse_workload("b3h2l77d64"), device).id(),
            parse_variant("fwd_sm80", workload, device).id());
  EXPECT_THAT(parse_variant("fwd_sm80", workload, device).id(),
              ::testing::StartsWith("fwd_sm80_fp16_d64.block_m=32,kv_groups=4,stages=3,split_wait=on."));
}

TEST(Families, UnknownNamesAreAnsweredWithTheKnownOnes) {
  const Workload workload = parse_workload("b1h8l512d64");
  const DeviceFacts device = cpu_facts();
  expect_error(ErrorCode::usage, "did you mean \"fwd_cpu\"?", [&] { parse_variant("fwd_cpo", workload, device); });
  expect_error(ErrorCode::usage, "did you mean \"block_m\"?",
               [&] { parse_variant("fwd_cpu:blok_m=64", workload, device); });
  expect_error(ErrorCode::usage, "knob block_m cannot be \"65\"; it takes 16, 32",
               [&] { parse_variant("fwd_cpu:block_m=65", workload, device); });
  expect_error(ErrorCode::usage, "needs a value", [&] { parse_variant("fwd_cpu:block_m", workload, device); });
  expect_error(ErrorCode::usage, "given twice",
               [&] { parse_variant("fwd_cpu:block_m=64,block_m=64", workload, device); });
  expect_error(ErrorCode::usage, "it takes degree3, degree4",
               [&] { parse_variant("fwd_cpu:exp2=hardware", workload, device); });
  expect_error(ErrorCode::usage, "unknown GPU architecture", [] { gpu_limits("sm_70"); });
}

}  // namespace
}  // namespace heed
