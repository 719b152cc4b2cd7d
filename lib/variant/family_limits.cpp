#include "variant/family_limits.hpp"

#include <fmt/format.h>

#include "kernels/tile/packed_rows.hpp"
#include "variant/kernel_source.hpp"

namespace heed {

std::optional<std::string> refused_by_mma(const DeviceFacts& device) {
  if (device.kind != DeviceKind::cuda) return "it runs on NVIDIA GPUs";
  if (device.compute_capability < 80)
    return fmt::format("it needs compute capability 8.0 or newer; {} has {}.{}", device.name,
                       device.compute_capability / 10, device.compute_capability % 10);
  return std::nullopt;
}

std::optional<std::string> refused_by_mma_of_fp8(const DeviceFacts& device) {
  if (device.compute_capability >= 89) return std::nullopt;
  return fmt::format("Q and K in e4m3 need compute capability 8.9 or newer; {} has {}.{}, for which int8 is there",
                     device.name, device.compute_capability / 10, device.compute_capability % 10);
}

std::optional<std::string> refused_by_wgmma(const DeviceFacts& device) {
  if (device.kind != DeviceKind::cuda) return "it runs on NVIDIA GPUs";
  if (device.compute_capability != 90 || device.arch != "sm_90a")
    return fmt::format("it needs the instructions of compute capability 9.0 (sm_90a); {} has {}.{}", device.name,
                       device.compute_capability / 10, device.compute_capability % 10);
  return std::nullopt;
}

std::optional<std::string> refused_by_packed_rows(const Workload& workload) {
  const std::int64_t group = workload.heads / workload.heads_kv;
  if (group * workload.len_q > tile::kMostPackedRows)
    return fmt::format("{} heads a group by {} queries are {} packed rows; it takes {}: use fwd_sm80", group,
                       workload.len_q, group * workload.len_q, tile::kMostPackedRows);
  return std::nullopt;
}

std::optional<std::string> refused_by_grid(const Workload& workload) {
  if (workload.heads > kMostGridYZ || workload.batch > kMostGridYZ)
    return fmt::format("{} heads by {} batch entries exceed the grid limit of {} each", workload.heads, workload.batch,
                       kMostGridYZ);
  return std::nullopt;
}

}  // namespace heed
