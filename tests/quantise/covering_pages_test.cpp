// What page pools with K and V in 8 bits run has a program among those that are kept ready.
#include <fmt/format.h>

#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/selection.hpp"
#include "testing.hpp"

namespace heed::dispatch {
namespace {

const CoveringOptions kAllPages{.dtypes = {Dtype::fp16, Dtype::bf16, Dtype::fp32}, .dims = {64, 128, 256}};

std::shared_ptr<const ProgramFile> pages_file(const DeviceFacts& device, const std::vector<Dtype>& pages) {
  ProgramFileWriter writer("0123");
  for (const CoveringProgram& program : page_programs(device, kAllPages, pages)) {
    ProgramRecord record;
    record.arch = device.arch;
    record.workload = to_string(program.workload);
    record.variant = describe(program.variant);
    record.origin = "rule";
    writer.add(record, "code");
  }
  return ProgramFile::parse(writer.bytes(), "pages");
}

// Launches of a pool: lengths and pages, any mask, up to 512 rows of the heads that share a key head.
void expect_all_served(const DeviceFacts& device, std::span<const char* const> dtypes, std::int64_t most_rows) {
  const auto file = pages_file(device, {Dtype::e4m3, Dtype::int8});
  const Programs programs(file, device);
  for (const char* page : {"e4m3", "int8"})
    for (const char* const dtype : dtypes)
      for (const int dim : {64, 128, 256})
        for (const char* mask : {"", ":causal_bottom_right", ":window=300/20", ":causal_bottom_right:window=63"})
          for (const std::int64_t rows : {std::int64_t{1}, most_rows}) {
            const Workload w = parse_workload(fmt::format(
                "b1h32hkv8l{}k8192d{}:{}{}:key_lengths:page=64:quantised=kv/{}/head", rows, dim, dtype, mask, page));
            EXPECT_NO_THROW((void)programs.select(w)) << device.arch << " " << to_string(w);
          }
}

TEST(CoveringPages, OfACpu) {
  const DeviceFacts device = representative_cpu(*find_cpu_level("x86-64-v3"));
  const char* const dtypes[] = {"fp16", "bf16", "fp32"};
  expect_all_served(device, dtypes, 3000);
  EXPECT_EQ(pages_file(device, {Dtype::e4m3})->records().size(), 27U) << "three dtypes, head dims and masks";
  EXPECT_TRUE(pages_file(representative_cpu(*find_cpu_level("x86-64-v4-amx")), {Dtype::e4m3})->records().empty());
}

TEST(CoveringPages, OfGpus) {
  const char* const dtypes[] = {"fp16", "bf16"};
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) expect_all_served(representative_gpu(arch), dtypes, 128);
}

TEST(CoveringPages, ElementTypesThatPagesDoNotHave) {
  testing_support::expect_error(ErrorCode::usage, "pages of fp16 are not of 8 bits; give e4m3, e5m2 or int8", [] {
    (void)page_programs(representative_cpu(*find_cpu_level("x86-64-v3")), kAllPages, {Dtype::fp16});
  });
}

}  // namespace
}  // namespace heed::dispatch
