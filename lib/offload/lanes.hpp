/// Where work of a page pool is done: lanes that go on side by side, each in order, on a GPU the streams of CUDA.
///
/// A GPU may be simulated: its memory is the host's, its kernels are fwd_cpu, and its link copies as slowly as it is
/// told. Threads stand for streams, so that a wait that is missing shows there as it would on a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "api/plan.hpp"
#include "merge/merge_partials.hpp"
#include "padding/copy_rows.hpp"
#include "quantise/quantise_rows.hpp"

namespace heed::offload {

enum class Lane {
  compute,  ///< the caller's stream: kernels
  in,       ///< host to device, pages
  out,      ///< device to host, new keys and values
  host,     ///< attention on the processors
};
inline constexpr int kLanes = 4;

/// Where a lane had come to when it was recorded.
class Mark {
 public:
  virtual ~Mark() = default;
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 protected:
  Mark() = default;
};
using MarkPointer = std::shared_ptr<const Mark>;

/// The graph that launches become nodes of while a stream is captured.
class Recording {
 public:
  virtual ~Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  /// Whether it, or what was instantiated from it, may still be launched.
  [[nodiscard]] virtual bool is_alive() const = 0;

 protected:
  Recording() = default;
};
using RecordingPointer = std::shared_ptr<Recording>;

/// What was moved and how long lanes were at work since the beginning. Seconds of `in` and `compute` are those of a
/// simulated GPU alone.
struct Traffic {
  double bytes_in = 0;
  double bytes_out = 0;
  double seconds_in = 0;
  double seconds_compute = 0;
  double seconds_host = 0;
};

class Lanes {
 public:
  virtual ~Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  [[nodiscard]] virtual DeviceKind kind() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  /// The NUMA node of the device; -1 where the system does not say.
  [[nodiscard]] virtual int node() const = 0;
  [[nodiscard]] virtual Traffic traffic() const = 0;

  /// The compute lane of the calls that follow is this stream. Where it is being captured, what is queued until
  /// stop_recording becomes nodes of its graph: the same object for all calls of one capture, which comes behind all
  /// that was queued before it. Else null.
  /// @throws Error(usage) for a stream or a current context that cannot be
  [[nodiscard]] virtual RecordingPointer use(void* stream) = 0;
  virtual void stop_recording() noexcept = 0;

  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;  ///< of the device. @throws OutOfRoom
  virtual void release(void* memory) noexcept = 0;
  virtual void pin(void* memory, std::size_t bytes) = 0;  ///< of the host, whole pages. @throws OutOfRoom
  virtual void unpin(void* memory) noexcept = 0;

  // ---- queued; nothing waits. @throws Error(driver)
  /// Bytes from the host to the device, on `in` or `compute`.
  virtual void copy_in(Lane lane, void* to, const void* from, std::size_t bytes) = 0;
  /// Rows between any two of the device's and the host's pinned memory, on `compute` or `out`.
  virtual void copy_rows(Lane lane, std::span<const padding::RowCopy> copies) = 0;
  /// Kernels on `compute`.
  virtual void quantise(const quantise::Pass& pass) = 0;  ///< by factors that are given
  virtual void merge(const merge::Merge& merge) = 0;
  virtual void prepare(const std::shared_ptr<const api::Plan>& plan, void* workspace) = 0;
  virtual void run(const std::shared_ptr<const api::Plan>& plan, const heed_tensors& tensors, void* workspace) = 0;
  /// A function on `host`, which may throw nothing; of a recording every launch of the graph calls it.
  virtual void call(std::function<void()> function) = 0;
  [[nodiscard]] virtual MarkPointer record(Lane lane) = 0;
  virtual void wait(Lane lane, const MarkPointer& mark) = 0;
  /// A mark with the time at which the lane passes it, of what is not captured.
  [[nodiscard]] virtual MarkPointer record_time(Lane lane) = 0;

  // ---- at once
  [[nodiscard]] virtual bool is_done(const MarkPointer& mark) const = 0;
  /// From one mark of record_time to a later one; nothing as long as the lane has not passed both. Waits for nothing.
  [[nodiscard]] virtual std::optional<double> seconds_between(const MarkPointer& begin,
                                                              const MarkPointer& end) const = 0;
  virtual void finish(const MarkPointer& mark) = 0;  ///< waits for it. @throws Error(driver)
  virtual void finish_all() = 0;                     ///< waits for every lane. @throws Error(driver)

 protected:
  Lanes() = default;
};

/// What a simulated GPU is.
struct Simulation {
  double bandwidth = 0;          ///< bytes per second from host to device, and as many back; 0: as memory is copied
  double latency = 0;            ///< seconds of each copy
  std::int64_t fail_after = -1;  ///< copies after which it is lost, to see what happens then; -1: never
};
std::unique_ptr<Lanes> make_simulated_lanes(const Simulation& simulation);
/// @param quantises whether Lanes::quantise is called
/// @throws Error(no_device), Error(driver), Error(unsupported) for programs without the merge, or without the pass that
/// quantises
std::unique_ptr<Lanes> make_cuda_lanes(int ordinal, const api::Options& options, bool quantises);

}  // namespace heed::offload
