/// Families: kernel designs with a space of knobs, each an object in one registry.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device_facts.hpp"
#include "heed/heed.hpp"
#include "kernels/attention/specialization.hpp"
#include "kernels/contract.hpp"
#include "variant/element.hpp"
#include "variant/knob.hpp"
#include "variant/overlay.hpp"
#include "variant/rule_table.hpp"

namespace heed {

/// What one bulk copy of each tensor moves: this many rows of `columns` elements of 16 or 8 bits, laid out in shared
/// memory with the swizzle of rows of that size: 128 bytes, 64 or 32. What a box holds beyond the head dim is zero.
/// Rows of 0: the entry does not use that tensor's map, which is left zero.
struct TensorMapSpec {
  Problem problem{};  ///< of the variant: ForwardParams say neither element nor head dim nor whether there is a mask
  int columns = 64;
  int q_rows = 0;
  int k_rows = 0;
  int v_rows = 0;
  int o_rows = 0;
  int o_columns = 0;   ///< of the output's boxes; 0: as many as the others have
  int l2_bytes = 256;  ///< what the L2 fetches at once where a copy misses: 0 for no more than the copy reads, 64, 128
                       ///< or 256; more helps data that is read again, and costs bandwidth where all is read once
  bool operator==(const TensorMapSpec&) const = default;
};

/// How a variant is launched, computed from its config and the workload; no host code of a candidate takes part.
struct LaunchPlan {
  std::string entry;                       ///< name of the extern "C" function
  std::array<std::uint32_t, 3> grid = {};  ///< thread blocks; on a CPU grid[0] calls of the entry
  std::uint32_t threads = 0;               ///< threads a block; on a CPU the threads that share the calls
  std::uint32_t cluster = 1;               ///< thread blocks a cluster
  std::int64_t shared_bytes = 0;           ///< dynamic shared memory a block; on a CPU scratch bytes a thread
  std::int64_t workspace_bytes = 0;
  int semaphores = 0;                        ///< 32-bit semaphores in global memory, zero before and after each launch
  std::optional<TensorMapSpec> tensor_maps;  ///< the entry takes TensorMaps as its second parameter
  bool supports_pdl = false;  ///< the entry reads and writes global memory only after griddepcontrol.wait: it may be
                              ///< launched as a programmatic dependent of the launch before it
  std::optional<TensorStrides> o_strides;  ///< those that every launch must have: the entry does not read its own
  bool operator==(const LaunchPlan&) const = default;
};

/// Global memory that launches of one plan take besides the tensors.
struct LaunchMemory {
  std::int64_t workspace_bytes = 0;
  int semaphores = 0;

  static LaunchMemory of(const LaunchPlan& plan) { return {plan.workspace_bytes, plan.semaphores}; }
  /// Enough for either.
  [[nodiscard]] LaunchMemory joined(const LaunchMemory& other) const {
    return {std::max(workspace_bytes, other.workspace_bytes), std::max(semaphores, other.semaphores)};
  }
  [[nodiscard]] bool holds(const LaunchMemory& other) const {
    return workspace_bytes >= other.workspace_bytes && semaphores >= other.semaphores;
  }
};

/// Head dims that a family is written for.
struct HeadDims {
  std::vector<int> listed;  ///< those that lists and tests name
  int step = 0;             ///< multiples of it up to `most` are taken too; 0: the listed ones alone
  int most = 0;

  [[nodiscard]] bool takes(std::int64_t dim) const;
  /// "64 and 128", "multiples of 8 up to 256"
  [[nodiscard]] std::string text() const;
};

/// One kernel design. Configs of one family differ in speed, never in what they compute.
class Family {
 public:
  virtual ~Family() = default;
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::string_view description() const = 0;
  /// Where its device sources lie; what they include may lie elsewhere.
  [[nodiscard]] virtual std::string_view folder() const = 0;
  [[nodiscard]] virtual DeviceKind device() const = 0;
  /// One line: the hardware and tools it needs.
  [[nodiscard]] virtual std::string_view requirements() const = 0;
  [[nodiscard]] virtual std::vector<Dtype> dtypes() const = 0;
  [[nodiscard]] virtual HeadDims head_dims() const = 0;
  [[nodiscard]] virtual std::vector<MaskKind> masks() const = 0;
  /// The features that it has code for.
  [[nodiscard]] virtual Features features() const { return {}; }
  /// Which of Q, K and V it reads quantised, in words: "Q and K in int8"; empty: none.
  [[nodiscard]] virtual std::string_view quantised() const { return {}; }
  /// Whether it has code for inputs that are quantised like that, with scale factors of any granularity.
  [[nodiscard]] virtual bool reads(const Quantised&) const { return false; }
  [[nodiscard]] virtual const std::vector<Knob>& knobs() const = 0;
  /// The specializations that it has code for.
  [[nodiscard]] virtual SpecializationSupport specializations() const { return {}; }
  /// Those of them that a canonical config has for a workload.
  [[nodiscard]] virtual SpecializationSupport specializations_of(const Config&, const Workload&) const {
    return specializations();
  }
  /// The same, and none of problems with features, whose programs are for all launches.
  [[nodiscard]] SpecializationSupport support_of(const Config& config, const Workload& workload) const {
    return workload.has_features() ? SpecializationSupport{} : specializations_of(config, workload);
  }

  /// Whether two launches on the same inputs must agree bit for bit.
  [[nodiscard]] virtual bool is_deterministic(const Config&) const { return true; }

  /// Why the family cannot run this workload on this device; empty when it can.
  [[nodiscard]] std::optional<std::string> refuses(const Workload& workload, const DeviceFacts& device) const;
  /// Whether searches leave it out where it is not made for the workload, though it runs it.
  [[nodiscard]] virtual bool is_special() const { return false; }
  /// The reason of the family's first row in the dispatch table that holds (variant/dispatch_table.hpp), in a few
  /// words; empty where none does. The workload is one the family does not refuse there.
  [[nodiscard]] std::string_view made_for(const Workload&, const DeviceFacts&) const;
  /// Why this config cannot be built or launched, specialized like that; empty when it can. The workload is one the
  /// family does not refuse.
  [[nodiscard]] std::optional<std::string> is_illegal(const Config& config, const Specialization& specialization,
                                                      const Workload& workload, const DeviceFacts& device) const;
  /// The same of a program for all launches.
  [[nodiscard]] std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                                      const DeviceFacts& device) const {
    return is_illegal(config, {}, workload, device);
  }
  /// The config that a search should try in place of this one: knobs without effect at their one name, knobs that
  /// contradict each other reconciled. It may still be illegal.
  [[nodiscard]] virtual Config canonical(const Config& config, const Specialization&, const Workload&) const {
    return config;
  }
  /// Where every search starts, and the base when nothing else is at hand. Legal for every workload not refused.
  [[nodiscard]] virtual Config default_config(const Workload& workload, const DeviceFacts& device) const = 0;
  /// The tables that decide parts of default_config; empty where it has none. What a table says may give way to what is
  /// legal.
  [[nodiscard]] virtual std::vector<DefaultRule> rules() const { return {}; }
  /// default_config, with the rows that decided told to `trace`; illegal perhaps where `trace` forces one that does not
  /// hold.
  [[nodiscard]] virtual Config default_by(const Workload& workload, const DeviceFacts& device, RuleTrace&) const {
    return default_config(workload, device);
  }
  /// The first half of a variant's translation unit: one include, `kConfig` and `kProblem` as constexpr aggregates.
  [[nodiscard]] virtual std::string prelude(const Config& config, const Problem& problem) const = 0;
  /// The second half: the entry, `heed_forward`.
  [[nodiscard]] virtual std::string entry() const = 0;
  [[nodiscard]] virtual LaunchPlan plan(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const = 0;
  /// Registers a thread this config should stay within; 0 when the compiler reports none (CPU).
  [[nodiscard]] virtual int register_limit(const Config&) const { return 0; }

 protected:
  Family() = default;
  /// The refusal of a config or specialization that is not the canonical one, with that one.
  [[nodiscard]] std::string one_name(const Config& config, const Specialization& specialization,
                                     const Workload& workload) const;

 private:
  /// Why no workload runs on this device.
  [[nodiscard]] virtual std::optional<std::string> refuses_device(const DeviceFacts& device) const = 0;
  /// Why a device has no instructions for inputs that it reads.
  [[nodiscard]] virtual std::optional<std::string> refuses_inputs(const Quantised&, const DeviceFacts&) const {
    return std::nullopt;
  }
  /// Why sizes of a workload of its dtypes, head dims and masks are too much for it.
  [[nodiscard]] virtual std::optional<std::string> refuses_sizes(const Workload&) const { return std::nullopt; }
  /// Why this config cannot be built or launched, whatever specializations it has.
  [[nodiscard]] virtual std::optional<std::string> refuses_config(const Config& config, const Specialization&,
                                                                  const Workload& workload,
                                                                  const DeviceFacts& device) const = 0;
};

/// Every family there is: the library's, then those registered.
std::span<const Family* const> families();
/// Adds a family from outside the library, which is nobody's default. To be called before anything asks for families.
/// @throws Error(internal) when there is one of that name
void register_family(const Family& family);
/// @throws Error(usage) with the names there are
const Family& find_family(std::string_view name);
/// The family a device's searches take when neither a family nor a workload is named.
const Family& default_family(DeviceKind device);
/// The family for a workload: the first that is made for it, else the first that runs it.
/// @throws Error(unsupported) with every family's reason where none runs it
const Family& default_family(const Workload& workload, const DeviceFacts& device);
/// Every family a search of this workload goes through, the workload's own first: all that run it, but for special
/// ones that are not made for it. Where none runs it, the device's default alone.
std::vector<const Family*> searched_families(const Workload& workload, const DeviceFacts& device);

/// What rules for defaults see of a workload: they count the keys of a row, so that of a window len_k is what 64 rows
/// see of it, without a mask. Others are left as they are.
Workload with_keys_of_a_tile(const Workload& workload);

/// The compile-time part of a workload, without its sizes.
Problem problem_of(const Workload& workload);
/// The sizes of its launches, with all keys there are.
FixedSizes whole_sizes_of(const Workload& workload);
/// What programs get of them: the keys without those that `trimmed` cuts off.
FixedSizes sizes_of(const Workload& workload);
/// A problem with the sizes: that of a program for launches of this workload alone.
/// @param dense_output and for outputs whose rows follow each other in the order of its layout
Problem sized_problem_of(const Workload& workload, bool dense_output = false);
/// The problem of a program with this specialization.
Problem specialized_problem(const Workload& workload, const Specialization& specialization);
/// What a program may know of a workload: its sizes too, where the tensors of a launch are small enough for the gate to
/// have it run a chain of them, and it has no features.
Problem known_problem(const Workload& workload);
/// Why a program may not know them: the answer where a specialization asks for it and known_problem says nothing.
std::string too_large_to_know(const Workload& workload);

/// A problem as C++, for a prelude: "{.element = heed::Element::fp16, .head_dim = 64, .mask = heed::MaskKind::none}".
std::string literal(const Problem& problem);

/// "fp16_d64", "bf16_d128_causal", "fp32_d64_window", "fp16_d64_qint8_kint8_vfp16" or, with sizes,
/// "fp16_d64_b1h8hkv8l512k512", with dense outputs as well "fp16_d64_b1h8hkv8l512k512_bhld".
std::string to_string(const Problem& problem);

/// What a custom source asks of its launch on top of its family's plan.
struct LaunchExtras {
  int semaphores = 0;
  std::int64_t shared_bytes = 0;  ///< more than the plan's
  bool supports_pdl = false;
};

/// One point of a family's space, specialized or not, for one problem. `source` replaces the family's entry where a
/// variant brings its own code (the exploit zoo); the prelude stays the family's, and so does the launch plan but for
/// `extras`. `overlay` holds edited device sources, which may be the entry too; it excludes `source`. The launch plan
/// stays that of the family's own sources.
struct Variant {
  const Family* family = nullptr;
  Config config;
  Specialization specialization{};
  Problem problem{};
  std::string label;   ///< of a custom source, e.g. "zoo.one_row"
  std::string source;  ///< empty: family->entry()
  LaunchExtras extras{};
  std::shared_ptr<const Overlay> overlay{};  ///< null: the sources that the binary carries

  /// Whether every line of its code is the family's.
  [[nodiscard]] bool is_as_carried() const { return source.empty() && overlay == nullptr; }
  /// Whether it may be launched for a workload: those that share its problem, or have fewer features.
  [[nodiscard]] bool runs(const Workload& workload) const;
  /// Features that it was built with and a workload that it runs has no need of.
  [[nodiscard]] Features spare_features(const Workload& workload) const;
  /// Why it cannot be built or launched for a workload that its family does not refuse; empty when it can.
  [[nodiscard]] std::optional<std::string> is_illegal(const Workload& workload, const DeviceFacts& device) const;
  /// How it is launched for a workload that it runs.
  [[nodiscard]] LaunchPlan plan(const Workload& workload, const DeviceFacts& device) const;
  /// The whole translation unit.
  [[nodiscard]] std::string unit() const;
  /// "fwd_cpu_fp16_d64.m128n64r4.3f2a91c0": family, problem, settings, and a digest of all of them and of a custom
  /// source; of edited sources "+src:" and the first 8 digits of their digest follow.
  [[nodiscard]] std::string id() const;
};

Variant make_variant(const Family& family, const Config& config, const Workload& workload,
                     const Specialization& specialization = {});

/// What a variant's text sets, and a search changes: the knobs of its family, then those of its specialization.
const std::vector<Knob>& variant_knobs(const Family& family);
/// One value for each of them.
Config values_of(const Variant& variant);
/// The variant with these values, in the order of variant_knobs.
Variant variant_of(const Family& family, const Config& values, const Workload& workload);
/// The variant that a search should try in place of this one: parts of its config and of its specialization that have
/// no effect at their one name, those that contradict each other reconciled. It may still be illegal.
Variant canonical(const Variant& variant, const Workload& workload);

/// Parses "family" or "family:knob=value,...". Knobs not named take the family's default for the workload; on a CPU the
/// value that fits the named ones where the default contradicts them.
/// @throws Error(usage) for an unknown family, knob or value
Variant parse_variant(std::string_view text, const Workload& workload, const DeviceFacts& device);
/// What parse_variant reads: "fwd_cpu:block_m=128,...", every knob written out.
std::string describe(const Variant& variant);

}  // namespace heed
