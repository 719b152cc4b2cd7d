/// Whose turn it is on a device that several threads use.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace heed::evolve {

/// A lock that is had in the order in which it was asked for. std::mutex gives it back to a thread that has just let it
/// go: drafts of one place, looked at one after the other, would keep a trial waiting for all of them.
class Turns {
 public:
  /// From here to the end of the scope.
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) { turns_.take(); }
    ~Turn() { turns_.give_up(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

  /// Threads that have asked and not had theirs yet.
  [[nodiscard]] std::uint64_t waiting() {
    const std::lock_guard lock(mutex_);
    return next_ > now_ ? next_ - now_ - 1 : 0;
  }

 private:
  void take() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = next_++;
    changed_.wait(lock, [&] { return mine == now_; });
  }
  void give_up() {
    {
      const std::lock_guard lock(mutex_);
      ++now_;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 0;
  std::uint64_t now_ = 0;
};

}  // namespace heed::evolve
