#include "cli/book_add.hpp"

#include <fmt/format.h>

#include "cli/champion_builds.hpp"
#include "compile/embedded.hpp"
#include "json/fields.hpp"
#include "json/text.hpp"
#include "report/champions.hpp"
#include "report/outcome.hpp"
#include "verdict/verdict.hpp"

namespace heed::cli {
namespace {

using dispatch::Book;
using nlohmann::json;

[[noreturn]] void refuse_run(std::int64_t run, const std::string& why) {
  throw Error(ErrorCode::unsupported, fmt::format("run {} has no champion for the book: {}", run, why),
              std::to_string(run));
}

// As `heed champions` picks it.
dispatch::TunedEntry entry_of(const store::RunRecord& run) {
  if (run.state != store::RunState::finished || !run.result.is_object())
    refuse_run(run.id, fmt::format("it is not finished; heed evolve --resume {} goes on with it", run.id));
  if (report::was_too_noisy(run.result)) refuse_run(run.id, "the machine was too noisy to say that anything is faster");
  const auto table = dispatch::TunedTable::parse(json_text(report::champions_of({run})), fmt::format("run {}", run.id));
  if (table.entries().empty() || table.entries().front().variant.empty()) {
    const json& ratio = fields::member(fields::member(run.result, "final"), "ratio");
    refuse_run(
        run.id,
        ratio.is_object()
            ? fmt::format("nothing in it is shown to be faster than its base; the best is {:.4f} [{:.4f}, {:.4f}]",
                          fields::number(ratio, "value"), fields::number(ratio, "low"), fields::number(ratio, "high"))
            : "none of its trials passed the gate and was measured");
  }
  return table.entries().front();
}

std::string_view name_of(Book::Kept kept) {
  switch (kept) {
    case Book::Kept::added:
      return "added";
    case Book::Kept::replaced:
      return "replaced";
    case Book::Kept::earlier:
      return "earlier";
    case Book::Kept::same:
      return "same";
  }
  return "";
}

}  // namespace

std::filesystem::path book_path(const std::string& named) {
  if (!named.empty()) return named;
  const dispatch::BookLocation location = dispatch::default_book();
  if (location.path.empty()) throw Error(ErrorCode::usage, location.none);
  return location.path;
}

dispatch::BookEntry champion_of_run(std::int64_t run, store::Store& store, jit::Builder& builder) {
  const auto record = store.find_run(run);
  if (!record)
    throw Error(ErrorCode::usage, fmt::format("there is no run {}; heed runs lists them", run), std::to_string(run));
  const dispatch::TunedEntry entry = entry_of(*record);
  if (const std::string lacks = lacks_evidence(entry.provenance); !lacks.empty())
    refuse_run(run, fmt::format("its champion {}", lacks));
  ChampionBuild build = start_champion(entry, builder);
  dispatch::BookEntry built = finish_champion(build);
  for (const store::TrialRecord& trial : store.trials(run))
    if (trial.number == entry.provenance.trial && trial.machine_code != built.record.machine_code)
      refuse_run(
          run, fmt::format("what passed the gate was made of sources {}; sources {} and this compiler make another "
                           "program of its champion. heed evolve searches again, and heed champions -o FILE with heed "
                           "book add --champions FILE takes it as it is",
                           record->source_digest, compile::source_digest()));
  return built;
}

dispatch::BookEntry champion_of_trial(std::int64_t id, store::Store& store, jit::Builder& builder) {
  const auto trial = store.find_trial(id);
  if (!trial) throw Error(ErrorCode::usage, fmt::format("there is no trial {}", id), std::to_string(id));
  if (!trial->ok())
    throw Error(
        ErrorCode::unsupported,
        fmt::format("trial {} is no champion: it ended as {}: {}", id, to_string(trial->verdict), trial->reason),
        std::to_string(id));
  const auto run = store.find_run(trial->run);
  const dispatch::TunedEntry entry = entry_of(*run);
  if (entry.provenance.trial != trial->number)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("trial {} is number {} of run {}, whose champion is number {}: it alone was measured again in "
                    "fresh processes",
                    id, trial->number, trial->run, entry.provenance.trial),
        std::to_string(id));
  return champion_of_run(trial->run, store, builder);
}

json put_into_book(const std::filesystem::path& path, std::vector<dispatch::BookEntry> entries) {
  json all = json::array();
  dispatch::update_book(path, [&](Book& book) {
    bool changed = false;
    for (dispatch::BookEntry& entry : entries) {
      json one = {{"workload", entry.record.workload},
                  {"arch", entry.record.arch},
                  {"device", entry.record.provenance->device},
                  {"variant", entry.record.variant},
                  {"evidence", to_string(*entry.record.provenance)}};
      const Book::Merged merged = book.merge(std::move(entry));
      changed = changed || merged.kept == Book::Kept::added || merged.kept == Book::Kept::replaced;
      one["kept"] = name_of(merged.kept);
      one["why"] = merged.why;
      all.push_back(std::move(one));
    }
    return changed;
  });
  return all;
}

std::string text_of_kept(const json& kept) {
  std::string text;
  for (const json& one : kept) {
    const std::string why = one["why"].get<std::string>();
    text += fmt::format("{:8}  {:8} {}  {}{}\n", one["kept"].get<std::string>(), one["arch"].get<std::string>(),
                        one["workload"].get<std::string>(), one["evidence"].get<std::string>(),
                        why.empty() ? "" : "; " + why);
  }
  return text;
}

}  // namespace heed::cli
