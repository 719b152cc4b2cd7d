/// Conversations with models that are under way at once, each in a thread of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <list>

#include "propose/writer.hpp"

namespace heed::evolve {

/// All calls come from one thread, and what a conversation brought is handed over there.
class Conversations {
 public:
  using Talk = std::function<propose::Written()>;
  using Ended = std::function<void(propose::Written)>;

  /// @param most under way at a time
  explicit Conversations(std::size_t most) : most_(most) {}
  ~Conversations() { stop(); }
  Conversations(const Conversations&) = delete;
  Conversations& operator=(const Conversations&) = delete;

  [[nodiscard]] std::size_t most() const { return most_; }
  [[nodiscard]] std::size_t under_way() const { return talks_.size(); }
  [[nodiscard]] bool has_room() const { return under_way() < most_; }
  /// @param talk in a thread of its own, which interrupts and `stop` end
  void begin(Talk talk, Ended ended);
  /// Hands over what came, in whatever order it did. Nothing comes of conversations that were interrupted.
  /// @throws what a conversation threw
  void take_ended();
  /// Ends those that are under way: their prompts are awaited still, for a process that goes on with the run.
  void stop();

 private:
  struct One {
    std::future<propose::Written> reply;
    Ended ended;
  };
  std::size_t most_;
  std::atomic<bool> stop_ = false;
  std::list<One> talks_;
};

}  // namespace heed::evolve
