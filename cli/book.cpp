// heed book: champions with their binaries, in one file that libheed dispatches from
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/files.hpp"
#include "cli/book_add.hpp"
#include "cli/book_check.hpp"
#include "cli/champion_builds.hpp"
#include "cli/command.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"

namespace heed::cli {
namespace {

using dispatch::Book;
using dispatch::BookEntry;
using dispatch::ProgramRecord;
using nlohmann::json;

struct BookOptions {
  MachineOptions machine;
  StoreOptions store;
  std::string book;
  std::vector<std::string> names;
  std::string champions;
  std::string file;
  std::string arch;
  std::string device;
  bool on_device = false;
  bool force = false;
};

json entry_json(const ProgramRecord& r) {
  const dispatch::Provenance& p = *r.provenance;
  const auto ratio = [](const dispatch::RatioInterval& x) {
    return json{{"value", x.value}, {"low", x.low}, {"high", x.high}};
  };
  json entry = {{"workload", r.workload},
                {"arch", r.arch},
                {"device", p.device},
                {"variant", r.variant},
                {"bytes", r.bytes},
                {"machine_code", r.machine_code},
                {"contract", r.contract},
                {"source_digest", r.source_digest},
                {"measured_source_digest", p.source_digest},
                {"referee", p.referee},
                {"date", p.date},
                {"heed", p.heed},
                {"base", {{"variant", p.base}, {"us", p.base_us}, {"ratio", ratio(p.ratio)}}},
                {"us", p.us},
                {"run", p.run},
                {"trial", p.trial},
                {"trials", p.trials},
                {"peer", nullptr}};
  if (p.peer)
    entry["peer"] = {{"backend", p.peer->backend},
                     {"torch", p.peer->torch},
                     {"cudnn", p.peer->cudnn},
                     {"us", p.peer->us},
                     {"ratio", ratio(p.peer->ratio)}};
  return entry;
}

// Of the book that a command is about: a user's first command finds none.
void expect_book(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw Error(ErrorCode::programs,
                fmt::format("there is no book {}; heed book add, or heed evolve --book, makes it", path.string()),
                path.string());
}

Book read_book(const std::string& path) {
  expect_book(path);
  return Book::read(path);
}

bool is_wanted(const ProgramRecord& r, const BookOptions& o) {
  return (o.arch.empty() || r.arch == o.arch) && (o.device.empty() || r.provenance->device == o.device);
}

std::int64_t number_of(const std::string& text) {
  const auto number = id_in(text.starts_with("t") ? std::string_view(text).substr(1) : std::string_view(text));
  if (!number)
    throw Error(
        ErrorCode::usage,
        fmt::format("\"{}\" is no run and no trial: 3 is run 3, t17 the trial that heed replay 17 measures", text),
        text);
  return *number;
}

// Those of a file that can be had; what cannot is told with its reason, in `refused`.
std::vector<BookEntry> from_table(const BookOptions& o, jit::Builder& builder, json& refused) {
  const auto table = dispatch::TunedTable::parse(read_file(o.champions, ErrorCode::usage), o.champions);
  std::vector<ChampionBuild> builds;
  std::vector<BookEntry> entries;
  const auto refuse = [&](const dispatch::TunedEntry& entry, const std::string& why) {
    refused.push_back({{"workload", entry.workload}, {"arch", entry.arch}, {"why", why}});
  };
  for (const dispatch::TunedEntry& entry : table.entries()) {
    if (entry.variant.empty() || (!o.arch.empty() && entry.arch != o.arch)) continue;
    if (const std::string lacks = lacks_evidence(entry.provenance); !lacks.empty()) {
      refuse(entry, "it " + lacks);
      continue;
    }
    try {
      builds.push_back(start_champion(entry, builder));
    } catch (const Error& error) {
      refuse(entry, error.what());
    }
  }
  if (builds.empty() && refused.empty()) {
    std::set<std::string> archs;
    for (const dispatch::TunedEntry& entry : table.entries())
      if (!entry.variant.empty()) archs.insert(entry.arch);
    throw Error(ErrorCode::usage,
                archs.empty() ? fmt::format("{} holds no champion", o.champions)
                              : fmt::format("{} holds no champion of {}; it has those of {}", o.champions, o.arch,
                                            join({archs.begin(), archs.end()}, ", ")),
                o.champions);
  }
  std::size_t done = 0;
  for (ChampionBuild& build : builds) try {
      check_interrupt();
      entries.push_back(finish_champion(build));
      remark(true, fmt::format("{}/{} {}", ++done, builds.size(), build.entry.workload));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::build_failed) throw;
      refuse(build.entry, error.what());
    }
  return entries;
}

int add(const BookOptions& o) {
  if (o.names.empty() == o.champions.empty())
    throw Error(ErrorCode::usage, "name runs (3) or trials (t17) of the store, or a file with --champions");
  if (!o.arch.empty() && o.champions.empty())
    throw Error(ErrorCode::usage, "--arch chooses among the champions of a file; name it with --champions", o.arch);
  const std::filesystem::path path = book_path(o.book);
  dispatch::expect_writable_book(path);
  const auto builder = o.machine.builder();
  json refused = json::array();
  std::vector<BookEntry> entries;
  if (!o.champions.empty()) {
    entries = from_table(o, *builder, refused);
  } else {
    const auto store = o.store.open(store::Access::read_only);
    for (const std::string& name : o.names) {
      const std::int64_t number = number_of(name);
      entries.push_back(name.starts_with("t") ? champion_of_trial(number, *store, *builder)
                                              : champion_of_run(number, *store, *builder));
    }
  }
  const json kept = put_into_book(path, std::move(entries));
  if (o.machine.json) {
    print(json_text(json{{"book", path.string()}, {"entries", kept}, {"refused", refused}}, 1) + "\n");
  } else {
    print(fmt::format("{}{}\n", text_of_kept(kept), path.string()));
    for (const json& one : refused)
      print(fmt::format("refused   {:8} {}: {}\n", one["arch"].get<std::string>(), one["workload"].get<std::string>(),
                        one["why"].get<std::string>()));
  }
  return refused.empty() ? 0 : 1;
}

int list(const BookOptions& o) {
  const std::filesystem::path path = book_path(o.book);
  const Book book = read_book(path);
  json entries = json::array();
  std::string text;
  for (const BookEntry& entry : book.entries()) {
    if (!is_wanted(entry.record, o)) continue;
    entries.push_back(entry_json(entry.record));
    text +=
        fmt::format("{:8} {:40} {}\n", entry.record.arch, entry.record.workload, to_string(*entry.record.provenance));
    text += fmt::format("         {}\n", entry.record.variant);
  }
  if (o.machine.json)
    print(json_text(json{{"book", path.string()}, {"entries", entries}}, 1) + "\n");
  else
    print(text + fmt::format("{}: {} champions\n", path.string(), entries.size()));
  return 0;
}

int export_book(const BookOptions& o) {
  const std::filesystem::path path = book_path(o.book);
  std::error_code error;
  if (std::filesystem::exists(o.file, error) && !o.force)
    throw Error(ErrorCode::usage, fmt::format("{} is there already; name another file, or give --force", o.file),
                o.file);
  if (std::filesystem::equivalent(o.file, path, error))
    throw Error(ErrorCode::usage, fmt::format("{} is the book itself; name another file", o.file), o.file);
  expect_writable(o.file, ErrorCode::store);
  Book book = read_book(path);
  book.remove([&](const ProgramRecord& record) { return !is_wanted(record, o); });
  if (book.entries().empty())
    throw Error(ErrorCode::usage,
                fmt::format("{} holds no such champion; heed book list prints what it holds", path.string()));
  const std::string bytes = book.bytes();
  write_file_atomically(o.file, bytes, ErrorCode::store);
  if (o.machine.json)
    print(json_text(json{{"file", o.file}, {"entries", book.entries().size()}, {"bytes", bytes.size()}}, 1) + "\n");
  else
    print(fmt::format("{}: {} champions of {}\n", o.file, book.entries().size(), path.string()));
  return 0;
}

// Programs from elsewhere: all of them are looked at before any is taken.
int import_book(const BookOptions& o) {
  const std::filesystem::path path = book_path(o.book);
  dispatch::expect_writable_book(path);
  const Book from = read_book(o.file);
  for (const BookEntry& entry : from.entries()) {
    check_interrupt();
    const BookFinding finding = check_entry(entry);
    const std::string name = fmt::format("{} on {}", entry.record.workload, entry.record.arch);
    if (!finding.refused.empty())
      throw Error(
          ErrorCode::programs,
          fmt::format("{} is not imported: its program for {} may not be run: {}", o.file, name, finding.refused),
          entry.record.variant);
    for (const std::string& warning : finding.warnings) remark(true, fmt::format("{}: {}", name, warning));
  }
  const json kept = put_into_book(path, from.entries());
  if (o.machine.json)
    print(json_text(json{{"book", path.string()}, {"entries", kept}}, 1) + "\n");
  else
    print(fmt::format("{}{}\n", text_of_kept(kept), path.string()));
  return 0;
}

int verify(const BookOptions& o) {
  using State = GateFinding::State;
  const std::filesystem::path path = book_path(o.book);
  const Book book = read_book(path);
  json entries = json::array();
  int failures = 0;
  std::map<State, int> gated;
  for (const BookEntry& entry : book.entries()) {
    check_interrupt();
    BookFinding finding = check_entry(entry);
    std::optional<GateFinding> gate;
    if (o.on_device && finding.refused.empty()) {
      gate = gate_entry(entry, o.machine);
      ++gated[gate->state];
      if (gate->state == State::failed) finding.refused = "it does not pass the gate: " + gate->why;
    }
    if (!finding.refused.empty()) ++failures;
    remark(o.machine.json,
           fmt::format("{:8} {:8} {}{}", finding.refused.empty() ? "ok" : "refused", entry.record.arch,
                       entry.record.workload, gate ? fmt::format("  gate: {}", to_string(gate->state)) : ""));
    const bool is_skipped = gate && gate->state == State::skipped;
    if (!finding.refused.empty()) remark(o.machine.json, "         " + finding.refused);
    if (is_skipped) remark(o.machine.json, "         " + gate->why);
    for (const std::string& warning : finding.warnings) remark(o.machine.json, "         " + warning);
    entries.push_back({{"workload", entry.record.workload},
                       {"arch", entry.record.arch},
                       {"device", entry.record.provenance->device},
                       {"refused", finding.refused},
                       {"warnings", finding.warnings},
                       {"gate", gate ? json(to_string(gate->state)) : json()},
                       {"skipped", is_skipped ? gate->why : ""}});
  }
  std::string end =
      fmt::format("{}: {} champions, {} refused; every digest fits", path.string(), entries.size(), failures);
  if (o.on_device)
    end += fmt::format("; gate: {} passed, {} failed, {} skipped", gated[State::passed], gated[State::failed],
                       gated[State::skipped]);
  remark(o.machine.json, end);
  if (o.machine.json)
    print(json_text(json{{"book", path.string()}, {"entries", entries}, {"failures", failures}}, 1) + "\n");
  return failures == 0 ? 0 : 1;
}

int remove(const BookOptions& o) {
  const std::filesystem::path path = book_path(o.book);
  std::vector<std::string> workloads;
  for (const std::string& name : o.names) workloads.push_back(to_string(parse_workload(name)));
  std::size_t count = 0;
  expect_book(path);
  dispatch::update_book(path, [&](Book& book) {
    count = book.remove([&](const ProgramRecord& record) {
      return is_wanted(record, o) && std::find(workloads.begin(), workloads.end(), record.workload) != workloads.end();
    });
    return count > 0;
  });
  if (count == 0)
    throw Error(ErrorCode::usage,
                fmt::format("{} holds no such champion; heed book list prints what it holds", path.string()));
  if (o.machine.json)
    print(json_text(json{{"book", path.string()}, {"removed", count}}, 1) + "\n");
  else
    print(fmt::format("{}: {} removed\n", path.string(), count));
  return 0;
}

}  // namespace

void add_book(CLI::App& app, int& exit_code) {
  CLI::App* book =
      app.add_subcommand("book", "Champions with their binaries and provenance, in one file that libheed reads");
  book->require_subcommand(1);
  const auto subcommand = [&](const char* name, const char* description, int (*run)(const BookOptions&),
                              const char* examples) {
    auto o = std::make_shared<BookOptions>();
    CLI::App* command = book->add_subcommand(name, description);
    command->footer(fmt::format("Examples:\n{}HEED_BOOK names the book that libheed takes.", examples));
    command->add_option("--book", o->book,
                        "The book [$HEED_BOOK, else book.heed in $XDG_DATA_HOME/heed or "
                        "~/.local/share/heed]");
    command->callback([o, run, &exit_code] { exit_code = run(*o); });
    return std::pair{command, o};
  };
  const auto add_json = [](CLI::App* command, BookOptions& o) {
    command->add_flag("--json", o.machine.json, "Print JSON");
  };
  const auto add_filters = [](CLI::App* command, BookOptions& o) {
    command->add_option("--arch", o.arch, "Those of this architecture alone, e.g. sm_90a");
    command->add_option("--device-name", o.device, "Those found on a device of this name alone");
  };
  {
    const auto [command, o] = subcommand("add", "Build champions and add them to the book", add,
                                         "  heed book add 3                 the champion of run 3\n"
                                         "  heed book add t17               trial 17, where it is its run's champion\n"
                                         "  heed book add --champions tuned/champions.json --arch sm_90a\n");
    o->machine.add_to(*command);
    o->store.add_to(*command);
    command->add_option("names", o->names, "Runs, each with its champion: 3; or trials that are champions: t17");
    command->add_option("--champions,--from", o->champions,
                        "A file of champions that heed champions wrote, as tuned/champions.json: all of them");
    command->add_option("--arch", o->arch, "With --champions: those of this architecture alone");
  }
  {
    const auto [command, o] = subcommand("list", "List the champions of the book", list,
                                         "  heed book list\n"
                                         "  heed book list --arch sm_90a --json\n");
    add_json(command, *o);
    add_filters(command, *o);
  }
  {
    const auto [command, o] = subcommand("export", "Write champions of the book to another book", export_book,
                                         "  heed book export hopper.heed --arch sm_90a\n");
    command->add_option("file", o->file, "File to write")->required();
    command->add_flag("--force", o->force, "Write over a file that is there");
    add_json(command, *o);
    add_filters(command, *o);
  }
  {
    const auto [command, o] =
        subcommand("import", "Add the champions of another book", import_book, "  heed book import hopper.heed\n");
    command->add_option("file", o->file, "The other book")->required();
    add_json(command, *o);
  }
  {
    const auto [command, o] = subcommand(
        "verify", "Check every program against its digests, and that it suits its workload and architecture", verify,
        "  heed book verify\n"
        "  heed book verify --on-device\n");
    o->machine.add_to(*command);
    command->add_flag("--on-device", o->on_device,
                      "Also run the gate on each binary whose architecture is that of this machine's processor or GPU; "
                      "builds nothing");
  }
  {
    const auto [command, o] = subcommand("remove", "Remove champions from the book", remove,
                                         "  heed book remove b1h8l512d64 --arch sm_90a\n");
    command->add_option("workloads", o->names, "Workloads, e.g. b1h8l512d64")->required();
    add_json(command, *o);
    add_filters(command, *o);
  }
  book->footer(
      "Of two champions for one workload, architecture and device name the one with the higher lower end of its ratio\n"
      "stays, where referee and measured sources are the same; else the newer one.\n"
      "Examples:\n"
      "  heed book add 3                                             the champion of run 3\n"
      "  heed book add --champions tuned/champions.json --arch sm_90a\n"
      "  heed book verify --on-device\n"
      "HEED_BOOK names the book that libheed takes.");
}

}  // namespace heed::cli
