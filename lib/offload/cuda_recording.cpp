#include "offload/cuda_recording.hpp"

#ifdef HEED_WITH_CUDA

#include <algorithm>

#include "base/check.hpp"

namespace heed::offload {
namespace {

struct RecordedMark final : Mark {
  explicit RecordedMark(std::vector<CUgraphNode> of_lane) : ends(std::move(of_lane)) {}
  std::vector<CUgraphNode> ends;
};

// Called by a thread of the driver, which may call no function of CUDA, when nothing launches the graph any more.
void end_graph(void* argument) {
  const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> is_alive(
      static_cast<std::shared_ptr<std::atomic<bool>>*>(argument));
  **is_alive = false;
}

}  // namespace

Capture capture_of(CUstream stream) {
  Capture capture;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUgraphNode* ends = nullptr;
  std::size_t count = 0;
  check_cuda(cuda_driver().stream_get_capture_info(stream, &status, &capture.id, &capture.graph, &ends, &count),
             "asking whether the stream is captured");
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    throw Error(ErrorCode::usage,
                "an earlier call broke the capture of the stream; end it, and capture anew without that call");
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return {};
  capture.ends.assign(ends, ends + count);
  return capture;
}

CudaRecording::CudaRecording(const Capture& capture) : id_(capture.id) {
  const CudaDriver& cuda = cuda_driver();
  auto shared = std::make_unique<std::shared_ptr<std::atomic<bool>>>(is_alive_);
  CUuserObject object = nullptr;
  check_cuda(cuda.user_object_create(&object, shared.get(), &end_graph, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
             "making the object that tells when a graph ends");
  (void)shared.release();  // end_graph ends it
  const CUresult result = cuda.graph_retain_user_object(capture.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (result != CUDA_SUCCESS) cuda.user_object_release(object, 1);
  check_cuda(result, "giving the graph the object that tells when it ends");
}

void CudaRecording::begin(CUstream stream, const Capture& capture) {
  stream_ = stream;
  of(Lane::compute) = capture.ends;
}

void CudaRecording::end() noexcept {
  std::vector<CUgraphNode>& ends = of(Lane::compute);
  // Of a capture that was broken meanwhile its end says so.
  (void)cuda_driver().stream_update_capture_dependencies(stream_, ends.data(), ends.size(),
                                                         CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

void CudaRecording::move_to(const std::vector<CUgraphNode>& ends) const {
  std::vector<CUgraphNode> all = ends;
  check_cuda(cuda_driver().stream_update_capture_dependencies(stream_, all.data(), all.size(),
                                                              CU_STREAM_SET_CAPTURE_DEPENDENCIES),
             "ordering the nodes of a graph");
}

// A lane that has nothing yet begins where the compute lane is.
CUstream CudaRecording::enter(Lane lane) {
  if (of(lane).empty()) of(lane) = of(Lane::compute);
  move_to(of(lane));
  return stream_;
}
void CudaRecording::leave(Lane lane) {
  of(lane) = capture_of(stream_).ends;
}

MarkPointer CudaRecording::record(Lane lane) const {
  return std::make_shared<RecordedMark>(ends_[static_cast<std::size_t>(lane)]);
}

void CudaRecording::wait(Lane lane, const MarkPointer& mark) {
  const auto* const recorded = dynamic_cast<const RecordedMark*>(mark.get());
  HEED_CHECK(recorded != nullptr);  // what was done before the capture is done
  std::vector<CUgraphNode>& ends = of(lane);
  if (ends.empty()) ends = of(Lane::compute);
  for (CUgraphNode node : recorded->ends)
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
}

std::function<void()>* CudaRecording::keep(std::function<void()> function) {
  functions_.push_back(std::move(function));
  return &functions_.back();
}

}  // namespace heed::offload

#endif
