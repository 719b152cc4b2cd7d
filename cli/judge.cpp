// heed judge
#include <fmt/format.h>

#include <iostream>
#include <iterator>

#include "base/files.hpp"
#include "cli/command.hpp"
#include "cli/judgement.hpp"
#include "evolve/source_judge.hpp"
#include "json/text.hpp"

namespace heed::cli {
namespace {

struct JudgeOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  StoreOptions store;
  std::string family;
  std::string patch;
};

std::string read_patch(const std::string& path) {
  if (path != "-") return read_file(path, ErrorCode::usage);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

std::string text_of(const evolve::SourceJudge& judge, const evolve::Judgement& judgement, const std::string& database) {
  const store::TrialRecord& t = judgement.trial;
  std::string text = fmt::format("{}{}", to_string(t.verdict),
                                 t.finding == Finding::none ? "" : fmt::format(" ({})", to_string(t.finding)));
  if (t.ratio > 0)
    text += fmt::format(
        ", {:.3f} [{:.4f}, {:.4f}] times as fast as the base: {:.2f} us, the base {:.2f} us, against itself within "
        "{:.4f} of 1",
        t.ratio, t.ratio_low, t.ratio_high, t.trial_us, t.base_us, judge.self_spread());
  text += "\n";
  if (!t.reason.empty()) text += fmt::format("{}{}\n", t.check.empty() ? "" : t.check + ": ", t.reason);
  if (judgement.earlier && judgement.earlier->id > 0 && judgement.earlier->ratio > 0)
    text += fmt::format("Trial {} reads {:.3f} [{:.4f}, {:.4f}] times as fast as the base.\n", judgement.earlier->id,
                        judgement.earlier->ratio, judgement.earlier->ratio_low, judgement.earlier->ratio_high);
  if (t.verdict == Verdict::ok)
    text += judgement.faster ? "Faster than the base.\n" : "Not shown to be faster than the base.\n";
  if (t.id > 0)
    text += fmt::format("Stored as trial {}. Its edits: heed show {} --diff{}   Again: heed replay {}{}\n", t.id, t.id,
                        database, t.id, database);
  return text;
}

int judge(const JudgeOptions& o) {
  const std::string reply = read_patch(o.patch);
  const Workload workload = o.workload.workload(std::nullopt);
  const std::string name = o.family.substr(0, o.family.find(':'));
  const DeviceFacts device = o.family == kAutomatic ? o.machine.choose()
                             : find_family(name).device() == DeviceKind::cpu
                                 ? choose_device(DeviceChoice::cpu)
                                 : choose_device(DeviceChoice::cuda, "fwd_cpu runs on the CPU");
  const Variant parent = admitted(o.family, workload, device);
  const auto store = o.store.open(store::Access::read_write);
  const auto builder = o.machine.builder();
  remark(o.machine.json, fmt::format("building, verifying and timing the base of {} at {} on {}", parent.family->name(),
                                     to_string(workload), device.name));
  evolve::SourceJudge judge(*store, *builder, device, workload, parent, o.machine.trial_options());
  remark(o.machine.json, "judging the edits");
  const evolve::Judgement judgement = judge.judge(reply);
  print(o.machine.json ? json_text(judgement_json(judge, judgement, workload, device), 1) + "\n"
                       : text_of(judge, judgement, o.store.as_given()));
  return judgement.trial.ok() ? 0 : 1;
}

}  // namespace

void add_judge(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<JudgeOptions>();
  CLI::App* command = app.add_subcommand(
      "judge", "Build, verify and time edits of a family's device sources against the unedited family");
  command
      ->add_option("--family", o->family, "The kernel that is edited: a family, family:knob=value,... or auto [auto]")
      ->default_val(std::string(kAutomatic));
  command
      ->add_option("--patch", o->patch,
                   "A file with the edits, - for stdin: blocks of search and replace, a unified diff or whole files, "
                   "in any text")
      ->required();
  o->workload.add_shape_to(*command);
  o->machine.add_to(*command);
  o->store.add_to(*command);
  command->footer(
      "Examples:\n"
      "  heed judge --family fwd_cpu --shape b1h8l256d64:fp32 --patch edits.txt\n"
      "  some-model < prompt.txt | heed judge --family fwd_sm80 --shape b1h8l512d64 --patch - --json\n"
      "heed emit FAMILY --shape W --whole prints the sources. Exit code 0 for the verdict ok, 1 for every other.");
  command->callback([o, &exit_code] { exit_code = judge(*o); });
}

}  // namespace heed::cli
