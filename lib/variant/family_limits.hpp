/// Refusals that several families share: what their instructions, their tiles and their grids take. Each says why a
/// device or a workload is not taken, or nothing.
#pragma once

#include <optional>
#include <string>

#include "device/device_facts.hpp"
#include "heed/heed.hpp"

namespace heed {

/// Of mma.sync and cp.async: compute capability 8.0.
std::optional<std::string> refused_by_mma(const DeviceFacts& device);

/// Of mma.sync of e4m3: compute capability 8.9. For a device that refused_by_mma takes.
std::optional<std::string> refused_by_mma_of_fp8(const DeviceFacts& device);

/// Of wgmma and tensor maps: compute capability 9.0.
std::optional<std::string> refused_by_wgmma(const DeviceFacts& device);

/// Of the query rows that the heads of a group make together: tile::kMostPackedRows.
std::optional<std::string> refused_by_packed_rows(const Workload& workload);

/// Of a grid that counts heads and batch entries in its second and third dimension. Blocks that take one tile after the
/// other are counted in the first, which has no such limit.
std::optional<std::string> refused_by_grid(const Workload& workload);

}  // namespace heed
