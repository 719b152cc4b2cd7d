#include "api/choice.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "dispatch/book.hpp"

namespace heed::api {
namespace {

struct NamedBook {
  std::string path;  ///< empty: none
  bool is_named = false;
};

NamedBook book_named_by(const Options& options) {
  if (options.book) return {*options.book, true};
  const dispatch::BookLocation location = dispatch::default_book();
  return {location.path.string(), location.is_named};
}

// Null where there is none. One is kept for each path and device: books are replaced while a process lives.
std::shared_ptr<const dispatch::Champions> opened(const NamedBook& named, const DeviceFacts& device) {
  if (named.path.empty()) return nullptr;
  struct stat info {};
  if (::stat(named.path.c_str(), &info) != 0 && !named.is_named && (errno == ENOENT || errno == ENOTDIR))
    return nullptr;
  struct Opened {
    std::string stamp;
    std::shared_ptr<const dispatch::Champions> book;
  };
  static std::mutex mutex;
  static std::map<std::string, Opened> all;
  const std::string stamp =
      fmt::format("{} {} {}.{}", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  const std::lock_guard lock(mutex);
  Opened& entry = all[fmt::format("{}\n{}\n{}", named.path, device.arch, device.name)];
  if (entry.book == nullptr || entry.stamp != stamp) {
    const auto file = dispatch::ProgramFile::open(named.path);
    dispatch::expect_book(*file);
    entry = {stamp, std::make_shared<dispatch::Champions>(file, device)};
  }
  return entry.book;
}

}  // namespace

Choice taken(const dispatch::Selection& selection) {
  const bool is_of_book = selection.step == dispatch::Step::book;
  return {.variant = selection.variant,
          .image = selection.file->image(*selection.record),
          .digest = selection.record->digest,
          .origin = (is_of_book ? "book " : "") + selection.file->name(),
          .reason = selection.reason,
          .arch = selection.record->arch,
          .step = selection.step};
}

Choice choose_by_order(const Problem& problem, const Options& options, const DeviceFacts& device,
                       const std::function<std::shared_ptr<const dispatch::Programs>()>& programs) {
  const dispatch::Wanted wanted{problem.workload, problem.o};
  const NamedBook named = book_named_by(options);
  std::shared_ptr<const dispatch::Champions> book;
  std::vector<std::string> remarks;
  std::optional<Choice> choice;
  const auto try_book = [&](const auto& step) {
    try {
      choice = step();
    } catch (const Error& error) {
      if (named.is_named || error.code() != ErrorCode::programs) throw;
      remarks.push_back(fmt::format("the book is not used: {}", error.what()));
      book = nullptr;
    }
  };
  try_book([&]() -> std::optional<Choice> {
    book = opened(named, device);
    if (book == nullptr) return std::nullopt;
    const auto selection = dispatch::select_from_book(*book, wanted, remarks);
    return selection ? std::optional(taken(*selection)) : std::nullopt;
  });
  if (!choice) {
    const auto file = programs();
    const auto select = [&] { return taken(file->select(wanted, book.get(), remarks)); };
    // A neighbour may be of the book, and its image altered.
    if (book != nullptr) try_book([&]() -> std::optional<Choice> { return select(); });
    if (!choice) try {
        choice = select();
      } catch (const Error& error) {
        if (remarks.empty()) throw;
        throw Error(error.code(), fmt::format("{}; {}", error.what(), fmt::join(remarks, "; ")), error.value());
      }
  }
  for (const std::string& remark : remarks) choice->reason += "; " + remark;
  return std::move(*choice);
}

}  // namespace heed::api
