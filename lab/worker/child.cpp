// The worker process: answers requests until the socket closes.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "base/matrix_unit.hpp"
#include "worker/executor.hpp"
#include "worker/worker.hpp"

namespace heed::worker {
namespace {

class Child {
 public:
  Child(DeviceKind device, std::byte* arena, std::uint64_t arena_bytes)
      : device_(device), arena_(arena), arena_bytes_(arena_bytes) {}

  nlohmann::json answer(const nlohmann::json& request) {
    nlohmann::json reply = {{"nonce", request.at("nonce")}};
    try {
      serve(request, reply);
      if (const std::optional<DeviceBusy> busy = executor_ ? executor_->take_busy() : std::nullopt) {
        reply["busy_us"] = busy->us;
        reply["recorded_us"] = busy->recorded_us;
      }
    } catch (const DeviceFailure& failure) {
      reply["error"] = failure.kind == DeviceFailure::Kind::crash        ? "crash"
                       : failure.kind == DeviceFailure::Kind::killed     ? "killed"
                       : failure.kind == DeviceFailure::Kind::left_state ? "left_state"
                                                                         : "launch";
      reply["text"] = failure.what();
    } catch (const Error& error) {
      reply["error"] = error.code() == ErrorCode::no_device ? "no_device" : "launch";
      reply["text"] = error.what();
    } catch (const std::exception& error) {
      reply["error"] = "crash";
      reply["text"] = error.what();
    }
    return reply;
  }

 private:
  std::byte* at(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset > arena_bytes_ || bytes > arena_bytes_ - offset)
      throw std::out_of_range("a range lies outside the arena");
    return arena_ + offset;
  }

  void fetch(const nlohmann::json& request) {
    const auto wanted = request.at("wanted").get<std::vector<Range>>();
    const auto bytes = request.at("bytes").get<std::uint64_t>();
    for (const Range& range : wanted)
      if (range.offset > bytes || range.bytes > bytes - range.offset)
        throw std::out_of_range("a range lies outside the timed image");
    std::byte* const result = at(request.at("result").get<std::uint64_t>(), bytes);
    executor_->fetch(result, wanted);
  }

  void serve(const nlohmann::json& request, nlohmann::json& reply) {
    const auto op = request.at("op").get<std::string>();
    if (op == "hello") {
      executor_ = device_ == DeviceKind::cpu ? make_cpu_executor() : make_cuda_executor();
      return;
    }
    if (op == "seal") return executor_->seal();
    if (op == "record_activities") {
      try {
        executor_->record_activities(request.at("library").get<std::string>());
      } catch (const Error& error) {
        reply["reason"] = error.what();
      }
      return;
    }
    const auto number = [&](const char* key) { return request.at(key).get<std::uint64_t>(); };
    if (op == "prepare") {
      std::vector<std::pair<int, std::vector<Launch>>> launches;
      for (const auto& slot : request.at("slots"))
        launches.emplace_back(slot.at("slot").get<int>(), launches_from_json(slot.at("launches")));
      return executor_->prepare(at(number("image"), number("bytes")), number("bytes"), launches,
                                request.at("poisoned").get<std::vector<Range>>(),
                                request.at("keys").get<std::vector<ChannelRange>>(),
                                request.at("follow").get<Follow>());
    }
    if (op == "fetch") return fetch(request);
    const int slot = request.at("slot").get<int>();
    if (op == "load")
      return executor_->load(slot, request.at("path").get<std::string>(), plan_from_json(request.at("plan")));
    if (op == "run") {
      const std::uint64_t bytes = number("bytes");
      return executor_->run(slot, at(number("image"), bytes), bytes, at(number("result"), bytes),
                            request.at("launch").get<Launch>());
    }
    if (op == "run_chain") {
      const std::uint64_t bytes = number("bytes");
      return executor_->run_chain(slot, at(number("image"), bytes), bytes, at(number("result"), bytes),
                                  request.at("launches").get<std::vector<Launch>>(),
                                  request.at("follow").get<Follow>());
    }
    if (op == "warm_up") return executor_->warm_up(slot, request.at("ms").get<double>());
    if (op == "time") {
      reply["us"] = executor_->time(slot, request.at("replays").get<int>(),
                                    request.at("factors").get<std::vector<ChannelFactors>>());
      for (const HardwareCounts& counts : executor_->counted()) {
        reply["instructions"].push_back(counts.instructions);
        reply["cycles"].push_back(counts.cycles);
      }
      return;
    }
    if (op == "spot_check") {
      executor_->change_keys(request.at("changes").get<KeyChanges>());
      const Stopped stopped =
          executor_->spot_check(slot, request.at("replays").get<int>(), request.at("launches").get<int>(),
                                request.at("factors").get<std::vector<ChannelFactors>>());
      reply["complete"] = stopped.complete;
      reply["begun"] = stopped.begun;
      reply["wrote_out_of_bounds"] = stopped.wrote_out_of_bounds;
      reply["turned"] = stopped.turned;
      return fetch(request);
    }
    if (op == "time_eager") {
      const auto [back_to_back, synchronised] = executor_->time_eager(slot, request.at("calls").get<int>());
      reply["back_to_back"] = back_to_back;
      reply["synchronised"] = synchronised;
      return;
    }
    if (op == "count") {
      const std::uint64_t bytes = number("bytes");
      reply.update(reading_to_json(
          executor_->count(slot, at(number("image"), bytes), bytes, request.at("launch").get<Launch>(),
                           request.at("library").get<std::string>(), choices_from_json(request.at("metrics")))));
      return;
    }
    throw std::invalid_argument("unknown request " + op);
  }

  DeviceKind device_;
  std::byte* arena_;
  std::uint64_t arena_bytes_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace

int run_worker_child(DeviceKind device) {
  struct stat info {};
  if (::fstat(kArena, &info) != 0) return 3;
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kArena, 0);
  if (memory == MAP_FAILED) return 3;
  ::signal(SIGPIPE, SIG_IGN);
  if (device == DeviceKind::cpu) (void)allow_matrix_unit();  // candidates cannot ask for it themselves
  Child child(device, static_cast<std::byte*>(memory), bytes);
  nlohmann::json request;
  while (receive_frame(kSocket, -1, /*interruptible=*/false, request) == Received::frame)
    if (!send_frame(kSocket, child.answer(request))) break;
  ::_exit(0);  // without destructors: a device may still hold a candidate
}

}  // namespace heed::worker
