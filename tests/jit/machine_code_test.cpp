// The reading of machine code, on cubins that NVRTC builds here from one instruction of interest each.
#include "jit/machine_code.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/files.hpp"
#include "jit/build.hpp"
#include "testing.hpp"

namespace heed::jit {
namespace {

struct Probe {
  const char* name;
  const char* statement;  ///< of a kernel with parameters `unsigned long long* x, const unsigned* y`
  const char* violation;  ///< in its machine code; nullptr: none
  PtxRules rules{};
};

const Probe kProbes[] = {
    {"nothing", "x[threadIdx.x] = y[blockIdx.x];", nullptr},
    {"special registers", "x[threadIdx.y] = threadIdx.z + gridDim.x + blockDim.y + blockIdx.z;", nullptr},
    {"shared memory", "__shared__ unsigned s[64]; atomicAdd(&s[y[0]], 1U); __syncthreads(); x[0] = s[y[1]];", nullptr},
    {"a switch", "switch (y[0]) { case 0: x[1] = 5; break; case 1: x[2] = y[4]; break; case 2: x[3] = y[1] / y[2]; }",
     nullptr},
    {"lane masks",
     "x[0] = __ballot_sync(~0U, y[0]); asm volatile(\"mov.u32 %0, %%lanemask_lt;\" : \"=r\"(r)); x[1] = r;", nullptr},
    {"clock", "x[0] = clock64();", "the clock"},
    {"short clock", "x[0] = clock();", "the clock"},
    {"timer", "asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(x[0]));", "the global timer"},
    {"processor", "asm volatile(\"mov.u32 %0, %%smid;\" : \"=r\"(r)); x[0] = r;", "its multiprocessor"},
    {"launch", "asm volatile(\"mov.u64 %0, %%gridid;\" : \"=l\"(x[0]));", "number of its launch"},
    {"graph", "asm volatile(\"mov.u64 %0, %%current_graph_exec;\" : \"=l\"(x[0]));", "which graph"},
    {"variable", "x[0] = variable++;", "device memory of its own"},
    {"constant", "x[0] = constants[y[0]];", "constant memory of its own"},
    {"constants as memory",
     "unsigned long long a; asm volatile(\"cvta.to.global.u64 %0, %1;\" : \"=l\"(a) : \"l\"(&constants)); x[0] = a;",
     "constant memory"},
    {"below parameters", "asm volatile(\"ld.param.u32 %0, [heed_forward_param_0+-304];\" : \"=r\"(r)); x[0] = r;",
     "it reads"},
    {"atomic", "x[0] = atomicAdd(x + 1, 1);", "counts in global memory"},
    {"reduction", "atomicAdd(x + 1, 1);", "counts in global memory"},
    {"compare and swap", "x[0] = atomicCAS(x + 1, 1, 2);", "counts in global memory"},
    {"float reduction", "atomicAdd(reinterpret_cast<float*>(x), 1.0F);", "counts in global memory"},
    {"semaphores", "x[0] = atomicAdd(x + 1, 1); atomicAdd(x + 2, 1);", nullptr, {.semaphores = true}},
    {"sleep", "asm volatile(\"nanosleep.u32 100;\");", "time pass"},
    {"sleep of a register", "asm volatile(\"nanosleep.u32 %0;\" ::\"r\"(y[0]));", "time pass"},
    {"profiler", "asm volatile(\"pmevent 1;\");", "profiler"},
    {"persisting", "asm volatile(\"prefetch.global.L2::evict_last [%0];\" ::\"l\"(x));", "L2 cache"},
    {"discarding", "asm volatile(\"discard.global.L2 [%0], 128;\" ::\"l\"(x));", "L2 cache"},
    {"prefetching", "asm volatile(\"prefetch.global.L2 [%0];\" ::\"l\"(x));", nullptr},
};

class MachineCode : public ::testing::TestWithParam<const char*> {};

TEST_P(MachineCode, ShowsWhatPtxMustNotHold) {
  try {
    (void)describe_nvrtc();
  } catch (const Error&) {
    GTEST_SKIP() << "NVRTC is not installed";
  }
  const testing_support::TemporaryFolder folder;
  BuilderOptions options;
  options.cache_folder = folder.path();
  options.jobs = 2;
  Builder builder(options);
  std::vector<std::future<BuildOutcome>> builds;
  for (const Probe& probe : kProbes)
    builds.push_back(builder.start(
        {.device = DeviceKind::cuda,
         .arch = GetParam(),
         .source =
             fmt::format("__device__ unsigned variable;\n__constant__ unsigned constants[4];\nextern \"C\" __global__ "
                         "void heed_forward(unsigned long long* x, const unsigned* y) {{\nunsigned r = "
                         "0;\n{}\nif (r == 77) x[9] = r;\n}}\n",
                         probe.statement),
         .entry = "heed_forward"}));
  for (std::size_t i = 0; i < builds.size(); ++i) {
    const Probe& probe = kProbes[i];
    SCOPED_TRACE(probe.name);
    const BuildOutcome outcome = builds[i].get();
    ASSERT_TRUE(outcome.artifact) << outcome.log;
    EXPECT_EQ(outcome.artifact->audit, "PTX and machine code");
    const std::string cubin = read_file(outcome.artifact->path, ErrorCode::cache);
    const MachineCodeAudit audit = audit_machine_code(parse_elf(cubin), GetParam(), probe.rules);
    EXPECT_TRUE(audit.decoded);
    if (probe.violation == nullptr)
      EXPECT_EQ(audit.violation, "");
    else
      EXPECT_THAT(audit.violation, ::testing::HasSubstr(probe.violation));
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, MachineCode, ::testing::Values("sm_80", "sm_89", "sm_90a"));

TEST(MachineCode, IsNotSaidToBeReadWhereItsEncodingIsNotKnown) {
  const std::string self = read_file("/proc/self/exe", ErrorCode::cache);
  EXPECT_FALSE(audit_machine_code(parse_elf(self), "sm_120", {}).decoded);
  EXPECT_FALSE(audit_machine_code(parse_elf(self), "sm_75", {}).decoded);
}

}  // namespace
}  // namespace heed::jit
