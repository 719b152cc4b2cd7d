#include "evolve/conversations.hpp"

#include <chrono>
#include <utility>

#include "base/check.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {

void Conversations::begin(Talk talk, Ended ended) {
  HEED_CHECK(has_room());
  std::future<propose::Written> reply = std::async(std::launch::async, [this, talk = std::move(talk)] {
    const Stoppable stoppable(stop_);
    return talk();
  });
  talks_.push_back({std::move(reply), std::move(ended)});
}

void Conversations::take_ended() {
  for (auto one = talks_.begin(); one != talks_.end();) {
    if (one->reply.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      ++one;
      continue;
    }
    One over = std::move(*one);
    one = talks_.erase(one);
    try {
      over.ended(over.reply.get());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::interrupted) throw;
    }
  }
}

void Conversations::stop() {
  stop_ = true;
  talks_.clear();  // waits for each
  stop_ = false;
}

}  // namespace heed::evolve
