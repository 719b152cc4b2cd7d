// Calls that are captured into graphs, and how long what their nodes read and write stays as it is.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "offload/offload.hpp"

namespace heed::offload {
namespace {

// The driver tells on a thread of its own that a graph has ended, after the call that destroyed it: far sooner.
constexpr auto kLongestEnd = std::chrono::milliseconds(200);

}  // namespace

// Where the stream is being captured, the call's launches become nodes, in memory of their own: calls that are done as
// they come work in that of the pool meanwhile. Sequences of the nodes are held, since a table and a split are part of
// a graph.
void Offload::use(const Call& call, bool attends, void* stream) {
  RecordingPointer recording = lanes_->use(stream);
  if (recording == nullptr) return;
  try {
    if (!attends || call.new_keys > 0)
      throw Error(
          ErrorCode::usage,
          fmt::format("the stream is being captured into a graph, and {} new keys come with the call: where keys "
                      "go changes from one launch to the next; append them before the capture, and capture "
                      "calls with a len_k of 0",
                      call.new_keys),
          std::to_string(call.new_keys));
    const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                    [&](const std::unique_ptr<Graph>& graph) { return graph->recording == recording; });
    if (found != graphs_.end()) {
      graph_ = found->get();
    } else {
      auto graph = std::make_unique<Graph>();
      graph->recording = std::move(recording);
      graph->work.read.resize(static_cast<std::size_t>(config_.chunks));
      graphs_.push_back(std::move(graph));
      graph_ = graphs_.back().get();
    }
    for (const std::int64_t id : call.ids) {
      (void)pages_.of(id);
      if (graph_->held.insert(id).second) pages_.hold(id);
    }
    work_ = &graph_->work;
  } catch (...) {
    stop_recording();
    throw;
  }
}

void Offload::stop_recording() noexcept {
  lanes_->stop_recording();
  graph_ = nullptr;
  work_ = &own_;
}

/// @return whether there are graphs no more
bool Offload::end_graphs() {
  std::erase_if(graphs_, [&](const std::unique_ptr<Graph>& graph) {
    if (graph->recording->is_alive()) return false;
    for (const std::int64_t id : graph->held) pages_.let_go(id);
    for (const Scratch& scratch : graph->outgrown) lanes_->release(scratch.at);
    release(graph->work);
    return true;
  });
  return graphs_.empty();
}

// Before sequences change: graphs that were destroyed hold none.
void Offload::free_sequences(std::span<const std::int64_t> ids) {
  const auto is_held = [&](std::int64_t id) { return pages_.is_held(id); };
  const auto begin = std::chrono::steady_clock::now();
  while (!end_graphs() && std::any_of(ids.begin(), ids.end(), is_held)) {
    if (std::chrono::steady_clock::now() - begin > kLongestEnd) return;  // pages refuse
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Offload::release(Work& work) noexcept {
  for (Scratch* scratch : {&work.ring, &work.parts, &work.sums, &work.workspace, &work.q, &work.lse})
    if (scratch->at != nullptr) lanes_->release(scratch->at);
  for (const auto& desk : work.desks) {
    if (desk->numbers.at != nullptr) lanes_->release(desk->numbers.at);
    if (desk->memory.data() != nullptr) lanes_->unpin(desk->memory.data());
  }
}

}  // namespace heed::offload
