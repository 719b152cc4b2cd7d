/// PyTorch's SDPA backends, timed by a helper process (python/heed/sdpa_peer.py, carried inside the binary). Optional:
/// without Python or PyTorch there is a reason instead.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "measure/pair.hpp"
#include "measure/timed_sets.hpp"

namespace heed {
class LineProcess;
}

namespace heed::measure {

/// Not SDPA: matrix product, softmax, matrix product, three kernels of PyTorch's libraries.
inline constexpr const char* kHybridBackend = "sdpa_hybrid";

/// One forced backend.
struct PeerBackend {
  std::string name;                  ///< "sdpa_math", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn"
  std::vector<std::string> kernels;  ///< that ran when it was forced
  std::string refused;               ///< why it cannot run this workload; empty when it can
};

class SdpaPeer {
 public:
  /// @param python a program name or path
  /// @param with_hybrid also measure kHybridBackend, as one more backend
  /// Never throws for a missing Python or PyTorch: `available` is false and `reason` says why.
  SdpaPeer(const std::string& python, const Workload& workload, const DeviceFacts& device, const TimingPlan& timing,
           std::uint64_t seed, bool with_hybrid = false);
  ~SdpaPeer();
  SdpaPeer(const SdpaPeer&) = delete;
  SdpaPeer& operator=(const SdpaPeer&) = delete;

  [[nodiscard]] bool available() const { return reason_.empty(); }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const std::string& torch_version() const { return torch_; }
  [[nodiscard]] const std::string& cudnn_version() const { return cudnn_; }
  [[nodiscard]] const std::vector<PeerBackend>& backends() const { return backends_; }

  /// A block for measure_pair. @throws Error(worker) when the helper fails
  Block block(const std::string& backend);
  /// Largest error against float64; negative when the backend failed.
  double max_abs_error(const std::string& backend);

 private:
  std::unique_ptr<LineProcess> process_;
  TimingPlan timing_;
  bool gpu_;
  std::string reason_;
  std::string torch_;
  std::string cudnn_;
  std::vector<PeerBackend> backends_;
};

}  // namespace heed::measure
