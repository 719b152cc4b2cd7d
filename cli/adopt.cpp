// heed adopt
#include <fmt/format.h>

#include "base/files.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/stored_trial.hpp"
#include "emulator/emulate.hpp"
#include "json/text.hpp"
#include "process/process.hpp"
#include "process/sanitizer.hpp"
#include "record/emulation.hpp"
#include "source/stored.hpp"

namespace heed::cli {
namespace {

constexpr double kGitLimit_s = 60;

struct AdoptOptions {
  StoreOptions store;
  std::string trial;
  std::string output;
  bool apply = false;
  bool json = false;
  bool unsanitized = false;
  bool unemulated = false;
  std::string cache;
  std::string compiler;
  double sanitize_limit_s = 600;
};

[[noreturn]] void refuse(std::int64_t id, const std::string& why) {
  throw Error(ErrorCode::unsupported, fmt::format("trial {} is not adopted: {}", id, why), std::to_string(id));
}

// The edits of a trial that may go into the tree.
std::string patch_of(const StoredTrial& stored) {
  const store::TrialRecord& trial = stored.trial;
  if (!trial.ok())
    refuse(trial.id, fmt::format("it ended {}{}", to_string(trial.verdict),
                                 trial.reason.empty() ? "" : ": " + telling_line(trial.reason)));
  if (trial.edits.is_null()) refuse(trial.id, fmt::format("it edits no source; its knobs are {}", trial.config));
  const Variant variant = variant_of(stored, device_of(stored));
  if (variant.overlay->find(Overlay::kEntry) != nullptr)
    refuse(
        trial.id,
        fmt::format(
            "it edits the entry, which {} writes by code and no file of the tree holds; heed show {} --diff prints it",
            variant.family->name(), trial.id));
  return source::stored_diff(trial.edits);
}

// The gate sees outputs; races and reads beyond the end that happen to do no harm are the sanitizer's to see.
void expect_sanitized(const AdoptOptions& o, std::int64_t id) {
  if (!probe_cuda().facts)
    refuse(
        id,
        "edits of a GPU's kernels are adopted after compute-sanitizer's four tools saw them, and there is no GPU here; "
        "--unsanitized leaves them out");
  for (const Sanitized& one : sanitize(gate_of_trial(id, o.store.path, o.sanitize_limit_s), o.sanitize_limit_s))
    if (!one.passed) refuse(id, fmt::format("{}: {}", one.tool, one.reason));
}

// The emulator sees races that a GPU nearly never loses, and needs none.
void expect_emulated(const AdoptOptions& o, const StoredTrial& stored) {
  MachineOptions machine;
  machine.cache = o.cache;
  machine.compiler = o.compiler;
  const DeviceFacts device = device_of(stored);
  const Variant variant = variant_of(stored, device);
  const emulator::Report report =
      emulator::emulate(variant, stored.workload, device, *machine.builder(), {.seed = fresh_seed() >> 1});
  const std::int64_t id = stored.trial.id;
  const auto store = o.store.open(store::Access::read_write);
  store->add_comparison(
      {0, stored.run.id, std::string(record::kEmulated), stored.trial.variant, "", record::of_trial(report, id)});
  if (report.outcome == emulator::Outcome::failed)
    refuse(id, fmt::format("on the emulated GPU it ended {}: {} ({})", to_string(report.verdict), report.reason,
                           report.check));
  if (report.outcome == emulator::Outcome::not_run)
    refuse(id, fmt::format("the emulated GPU does not run it: {}; --unemulated leaves it out", report.reason));
}

void run_git(const std::vector<std::string>& arguments, const std::string& patch, std::int64_t id) {
  std::vector<std::string> argv = {"git", "apply"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.emplace_back("-");
  const ProcessResult result = run_process(argv, patch, kGitLimit_s);
  if (result.ok()) return;
  refuse(id, fmt::format("git apply does not take its patch here: {}. Run it in a checkout of Heed with sources like "
                         "those that were judged",
                         result.started ? trim(result.output) : "git is not on the PATH"));
}

void adopt(const AdoptOptions& o) {
  const auto store = o.store.open(store::Access::read_only);
  const StoredTrial stored = find_trial(*store, trial_number(o.trial));
  const store::TrialRecord& trial = stored.trial;
  const std::string patch = patch_of(stored);
  const bool is_of_gpu = stored.run.device_kind == "cuda";
  if (is_of_gpu && !o.unemulated) expect_emulated(o, stored);
  if (is_of_gpu && !o.unsanitized) expect_sanitized(o, trial.id);
  if (o.apply) {
    run_git({"--check"}, patch, trial.id);
    run_git({}, patch, trial.id);
  }
  if (!o.output.empty()) write_file_atomically(o.output, patch, ErrorCode::store);
  if (o.json) {
    print(json_text(
              nlohmann::json{{"trial", trial.id},
                             {"config", trial.config},
                             {"ratio", {{"value", trial.ratio}, {"low", trial.ratio_low}, {"high", trial.ratio_high}}},
                             {"patch", patch},
                             {"applied", o.apply}},
              1) +
          "\n");
    return;
  }
  if (o.output.empty() && !o.apply) print(patch);
  remark(true, fmt::format("{}: measured with {}, {:.3f} [{:.4f}, {:.4f}] times as fast as the base of run {}",
                           o.apply ? "applied" : "patch", trial.config, trial.ratio, trial.ratio_low, trial.ratio_high,
                           trial.run));
}

}  // namespace

void add_adopt(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto o = std::make_shared<AdoptOptions>();
  CLI::App* command =
      app.add_subcommand("adopt", "Take the edits of a trial that passed into a checkout of Heed, as a patch");
  command->add_option("trial", o->trial, "Id of the trial, 17 or t17")->required();
  o->store.add_to(*command);
  command->add_option("-o,--output", o->output, "Write the patch to this file [stdout]");
  command->add_flag("--apply", o->apply, "Apply it to the checkout of the working directory by git apply");
  command->add_flag("--unsanitized", o->unsanitized,
                    "Without compute-sanitizer's four tools, which edits of a GPU's kernels must pass otherwise");
  command->add_flag("--unemulated", o->unemulated,
                    "Without the emulated GPU, which must run edits of a GPU's kernels right otherwise");
  command->add_option("--cache", o->cache,
                      fmt::format("Folder for emulated kernels [{}]", default_cache_folder().string()));
  command->add_option("--compiler", o->compiler, "C++ compiler for emulated kernels [g++, else clang++]");
  command->add_option("--sanitize-limit", o->sanitize_limit_s, "Seconds that one of the tools may take")
      ->capture_default_str()
      ->check(above_zero());
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  heed adopt 17 -o faster.patch\n"
      "  heed adopt 17 --apply\n"
      "Trials that did not pass, and edits made for other sources, are refused.");
  command->callback([o] {
    if (!o->output.empty()) expect_writable(o->output, ErrorCode::store);
    adopt(*o);
  });
}

}  // namespace heed::cli
