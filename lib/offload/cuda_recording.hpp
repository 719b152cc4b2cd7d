/// Launches of a page pool while a stream is captured: nodes of a graph, ordered as lanes are.
/// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html, cuStreamUpdateCaptureDependencies
#pragma once

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "device/cuda_driver.hpp"
#include "heed/heed.hpp"
#include "offload/lanes.hpp"

namespace heed::offload {

inline void check_cuda(CUresult result, std::string_view step) {
  if (result != CUDA_SUCCESS)
    throw Error(ErrorCode::driver, fmt::format("{} failed: {}", step, cuda_error_text(result)), std::to_string(result));
}

/// What a capture is, as the driver says; `graph` is null where the stream is not captured.
struct Capture {
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> ends;  ///< that the stream's next node comes behind
};
/// @throws Error(usage) for a capture that an earlier call broke, Error(driver)
Capture capture_of(CUstream stream);

/// Lanes of one capture are sets of nodes that a lane's next node comes behind: one stream records them all, and needs
/// no others that would have to join it again.
class CudaRecording final : public Recording {
 public:
  /// The graph tells when it and what was instantiated from it have ended, by a user object of its own.
  explicit CudaRecording(const Capture& capture);

  [[nodiscard]] bool is_alive() const override { return *is_alive_; }
  [[nodiscard]] cuuint64_t id() const { return id_; }

  /// The compute lane is where the stream is.
  void begin(CUstream stream, const Capture& capture);
  /// The stream goes on behind the compute lane.
  void end() noexcept;
  /// What the stream is given from now on comes behind the lane's last node; `leave`: and was the lane's.
  CUstream enter(Lane lane);
  void leave(Lane lane);
  [[nodiscard]] MarkPointer record(Lane lane) const;
  void wait(Lane lane, const MarkPointer& mark);
  /// A function that every launch of the graph calls.
  std::function<void()>* keep(std::function<void()> function);

 private:
  std::vector<CUgraphNode>& of(Lane lane) { return ends_[static_cast<std::size_t>(lane)]; }
  void move_to(const std::vector<CUgraphNode>& ends) const;

  cuuint64_t id_;
  CUstream stream_ = nullptr;
  std::array<std::vector<CUgraphNode>, kLanes> ends_;
  std::deque<std::function<void()>> functions_;  // addresses stay
  std::shared_ptr<std::atomic<bool>> is_alive_ = std::make_shared<std::atomic<bool>>(true);
};

}  // namespace heed::offload

#endif
