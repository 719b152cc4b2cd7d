// heed evolve
#include <fmt/format.h>

#include "base/files.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/book_add.hpp"
#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "dispatch/tuned_table.hpp"
#include "evolve/run.hpp"
#include "json/text.hpp"
#include "process/shell_word.hpp"
#include "report/outcome.hpp"
#include "report/run_report.hpp"

namespace heed::cli {
namespace {

constexpr int kDraftsGpu = 24;  // looks at so many take about as long as a gate

class Progress final : public evolve::Observer {
 public:
  explicit Progress(bool json) : json_(json) {}

  void message(const std::string& text) override { remark(json_, fmt::format("  {}", text)); }

  void generation_started(int generation, int first_trial, int trials_in_all) override {
    remark(json_, fmt::format("generation {} (trial {} of {})", generation, first_trial, trials_in_all));
  }

  void trial_finished(const store::TrialRecord& t, double best_certain, int trials_in_all) override {
    const std::string result =
        t.ok() ? fmt::format("{:9.2f} us  {:.3f} [{:.3f}, {:.3f}]", t.trial_us, t.ratio, t.ratio_low, t.ratio_high)
               : fmt::format("{} {}", to_string(t.verdict), t.finding == Finding::none ? "" : to_string(t.finding));
    const std::string chosen = t.drafts.empty() ? "" : fmt::format("of {} drafts: ", t.drafts.size());
    remark(json_, fmt::format("  {:>4}/{}  {:<9}  {:<44}  certain {:.3f}  {}{}", t.number + 1, trials_in_all,
                              t.operation, result, best_certain, chosen, t.why.substr(0, 90)));
    if (!t.ok() && t.verdict != Verdict::duplicate)
      remark(json_, fmt::format("           {}: {}", t.check, split(t.reason, '\n').front().substr(0, 160)));
  }

 private:
  bool json_;
};

struct Options {
  MachineOptions machine;
  WorkloadOptions workload;
  StoreOptions store;
  std::string family;
  std::string strategy = "elite";
  int trials = 45;
  int population = 5;
  int drafts = 0;
  int islands = 3;
  std::uint64_t seed = 1;
  double budget_s = 0;
  bool no_peers = false;
  bool no_profile = false;
  std::string python = "python3";
  std::int64_t resume = 0;
  std::string evidence;
  std::string from;
  bool into_book = false;
  std::string book;  ///< empty: the default one
};

// What goes on with a run as this command runs it, for a shell.
std::string resume_command(const Options& o, std::int64_t run) {
  const MachineOptions usual;
  std::string command = fmt::format("heed evolve --resume {}", run);
  const auto add = [&](const char* option, const std::string& value, const std::string& otherwise) {
    if (value != otherwise) command += fmt::format(" {} {}", option, shell_word(value));
  };
  add("--db", o.store.path, "");
  add("--device", o.machine.device, usual.device);
  add("--cache", o.machine.cache, usual.cache);
  add("--compiler", o.machine.compiler, usual.compiler);
  add("--jobs", std::to_string(o.machine.jobs), std::to_string(usual.jobs));
  add("--launch-limit", fmt::format("{}", o.machine.launch_limit_s), fmt::format("{}", usual.launch_limit_s));
  add("--measure-limit", fmt::format("{}", o.machine.measure_limit_s), fmt::format("{}", usual.measure_limit_s));
  add("--evidence", o.evidence, "");
  if (o.into_book) command += o.book.empty() ? " --book" : " --book " + shell_word(o.book);
  if (o.machine.json) command += " --json";
  return command;
}

// Writes and removes a file beside the evidence: what would fail after the search fails before it.
// @throws Error(store)
void check_evidence_can_be_written(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path))
    throw Error(ErrorCode::store, fmt::format("--evidence {} is a folder; name a file", path.string()), path.string());
  if (!path.parent_path().empty()) make_folder(path.parent_path(), ErrorCode::store);
  const std::filesystem::path probe = path.string() + ".probe";
  write_file_atomically(probe, "evidence", ErrorCode::store);
  std::filesystem::remove(probe);
}

// What a file of champions knows of a workload on this device, or else on its architecture: one variant, or none.
std::vector<std::string> champions_from(const std::string& path, const Workload& workload, const DeviceFacts& device,
                                        bool json) {
  const auto table = dispatch::TunedTable::parse(read_file(path, ErrorCode::usage), path);
  if (const auto found = table.find(workload, device.arch, device.name)) return {*found};
  remark(json, fmt::format("{} names no champion of {} on {}; the search begins with the defaults alone", path,
                           to_string(workload), device.name));
  return {};
}

// A search that ends without a champion leaves the book as it is. The run is stored whatever becomes of the book, so
// that its result is printed all the same. @return the exit code
int add_to_book(const Options& o, const store::RunRecord& run, store::Store& store, jit::Builder& builder) {
  if (!report::has_champion(run.result)) {
    remark(o.machine.json, "no champion for the book");
    return 0;
  }
  try {
    const std::filesystem::path path = book_path(o.book);
    const nlohmann::json kept = put_into_book(path, {champion_of_run(run.id, store, builder)});
    remark(o.machine.json, fmt::format("book {}: {}", path.string(), trim(text_of_kept(kept))));
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "heed: {}; heed book add {} tries again\n", error.what(), run.id);
    return 1;
  }
}

int run(const Options& o, const CLI::App& app) {
  if (o.into_book) dispatch::expect_writable_book(book_path(o.book));
  if (!o.evidence.empty()) check_evidence_can_be_written(o.evidence);
  const DeviceFacts device = o.machine.choose();
  const std::unique_ptr<jit::Builder> builder = o.machine.builder();
  const std::unique_ptr<store::Store> store = o.store.open(store::Access::read_write);
  Progress progress(o.machine.json);

  record::RunOptions options;
  std::optional<QkvTensors> tensors;
  std::optional<std::int64_t> resume;
  if (app.count("--resume") > 0) {
    const std::optional<store::RunRecord> stored = store->find_run(o.resume);
    if (!stored)
      throw Error(ErrorCode::usage, fmt::format("there is no run {}; heed runs lists them", o.resume),
                  std::to_string(o.resume));
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
    if (stored->state == store::RunState::finished &&
        static_cast<int>(store->trials(o.resume).size()) >= options.trials)
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
    resume = o.resume;
  } else {
    tensors = o.workload.tensors();
    options.workload = o.workload.workload(tensors);
    options.families = o.family.empty() ? std::vector<std::string>() : split(o.family, ',');
    options.strategy.kind = record::parse_strategy(o.strategy);
    options.strategy.population = o.population;
    options.strategy.drafts = o.drafts > 0 ? o.drafts : device.kind == DeviceKind::cuda ? kDraftsGpu : 1;
    options.strategy.islands = std::min(o.islands, o.population);
    options.strategy.seed = o.seed;
    options.trials = o.trials;
    options.budget_s = o.budget_s;
    options.peers = !o.no_peers;
    options.profile = !o.no_profile;
    options.python = o.python;
    options.tensors = o.workload.tensor_paths();
    if (tensors) options.tensors_digest = tensors->digest;
    if (!o.from.empty()) options.found = champions_from(o.from, options.workload, device, o.machine.json);
  }

  evolve::Evolution evolution(*store, *builder, device, options, o.machine.trial_options(),
                              tensors ? &*tensors : nullptr, progress, resume);
  const std::int64_t id = evolution.run_id();
  std::vector<std::string> searched;
  double configs = 0;
  for (const Family* family : evolution.families()) {
    const std::string_view why = o.family.empty() && searched.empty() ? family->made_for(options.workload, device) : "";
    searched.push_back(why.empty() ? std::string(family->name())
                                   : fmt::format("{} (made for {})", family->name(), why));
    configs += space_size(variant_knobs(*family));
  }
  remark(o.machine.json,
         fmt::format("run {}: {} on {}, {} trials of {}: {:.2g} configs", id, to_string(options.workload), device.name,
                     options.trials, join(searched, ", "), configs));
  try {
    (void)evolution.run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted)
      throw Error(ErrorCode::interrupted,
                  fmt::format("interrupted; every finished trial is stored. Go on with: {}", resume_command(o, id)));
    throw;
  }
  const store::RunRecord record = *store->find_run(id);
  if (!o.evidence.empty() && record.result.contains("final")) {
    const std::filesystem::path path = o.evidence;
    nlohmann::json evidence = report::evidence(record);
    report::add_family_digests(evidence, sources());
    report::add_programs(evidence, store->trials(id));
    write_file_atomically(path, json_text(evidence, 1) + "\n", ErrorCode::store);
  }
  const int exit_code = o.into_book ? add_to_book(o, record, *store, *builder) : 0;
  if (o.machine.json) {
    print(json_text(report::run_json(record, store->trials(id), store->comparisons(id)), 1) + "\n");
    return exit_code;
  }
  print("\n" + report::result_text(record));
  if (record.result.contains("final"))
    print(fmt::format("\nStored as run {}. More: heed show {}   Again: heed replay {}\n", id, id,
                      record.result["final"]["trial_id"].get<std::int64_t>()));
  return exit_code;
}

}  // namespace

void add_evolve(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("evolve", "Search for a faster kernel for one workload, prove it and measure it");
  o->workload.add_to(*command);
  o->machine.add_to(*command);
  o->store.add_to(*command);
  command->add_option("--family", o->family,
                      "Kernel families, with commas between; the first one's default is the base. heed families lists "
                      "them [all that run the workload]");
  command->add_option("--trials", o->trials, "Variants to build, verify and measure")->capture_default_str();
  command->add_option("--population", o->population, "Elites kept, and trials a generation")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command
      ->add_option(
          "--drafts", o->drafts,
          "Variants built and timed for a moment for each trial, which is the fastest of them [24 on a GPU, 1, "
          "which is none but the trial, on a CPU]")
      ->check(CLI::Range(1, 100));
  command->add_option("--strategy", o->strategy, "elite, single or islands")->capture_default_str();
  command->add_option("--islands", o->islands, "Populations of the islands strategy")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  command->add_option("--seed", o->seed, "The same seed and measurements give the same decisions")
      ->capture_default_str();
  command
      ->add_option(
          "--budget", o->budget_s,
          "Seconds for the whole run, final comparison and ablation included [no limit]; the base, one trial and its "
          "final comparison, 15 s or so on a CPU, are made in any case")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--no-peers", o->no_peers, "Do not compare the champion with PyTorch");
  command->add_flag("--no-profile", o->no_profile,
                    "Do not read hardware counters of the best of each generation; diagnose from times alone");
  command->add_option("--python", o->python, "Python that may have PyTorch")->capture_default_str();
  command->add_option("--from", o->from,
                      "Begin with the champion that this file names for the workload, beside the defaults: one that "
                      "heed champions wrote, as tuned/champions.json");
  command->add_option("--resume", o->resume, "Go on with a stored run");
  command->add_option("--evidence", o->evidence, "Write the result as evidence to this JSON file");
  CLI::Option* book = command->add_option("--book", o->book,
                                          "Put the champion, where there is one, into this book, or without a name "
                                          "into the default one (heed book)");
  book->expected(0, 1);
  command->footer(
      "Examples:\n"
      "  heed evolve --shape b1h8l512d64\n"
      "  heed evolve --shape b2h16l2048d128 --dtype bf16 --causal bottom-right --trials 100 --strategy islands\n"
      "  heed evolve --qkv attention.safetensors --budget 120\n"
      "  heed evolve --resume 3");
  command->callback([o, command, book, &exit_code] {
    o->into_book = book->count() > 0;
    exit_code = run(*o, *command);
  });
}

}  // namespace heed::cli
