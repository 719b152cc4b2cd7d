// heed evolve
#include "cli/evolve.hpp"

#include <fmt/format.h>

#include "base/files.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/book_add.hpp"
#include "compile/embedded.hpp"
#include "device/device_list.hpp"
#include "dispatch/tuned_table.hpp"
#include "json/text.hpp"
#include "report/devices.hpp"
#include "report/models.hpp"
#include "report/outcome.hpp"
#include "report/run_report.hpp"

namespace heed::cli {
namespace {

// What a file of champions knows of a workload on this device, or else on its architecture: one variant, or none.
std::vector<std::string> champions_from(const std::string& path, const Workload& workload, const DeviceFacts& device,
                                        bool as_json) {
  const auto table = dispatch::TunedTable::parse(read_file(path, ErrorCode::usage), path);
  if (const auto found = table.find(workload, device.arch, device.name)) return {*found};
  remark(as_json, fmt::format("{} names no champion of {} on {}; the search begins with the defaults alone", path,
                              to_string(workload), device.name));
  return {};
}

// Options of one run beside --workloads, and of several without it. @throws Error(usage)
void check_options_fit(const EvolveOptions& o, const CLI::App& app) {
  if (app.count("--workloads") == 0) {
    if (o.again)
      throw Error(ErrorCode::usage,
                  "--again repeats finished runs of --workloads; leave it out, or name a file of calls", "--again");
    return;
  }
  for (const char* option : {"--shape", "--dtype", "--causal", "--window", "--scale", "--layout", "--quantised",
                             "--features", "--qkv", "--q", "--k", "--v", "--resume", "--evidence", "--from"})
    if (app.count(option) > 0) {
      const auto value = app.get_option(option)->as<std::string>();
      throw Error(
          ErrorCode::usage,
          fmt::format("--workloads makes a run for each workload that {} names, and {} {} is for one run; leave "
                      "out one of them",
                      o.workloads, option, value),
          value);
    }
}

int run(const EvolveOptions& o, const CLI::App& app) {
  if (o.into_book) dispatch::expect_writable_book(book_path(o.book));
  if (!o.evidence.empty()) check_evidence_can_be_written(o.evidence);
  std::optional<QkvTensors> tensors;
  std::optional<Workload> workload;
  // Wrong usage is told before anything is opened.
  if (app.count("--resume") == 0) {
    tensors = o.workload.tensors();
    workload = o.workload.workload(tensors);
  }
  const Workshop shop(o);
  const DeviceFacts& device = shop.device;

  record::RunOptions options;
  std::optional<std::int64_t> resume;
  if (app.count("--resume") > 0) {
    const std::optional<store::RunRecord> stored = shop.store->find_run(o.resume);
    if (!stored)
      throw Error(ErrorCode::usage, fmt::format("there is no run {}; heed runs lists them", o.resume),
                  std::to_string(o.resume));
    if (!o.hold.empty())
      throw Error(ErrorCode::usage, "--resume goes on as the stored run began; leave out --hold", o.hold);
    if (!o.from.empty())
      throw Error(ErrorCode::usage, "--resume goes on as the stored run began; leave out --from", o.from);
    if (!o.workload.shape.empty() || o.workload.has_tensors())
      throw Error(ErrorCode::usage,
                  "--resume takes the workload from the stored run; leave out --shape and tensor files",
                  o.workload.shape);
    options = record::options_from_json(stored->options);
    if (app.count("--trials") > 0) options.trials = o.trials;
    if (app.count("--budget") > 0) options.budget_s = o.budget_s;
    const std::string device_then = stored->device.value("name", std::string());
    const std::string arch_then = stored->device.value("arch", std::string());
    if (stored->device_kind != to_string(device.kind) || device_then != device.name || arch_then != device.arch)
      throw Error(ErrorCode::unsupported,
                  fmt::format("run {} was made on {} ({}); this device is {} ({}), and times of different devices do "
                              "not mix. Start a new run",
                              o.resume, device_then, arch_then, device.name, device.arch),
                  std::to_string(o.resume));
    if (const int processors_then = stored->device.value("processors", 0); processors_then != device.processors)
      throw Error(ErrorCode::unsupported,
                  fmt::format("run {} was made on {} processors, each of its devices; {} here, and times of different "
                              "numbers do not mix. {} chooses which, or start a new run",
                              o.resume, processors_then,
                              device.processors == 1 ? "there is 1" : fmt::format("there are {}", device.processors),
                              device.kind == DeviceKind::cpu ? "--devices 0+1 (joined by +, or one)" : "--devices"),
                  std::to_string(o.resume));
    if (stored->source_digest != compile::source_digest())
      throw Error(ErrorCode::unsupported,
                  fmt::format("run {} was made with kernel sources {}; this Heed carries {}, and their times do not "
                              "mix. Start a new run",
                              o.resume, stored->source_digest, compile::source_digest()),
                  std::to_string(o.resume));
    if (const int referee = report::referee_of(*stored); referee != kReferee)
      throw Error(ErrorCode::unsupported,
                  fmt::format("run {} was judged by referee {}; this Heed's is {}, and their times do not mix. Start a "
                              "new run",
                              o.resume, referee, kReferee),
                  std::to_string(o.resume));
    if (stored->options.value(record::kJudged, false))
      throw Error(ErrorCode::usage,
                  fmt::format("run {} holds edits that heed judge judged, and no search to go on with", o.resume),
                  std::to_string(o.resume));
    if (stored->state == store::RunState::finished &&
        static_cast<int>(shop.store->trials(o.resume).size()) >= options.trials)
      throw Error(ErrorCode::usage,
                  fmt::format("run {} is finished; heed show {} prints it, and --trials N with a larger N goes on",
                              o.resume, o.resume),
                  std::to_string(o.resume));
    if (!options.tensors.empty()) {
      WorkloadOptions again;
      if (options.tensors.size() == 3) {
        again.q = options.tensors[0], again.k = options.tensors[1], again.v = options.tensors[2];
      } else {
        again.qkv = options.tensors[0];
      }
      again.layout = to_string(options.workload.layout);
      tensors = again.tensors();
      if (tensors->digest != options.tensors_digest)
        throw Error(
            ErrorCode::invalid_input,
            fmt::format("the tensors in {} are not those run {} was made with", join(options.tensors, ", "), o.resume),
            options.tensors[0]);
    }
    options.models = o.model_arguments.resumed(app, options.models);
    resume = o.resume;
  } else {
    options = new_run(o, *workload, device);
    options.tensors = o.workload.tensor_paths();
    if (tensors) options.tensors_digest = tensors->digest;
    if (!o.from.empty()) options.found = champions_from(o.from, options.workload, device, o.machine.json);
  }

  const store::RunRecord record = evolve_one(o, shop, options, tensors ? &*tensors : nullptr, resume);
  const std::int64_t id = record.id;
  if (!o.evidence.empty() && record.result.is_object()) {
    const std::filesystem::path path = o.evidence;
    nlohmann::json evidence = report::evidence(record);
    report::add_family_digests(evidence, sources());
    report::add_programs(evidence, shop.store->trials(id));
    if (const nlohmann::json devices = report::devices_json(record, shop.store->trials(id)); devices.is_object())
      evidence["run"].update(devices);
    report::add_models(evidence, report::model_statistics(shop.store->trials(id), store::exchanges(*shop.store, id)));
    write_file_atomically(path, json_text(evidence, 1) + "\n", ErrorCode::store);
  }
  const int exit_code = o.into_book ? add_to_book(o, record, shop) : 0;
  if (o.machine.json) {
    print(json_text(report::run_json(record, shop.store->trials(id), shop.store->comparisons(id),
                                     store::exchanges(*shop.store, id)),
                    1) +
          "\n");
    return exit_code;
  }
  print("\n" + report::result_text(record));
  print(report::devices_text(record, shop.store->trials(id)));
  print(report::text_of(report::model_statistics(shop.store->trials(id), store::exchanges(*shop.store, id))));
  if (record.result.contains("final"))
    print(fmt::format("\nStored as run {}. More: heed show {}{}   Again: heed replay {}{}\n", id, id,
                      o.store.as_given(), record.result["final"]["trial_id"].get<std::int64_t>(), o.store.as_given()));
  return exit_code;
}

}  // namespace

void add_evolve(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<EvolveOptions>();
  CLI::App* command = app.add_subcommand(
      "evolve", "Search for a faster kernel for a workload, or for those of a model; prove and measure it");
  o->workload.add_to(*command);
  o->machine.add_to(*command);
  o->store.add_to(*command);
  command->add_option("--devices", o->devices,
                      "GPUs that share the trials, all of a kind, as 0-3,5 or all; the first also measures the "
                      "finalists. Where models write, "
                      "as many prompts are under way meanwhile. "
                      "With --device cpu processors, each a device of its own, or several joined by + one: 0+1,2+3");
  command->add_option("--family", o->family,
                      "Kernel families, with commas between; the first one's default is the base. heed families lists "
                      "them [all that run the workload]");
  command->add_option("--hold", o->hold,
                      "KNOB=VALUE,... that the base and every trial have, of families that all have them, as "
                      "rowsum=mma for more exact results of peaked rows; a search leaves knobs of accuracy as they are "
                      "in any case");
  command->add_option("--workloads", o->workloads,
                      "Evolve kernels for the calls of a model: a file that heed.record of the Python package wrote. "
                      "Each workload is a run of its own, the one with the most to gain first");
  command->add_flag(
      "--again", o->again,
      "Repeat workloads of --workloads that the database holds a finished run of, on this device and with "
      "as many trials");
  command
      ->add_option("--trials", o->trials,
                   "Variants to build, verify and measure; with --workloads for all of them together, divided by what "
                   "each could gain")
      ->capture_default_str();
  command->add_option("--population", o->population, "Elites kept, and trials a generation")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command
      ->add_option(
          "--drafts", o->drafts,
          "Drafts of a trial, built and timed briefly; the fastest becomes the trial [12 on a GPU, 1 on a CPU]")
      ->check(CLI::Range(1, 100));
  command
      ->add_option("--strategy", o->strategy,
                   "elite (parents: the best few trials), single (the best one) or islands (populations that exchange "
                   "their best)")
      ->capture_default_str();
  command->add_option("--islands", o->islands, "Populations of the islands strategy")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  command->add_option("--seed", o->seed, "The same seed and measurements give the same decisions")
      ->capture_default_str();
  command
      ->add_option(
          "--budget", o->budget_s,
          "Seconds for the whole run, final comparison and ablation included, or for all runs of --workloads [no "
          "limit]; the base, one trial and its final comparison, 15 s or so on a CPU, are made in any case")
      ->check(zero_or_above());
  command->add_flag("--no-peers", o->no_peers, "Do not compare the champion with PyTorch");
  command->add_flag("--no-profile", o->no_profile,
                    "Do not read hardware counters of the best of each generation; diagnose from times alone");
  command->add_flag("--activity-records", o->activity_records,
                    "On a GPU, tell what gates took of its time from CUPTI's activity records of kernels and copies, "
                    "not from events around each request; the library then stays in the process that also times");
  command->add_option("--python", o->python, "Python that may have PyTorch")->capture_default_str();
  command->add_option("--from", o->from,
                      "Begin with the champion that this file names for the workload, beside the defaults: one that "
                      "heed champions wrote, as tuned/champions.json");
  command->add_option("--resume", o->resume, "Go on with a stored run");
  command->add_option("--evidence", o->evidence, "Write the result as evidence to this JSON file");
  o->model_arguments.add_to(*command);
  CLI::Option* book = command->add_option("--book", o->book,
                                          "Put the champion, where there is one, into this book, or without a name "
                                          "into the default one (heed book)");
  book->expected(0, 1);
  command->footer(
      "Examples:\n"
      "  heed evolve --shape b1h8l512d64\n"
      "  heed evolve --shape b2h16l2048d128 --dtype bf16 --causal bottom-right --trials 100 --strategy islands\n"
      "  heed evolve --qkv attention.safetensors --budget 120\n"
      "  heed evolve --workloads calls.json --trials 200 --book\n"
      "  heed evolve --shape b1h8l512d64 --endpoint http://localhost:8000/v1 --model some-coder --token-budget "
      "2000000\n"
      "  heed evolve --shape b1h8l2048d64 --trials 1000 --devices 0-3\n"
      "  heed evolve --shape b1h8l2048d64 --devices 0-3 --mailbox box --model-share 0.7\n"
      "  heed evolve --resume 3");
  command->callback([o, command, book, &exit_code] {
    o->into_book = book->count() > 0;
    if (command->count("--devices") > 0 && o->devices.empty()) (void)parse_device_list(o->devices);
    check_options_fit(*o, *command);
    if (command->count("--resume") == 0) o->models = o->model_arguments.chosen(*command);
    exit_code = command->count("--workloads") > 0 ? evolve_workloads(*o) : run(*o, *command);
  });
}

}  // namespace heed::cli
