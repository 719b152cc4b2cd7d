// Programs of CPU levels, through the C interface: the highest that this processor runs is taken, and none beyond it.
#include "device/cpu_level.hpp"

#include "c_library.hpp"
#include "device/device.hpp"
#include "dispatch/object_arch.hpp"
#include "dispatch/program_file.hpp"
#include "jit/build.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_refused;
using testing_support::HostCase;
using testing_support::TemporaryFolder;

// HEED_CPU_LEVEL while it lives.
struct LevelOfEnvironment : testing_support::EnvironmentVariable {
  explicit LevelOfEnvironment(std::string_view level) : EnvironmentVariable("HEED_CPU_LEVEL", std::string(level)) {}
};

constexpr const char* kLevelsShape = "b1h2l33k50d16:fp32";

dispatch::ProgramRecord record_of(std::string_view arch, const Workload& w, const Variant& variant) {
  dispatch::ProgramRecord record;
  record.arch = arch;
  record.workload = to_string(w);
  record.variant = describe(variant);
  return record;
}

// Two programs for every level that this processor runs, built once: one by rule, and one of 64 threads.
class CpuLevels : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    jit::Builder builder({.cache_folder = testing_support::shared_cache(), .host_compiler = {}, .jobs = 2});
    std::vector<std::pair<dispatch::ProgramRecord, std::future<jit::BuildOutcome>>> builds;
    for (const CpuLevel* level : levels())
      for (const char* shape : {kLevelsShape, "b1h2l33k50d16:fp32:causal_top_left"}) {
        const Workload w = parse_workload(shape);
        DeviceFacts device = representative_cpu(*level);
        device.processors = 64;  // more than most machines that run tests
        const Variant variant = parse_variant("fwd_cpu:threads=64", w, device);
        builds.emplace_back(record_of(level->name, w, variant), builder.start(jit::request_for(variant, w, device)));
      }
    for (auto& [record, build] : builds) {
      const jit::BuildOutcome outcome = build.get();
      ASSERT_TRUE(outcome.artifact) << outcome.log;
      ASSERT_EQ(outcome.artifact->violation, "");
      built_.emplace_back(record, read_file(outcome.artifact->path, ErrorCode::cache));
    }
  }
  static void TearDownTestSuite() {
    built_.clear();
    delete folder_;
  }
  void SetUp() override {
    if (levels().empty()) GTEST_SKIP() << "this processor runs no level";
  }

  static std::vector<const CpuLevel*> levels() {
    std::vector<const CpuLevel*> runs;
    for (const CpuLevel* level : cpu_levels_of(own_machine()))
      if (level->runs()) runs.push_back(level);
    return runs;
  }

  // A file with what was built for which a function says yes.
  template <typename Takes>
  static std::string file_of(const std::string& name, const Takes& takes) {
    dispatch::ProgramFileWriter writer("0123");
    for (const auto& [record, image] : built_)
      if (takes(record)) writer.add(record, image);
    const std::string path = folder_->file(name);
    write_file_atomically(path, writer.bytes(), ErrorCode::store);
    return path;
  }
  static std::string whole_file() {
    return file_of("whole.programs", [](const dispatch::ProgramRecord&) { return true; });
  }

  static heed_problem problem() { return cpu_problem("b2h4hkv2l37k151d16:fp32", HEED_WANTS_LSE); }
  // Runs the problem and checks its results. @return why the program was chosen
  static std::string reason_of(const heed_problem& p, const std::string& path, const char* variant = nullptr) {
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    o.variant = variant;
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
    if (plan == nullptr) return "none";
    HostCase host(p);
    const heed_tensors t = host.tensors();
    EXPECT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
    host.check(1e-4);
    heed_plan_info info;
    heed_plan_info_init(&info);
    EXPECT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    std::string reason = info.reason;
    heed_plan_destroy(plan);
    return reason;
  }
  static heed_options options_of(const dispatch::ProgramRecord& record, const std::string& image) {
    heed_options o;
    heed_options_init(&o);
    o.variant = record.variant.c_str();
    o.image = image.data();
    o.image_bytes = image.size();
    return o;
  }
  static std::string named(const CpuLevel* level) { return fmt::format("it is of the CPU level {}", level->name); }

  static TemporaryFolder* folder_;
  static std::vector<std::pair<dispatch::ProgramRecord, std::string>> built_;
};
TemporaryFolder* CpuLevels::folder_ = nullptr;
std::vector<std::pair<dispatch::ProgramRecord, std::string>> CpuLevels::built_;

TEST_F(CpuLevels, TheHighestThatRunsIsTaken) {
  const std::string path = whole_file();
  for (const int mask : {HEED_MASK_NONE, HEED_MASK_CAUSAL_BOTTOM_RIGHT}) {
    heed_problem p = problem();
    p.mask = mask;
    EXPECT_THAT(reason_of(p, path), ::testing::EndsWith(named(levels().back())));
  }
  heed_options o;
  heed_options_init(&o);
  o.programs = path.c_str();
  const heed_problem p = problem();
  char text[4096];
  (void)heed_explain(&p, &o, text, sizeof text);
  EXPECT_THAT(text, ::testing::HasSubstr(named(levels().back())));
}

TEST_F(CpuLevels, TheEnvironmentHoldsThemDown) {
  const std::string path = whole_file();
  for (const CpuLevel* level : levels()) {
    const LevelOfEnvironment held(level->name);
    EXPECT_THAT(reason_of(problem(), path), ::testing::EndsWith(named(level)));
  }
  const LevelOfEnvironment held("x86-64-v9");
  heed_options o;
  heed_options_init(&o);
  o.programs = path.c_str();
  expect_refused(problem(), HEED_INVALID_ARGUMENT, "unknown CPU level \"x86-64-v9\"", &o);
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(std::string(levels()[0]->name)));
}

TEST_F(CpuLevels, ALowerOneServesWhatAHigherOneLacks) {
  if (levels().size() < 2) GTEST_SKIP() << "this processor runs one level";
  const std::string path = file_of("mixed.programs", [](const dispatch::ProgramRecord& record) {
    return record.arch == levels().back()->name ? record.workload == to_string(parse_workload(kLevelsShape))
                                                : record.arch == levels()[0]->name;
  });
  heed_problem p = problem();
  EXPECT_THAT(reason_of(p, path), ::testing::EndsWith(named(levels().back())));
  p.mask = HEED_MASK_CAUSAL_TOP_LEFT;
  EXPECT_THAT(reason_of(p, path), ::testing::EndsWith(named(levels()[0])));
}

TEST_F(CpuLevels, AVariantIsFoundWhateverItsThreads) {
  const std::string path = whole_file();
  for (const auto& [record, image] : built_) {
    if (record.workload != to_string(parse_workload(kLevelsShape))) continue;
    EXPECT_THAT(reason_of(problem(), path, record.variant.c_str()), ::testing::HasSubstr("it was asked for"));
  }
}

TEST_F(CpuLevels, AnImageOfAnyLevelRuns) {
  for (const auto& [record, image] : built_) {
    if (record.workload != to_string(parse_workload(kLevelsShape))) continue;
    EXPECT_EQ(dispatch::arch_of_object(image), record.arch);
    const heed_options o = options_of(record, image);
    const heed_problem p = problem();
    heed_plan* plan = nullptr;
    ASSERT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
    HostCase host(p);
    const heed_tensors t = host.tensors();
    EXPECT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK);
    host.check(1e-4);
    heed_plan_destroy(plan);
  }
}

// Each is the program that it was made of: what is loaded into one process is told apart.
TEST_F(CpuLevels, PlansOfManyProgramsLiveAtOnce) {
  std::vector<std::pair<heed_problem, heed_plan*>> plans;
  for (const auto& [record, image] : built_) {
    heed_problem p = problem();
    if (record.workload != to_string(parse_workload(kLevelsShape))) p.mask = HEED_MASK_CAUSAL_TOP_LEFT;
    const heed_options o = options_of(record, image);
    heed_plan* plan = nullptr;
    ASSERT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
    plans.emplace_back(p, plan);
  }
  for (const auto& [p, plan] : plans) {
    HostCase host(p);
    const heed_tensors t = host.tensors();
    EXPECT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK);
    host.check(1e-4);
  }
  for (const auto& [p, plan] : plans) heed_plan_destroy(plan);
}

// None of them is ever loaded, so that none can end the process by an illegal instruction.
TEST_F(CpuLevels, AnImageBeyondTheProcessorIsRefused) {
  const CpuLevel* const lowest = levels()[0];
  for (const auto& [record, image] : built_) {
    if (record.workload != to_string(parse_workload(kLevelsShape)) || record.arch == lowest->name) continue;
    const LevelOfEnvironment held(lowest->name);
    const heed_options o = options_of(record, image);
    expect_refused(problem(), HEED_UNSUPPORTED, "the image was built for " + record.arch, &o);
    EXPECT_THAT(std::string(heed_last_error()),
                ::testing::HasSubstr(fmt::format("it runs CPU levels to {}", lowest->name)));
  }
  // Of a level that there is not: the last letter of the section is another.
  const auto& [record, image] = built_.front();
  std::string other = image;
  other[other.find(record.arch) + record.arch.size() - 1] = '9';
  const heed_options of_other = options_of(record, other);
  expect_refused(problem(), HEED_UNSUPPORTED, "which", &of_other);
  std::string unnamed = image;
  const std::string section(dispatch::kArchSection);
  unnamed.replace(unnamed.find(section), section.size(), section.size(), 'x');
  const heed_options o = options_of(record, unnamed);
  expect_refused(problem(), HEED_BAD_PROGRAMS, "says in a section .heed.arch which processors run it", &o);
}

TEST_F(CpuLevels, WhatThisProcessorLacksIsRefused) {
  const Workload w = parse_workload(kLevelsShape);
  const CpuLevel* const lowest = levels()[0];
  dispatch::ProgramFileWriter writer("0123");
  std::vector<std::string> lacked;
  for (const CpuLevel& level : cpu_levels()) {
    if (&level == lowest) continue;
    const Variant variant = parse_variant("fwd_cpu", w, representative_cpu(level));
    writer.add(record_of(level.name, w, variant), "this must not be loaded");
    lacked.emplace_back(level.name);
  }
  const std::string path = folder_->file("lacked.programs");
  write_file_atomically(path, writer.bytes(), ErrorCode::store);
  heed_options o;
  heed_options_init(&o);
  o.programs = path.c_str();
  const LevelOfEnvironment held(lowest->name);
  expect_refused(problem(), HEED_UNSUPPORTED, "has none: it was built for", &o);
  for (const std::string& name : lacked) EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(name));
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(fmt::format("CPU levels to {}", lowest->name)));
}

TEST_F(CpuLevels, AnotherMachinesLevelNeedsItsCompiler) {
  jit::Builder builder({.cache_folder = testing_support::shared_cache(), .host_compiler = {}, .jobs = 1});
  for (const CpuLevel& level : cpu_levels()) {
    if (level.machine == own_machine()) continue;
    const Workload w = parse_workload(kLevelsShape);
    const DeviceFacts device = representative_cpu(level);
    testing_support::expect_error(ErrorCode::no_compiler, "need a C++ compiler for", [&] {
      (void)builder.build(jit::request_for(parse_variant("fwd_cpu", w, device), w, device));
    });
    break;
  }
}

}  // namespace
}  // namespace heed
