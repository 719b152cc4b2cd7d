#include "dispatch/covering.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "device/device.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

namespace heed::dispatch {
namespace {

std::int64_t log_uniform(Random& random, std::int64_t least, std::int64_t most) {
  const double x = std::log(static_cast<double>(least)) +
                   random.uniform() * std::log(static_cast<double>(most) / static_cast<double>(least));
  return std::clamp<std::int64_t>(std::llround(std::exp(x)), least, most);
}

constexpr double kMostElements = 1 << 28;  // of a tensor: 512 MiB

}  // namespace

DeviceFacts representative_gpu(std::string_view arch) {
  struct Chip {
    std::string_view arch;
    int processors;
    std::int64_t cache_mib;
  };
  constexpr Chip kChips[] = {{"compute_80", 84, 6}, {"sm_80", 108, 40}, {"sm_86", 84, 6},
                             {"sm_89", 58, 48},     {"sm_90", 132, 50}, {"sm_90a", 132, 50}};
  DeviceFacts facts = gpu_limits(arch);
  for (const Chip& chip : kChips) {
    if (chip.arch != arch) continue;
    facts.processors = chip.processors;
    facts.cache_bytes = chip.cache_mib << 20;
  }
  return facts;
}

Workload sample_workload(Random& random, Dtype dtype, std::int64_t dim, MaskKind mask) {
  Workload w;
  w.dtype = dtype;
  w.dim = w.dim_v = dim;
  do {
    w.batch = log_uniform(random, 1, 64);
    w.heads_kv = log_uniform(random, 1, 32);
    w.heads = w.heads_kv * (std::int64_t{1} << random.below(4));
    const std::int64_t length = log_uniform(random, 16, 32768);
    const bool decodes = random.below(3) == 0;
    w.len_q = decodes ? (random.below(2) == 0 ? 1 : log_uniform(random, 1, 64)) : length;
    w.len_k = decodes || random.below(4) == 0 ? std::max(w.len_q, log_uniform(random, 16, 131072)) : length;
  } while (static_cast<double>(w.batch) * static_cast<double>(w.heads) *
               static_cast<double>(std::max(w.len_q, w.len_k)) * static_cast<double>(dim) >
           kMostElements);
  w.mask = mask == MaskKind::none ? Mask::none
           : random.below(2) == 0 ? Mask::causal_top_left
                                  : Mask::causal_bottom_right;
  if (mask == MaskKind::window) {
    // Where every key lies in the window the problem is another one.
    w.mask = Mask::causal_bottom_right;
    w.len_k = std::max<std::int64_t>(w.len_k, 130);
    w.window.left = std::min(w.len_k / 2, log_uniform(random, 64, 4096));
  }
  return reduced(w);
}

std::vector<CoveringProgram> covering_programs(const DeviceFacts& device, const CoveringOptions& options) {
  std::vector<CoveringProgram> all;
  Random random(options.seed);
  for (const Dtype dtype : options.dtypes)
    for (const std::int64_t dim : options.dims)
      for (const MaskKind mask : options.masks) {
        std::map<std::string, CoveringProgram> wanted;  // by variant id
        const auto want = [&](const Family& family, const Workload& w, int count) {
          const Variant variant = make_variant(family, family.default_config(w, device), w);
          auto& entry = wanted.try_emplace(variant.id(), CoveringProgram{variant, w, 0}).first->second;
          entry.count += count;
        };
        Workload one;
        for (int i = 0; i < options.samples; ++i) {
          const Workload w = sample_workload(random, dtype, dim, mask);
          if (mask_kind(w) != mask) continue;
          one = w;
          try {
            want(default_family(w, device), w, 1);
          } catch (const Error& error) {
            if (error.code() != ErrorCode::unsupported) throw;
          }
        }
        std::vector<CoveringProgram> chosen;
        for (auto& [id, program] : wanted) chosen.push_back(program);
        std::sort(chosen.begin(), chosen.end(), [](const CoveringProgram& a, const CoveringProgram& b) {
          return a.count != b.count ? a.count > b.count : a.variant.id() < b.variant.id();
        });
        if (chosen.size() > static_cast<std::size_t>(options.most))
          chosen.resize(static_cast<std::size_t>(options.most));
        // What each family falls back to.
        wanted.clear();
        if (mask_kind(one) == mask)
          for (const std::int64_t len_q : {std::int64_t{1}, std::int64_t{2048}}) {
            Workload w = one;
            w.len_q = len_q;
            w.len_k = std::max<std::int64_t>(w.len_k, 4096);
            w = reduced(w);
            if (mask_kind(w) != mask) continue;
            for (const Family* family : families()) {
              if (family->is_special() || family->refuses(w, device)) continue;
              want(*family, w, 0);
              if (len_q == 1 || !has_features(family->features())) continue;
              Features usual = family->features();
              // Norms and gates take registers where rows of O are written. Where a GPU's programs with them have other
              // tiles, or no register left, problems without have a program of their own.
              if (changes_output(usual) && device.kind == DeviceKind::cuda) {
                const Workload with_all = with_features(w, usual);
                usual.out_norm = usual.out_gate = false;
                if (dim > 128 ||
                    family->default_config(with_all, device) != family->default_config(with_features(w, usual), device))
                  want(*family, with_all, 0);
                else
                  usual = family->features();
              }
              const Workload with_usual = with_features(w, usual);
              want(*family, with_usual, 0);
              // Programs with lists of blocks have tiles of 64 rows at most: where others would have more, problems
              // without have a program of their own.
              usual.blocks = false;
              const Workload without_blocks = with_features(w, usual);
              if (family->default_config(with_usual, device) != family->default_config(without_blocks, device))
                want(*family, without_blocks, 0);
            }
          }
        // And of the family for few queries one with all features that it has: of rows of one head, for any heads a
        // group, and of long keys, which it is made for. On a CPU's vector unit it is the family for all, with the
        // columns of few rows in its lanes, and without lists of blocks, as the program for many rows.
        const bool by_lanes = device.kind == DeviceKind::cpu && !device.matrix_unit;
        Workload few = one;
        few.batch = 1;
        few.heads = few.heads_kv = 8;
        few.len_q = 8;
        few.len_k = std::max<std::int64_t>(few.len_k, 8192);
        few = reduced(few);
        if (mask_kind(one) == mask && mask_kind(few) == mask)
          for (const Family* family : families()) {
            if ((!family->is_special() && !by_lanes) || !has_features(family->features())) continue;
            Features wanted_features = family->features();
            if (by_lanes) wanted_features.blocks = false;
            const Workload with_all = with_features(few, wanted_features);
            if (family->refuses(with_all, device)) continue;
            if (!by_lanes && family->made_for(with_all, device).empty()) continue;
            want(*family, with_all, 0);
            break;
          }
        for (auto& [id, program] : wanted)
          if (std::none_of(chosen.begin(), chosen.end(),
                           [&id = id](const CoveringProgram& c) { return c.variant.id() == id; }))
            chosen.push_back(program);
        all.insert(all.end(), chosen.begin(), chosen.end());
      }
  return all;
}

}  // namespace heed::dispatch
