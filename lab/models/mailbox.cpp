#include "models/mailbox.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/files.hpp"
#include "base/text.hpp"
#include "models/retry.hpp"

namespace heed::models {
namespace {

namespace fs = std::filesystem;

constexpr double kLookEvery_s = 0.3;
constexpr std::size_t kDigestDigits = 12;
constexpr std::string_view kPrompt = ".prompt.md";
constexpr std::string_view kReply = ".reply.md";

}  // namespace

Mailbox::Mailbox(fs::path folder, double limit_s, std::function<void(const std::string&)> on_wait)
    : folder_(std::move(folder)), limit_s_(limit_s), on_wait_(std::move(on_wait)) {
  make_folder(folder_, ErrorCode::model);
}

fs::path Mailbox::place_for(const Conversation& conversation) {
  const std::string digest = digest_of(conversation).substr(0, kDigestDigits);
  const std::lock_guard lock(mutex_);
  int last = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(kPrompt)) continue;
    const std::string stem = file.substr(0, file.size() - kPrompt.size());
    if (stem.ends_with("-" + digest)) return folder_ / stem;
    int number = 0;
    std::from_chars(stem.data(), stem.data() + stem.size(), number);
    last = std::max(last, number);
  }
  if (error)
    throw Error(ErrorCode::model, fmt::format("the mailbox {} cannot be read: {}", folder_.string(), error.message()),
                folder_.string());
  const fs::path place = folder_ / fmt::format("{:04}-{}", last + 1, digest);
  write_file_atomically(place.string() + std::string(kPrompt), text_of(conversation), ErrorCode::model);
  return place;
}

Reply Mailbox::ask(const Conversation& conversation) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto waited_s = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const fs::path place = place_for(conversation);
  const fs::path awaited = place.string() + std::string(kReply);
  bool said = false;
  bool said_no_file = false;
  std::string stamp;
  for (;;) {
    // A file that somebody is still writing changes from look to look.
    const std::string now = file_stamp(awaited);
    std::error_code error;
    if (!now.empty() && now == stamp && fs::file_size(awaited, error) > 0 && !error) break;
    stamp = now;
    if (limit_s_ > 0 && waited_s() > limit_s_)
      throw Error(
          ErrorCode::model,
          fmt::format("no reply came to {} within {:.0f} s; write it to that file, or allow more with --reply-limit",
                      awaited.string(), limit_s_),
          awaited.string());
    if (!said_no_file && on_wait_ && fs::exists(awaited, error) && !fs::is_regular_file(awaited, error)) {
      on_wait_(fmt::format("{} is a folder or a device, and a reply is a file; waiting for one", awaited.string()));
      said_no_file = true;
    }
    if (now.empty() && !said && on_wait_) {
      on_wait_(fmt::format("waiting for {}", awaited.string()));
      said = true;
    }
    sleep_for(kLookEvery_s);
  }
  std::error_code gone;  // again by now: reading it says so
  if (const std::uintmax_t bytes = fs::file_size(awaited, gone); !gone && bytes > kMostReplyBytes)
    throw Error(ErrorCode::model, fmt::format("{} has more than 10 MB; a patch is far smaller", awaited.string()),
                awaited.string());
  Reply reply;
  reply.text = read_file(awaited, ErrorCode::model);
  if (trim(reply.text).empty())
    throw Error(ErrorCode::model, fmt::format("{} holds no text", awaited.string()), awaited.string());
  reply.model = name_;
  reply.latency_s = waited_s();
  return reply;
}

}  // namespace heed::models
