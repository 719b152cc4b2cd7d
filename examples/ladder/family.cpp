// The ladder as a family, so that every step goes through the same gate and clock as the library's kernels.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "compile/embedded.hpp"
#include "examples/ladder/kernels/config.hpp"
#include "ladder/ladder.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/registry.hpp"

namespace heed {
namespace ladder {

std::span<const compile::EmbeddedFile> device_files();  // CMakeLists.txt of this folder

}  // namespace ladder

namespace {

const ladder::KernelStep& step_of(const Config& config) {
  return ladder::kSteps[config.at(0)];
}

const std::vector<Knob>& ladder_knobs() {
  static const std::vector<Knob> knobs = [] {
    Knob step{.name = "step", .help = "which step; heed ladder measures all", .values = {}, .names = {}};
    for (const Bound bound : kBounds)  // each step is another kernel
      if (bound != Bound::unknown) step.acts_on.push_back(bound);
    for (int i = 0; i < ladder::kNumSteps; ++i) {
      step.values.push_back(i);
      step.names.emplace_back(ladder::kSteps[i].name);
    }
    return std::vector<Knob>{step};
  }();
  return knobs;
}

class LadderFamily final : public Family {
 public:
  std::string_view name() const override { return "ladder"; }
  std::string_view folder() const override { return "examples/ladder/kernels"; }
  std::string_view description() const override {
    return "teaching kernels, from a thread a row to persistent blocks on tensor cores, a step each";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  bool is_special() const override { return true; }  // made for none: it teaches
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 8.0 or newer and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  HeadDims head_dims() const override { return {.listed = {64, 128}}; }
  std::vector<MaskKind> masks() const override { return {MaskKind::none, MaskKind::causal}; }
  const std::vector<Knob>& knobs() const override { return ladder_knobs(); }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override { return refused_by_mma(device); }
  std::optional<std::string> refuses_sizes(const Workload& workload) const override {
    return refused_by_grid(workload);
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization&, const Workload& workload,
                                            const DeviceFacts& device) const override {
    const int needed = ladder::shared_plan(config.at(0), static_cast<int>(workload.dim)).total;
    if (needed > device.shared_bytes_per_block)
      return fmt::format("it needs {} bytes of shared memory a block; {} allows {}", needed, device.name,
                         device.shared_bytes_per_block);
    return std::nullopt;
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    const Config config = {ladder::kNumSteps - 1};
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return fmt::format(
        "#include \"examples/ladder/kernels/{}.cuh\"\n\n"
        "constexpr heed::ladder::Config kConfig{{.step = {}}};\n"
        "__device__ constexpr heed::Problem kProblem{};\n"
        "using Kernel = heed::ladder::{}<kConfig.step, kProblem>;\n\n",
        step_of(config).file, config.at(0), literal(problem), step_of(config).type);
  }

  std::string entry() const override {
    return "extern \"C\" __global__ void __launch_bounds__(heed::ladder::threads(kConfig.step), 1)\n"
           "    heed_forward(const __grid_constant__ heed::ForwardParams params) {\n"
           "  extern __shared__ __align__(128) char shared[];\n"
           "  Kernel::run(params, shared);\n"
           "}\n";
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const ladder::KernelStep& step = step_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    const std::int64_t row_tiles = (workload.len_q + step.block_m - 1) / step.block_m;
    if (step.persistent) {
      plan.grid = {static_cast<std::uint32_t>(
                       ladder::persistent_blocks(row_tiles * workload.heads * workload.batch, device.processors)),
                   1, 1};
    } else {
      plan.grid = {static_cast<std::uint32_t>(row_tiles), static_cast<std::uint32_t>(workload.heads),
                   static_cast<std::uint32_t>(workload.batch)};
    }
    plan.threads = static_cast<std::uint32_t>(ladder::threads(config.at(0)));
    plan.shared_bytes = ladder::shared_plan(config.at(0), static_cast<int>(workload.dim)).total;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return std::min(255, 65536 / ladder::threads(config.at(0)) / 8 * 8);
  }
};

}  // namespace

void ladder::register_family() {
  static const LadderFamily family;
  compile::add_device_files(device_files());
  heed::register_family(family);
}

}  // namespace heed
