/// A scene: one problem laid out as a block of bytes, ready to be carried to a device, and what must hold of the bytes
/// that come back.
///
///   | guard | Q | guard | K | guard | V | guard | O | guard | LSE | guard | workspace | guard | semaphores | guard |
///
/// with the tensors of features, where the workload has them, before O. Guards are random bytes; O, LSE and workspace
/// are poison (0xff: NaN in every dtype but int8), semaphores are zero. With padding, the rows past a head's length
/// exist in memory and hold NaN in Q, K and V, in int8 -1 with scale factors of rows that are NaN: a kernel that reads
/// them shows it, one that writes there too. Gaps between rows, heads and blocks (SceneStrides) hold the same.
/// Quantised tensors are made of the given values (verify/quantise.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "variant/family.hpp"
#include "verdict/verdict.hpp"
#include "verify/inputs.hpp"
#include "verify/quantise.hpp"
#include "verify/row_places.hpp"
#include "verify/scene_strides.hpp"
#include "worker/protocol.hpp"

namespace heed::verify {

constexpr std::uint64_t kAlignment = 256;  ///< cudaMalloc's, which kernels may rely on
/// The bias after each row of it, and before its first: NaN, or what shows a score where it is boolean.
constexpr std::int64_t kBiasPadding = 5;
constexpr std::uint64_t kGuardBytes = 4096;  ///< wider than any tile row, so that an overrun by a tile row hits it

/// Bytes up to the next place where a tensor may begin.
constexpr std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// A page of one key would be little beside 64 rows of NaN after it.
inline std::int64_t paged_padding(const Workload& w, std::int64_t padding_rows) {
  return w.page_size > 0 ? std::min<std::int64_t>(padding_rows, 1) : padding_rows;
}

/// One tensor inside an image.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  Strides strides;
};

struct SceneOptions {
  bool with_lse = true;
  std::int64_t padding_rows = 0;  ///< rows of NaN after each head's own; none in O where a plan says how it lies
  std::uint64_t page_seed = 1;    ///< of the order of pages: scenes of one timing have the same
  std::uint64_t stride_seed = 0;  ///< of strides that each tensor has of its own; 0: rows follow each other
  std::int64_t repeated_query_heads = 0;  ///< first heads of Q that lie behind it once more; without padding alone
};

class Scene {
 public:
  /// @param plan the variant's launch plan for this workload: its workspace, semaphores and grid count
  Scene(const Workload& workload, const InputValues& values, const LaunchPlan& plan, std::uint64_t seed,
        const SceneOptions& options = {});

  [[nodiscard]] const Workload& workload() const { return workload_; }
  [[nodiscard]] const std::vector<std::byte>& image() const { return image_; }
  [[nodiscard]] const worker::Launch& launch() const { return launch_; }
  [[nodiscard]] const Place& q() const { return q_; }
  [[nodiscard]] const Place& k() const { return k_; }
  [[nodiscard]] const Place& v() const { return v_; }
  [[nodiscard]] const Place& o() const { return o_; }
  [[nodiscard]] const Place& lse() const { return lse_; }
  [[nodiscard]] const Place& workspace() const { return workspace_; }
  [[nodiscard]] const Place& semaphores() const { return semaphores_; }

  /// Inputs of features, in the order of a launch's parameters; those that the workload does not have are empty.
  enum FeatureInput {
    bias,
    alibi_slopes,
    sinks,
    cu_seqlens_q,
    cu_seqlens_k,
    seqused_k,
    page_table,
    block_counts,
    block_indices,
    prefix_lengths,
    relative_bias,
    q_scales,
    k_scales,
    v_scales,
    out_gate,
    out_norm_weight,
    feature_inputs
  };
  [[nodiscard]] const Place& feature(FeatureInput input) const { return features_[input]; }

  [[nodiscard]] const RowPlaces& places() const { return places_; }
  /// Rows of O that an entry has.
  [[nodiscard]] std::int64_t rows_of(std::int64_t batch) const {
    return places_.lengths()[static_cast<std::size_t>(batch)].len_q;
  }
  /// Element (row, 0) of O, and of LSE, as an index.
  [[nodiscard]] std::size_t o_index(const RowIndex& row) const;
  [[nodiscard]] std::size_t lse_index(const RowIndex& row) const;

  /// Inputs as the reference reads them: out of this scene's own image, which no candidate ever touches.
  [[nodiscard]] HostTensors tensors() const;

  /// Replaces one random element of each of Q, K and V by a value that changes every output it reaches. For the same
  /// addresses with other contents.
  void disturb(std::uint64_t seed);
  /// The next launch is asked for no log-sum-exp; where it lay nothing may be written any more.
  void drop_lse();
  /// Puts the bytes of O and LSE of another image into this one, in place of the poison.
  void keep_outputs_of(const std::byte* image);

  /// Whether anything but O, LSE and workspace differs between this image and `after`: semaphores too are zero again.
  struct ForbiddenWrite {
    Finding finding = Finding::none;  ///< input_modified, wrote_outside or left_counters
    std::string text;
  };
  /// What is not compared: what the caller knows, or compares by itself.
  struct Skipped {
    bool inputs = false;  ///< Q, K, V and those of features
    bool keys = false;
    bool semaphores = false;
  };
  [[nodiscard]] ForbiddenWrite forbidden_write(const std::byte* after, Skipped skipped) const;
  [[nodiscard]] ForbiddenWrite forbidden_write(const std::byte* after) const { return forbidden_write(after, {}); }

 private:
  /// The first byte between rows of O, in its padding and its gaps, that is not as it was; the end of O where all are.
  [[nodiscard]] std::uint64_t first_change_between_rows(const std::byte* after) const;
  /// "12 bytes past the end of O"
  [[nodiscard]] std::string describe_offset(std::uint64_t offset) const;

  Workload workload_;
  bool has_gaps_;  // some bytes of O and inputs belong to no row
  std::vector<std::byte> image_;
  worker::Launch launch_;
  void put_features(const InputValues& values);
  /// One of Q, K and V: places for it and its scale factors, then its values.
  struct Input {
    Place Scene::*place;
    FeatureInput scales_input;
    TensorScales FeatureParams::*scales;
    std::uint64_t worker::Launch::*scales_address;
    std::int64_t heads;
    std::int64_t rows;
    std::int64_t dim;
    bool are_queries;
    Dtype dtype;
    const std::optional<QuantisedTensor>* quantised;  ///< null: none of the three is
    Values InputValues::*values;
  };
  [[nodiscard]] std::array<Input, 3> inputs() const;
  /// Gates and weights of norms; gates lie as O does.
  void put_output_features(const InputValues& values);
  void put_input(const Input& input, const InputValues& values, const Scales* scales);

  RowPlaces places_;
  Place q_, k_, v_, o_, lse_, workspace_, semaphores_;
  std::array<Place, feature_inputs> features_;
};

/// Bytes an image of this workload takes at most, padding included, and gaps where tensors have strides of their own.
std::uint64_t image_bytes(const Workload& workload, const LaunchMemory& memory, std::int64_t padding_rows,
                          bool own_strides = false);

}  // namespace heed::verify
