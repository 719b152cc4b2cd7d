#include "stub_graph.hpp"

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#undef cuStreamGetCaptureInfo
#undef cuStreamIsCapturing
#undef cuStreamUpdateCaptureDependencies

namespace heed::stub {
namespace {

struct Node {
  std::function<void()> function;
  std::vector<std::size_t> behind;  // numbers of nodes, from 1
};
struct UserObject {
  void* argument;
  CUhostFn destroy;
};

unsigned long long capture = 1;
std::vector<Node> nodes;
std::vector<CUgraphNode> ends;
std::vector<UserObject> objects;
bool is_broken = false;

std::size_t number_of(CUgraphNode node) {
  return reinterpret_cast<std::size_t>(node);
}

}  // namespace

bool is_taken(CUstream stream, std::function<void()> node) {
  if (stream != kCapturing) return false;
  Node taken{std::move(node), {}};
  for (CUgraphNode end : ends) taken.behind.push_back(number_of(end));
  nodes.push_back(std::move(taken));
  ends = {reinterpret_cast<CUgraphNode>(nodes.size())};
  return true;
}

}  // namespace heed::stub

extern "C" {

using heed::stub::capture;
using heed::stub::ends;
using heed::stub::nodes;
using heed::stub::objects;

/// Nodes of the graph, and those that the stream's next one comes behind.
int stub_nodes() {
  return static_cast<int>(nodes.size());
}
int stub_ends() {
  return static_cast<int>(ends.size());
}
/// Launches the graph: of the nodes that may run, one at random.
void stub_launch_graph(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bool> is_done(nodes.size() + 1, false);
  std::vector<std::size_t> left(nodes.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
  while (!left.empty()) {
    std::vector<std::size_t> ready;
    for (const std::size_t i : left)
      if (std::all_of(nodes[i].behind.begin(), nodes[i].behind.end(), [&](std::size_t n) { return is_done[n]; }))
        ready.push_back(i);
    const std::size_t next = ready.at(random() % ready.size());
    nodes[next].function();
    is_done[next + 1] = true;
    left.erase(std::find(left.begin(), left.end(), next));
  }
}
/// Nodes that the one which all others are ahead of needs, directly or not, are all: none is left to run behind it.
bool stub_is_joined() {
  std::vector<bool> is_needed(nodes.size() + 1, false);
  for (CUgraphNode end : ends) is_needed[heed::stub::number_of(end)] = true;
  for (std::size_t i = nodes.size(); i > 0; --i)
    if (is_needed[i])
      for (const std::size_t n : nodes[i - 1].behind) is_needed[n] = true;
  return std::all_of(is_needed.begin() + 1, is_needed.end(), [](bool is) { return is; });
}
/// The graph ends, and another capture begins.
void stub_end_graph() {
  for (const auto& object : objects) object.destroy(object.argument);
  objects.clear();
  nodes.clear();
  ends.clear();
  heed::stub::is_broken = false;
  ++capture;
}
/// The capture is one that an earlier call broke, until the graph ends.
void stub_break_capture() {
  heed::stub::is_broken = true;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = stream == heed::stub::kCapturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** of_stream, std::size_t* count) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (stream != heed::stub::kCapturing) return CUDA_SUCCESS;
  *status = heed::stub::is_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  *id = capture;
  *graph = reinterpret_cast<CUgraph>(0x99);
  *of_stream = ends.data();
  *count = ends.size();
  return CUDA_SUCCESS;
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* of_stream, std::size_t count, unsigned flags) {
  if (stream != heed::stub::kCapturing || flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    if (heed::stub::number_of(of_stream[i]) < 1 || heed::stub::number_of(of_stream[i]) > nodes.size())
      return CUDA_ERROR_INVALID_VALUE;
  ends.assign(of_stream, of_stream + count);
  return CUDA_SUCCESS;
}
CUresult cuUserObjectCreate(CUuserObject* object, void* argument, CUhostFn destroy, unsigned count, unsigned flags) {
  if (count != 1 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  *object = reinterpret_cast<CUuserObject>(new heed::stub::UserObject{argument, destroy});
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject given, unsigned) {
  auto* const object = reinterpret_cast<heed::stub::UserObject*>(given);
  object->destroy(object->argument);
  delete object;
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph, CUuserObject given, unsigned count, unsigned flags) {
  if (count != 1 || flags != CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
  auto* const object = reinterpret_cast<heed::stub::UserObject*>(given);
  objects.push_back(*object);
  delete object;
  return CUDA_SUCCESS;
}
}
