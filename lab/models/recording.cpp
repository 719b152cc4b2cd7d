#include "models/recording.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/files.hpp"
#include "base/text.hpp"
#include "json/text.hpp"

namespace heed::models {
namespace {

// The recorders of several models share a file, and each other's ends of lines.
std::mutex& mutex_of_files() {
  static std::mutex mutex;
  return mutex;
}

// Of a file that a kill cut off in the middle of a line.
bool ends_within_a_line(const std::filesystem::path& path, off_t bytes) {
  char last = '\n';
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool is_read = ::pread(fd, &last, 1, bytes - 1) == 1;
  ::close(fd);
  return is_read && last != '\n';
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

// The whole line, or nothing of it where a file ends before it does, as on a full disk. @return why not; empty: it is
// there
std::string append_line(const std::filesystem::path& path, const std::string& line) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return last_system_error();
  struct stat before {};
  const bool is_file = ::fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
  const bool is_within = is_file && before.st_size > 0 && ends_within_a_line(path, before.st_size);
  std::string why;
  if (!write_all(fd, (is_within ? "\n" : "") + line + "\n")) {
    why = last_system_error();
    if (is_file && ::ftruncate(fd, before.st_size) != 0)
      why += fmt::format("; nor taken back: {}", last_system_error());
  }
  if (::close(fd) != 0 && why.empty()) why = last_system_error();
  return why;
}

}  // namespace

Recorder::Recorder(std::shared_ptr<Model> model, std::filesystem::path file,
                   std::function<void(const std::string&)> on_trouble)
    : model_(std::move(model)), file_(std::move(file)), on_trouble_(std::move(on_trouble)) {
  expect_writable(file_, ErrorCode::model);
}

Reply Recorder::ask_as(const std::string& prompt, const Conversation& conversation) {
  nlohmann::json exchange = {{"digest", digest_of(conversation)}, {"messages", conversation}, {"model", name()}};
  if (!prompt.empty()) exchange["for"] = prompt;
  try {
    Reply reply = model_->ask_as(prompt, conversation);
    exchange["reply"] = reply;
    append(exchange);
    return reply;
  } catch (const UnusableReply& error) {
    exchange["failure"] = error.what();
    exchange["reply"] = error.received();
    append(exchange);
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::model) {
      exchange["failure"] = error.what();
      append(exchange);
    }
    throw;
  }
}

// One write a line: what a kill cuts off is the last line alone. A reply has been paid for by now, so that nothing is
// thrown.
void Recorder::append(const nlohmann::json& exchange) {
  const std::string line = json_text(exchange);
  const std::lock_guard lock(mutex_of_files());
  const std::string why = append_line(file_, line);
  if (why.empty() || std::exchange(has_told_, true) || !on_trouble_) return;
  on_trouble_(
      fmt::format("cannot write to the recording {}: {}; what it lacks is stored with the run, and further "
                  "exchanges are tried",
                  file_.string(), why));
}

Replay::Replay(const std::filesystem::path& file, const std::function<void(const std::string&)>& on_left_out)
    : file_(file) {
  std::size_t number = 0;
  const std::vector<std::string> lines = split(read_file(file, ErrorCode::usage), '\n');
  for (const std::string& line : lines) {
    ++number;
    if (trim(line).empty()) continue;
    const nlohmann::json json = parse_json(line);
    // Every whole line has its end. A file with nothing but a part is no recording.
    if (json.is_discarded() && number == lines.size() && !left_.empty()) {
      if (on_left_out)
        on_left_out(fmt::format("line {} of {}, the last, is cut off and left out", number, file.string()));
      continue;
    }
    try {
      if (!json.is_object()) throw Error(ErrorCode::usage, "it is no JSON object");
      Exchange exchange;
      // A recording without the prompts, which take nearly all of its bytes, names them by their digests.
      exchange.digest = json.contains("messages") ? digest_of(json["messages"].get<Conversation>())
                                                  : json.at("digest").get<std::string>();
      exchange.name = json.value("for", std::string());
      if (json.contains("failure")) exchange.failure = json["failure"].get<std::string>();
      exchange.has_received = exchange.failure.empty() || json.contains("reply");
      if (exchange.has_received) exchange.reply = json.at("reply").get<Reply>();
      left_.push_back(std::move(exchange));
    } catch (const std::exception& error) {
      const std::string_view why = error.what();  // of nlohmann/json behind its name in brackets
      throw Error(ErrorCode::usage,
                  fmt::format("line {} of {} is no exchange with a model, as --record writes it: {}", number,
                              file.string(), why.starts_with('[') ? why.substr(why.find(']') + 2) : why),
                  file.string());
    }
  }
  all_ = left_.size();
}

Reply Replay::ask_as(const std::string& prompt, const Conversation& conversation) {
  const std::lock_guard lock(mutex_);
  if (left_.empty())
    throw Error(ErrorCode::model,
                fmt::format("{} holds {} replies, and all are used; record the run again", file_.string(), all_),
                file_.string());
  const std::string digest = digest_of(conversation);
  auto at = std::find_if(left_.begin(), left_.end(), [&](const Exchange& one) { return one.digest == digest; });
  if (at == left_.end()) {
    ++others_;
    if (!prompt.empty())
      at = std::find_if(left_.begin(), left_.end(), [&](const Exchange& one) { return one.name == prompt; });
    if (at == left_.end()) at = left_.begin();
  }
  const Exchange exchange = std::move(*at);
  left_.erase(at);
  if (!exchange.failure.empty() && exchange.has_received)
    throw UnusableReply(exchange.failure, exchange.reply, file_.string());
  if (!exchange.failure.empty()) throw Error(ErrorCode::model, exchange.failure, file_.string());
  return exchange.reply;
}

int Replay::other_prompts() const {
  const std::lock_guard lock(mutex_);
  return others_;
}

}  // namespace heed::models
