#include "api/choice.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "api/opened_files.hpp"
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

// Null where there is none.
std::shared_ptr<const dispatch::Champions> opened(const NamedBook& named, const DeviceFacts& device) {
  if (named.path.empty()) return nullptr;
  if (std::error_code error; !named.is_named && !std::filesystem::exists(named.path, error) && !error) return nullptr;
  static OpenedFiles<dispatch::Champions> all;
  return all.get(named.path, device, [&] {
    const auto file = dispatch::ProgramFile::open(named.path);
    dispatch::expect_book(*file);
    return std::make_shared<const dispatch::Champions>(file, device);
  });
}

}  // namespace

Choice taken(const dispatch::Selection& selection) {
  const bool is_of_book = selection.step == dispatch::Step::book;
  return {.variant = selection.variant,
          .image = selection.file->kept_image(*selection.record),
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
  // A refusal tells of champions that may not run, too.
  try {
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
      if (!choice) choice = select();
    }
  } catch (const Error& error) {
    if (remarks.empty()) throw;
    throw Error(error.code(), fmt::format("{}; {}", error.what(), fmt::join(remarks, "; ")), error.value());
  }
  for (const std::string& remark : remarks) choice->reason += "; " + remark;
  return std::move(*choice);
}

}  // namespace heed::api
