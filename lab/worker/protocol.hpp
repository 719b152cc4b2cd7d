/// How a run and its worker process talk: JSON frames over a socket, tensors in memory both have mapped.
///
/// The worker is a pair of hands: it moves byte images to the device, launches, and moves them back. Inputs are made,
/// outputs compared and times judged in the parent, where no candidate ever runs, so a candidate that takes over its
/// worker still has to produce right outputs for inputs it has never seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/features.hpp"
#include "variant/family.hpp"
#include "worker/channels.hpp"
#include "worker/hardware_counters.hpp"

namespace heed::worker {

/// File descriptors a worker starts with.
inline constexpr int kSocket = 3;
inline constexpr int kArena = 4;

/// Pointers of a launch are offsets into an image until the worker adds the image's address.
inline constexpr std::uint64_t kNull = ~std::uint64_t{0};

/// Launches from the list's front that begin every block of a CPU, for what the other side left in the caches, and
/// are no part of readings: one for each of the most sets there are.
inline constexpr int kCpuLead = 10;

/// FeatureParams, with offsets in place of pointers.
struct Launch {
  std::uint64_t q = kNull;
  std::uint64_t k = kNull;
  std::uint64_t v = kNull;
  std::uint64_t o = kNull;
  std::uint64_t lse = kNull;
  std::uint64_t workspace = kNull;
  std::uint64_t semaphores = kNull;
  // Of features, where the problem has them.
  std::uint64_t bias = kNull;
  std::uint64_t alibi_slopes = kNull;
  std::uint64_t sinks = kNull;
  std::uint64_t cu_seqlens_q = kNull;
  std::uint64_t cu_seqlens_k = kNull;
  std::uint64_t seqused_k = kNull;
  std::uint64_t page_table = kNull;
  std::uint64_t block_counts = kNull;
  std::uint64_t block_indices = kNull;
  std::uint64_t prefix_lengths = kNull;
  std::uint64_t relative_bias = kNull;
  std::uint64_t q_scales = kNull;
  std::uint64_t k_scales = kNull;
  std::uint64_t v_scales = kNull;
  std::uint64_t out_gate = kNull;
  std::uint64_t out_norm_weight = kNull;
  FeatureParams shape{};  ///< strides, scale and lengths, of all keys; its pointers are unused
  MaskKind mask = MaskKind::none;
  Element k_element = Element::fp16;
  Element v_element = Element::fp16;
  std::array<std::uint32_t, 3> grid = {1, 1, 1};  ///< LaunchPlan::grid for these lengths
  /// Rows of K's and V's boxes in LaunchPlan::tensor_maps, for these pages; 0: the entry takes no tensor maps.
  int k_box_rows = 0;
  int v_box_rows = 0;

  /// Takes from a program's plan for a workload what differs between workloads.
  void take(const LaunchPlan& plan);
  /// The maps of a program that was loaded for another workload, whose pages may be of another size, for this launch.
  [[nodiscard]] TensorMapSpec with_boxes(TensorMapSpec maps) const;
};

inline constexpr std::array<std::uint64_t Launch::*, 16> kFeatureAddresses = {
    &Launch::bias,          &Launch::alibi_slopes,   &Launch::sinks,         &Launch::cu_seqlens_q,
    &Launch::cu_seqlens_k,  &Launch::seqused_k,      &Launch::page_table,    &Launch::block_counts,
    &Launch::block_indices, &Launch::prefix_lengths, &Launch::relative_bias, &Launch::q_scales,
    &Launch::k_scales,      &Launch::v_scales,       &Launch::out_gate,      &Launch::out_norm_weight};

/// How the launches of a list follow one another.
enum class Follow {
  waited,     ///< the host waits for each; shared or scratch memory is poisoned before the next
  in_stream,  ///< at once, each when the one before it has ended
  dependent,  ///< at once, as programmatic dependents: each may begin before the one before it has ended. On a CPU as
              ///< in_stream
};

/// The parameters with every offset turned into base + offset, kNull into a null pointer, and without the keys that
/// `trimmed` cuts off.
FeatureParams resolve(const Launch& launch, std::uintptr_t base);

void to_json(nlohmann::json& json, const Launch& launch);
void from_json(const nlohmann::json& json, Launch& launch);
/// A list of launches: the first whole, of each other what it has otherwise. The 100 launches of a replay differ in
/// addresses and scale alone, 60 bytes instead of 1.5 KB each to write and to parse, for each draft that is looked at.
nlohmann::json launches_to_json(const std::vector<Launch>& launches);
/// @throws nlohmann::json::exception, Error for what is no such list
std::vector<Launch> launches_from_json(const nlohmann::json& json);
nlohmann::json plan_to_json(const LaunchPlan& plan);
LaunchPlan plan_from_json(const nlohmann::json& json);

nlohmann::json choices_to_json(const std::vector<MetricChoice>& choices);
std::vector<MetricChoice> choices_from_json(const nlohmann::json& json);
nlohmann::json reading_to_json(const CounterReading& reading);
CounterReading reading_from_json(const nlohmann::json& json);

/// A byte range of an image.
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Where a spot check stopped in its last replay: launches [0, complete) have written all they write, those from
/// `begun` on nothing. What lies between was under way, and its outputs may hold anything.
struct Stopped {
  int complete = 0;
  int begun = 0;
  bool wrote_out_of_bounds = false;  ///< memory of the worker's that is part of no image was written to
  /// Launches before which K of their set was multiplied by KeyChanges::turn, in a pause, when none of them had begun.
  std::vector<int> turned = {};
};

/// What a spot check does to K besides the factors of channels, and takes back when it has stopped. On a CPU alone,
/// whose candidates find the list of their launches.
struct KeyChanges {
  std::vector<ChannelRange> loud;  ///< rows that are multiplied by `loudness`, from the first launch on
  float loudness = 1;              ///< a power of two
  /// Where the last replay is stopped and goes on, in launches from its beginning, in increasing order.
  std::vector<double> pauses;
  ChannelFactors turn;  ///< signs that K of the first launch is multiplied by that has not begun in a pause
};

void to_json(nlohmann::json& json, const Range& range);
void from_json(const nlohmann::json& json, Range& range);
void to_json(nlohmann::json& json, const ChannelRange& range);
void from_json(const nlohmann::json& json, ChannelRange& range);
void to_json(nlohmann::json& json, const KeyChanges& changes);
void from_json(const nlohmann::json& json, KeyChanges& changes);

/// One frame: the magic number, the length of the text, the text. Bounded, because the other side may be broken.
inline constexpr std::uint32_t kMagic = 0x44454548;  // "HEED"
inline constexpr std::uint32_t kMostFrameBytes = 64U << 20;

/// Writes a frame. @return false when the other side is gone
bool send_frame(int socket, const nlohmann::json& message);

enum class Received { frame, closed, timed_out, garbage, interrupted };
/// Waits for the beginning of a frame, or for the other side's end, and reads nothing: Received::frame where there is
/// one. Parameters are receive_frame's.
Received wait_for_frame(int socket, double limit_s, bool interruptible);
/// Reads a frame. @param limit_s wall clock; negative: no limit. `interruptible`: a Ctrl-C ends the wait.
Received receive_frame(int socket, double limit_s, bool interruptible, nlohmann::json& message);

}  // namespace heed::worker
