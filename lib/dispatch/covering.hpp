/// Which programs to keep ready: those that rules for defaults name for problems drawn at random.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "device/device_facts.hpp"
#include "variant/family.hpp"

namespace heed::dispatch {

/// Limits of an architecture with the multiprocessors and the L2 of a GPU that has it: H100 for sm_90 and sm_90a, A100
/// for sm_80, RTX 3090 class for sm_86 and compute_80, L4 for sm_89. Rules for defaults count with them. @throws
/// Error(usage)
DeviceFacts representative_gpu(std::string_view arch);

/// What programs are wanted for.
struct CoveringOptions {
  std::vector<Dtype> dtypes;
  std::vector<std::int64_t> dims;
  std::vector<MaskKind> masks = {MaskKind::none, MaskKind::causal, MaskKind::window};
  int samples = 150;  ///< problems for each dtype, head dim and mask: beyond about 100 few new defaults appear
  int most = 40;      ///< programs for each of these
  std::uint64_t seed = 1;
};

struct CoveringProgram {
  Variant variant;
  Workload workload;  ///< the first one it was drawn for
  int count = 0;      ///< problems that it is the default of
};

/// The programs, the most wanted first, and for each dtype, head dim and mask the default of every family that is the
/// default's for some problem, of a short and a long one: so that any problem a family takes has a program. On a GPU a
/// program that one problem alone wants is left out where another differs from it in one knob, which plans take
/// instead. Those of sm_80 hold the same of sm_86, whose shared memory is less. Each family that has features has one
/// program with all of them for each, which runs problems with some, and some have one without norms and gates too. Of
/// head dims above 256, on a CPU, this program alone: it runs problems without features too. fwd_sm90_split, made for
/// short launches, has only programs that are the default of a problem among ten times as many as are drawn.
std::vector<CoveringProgram> covering_programs(const DeviceFacts& device, const CoveringOptions& options);

/// The programs that precision modes take (heed_options.precision), by name: for each dtype, head dim and mask the
/// default of every family that reads what the mode quantises, or of those made for it where there are any. On a GPU
/// without features; on a CPU with all of them, of head dims from 64 on. "cache_e4m3" and "cache_int8" stand for those
/// that read K and V alone in 8 bits: on a CPU with all features, on a GPU without windows, for few queries, with
/// lengths and pages.
/// @throws Error(usage) for a name that is none
std::vector<CoveringProgram> precision_programs(const DeviceFacts& device, const CoveringOptions& options,
                                                const std::vector<std::string>& modes);
/// What `modes` may hold: all modes and caches.
std::vector<std::string> precision_names();

/// The programs that page pools with K and V in 8 bits take (heed_offload_config.dtype_kv), by element type of pages:
/// for each dtype, head dim and mask the default for few queries. On a GPU with lengths and pages alone; on a CPU with
/// all features.
/// @throws Error(usage) for an element type that is not of 8 bits
std::vector<CoveringProgram> page_programs(const DeviceFacts& device, const CoveringOptions& options,
                                           const std::vector<Dtype>& pages);

/// A problem as models have them: lengths and batches on a logarithmic scale, one query as often as many, grouped
/// heads, tensors of at most 2^31 elements.
Workload sample_workload(Random& random, Dtype dtype, std::int64_t dim, MaskKind mask);

}  // namespace heed::dispatch
