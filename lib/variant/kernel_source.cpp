#include "variant/kernel_source.hpp"

#include <fmt/format.h>

#include "variant/family.hpp"

namespace heed {

std::string kernel_prelude(std::string_view folder, std::string_view name, std::string_view config,
                           const Problem& problem) {
  return fmt::format(
      "#include \"{3}/forward.cuh\"\n\n"
      "__device__ constexpr heed::{0}::Config kConfig{1};\n"
      "__device__ constexpr heed::Problem kProblem{2};\n\n",
      name, config, literal(problem), folder);
}

std::string cluster_attribute(int blocks) {
  return fmt::format("#define HEED_CLUSTER{}\n\n",
                     blocks > 1 ? fmt::format(" __cluster_dims__({}, 1, 1)", blocks) : "");
}

std::string kernel_entry(const KernelEntry& entry) {
  // Boxes with the 128-byte swizzle start at a multiple of 1024.
  return fmt::format(
      "extern \"C\" __global__ void {1}__launch_bounds__(heed::{0}::threads(kConfig), kConfig.min_blocks)\n"
      "    heed_forward(const __grid_constant__ heed::{5} params{2}) {{\n"
      "  extern __shared__ __align__({3}) char shared[];\n"
      "  heed::{0}::{4};\n"
      "}}\n",
      entry.name, entry.attributes,
      entry.takes_maps ? ",\n                 const __grid_constant__ heed::TensorMaps maps" : "",
      entry.takes_maps ? 1024 : 128,
      fmt::format(fmt::runtime(entry.call), entry.takes_maps ? "params, maps, shared" : "params, shared"),
      entry.has_features ? "Params<kProblem>" : "ForwardParams");
}

}  // namespace heed
