/// Plans: a problem with the program that runs it, ready to be launched.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "api/problem.hpp"
#include "dispatch/selection.hpp"
#include "heed/heed.h"
#include "launch/caller_threads.hpp"
#include "merge/merge_partials.hpp"
#include "padding/copy_rows.hpp"
#include "variant/family.hpp"

namespace heed::api {

/// Of a GPU's tensors, in bytes: bulk copies, and rows copied 16 bytes at a time.
inline constexpr std::uintptr_t kGpuAlignment = 16;
/// Of a workspace and of its parts, in bytes.
inline constexpr std::size_t kWorkspaceAlignment = 256;
constexpr std::size_t workspace_part(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

/// What heed_options says, checked.
struct Options {
  int threads = 0;
  std::string programs;
  std::string variant;
  std::string_view image;
  int build = HEED_BUILD_OFF;
  int listing = HEED_LIST_AUTO;
  std::optional<std::string> book;  ///< empty: none; not set: the default one
  ParallelFor parallel_for;         ///< the caller's threads; without a function the library's own
  std::string precision;            ///< a quantise::Mode's name; empty: inputs stay as they are
  bool keeps_kv = false;            ///< in the L2, of a GPU's plan
  bool debug = false;               ///< whether runs make checks that take time
};
/// @throws Error(usage) for a struct of another size, an image without a variant, threads outside 0 to 4096, a
/// build or a policy of the L2 that is none, a HEED_DEBUG in the environment that is neither 0 nor 1
Options read_options(const heed_options* options);

/// A program that was chosen for a problem.
struct Choice {
  Variant variant;
  std::shared_ptr<const std::string> image;  ///< null: of an empty problem
  std::string digest;                        ///< of the image
  std::string origin;
  std::string reason;
  std::string arch;  ///< that the program was built for; empty: unknown, of a GPU's image that was given
  dispatch::Step step = dispatch::Step::given;
  bool is_building = false;  ///< a better one
};

/// That of a problem without a result to compute.
Choice nothing_to_run();
/// What a plan runs.
struct Decision {
  Problem problem;         ///< the caller's, or the one that copies make of it
  Choice choice;           ///< for that one
  bool is_copied = false;  ///< Q, K and V are copied to where the program reads them, and O from where it is written
  std::int64_t batch = 0;  ///< entries of a launch, where one does not take them all; 0: it does
  std::int64_t heads = 0;  ///< likewise, of one batch entry
};
/// @throws Error(unsupported), Error(programs), Error(usage)
Decision decide(const Problem& problem, const Options& options, const DeviceFacts& device);
/// The same problem of fewer batch entries.
Problem of_batch(const Problem& problem, std::int64_t batch);
/// The same problem of fewer heads: whole groups of one head of K and V, or a part of the only group.
Problem of_heads(const Problem& problem, std::int64_t heads);
/// The copies' program for a device. @throws Error(unsupported), Error(programs)
Choice choose_copies(const Options& options, const DeviceFacts& device);

/// The merge's program for a device. @throws Error(unsupported), Error(programs)
Choice choose_merge(const Options& options, const DeviceFacts& device);

/// Addresses of a run by their tensors, and what else differs from run to run, checked: no one is null that the problem
/// needs, each is aligned, O overlaps none. Null: the problem has none.
struct Addresses {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;
  const void* bias;
  const float* sinks;
  const float* alibi_slopes;
  const std::int32_t* cu_seqlens_q;
  const std::int32_t* cu_seqlens_k;
  const std::int32_t* seqused_k;
  const std::int32_t* page_table;
  const std::int32_t* block_counts;
  const std::int32_t* block_indices;
  const std::int32_t* prefix_lengths;
  const float* relative_bias;
  const float* q_scale;
  const float* k_scale;
  const float* v_scale;
  const void* out_gate;
  const float* out_norm_weight;
  std::uint64_t dropout_seed;
  std::uint64_t dropout_offset;
  std::int32_t dropout_first_entry;
};

/// Of both products, 0 where nothing is computed. Entries with lengths of their own count as if each had the most, and
/// lists of blocks as if they had all, prefixes as if there were none.
double flops_of(const Problem& problem);

class Plan {
 public:
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  virtual void prepare(void* workspace, void* stream) const = 0;
  /// @return microseconds on a CPU, else 0
  virtual double run(const heed_tensors* tensors, std::size_t count, void* workspace, void* stream,
                     std::uint32_t flags) const = 0;
  virtual void info(heed_plan_info& info) const;
  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_bytes_; }

  [[nodiscard]] const Problem& problem() const { return problem_; }

 protected:
  Plan(const Problem& problem, Choice choice, LaunchPlan launch);

  /// @throws Error(usage)
  /// @param workspace of the run, which lies apart from all tensors; null: not looked at
  [[nodiscard]] Addresses checked(const heed_tensors& tensors, const void* workspace) const;
  void require_workspace(const void* workspace) const;
  /// The launch without its addresses, keys in front of the first visible one still in.
  [[nodiscard]] const FeatureParams& parameters() const { return params_; }
  /// Bytes from the address of K, and of V, to the end of what may be read.
  [[nodiscard]] std::uint64_t k_extent() const { return extents_[1].bytes; }
  [[nodiscard]] std::uint64_t v_extent() const { return extents_[2].bytes; }
  /// With the addresses of a run.
  [[nodiscard]] FeatureParams bound(const Addresses& at, void* workspace) const;

  Problem problem_;
  Choice choice_;
  LaunchPlan launch_;
  MaskKind mask_;
  TensorBytes bytes_;                ///< of an element
  std::size_t semaphore_bytes_ = 0;  ///< at the beginning of a workspace
  std::size_t workspace_bytes_ = 0;
  std::uintptr_t tensor_alignment_;  ///< of Q, K, V and O, beside that of their elements

 private:
  /// What the problem has of a tensor of heed_tensors, in the order of its addresses.
  struct Extent {
    std::uint64_t bytes = 0;  ///< from the address to the end of what may be read or written; 0: the problem has none
    std::uintptr_t element = 1;  ///< bytes
    bool is_needed = false;      ///< by a run
  };
  static constexpr std::size_t kTensors = 21;
  [[nodiscard]] std::array<Extent, kTensors> extents() const;

  FeatureParams params_{};
  std::string variant_text_;
  std::array<Extent, kTensors> extents_{};
};

/// @throws Error(no_device), Error(driver) and what choose throws
std::unique_ptr<Plan> make_plan(const Problem& problem, const Options& options);
std::unique_ptr<Plan> make_cpu_plan(const Problem& problem, const Options& options, Choice choice,
                                    const DeviceFacts& device);
std::unique_ptr<Plan> make_gpu_plan(const Problem& problem, const Options& options, Choice choice,
                                    const DeviceFacts& device);
/// What a GPU's plan that keeps K and V in the L2 can keep of them, in a sentence, as its device and context are.
/// @throws Error(unsupported) for a device without access-policy windows, Error(driver)
std::string l2_remark(const Problem& problem);

/// Copies of a plan's tensors: Q, K and V before a run, O after it.
class Copies {
 public:
  virtual ~Copies() = default;
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  /// Queues copies, at most three; on a CPU they are done on return.
  virtual void run(std::span<const padding::RowCopy> copies, void* stream) const = 0;

 protected:
  Copies() = default;
};
std::unique_ptr<Copies> make_cpu_copies();
std::unique_ptr<Copies> make_gpu_copies(const Problem& problem, const Choice& program);

/// The merge of partial results on a GPU (lib/merge).
class Merges {
 public:
  virtual ~Merges() = default;
  Merges(const Merges&) = delete;
  Merges& operator=(const Merges&) = delete;
  virtual void run(const merge::Merge& merge, void* stream) const = 0;

 protected:
  Merges() = default;
};
/// @param program of choose_merge
std::unique_ptr<Merges> make_gpu_merges(const Problem& problem, const Choice& program);

/// A plan of several launches. @param last of the batch entries or heads that are left, null where none is
std::unique_ptr<Plan> make_divided_plan(const Problem& problem, std::string reason, std::unique_ptr<Plan> whole,
                                        std::unique_ptr<Plan> last);
/// A plan between copies. @param inner of the problem that they make
std::unique_ptr<Plan> make_copied_plan(const Problem& problem, std::unique_ptr<Plan> inner,
                                       std::unique_ptr<Copies> copies);

/// The device of a problem; a CPU at most of the level that the environment variable HEED_CPU_LEVEL names.
/// @throws Error(no_device), Error(usage) for a level that is none
DeviceFacts facts_of_device(const Problem& problem);

/// Why no kernel reads or writes a tensor as it lies: elements of a row follow each other, and a GPU takes 16 bytes at
/// a time. Empty where kernels do.
std::string layout_refusal(const char* name, const TensorSizes& sizes, const TensorLayout& layout, Dtype dtype,
                           DeviceKind device);

}  // namespace heed::api
