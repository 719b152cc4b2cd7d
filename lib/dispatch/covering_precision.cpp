// Programs that precision modes run (quantise/modes.hpp).
#include <algorithm>

#include "device/cpu_level.hpp"
#include "dispatch/covering.hpp"
#include "quantise/modes.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"
#include "workload/quantised.hpp"

namespace heed::dispatch {
namespace {

// Of many rows: with one row for all keys, quantising them takes longer than attention on them.
Workload precision_workload(Dtype dtype, std::int64_t dim, MaskKind mask) {
  Workload w;
  w.dtype = dtype;
  w.heads = w.heads_kv = 8;
  w.len_q = w.len_k = 2048;
  w.dim = w.dim_v = dim;
  switch (mask) {
    case MaskKind::none:
      break;
    case MaskKind::causal:
      w.mask = Mask::causal_top_left;
      break;
    case MaskKind::window:
      w.mask = Mask::causal_bottom_right;
      w.window.left = 255;
      break;
  }
  return w;
}

// What `modes` names beside modes: K and V that a cache holds in 8 bits, of any granularity.
struct QuantisedCache {
  std::string_view name;
  std::string_view tensors;
};
constexpr QuantisedCache kCaches[] = {{"cache_e4m3", "kv/e4m3/head"}, {"cache_int8", "kv/int8/head"}};

// A decoder's step over a cache.
Workload cache_workload(Dtype dtype, std::int64_t dim, MaskKind mask, std::string_view tensors) {
  Workload w = precision_workload(dtype, dim, mask);
  w.heads = 32;
  w.len_q = 1;
  if (mask == MaskKind::causal) w.mask = Mask::causal_bottom_right;
  w.quantised = parse_quantised("the cache", tensors);
  return w;
}

const QuantisedCache* find_cache(std::string_view name) {
  const auto* const at = std::find_if(std::begin(kCaches), std::end(kCaches),
                                      [&](const QuantisedCache& cache) { return cache.name == name; });
  return at == std::end(kCaches) ? nullptr : at;
}

// A level with a matrix unit has no use of it for quantised inputs: libheed takes the program of the level below.
bool is_served_by_lower_level(const DeviceFacts& device) {
  return device.kind == DeviceKind::cpu && device.matrix_unit && find_cpu_level(device.arch) != nullptr;
}

}  // namespace

std::vector<std::string> precision_names() {
  std::vector<std::string> names;
  for (const quantise::Mode& mode : quantise::modes()) names.emplace_back(mode.name);
  for (const QuantisedCache& cache : kCaches) names.emplace_back(cache.name);
  return names;
}

std::vector<CoveringProgram> precision_programs(const DeviceFacts& device, const CoveringOptions& options,
                                                const std::vector<std::string>& modes) {
  std::vector<CoveringProgram> all;
  if (is_served_by_lower_level(device)) return all;
  const bool cpu = device.kind == DeviceKind::cpu;
  const auto add = [&](const Family& family, const Workload& w) {
    if (family.refuses(w, device)) return;
    const Variant variant = make_variant(family, family.default_config(w, device), w);
    if (std::none_of(all.begin(), all.end(), [&](const CoveringProgram& c) { return c.variant.id() == variant.id(); }))
      all.push_back({variant, w, 0});
  };
  // Of the family for few queries, the only one that reads such a cache. With lengths and pages, which serve every
  // cache; fwd_sm90_decode has one for neither, too.
  const auto add_of_gpu_cache = [&](const Workload& w) {
    const auto serves = [&](const Family* f) { return !f->refuses(w, device) && !f->made_for(w, device).empty(); };
    const auto family = std::find_if(families().begin(), families().end(), serves);
    if (family == families().end()) return;  // fp32
    if ((*family)->name() == "fwd_sm90_decode") add(**family, w);
    Features wanted;
    wanted.lengths = wanted.pages = true;
    add(**family, with_features(w, wanted));
  };
  for (const Dtype dtype : options.dtypes)
    for (const std::int64_t dim : options.dims)
      for (const MaskKind mask : options.masks) {
        if (cpu && dim < 64) continue;  // head dims up to 64 are padded to it
        for (const std::string& name : modes) {
          if (const auto* cache = find_cache(name); cache != nullptr) {
            // A GPU's caches with windows are built by NVRTC: few have them, and a program takes a second.
            if (!cpu && mask == MaskKind::window) continue;
            const Workload of_cache = cache_workload(dtype, dim, mask, cache->tensors);
            if (cpu) {
              for (const Family* family : families())
                if (!family->is_special()) add(*family, with_features(of_cache, family->features()));
            } else {
              add_of_gpu_cache(of_cache);
            }
            continue;
          }
          Workload w = precision_workload(dtype, dim, mask);
          // Scale factors' granularity is a number of a launch, and rotation none of the program's.
          w.quantised = quantise::quantised_by(w, quantise::find_mode(name)).quantised;
          const auto is_made_for = [&](const Family* family) {
            return !family->refuses(w, device) && !family->made_for(w, device).empty();
          };
          const bool has_own = std::any_of(families().begin(), families().end(), is_made_for);
          for (const Family* family : families()) {
            // Where one is made for the problem no plan would take another's.
            if (family->is_special() || (has_own && !is_made_for(family))) continue;
            // On a GPU without features, so that files stay small; NVRTC makes the others where they are wanted.
            add(*family, cpu ? with_features(w, family->features()) : w);
          }
        }
      }
  return all;
}

}  // namespace heed::dispatch
