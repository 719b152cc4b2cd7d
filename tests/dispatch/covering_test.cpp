// The covering set: every problem that some family runs has a program, on the GPUs that it was made for and on those
// that take its binaries.
#include "dispatch/covering.hpp"

#include <map>

#include "dispatch/selection.hpp"
#include "padding/padding.hpp"
#include "testing.hpp"

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

// One GPU of each kind: those of the file, an Orin that takes an A10's code, one that is newer than all.
std::vector<Target> targets() {
  std::vector<Target> all;
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a"})
    all.push_back({arch, ArchFit::exact, representative_gpu(arch)});
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
  const auto file = covering_file({"sm_80", "sm_86", "sm_89", "sm_90a", "compute_80"});
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

// The limit that libheed's programs keep, so that they build in some twenty minutes on two processors.
TEST(Covering, IsLessThanTwelveHundredPrograms) {
  EXPECT_LT(covering_file({"sm_80", "sm_86", "sm_89", "sm_90a", "compute_80"})->records().size(), 1200U);
}

}  // namespace
}  // namespace heed::dispatch
