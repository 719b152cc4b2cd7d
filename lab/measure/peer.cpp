#include "measure/peer.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "compile/embedded.hpp"
#include "json/text.hpp"
#include "process/line_process.hpp"
#include "process/process.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

namespace heed::measure {

std::span<const compile::EmbeddedFile> helper_files();  // python/heed/sdpa_peer.py alone; lab/CMakeLists.txt

namespace {

constexpr double kStartLimit_s = 120;  // importing PyTorch and compiling nothing, but on a cold disk
constexpr double kTimeLimit_s = 60;

}  // namespace

SdpaPeer::SdpaPeer(const std::string& python, const Workload& w, const DeviceFacts& device, const TimingPlan& timing,
                   std::uint64_t seed, bool with_hybrid)
    : timing_(timing), gpu_(device.kind == DeviceKind::cuda) {
  if (w.has_features()) {
    reason_ = fmt::format("PyTorch's scaled_dot_product_attention is timed without features, and this workload has {}",
                          w.quantised ? "quantised inputs" : words_of(features_of(w)));
    return;
  }
  const std::string program = find_program(python);
  if (program.empty()) {
    reason_ = fmt::format("{} is not on the PATH", python);
    return;
  }
  process_ = std::make_unique<LineProcess>(
      std::vector<std::string>{program, "-u", "-c", std::string(helper_files().front().content)});
  const MaskBounds bounds = mask_bounds(w);
  nlohmann::json mask = {{"name", to_string(w.mask)}, {"left_offset", nullptr}, {"right_offset", nullptr}};
  if (w.has_left_bound()) mask["left_offset"] = bounds.left_offset;
  if (w.has_right_bound()) mask["right_offset"] = bounds.right_offset;
  const nlohmann::json workload = {{"batch", w.batch},
                                   {"heads", w.heads},
                                   {"heads_kv", w.heads_kv},
                                   {"len_q", w.len_q},
                                   {"len_k", w.len_k},
                                   {"dim", w.dim},
                                   {"dim_v", w.dim_v},
                                   {"dtype", to_string(w.dtype)},
                                   {"mask", mask},
                                   {"layout", to_string(w.layout)},
                                   {"scale", w.softmax_scale()}};
  const nlohmann::json hello = {{"op", "hello"},
                                {"workload", workload},
                                {"device", to_string(device.kind)},
                                {"sets", timing.sets},
                                {"launches", timing.launches},
                                {"threads", device.processors},
                                {"cache_bytes", device.cache_bytes},
                                {"seed", seed % 1'000'000'007},
                                {"hybrid", with_hybrid}};
  const auto line = process_->ask(hello.dump(), kStartLimit_s);
  const auto answer = line ? parse_json(*line) : nlohmann::json();
  if (!answer.is_object() || answer.contains("error")) {
    const std::string complaints = trim(process_->complaints());
    reason_ = answer.is_object()
                  ? answer.value("error", std::string())
                  : fmt::format("the helper gave no answer{}", complaints.empty() ? "" : ": " + complaints);
    process_.reset();
    return;
  }
  torch_ = answer.value("torch", std::string());
  cudnn_ = answer.value("cudnn", std::string());
  for (const auto& [name, backend] : answer.at("backends").items())
    backends_.push_back({"sdpa_" + name, backend.value("kernels", std::vector<std::string>()),
                         backend.value("refused", std::string())});
}

SdpaPeer::~SdpaPeer() = default;

Block SdpaPeer::block(const std::string& backend) {
  return [this, backend] {
    // "sdpa_flash" is "flash" to the helper
    const nlohmann::json request = {
        {"op", "time"}, {"backend", backend.substr(5)}, {"replays", timing_.replays}, {"warm_up_ms", gpu_ ? 5 : 0}};
    const auto line = process_ ? process_->ask(request.dump(), kTimeLimit_s) : std::nullopt;
    const auto answer = line ? parse_json(*line) : nlohmann::json();
    if (!answer.is_object() || !answer.contains("us"))
      throw Error(ErrorCode::worker, fmt::format("PyTorch's {} backend failed: {}", backend,
                                                 answer.is_object() ? answer.value("error", std::string("no times"))
                                                                    : "the helper ended"));
    return median(answer.at("us").get<std::vector<double>>());
  };
}

double SdpaPeer::max_abs_error(const std::string& backend) {
  const nlohmann::json request = {{"op", "error"}, {"backend", backend.substr(5)}};
  const auto line = process_ ? process_->ask(request.dump(), kTimeLimit_s) : std::nullopt;
  const auto answer = line ? parse_json(*line) : nlohmann::json();
  return answer.is_object() ? answer.value("max_abs", -1.0) : -1.0;
}

}  // namespace heed::measure
