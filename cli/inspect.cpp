// heed runs, heed show, heed families, heed emit
#include <fmt/format.h>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/family_text.hpp"
#include "cli/stored_trial.hpp"
#include "compile/embedded.hpp"
#include "json/text.hpp"
#include "report/emulated.hpp"
#include "report/evidence.hpp"
#include "report/models.hpp"
#include "report/run_report.hpp"
#include "report/support_table.hpp"
#include "source/stored.hpp"
#include "source/whole.hpp"

namespace heed::cli {
namespace {

// A stored text may be JSON and yet not what Heed writes, where bytes of it were changed.
template <typename Body>
void readable(const StoreOptions& options, const std::string& what, const Body& body) {
  try {
    body();
  } catch (const nlohmann::json::exception& error) {
    const std::string path = options.file().string();
    throw Error(ErrorCode::store,
                fmt::format("the database {} is damaged: {} holds what no Heed has written ({}); move it away, or name "
                            "another with --db",
                            path, what, error.what()),
                path);
  }
}

std::int64_t run_number(const std::string& text) {
  if (const auto number = id_in(text)) return *number;
  throw Error(ErrorCode::usage, fmt::format("\"{}\" is no run; heed runs lists them by number", text), text);
}

void print_edits(store::Store& store, std::int64_t id, bool as_json) {
  const store::TrialRecord trial = find_trial(store, id).trial;
  const std::string diff = source::stored_diff(trial.edits);
  if (as_json)
    print(json_text(nlohmann::json{{"trial", id}, {"edits", trial.edits}}, 1) + "\n");
  else if (diff.empty())
    print(fmt::format("Trial {} edits no source; its knobs: {}\n", id, trial.config));
  else
    print(diff);
}

}  // namespace

void add_runs(CLI::App& app, int& exit_code) {
  (void)exit_code;
  struct Options {
    StoreOptions store;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("runs", "List the stored runs");
  o->store.add_to(*command);
  command->add_flag("--json", o->json, "Print JSON");
  command->footer("Example:\n  heed runs --db team.db");
  command->callback([o] {
    const auto store = o->store.open(store::Access::read_only);
    const std::vector<store::RunRecord> runs = store->runs();
    std::vector<int> counts;
    for (const store::RunRecord& run : runs) counts.push_back(static_cast<int>(store->trials(run.id).size()));
    if (!o->json) return readable(o->store, "one of its runs", [&] { print(report::runs_text(runs, counts)); });
    nlohmann::json all = nlohmann::json::array();
    for (std::size_t i = 0; i < runs.size(); ++i)
      readable(o->store, fmt::format("run {}", runs[i].id), [&] {
        nlohmann::json run = report::run_json(runs[i], {}, {});
        for (const char* part : {"comparisons", "exchanges", "models"}) run.erase(part);
        run["trials"] = counts[i];
        all.push_back(std::move(run));
      });
    print(json_text(all, 1) + "\n");
  });
}

void add_show(CLI::App& app, int& exit_code) {
  (void)exit_code;
  struct Options {
    StoreOptions store;
    std::string run;
    bool json = false;
    bool diff = false;
    std::string evidence;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("show", "One run: generations, the champion's lineage, the gain of each of its changes");
  command->add_option("run", o->run, "Number of the run; with --diff id of a trial")->required();
  o->store.add_to(*command);
  command->add_flag("--json", o->json, "Print everything stored about the run as JSON");
  command->add_option("--evidence", o->evidence, "Write the result as evidence to this JSON file");
  command->add_flag("--diff", o->diff, "Print the edits that a trial makes to its family's sources");
  command->footer("Examples:\n  heed show 3\n  heed show 3 --json | jq '.trials[].ratio.value'\n  heed show 17 --diff");
  command->callback([o] {
    const auto store = o->store.open(store::Access::read_only);
    if (o->diff) return print_edits(*store, trial_number(o->run), o->json);
    const std::int64_t number = run_number(o->run);
    const std::optional<store::RunRecord> run = store->find_run(number);
    if (!run) throw Error(ErrorCode::usage, fmt::format("there is no run {}; heed runs lists them", number), o->run);
    const std::vector<store::TrialRecord> trials = store->trials(number);
    if (!o->evidence.empty()) {
      nlohmann::json evidence = report::evidence(*run);
      if (run->source_digest == compile::source_digest()) report::add_family_digests(evidence, sources());
      report::add_programs(evidence, trials);
      write_file_atomically(o->evidence, json_text(evidence, 1) + "\n", ErrorCode::store);
    }
    readable(o->store, fmt::format("run {}", number), [&] {
      const std::vector<store::ExchangeRecord> exchanges = store::exchanges(*store, number);
      const std::vector<store::ComparisonRecord> comparisons = store->comparisons(number);
      print(o->json ? json_text(report::run_json(*run, trials, comparisons, exchanges), 1) + "\n"
                    : report::show_text(*run, trials) + report::text_of(report::model_statistics(trials, exchanges)) +
                          report::emulated_text(comparisons));
    });
  });
}

void add_families(CLI::App& app, int& exit_code) {
  (void)exit_code;
  struct Options {
    std::string name;
    bool json = false;
    bool support = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("families", "Kernel families: the problems that they take, and their knobs");
  command->add_option("name", o->name, "Only this one");
  command->add_flag("--json", o->json, "Print JSON");
  command->add_flag("--support", o->support, "Print a Markdown table of what each family supports, without knobs")
      ->excludes("name")
      ->excludes("--json");
  command->footer("Examples:\n  heed families fwd_cpu\n  heed families --support");
  command->callback([o] {
    if (o->support) return print(report::support_table());
    std::vector<const Family*> chosen(families().begin(), families().end());
    if (!o->name.empty()) chosen = {&find_family(o->name)};
    if (!o->json) {
      for (std::size_t i = 0; i < chosen.size(); ++i) print((i == 0 ? "" : "\n") + family_text(*chosen[i]));
      return;
    }
    const DeviceFacts device = choose_device(DeviceChoice::automatic);
    nlohmann::json all = nlohmann::json::array();
    for (const Family* family : chosen) all.push_back(family_json(*family, device));
    print(json_text(all, 1) + "\n");
  });
}

namespace {

/// Whose limits a source is made for.
DeviceFacts device_of(const std::string& variant, const std::string& arch) {
  if (!arch.empty()) return device_named(arch);
  if (variant == kAutomatic) return choose_device(DeviceChoice::automatic);
  if (find_family(variant.substr(0, variant.find(':'))).device() == DeviceKind::cpu) return cpu_facts();
  return probe_cuda().facts.value_or(gpu_limits("sm_90a"));
}

}  // namespace

void add_emit(CLI::App& app, int& exit_code) {
  (void)exit_code;
  struct Options {
    WorkloadOptions workload;
    StoreOptions store;
    std::string variant;
    std::string arch;
    std::string output;
    bool whole = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("emit", "Print the source of a variant, as it is handed to the compiler");
  command->add_option("variant", o->variant, "auto, family or family:knob=value,...; or t17, trial 17 of the database")
      ->required();
  o->workload.add_shape_to(*command);
  o->store.add_to(*command);
  command->add_flag("--whole", o->whole, "With every device source that it includes, as one file [always of a trial]");
  command->add_option(
      "--arch", o->arch,
      "GPU architecture or CPU level whose limits apply, e.g. sm_89 [this machine's; a GPU family's without one "
      "sm_90a]");
  command->add_option("-o,--output", o->output, "Write to a file");
  command->footer(
      "Examples:\n"
      "  heed emit fwd_cpu --shape b1h8l512d64:fp32\n"
      "  heed emit fwd_sm80:block_n=64 --shape b1h8l512d64 --whole -o v.cu && nvcc -cubin -std=c++20 "
      "--expt-relaxed-constexpr -arch=sm_80 v.cu");
  command->callback([o] {
    const auto emitted = [&]() -> std::string {
      if (is_trial(o->variant)) {
        const auto store = o->store.open(store::Access::read_only);
        const StoredTrial stored = find_trial(*store, trial_number(o->variant));
        return source::whole_unit(variant_of(stored, o->arch.empty() ? device_of(stored) : device_named(o->arch)));
      }
      const Workload workload = o->workload.workload(std::nullopt);
      const Variant variant = admitted(o->variant, workload, device_of(o->variant, o->arch));
      return o->whole ? source::whole_unit(variant) : variant.unit();
    };
    const std::string source = emitted();
    if (o->output.empty())
      print(source);
    else
      write_file_atomically(o->output, source, ErrorCode::store);
  });
}

}  // namespace heed::cli
