/// The translation unit that GPU families have in common: which header, which aggregates, one entry.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/contract.hpp"

namespace heed {

/// The include of <folder>/forward.cuh, and `kConfig` and `kProblem` as constexpr aggregates of the
/// device: kernels take references to them (kernels/contract.hpp).
/// @param folder of the kernel, e.g. "kernels/sm90/persistent"
/// @param name namespace of the kernel within heed, e.g. "sm90_persistent"
/// @param config the aggregate's initialisers, in braces
std::string kernel_prelude(std::string_view folder, std::string_view name, std::string_view config,
                           const Problem& problem);

/// The most that gridDim.y and gridDim.z hold.
inline constexpr std::int64_t kMostGridYZ = 65535;

/// HEED_CLUSTER, for the entry's attributes. Known to the compiler: otherwise it emits checks whether there is a
/// cluster, and another barrier.
/// @param blocks of a cluster; 1 without
std::string cluster_attribute(int blocks);

struct KernelEntry {
  std::string_view name;             ///< namespace of the kernel
  bool takes_maps = false;           ///< the entry's second parameter are TensorMaps
  bool has_features = false;         ///< the first is what the problem's features ask for, else ForwardParams
  std::string_view attributes = {};  ///< before the launch bounds
  std::string_view call =
      "Forward<kConfig, kProblem>({}).run()";  ///< arguments: params, maps and shared, or {} for all
};

/// `heed_forward`, with the launch bounds of the config and its dynamic shared memory.
std::string kernel_entry(const KernelEntry& entry);

}  // namespace heed
