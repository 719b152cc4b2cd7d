// What each precision mode runs has a program among those that are kept ready.
#include <fmt/format.h>

#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/selection.hpp"
#include "quantise/modes.hpp"
#include "testing.hpp"

namespace heed::dispatch {
namespace {

const CoveringOptions kAll{.dtypes = {Dtype::fp16, Dtype::bf16, Dtype::fp32}, .dims = {32, 64, 128, 256}};

std::vector<std::string> all_modes() {
  std::vector<std::string> names;
  for (const quantise::Mode& mode : quantise::modes()) names.emplace_back(mode.name);
  return names;
}

std::shared_ptr<const ProgramFile> file_of(const DeviceFacts& device, const std::vector<std::string>& modes) {
  ProgramFileWriter writer("0123");
  for (const CoveringProgram& program : precision_programs(device, kAll, modes)) {
    ProgramRecord record;
    record.arch = device.arch;
    record.workload = to_string(program.workload);
    record.variant = describe(program.variant);
    record.origin = "rule";
    writer.add(record, "code");
  }
  return ProgramFile::parse(writer.bytes(), "precision");
}

Workload quantised(const std::string& text, std::string_view mode) {
  Workload w = parse_workload(text);
  w.quantised = quantise::quantised_by(w, quantise::find_mode(mode)).quantised;
  return w;
}

TEST(CoveringPrecision, EveryModeOfACpuHasAProgram) {
  const DeviceFacts device = representative_cpu(*find_cpu_level("x86-64-v3"));
  const auto file = file_of(device, all_modes());
  const Programs programs(file, device);
  for (const quantise::Mode& mode : quantise::modes())
    for (const char* dtype : {"fp16", "bf16", "fp32"})
      for (const int dim : {64, 128, 256})
        for (const char* rest : {"", ":causal_bottom_right", ":causal_top_left:bias=fp32:key_lengths:alibi",
                                 ":window=9/3", ":causal_bottom_right:window=20:key_lengths"}) {
          const Workload w = quantised(fmt::format("b3h8hkv2l70k90d{}:{}{}", dim, dtype, rest), mode.name);
          EXPECT_NO_THROW((void)programs.select(w)) << to_string(w);
        }
  // Three kinds of inputs, three dtypes, three head dims, three masks.
  EXPECT_EQ(file->records().size(), 81U);
  EXPECT_EQ(file_of(device, {"fp8", "fp8_rotated"})->records().size(), 27U);
}

TEST(CoveringPrecision, CachesOf8BitsHaveProgramsOnACpu) {
  const DeviceFacts device = representative_cpu(*find_cpu_level("x86-64-v3"));
  const auto file = file_of(device, {"cache_e4m3", "cache_int8"});
  EXPECT_EQ(file->records().size(), 54U);  // two element types, three dtypes, three head dims, three masks
  const Programs programs(file, device);
  for (const char* element : {"e4m3", "int8"})
    for (const char* dtype : {"fp16", "bf16", "fp32"})
      for (const int dim : {64, 128, 256})
        for (const char* rest :
             {":key_lengths:page=16:quantised=kv/{}/tensor", ":quantised=k/{0}/token+v/{0}/channel",
              ":causal_bottom_right:key_lengths:page=16:quantised=kv/{}/head", ":window=9/3:quantised=kv/{}/token",
              ":causal_bottom_right:window=20:key_lengths:page=16:quantised=kv/{}/head"}) {
          const Workload w =
              parse_workload(fmt::format("b3h8hkv2l5k90d{}:{}", dim, dtype) + fmt::format(fmt::runtime(rest), element));
          EXPECT_NO_THROW((void)programs.select(w)) << to_string(w);
        }
  const std::vector<std::string> names = precision_names();
  EXPECT_EQ(names.size(), quantise::modes().size() + 2);
  EXPECT_NE(std::find(names.begin(), names.end(), "cache_int8"), names.end());
}

TEST(CoveringPrecision, CachesOf8BitsHaveProgramsOnGpus) {
  for (const char* arch : {"sm_80", "sm_89", "compute_80", "sm_90a"}) {
    const DeviceFacts device = representative_gpu(arch);
    const auto file = file_of(device, {"cache_e4m3", "cache_int8"});
    // Two element types, two dtypes, three head dims, two masks; on Hopper four head dims, with pages and without.
    EXPECT_EQ(file->records().size(), device.compute_capability == 90 ? 64U : 24U) << arch;
    const Programs programs(file, device);
    for (const char* element : {"e4m3", "int8"})
      for (const char* dtype : {"fp16", "bf16"})
        for (const int dim : {64, 128, 256})
          for (const char* rest : {":quantised=kv/{}/tensor", ":key_lengths:page=16:quantised=kv/{}/head",
                                   ":causal_bottom_right:quantised=kv/{}/head"}) {
            const Workload w = parse_workload(fmt::format("b3h32hkv8l4k900d{}:{}", dim, dtype) +
                                              fmt::format(fmt::runtime(rest), element));
            EXPECT_NO_THROW((void)programs.select(w)) << arch << " " << to_string(w);
          }
  }
}

TEST(CoveringPrecision, EveryModeThatAGpuServesHasAProgram) {
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) {
    const DeviceFacts device = representative_gpu(arch);
    const Programs programs(file_of(device, all_modes()), device);
    int served = 0;
    for (const quantise::Mode& mode : quantise::modes())
      for (const char* dtype : {"fp16", "bf16"})
        for (const int dim : {64, 128, 256})
          for (const char* rest : {"", ":causal_bottom_right", ":causal_bottom_right:window=63"}) {
            const Workload w = quantised(fmt::format("b3h8hkv2l2000d{}:{}{}", dim, dtype, rest), mode.name);
            const auto runs = [&](const Family* family) {
              return !family->is_special() && !family->refuses(w, device);
            };
            if (std::none_of(families().begin(), families().end(), runs)) continue;
            ++served;
            EXPECT_NO_THROW((void)programs.select(w)) << arch << " " << to_string(w);
          }
    EXPECT_GT(served, 30) << arch;
  }
}

// Two dtypes, three head dims, three masks of each kind of inputs; on Hopper e4m3 has a family of its own.
TEST(CoveringPrecision, E4m3IsForAdaAndHopper) {
  const auto programs_of = [](const char* arch, std::string_view family, std::vector<std::string> modes) {
    int count = 0;
    for (const CoveringProgram& program : precision_programs(representative_gpu(arch), kAll, modes))
      count += program.variant.family->name() == family ? 1 : 0;
    return count;
  };
  for (const char* arch : {"sm_80", "sm_86", "compute_80"}) {
    EXPECT_EQ(programs_of(arch, "fwd_sm80", {"fp8", "fp8_block_smooth_rotated"}), 0) << arch;
    EXPECT_EQ(programs_of(arch, "fwd_sm80", all_modes()), 36) << arch;
  }
  EXPECT_EQ(programs_of("sm_89", "fwd_sm80", {"fp8", "fp8_block_smooth_rotated"}), 18);
  EXPECT_EQ(programs_of("sm_89", "fwd_sm80", all_modes()), 54);
  EXPECT_EQ(programs_of("sm_90a", "fwd_sm80", all_modes()), 36);
  EXPECT_EQ(programs_of("sm_90a", "fwd_sm90_fp8", all_modes()), 24);  // tiles of 128 keys serve heads and blocks at 64
}

TEST(CoveringPrecision, ALevelWithoutUseOfItsOwnHasNone) {
  EXPECT_TRUE(precision_programs(representative_cpu(*find_cpu_level("x86-64-v4-amx")), kAll, all_modes()).empty());
  EXPECT_FALSE(precision_programs(representative_cpu(*find_cpu_level("x86-64-v4")), kAll, all_modes()).empty());
  testing_support::expect_error(ErrorCode::usage, "unknown mode \"int4\"", [] {
    (void)precision_programs(representative_cpu(*find_cpu_level("x86-64-v3")), kAll, {"int4"});
  });
}

}  // namespace
}  // namespace heed::dispatch
