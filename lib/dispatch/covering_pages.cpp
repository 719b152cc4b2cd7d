// Programs over pages of 8 bits, beside Q and O of 16 or 32 bits (heed_offload_config.dtype_kv).
#include <fmt/format.h>

#include <algorithm>

#include "device/cpu_level.hpp"
#include "dispatch/covering.hpp"
#include "variant/element.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"
#include "workload/quantised.hpp"

namespace heed::dispatch {

std::vector<CoveringProgram> page_programs(const DeviceFacts& device, const CoveringOptions& options,
                                           const std::vector<Dtype>& pages) {
  std::vector<CoveringProgram> all;
  const bool cpu = device.kind == DeviceKind::cpu;
  // Quantised inputs are read by the vector unit: of a level with a matrix unit libheed takes those of the level below.
  if (cpu && device.matrix_unit && find_cpu_level(device.arch) != nullptr) return all;
  for (const Dtype page : pages) {
    if (!is_quantised(page))
      throw Error(ErrorCode::usage,
                  fmt::format("pages of {} are not of 8 bits; give e4m3, e5m2 or int8", to_string(page)),
                  std::string(to_string(page)));
    for (const Dtype dtype : options.dtypes)
      for (const std::int64_t dim : options.dims)
        for (const MaskKind mask : options.masks) {
          // Few rows over many keys; other rows are more launches.
          Workload w;
          w.dtype = dtype;
          w.heads = 32;
          w.heads_kv = 8;
          w.len_q = 8;
          w.len_k = 8192;
          w.dim = w.dim_v = dim;
          switch (mask) {
            case MaskKind::none:
              break;
            case MaskKind::causal:
              w.mask = Mask::causal_bottom_right;
              break;
            case MaskKind::window:
              w.mask = Mask::causal_bottom_right;
              w.window.left = 255;
              break;
          }
          const QuantisedTensor tensor{.dtype = page, .by = ScaleBy::head, .rows = 1};
          w.quantised = Quantised{.q = std::nullopt, .k = tensor, .v = tensor};
          // A GPU's are for pools alone; NVRTC makes others where they are wanted.
          Features wanted;
          wanted.lengths = wanted.pages = true;
          try {
            const Family& family = default_family(w, device);
            w = with_features(w, cpu ? family.features() : wanted);
            if (family.refuses(w, device)) continue;
            const Variant variant = make_variant(family, family.default_config(w, device), w);
            if (std::none_of(all.begin(), all.end(),
                             [&](const CoveringProgram& c) { return c.variant.id() == variant.id(); }))
              all.push_back({variant, w, 0});
          } catch (const Error& error) {
            if (error.code() != ErrorCode::unsupported) throw;  // of fp32 on a GPU
          }
        }
  }
  return all;
}

}  // namespace heed::dispatch
