// The covering set: every problem that some family runs has a program, on the GPUs that it was made for and on those
// that take its binaries.
#include "dispatch/covering.hpp"

#include <fmt/format.h>

#include <map>

#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "dispatch/selection.hpp"
#include "padding/padding.hpp"
#include "testing.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

namespace heed::dispatch {
namespace {

// The programs that heed programs build would build for these architectures, without their code.
std::shared_ptr<const ProgramFile> covering_file(const std::vector<std::string>& archs) {
  ProgramFileWriter writer("0123");
  for (const std::string& arch : archs) {
    const DeviceFacts device = representative_gpu(arch);
    const CoveringOptions options{.dtypes = {Dtype::fp16, Dtype::bf16}, .dims = {64, 128, 256}};
    for (const CoveringProgram& program : covering_programs(device, options)) {
      ProgramRecord record;
      record.arch = arch;
      record.workload = to_string(program.workload);
      record.variant = describe(program.variant);
      record.origin = "rule";
      writer.add(record, "code");
    }
  }
  return ProgramFile::parse(writer.bytes(), "covering");
}

struct Target {
  std::string name;
  ArchFit fit;
  DeviceFacts device;
};

// What the target `programs` builds.
const std::vector<std::string> kPackaged = {"sm_90a", "sm_80", "sm_89", "compute_80"};

// One GPU of each kind: those of the file, an A10 and an Orin that take an A100's code, one that is newer than all.
std::vector<Target> targets() {
  std::vector<Target> all;
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) all.push_back({arch, ArchFit::exact, representative_gpu(arch)});
  all.push_back({"sm_86", ArchFit::compatible, representative_gpu("sm_86")});
  Target orin{"sm_87", ArchFit::compatible, representative_gpu("sm_86")};
  orin.device.arch = "sm_87";
  orin.device.compute_capability = 87;
  orin.device.processors = 16;
  all.push_back(orin);
  Target newer{"sm_120", ArchFit::ptx, representative_gpu("sm_86")};
  newer.device.arch = "sm_120";
  newer.device.compute_capability = 120;
  all.push_back(newer);
  return all;
}

TEST(Covering, EveryProblemHasAProgram) {
  const auto file = covering_file(kPackaged);
  for (const Target& target : targets()) {
    const Programs programs(file, target.device);
    Random random(7);
    std::map<std::string, int> whole;
    for (int i = 0; i < 400; ++i) {
      const MaskKind masks[] = {MaskKind::none, MaskKind::causal, MaskKind::window};
      const Workload w = sample_workload(random, random.below(2) == 0 ? Dtype::fp16 : Dtype::bf16,
                                         static_cast<std::int64_t>(1 + random.below(256)), masks[random.below(3)]);
      std::string refusal = "no head dim fits";
      for (const std::int64_t dim : padding::padded_dims(w)) {
        try {
          const Selection selection = programs.select(padding::padded(w, dim, dim));
          EXPECT_EQ(static_cast<int>(arch_fit(selection.record->arch, target.device)), static_cast<int>(target.fit))
              << to_string(w) << ": " << selection.record->arch;
          refusal.clear();
          break;
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::unsupported) << error.what();
          refusal = error.what();
        }
      }
      EXPECT_EQ(refusal, "") << to_string(w) << " on " << target.name;
    }
  }
}

// The limit that libheed's programs keep, so that they build in less than fifteen minutes on two processors.
TEST(Covering, IsLessThanAThousandPrograms) {
  EXPECT_LT(covering_file(kPackaged)->records().size(), 1000U);
}

// Of every dtype and mask the one with all features, which runs problems without them too.
TEST(Covering, HeadDimsOfFewModelsHaveOneProgramEach) {
  const DeviceFacts cpu = representative_cpu(*find_cpu_level("x86-64-v3"));
  CoveringOptions options{.dtypes = {Dtype::fp32, Dtype::bf16}, .dims = {64, 512}, .samples = 20};
  const auto all = covering_programs(cpu, options);
  options.dims = {64};
  const auto usual = covering_programs(cpu, options);
  ASSERT_EQ(all.size(), usual.size() + 2 * 3);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < usual.size()) {
      EXPECT_EQ(all[i].variant.id(), usual[i].variant.id());  // those of other head dims stay as they are
      continue;
    }
    EXPECT_EQ(all[i].workload.dim, 512);
    EXPECT_EQ(all[i].variant.problem.features, all[i].variant.family->features());
  }
  options.dims = {512};
  EXPECT_TRUE(covering_programs(representative_gpu("sm_90a"), options).empty());
}

// fwd_sm90_split is the default of short launches: what it would run others with serves no plan. With features it has a
// program for all.
TEST(Covering, EveryProgramOfShortLaunchesIsTheDefaultOfAProblem) {
  const DeviceFacts h100 = representative_gpu("sm_90a");
  const CoveringOptions options{.dtypes = {Dtype::fp16}, .dims = {64, 256}};
  int without_count = 0;
  for (const CoveringProgram& program : covering_programs(h100, options)) {
    if (program.variant.family->name() != "fwd_sm90_split" || program.count > 0 ||
        has_features(program.variant.problem.features))
      continue;
    ++without_count;
    bool is_default = &default_family(program.workload, h100) == program.variant.family;
    Random random(0);
    for (int i = 0; i < 1500 && !is_default; ++i) {
      const Workload w =
          sample_workload(random, program.workload.dtype, program.workload.dim, mask_kind(program.workload));
      const Family& family = default_family(w, h100);
      is_default = make_variant(family, family.default_config(w, h100), w).id() == program.variant.id();
    }
    EXPECT_TRUE(is_default) << to_string(program.workload);
  }
  EXPECT_LT(without_count, 3);
}

// Tiles of an A100 do not fit into an A10's shared memory; the rule's choice for the A10 lies beside them.
TEST(Covering, CodeOfAnA100HoldsWhatTheRuleOfAnA10Names) {
  const DeviceFacts a10 = representative_gpu("sm_86");
  const Programs programs(covering_file({"sm_80"}), a10);
  for (const char* dtype : {"fp16", "bf16"})
    for (const int dim : {64, 128, 256})
      for (const char* mask : {"", ":causal_top_left", ":window=255/0"}) {
        const Workload w = parse_workload(fmt::format("b2h36hkv18l2048k26783d{}:{}{}", dim, dtype, mask));
        EXPECT_THAT(programs.select(w).reason, ::testing::HasSubstr("the rule of fwd_sm80 names it")) << to_string(w);
      }
}

// Plans of the problem take the other one: of 150 problems one, on a CPU five.
void expect_no_stand_ins(const DeviceFacts& device, int few, std::string_view knob) {
  const CoveringOptions options{.dtypes = {Dtype::bf16}, .dims = {64}, .masks = {MaskKind::none}};
  const std::vector<CoveringProgram> programs = covering_programs(device, options);
  for (const CoveringProgram& rare : programs) {
    if (rare.count == 0 || rare.count > few) continue;
    for (const CoveringProgram& other : programs) {
      if (other.count <= few || other.variant.family != rare.variant.family) continue;
      Config config = rare.variant.config;
      for (std::size_t i = 0; i < config.size(); ++i)
        if (rare.variant.family->knobs()[i].name == knob) config[i] = other.variant.config[i];
      EXPECT_NE(config, other.variant.config) << rare.variant.id() << " beside " << other.variant.id();
    }
  }
}

TEST(Covering, AProgramThatFewProblemsWantIsLeftOutWhereAnotherIsOneKnobAway) {
  for (const char* knob : {"evict_first", "grid", "scheduler", "max_splits", "block_m"})
    expect_no_stand_ins(representative_gpu("sm_90a"), 1, knob);
  expect_no_stand_ins(representative_cpu(cpu_levels().front()), 5, "block_m");
}

// The rule gives fwd_sm90_persistent all that fwd_sm80 runs there but dropout and small pages.
TEST(Covering, FamiliesThatNoRuleNamesHaveProgramsWithFeaturesAlone) {
  const CoveringOptions options{.dtypes = {Dtype::fp16}, .dims = {64, 128}};
  int with_features = 0;
  for (const CoveringProgram& program : covering_programs(representative_gpu("sm_90a"), options)) {
    if (program.variant.family->name() != "fwd_sm80") continue;
    EXPECT_TRUE(has_features(program.variant.problem.features)) << program.variant.id();
    ++with_features;
  }
  EXPECT_EQ(with_features, 2 * 3) << "one for each head dim and mask";
}

}  // namespace
}  // namespace heed::dispatch
