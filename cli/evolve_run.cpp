#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "cli/book_add.hpp"
#include "cli/devices.hpp"
#include "cli/evolve.hpp"
#include "cli/stored_trial.hpp"
#include "evolve/run.hpp"
#include "process/sanitizer.hpp"
#include "process/shell_word.hpp"
#include "report/outcome.hpp"

namespace heed::cli {
namespace {

constexpr double kSanitizeLimit_s = 600;  // of one tool
// Looks at so many take about as long as gate and measurement, and 16 processors build them meanwhile. On an H200, of
// 24 drafts of a place the best of the first 12 was 0.2% behind the best of all, and the best of a run the same
// (b1h8l512d64, 20 places).
constexpr int kDraftsGpu = 12;

class Progress final : public evolve::Observer {
 public:
  explicit Progress(bool json) : json_(json) {}

  void message(const std::string& text) override { remark(json_, fmt::format("  {}", text)); }

  void generation_started(int generation, int first_trial, int trials_in_all) override {
    remark(json_, fmt::format("generation {} (trial {} of {})", generation, first_trial, trials_in_all));
  }

  void devices_changed(const std::vector<evolve::DeviceStatus>& devices, double trials_a_minute) override {
    std::vector<std::string> words;
    for (const evolve::DeviceStatus& one : devices)
      words.push_back(fmt::format("{} {}, {} trials", one.name, doing(one), one.trials));
    const std::string rate = trials_a_minute > 0 ? fmt::format("{:.1f} trials a minute; ", trials_a_minute) : "";
    remark(json_, fmt::format("  {}{}", rate, join(words, "; ")));
  }

  void trial_finished(const store::TrialRecord& t, double best_certain, int trials_in_all) override {
    const std::string result =
        t.ok() ? fmt::format("{:9.2f} us  {:.3f} [{:.3f}, {:.3f}]", t.trial_us, t.ratio, t.ratio_low, t.ratio_high)
               : fmt::format("{} {}", to_string(t.verdict), t.finding == Finding::none ? "" : to_string(t.finding));
    const std::string chosen = t.drafts.empty() ? "" : fmt::format("of {} drafts: ", t.drafts.size());
    remark(json_,
           fmt::format("  {:>4}/{}  {:<9}  {:<44}  certain {:.3f}  {}{}{}", t.number + 1, trials_in_all, t.operation,
                       result, best_certain, t.device.empty() ? "" : t.device + ": ", chosen, t.why.substr(0, 90)));
    if (!t.ok() && t.verdict != Verdict::duplicate)
      remark(json_, fmt::format("           {}: {}", t.check, telling_line(t.reason).substr(0, 160)));
  }

 private:
  static std::string_view doing(const evolve::DeviceStatus& device) {
    switch (device.doing) {
      case evolve::DeviceStatus::Doing::preparing:
        return "is prepared";
      case evolve::DeviceStatus::Doing::judging:
        return device.under_way > 1 ? "judges several places" : "judges";
      case evolve::DeviceStatus::Doing::waiting:
        return "waits";
      case evolve::DeviceStatus::Doing::lost:
        return "is lost";
    }
    return "?";
  }

  bool json_;
};

// What compute-sanitizer's tools find in the gate of a stored trial; empty where they find nothing, or are not there.
std::string objection_of_tools(const EvolveOptions& o, std::int64_t trial) {
  try {
    for (const Sanitized& one : sanitize(gate_of_trial(trial, o.store.path, kSanitizeLimit_s), kSanitizeLimit_s))
      if (!one.passed) return fmt::format("{}: {}", one.tool, one.reason);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    remark(o.machine.json,
           fmt::format("  no tool looked at trial {}, and heed adopt will ask for it: {}", trial, error.what()));
  }
  return {};
}

}  // namespace

Workshop::Workshop(const EvolveOptions& o) {
  // On a GPU compilers work for one place of a generation while another one is judged, as with --devices. Where
  // models write, one device takes turns with them unless --devices names it, and a stored run goes on as it began.
  const bool may_share = !o.models.any() && o.resume == 0;
  const std::string first = may_share && o.machine.choose().kind == DeviceKind::cuda ? "0" : "";
  const std::string& wanted = o.devices.empty() ? first : o.devices;
  if (wanted.empty()) {
    device = o.machine.choose();
    builder = o.machine.builder();
    store = o.store.open(store::Access::read_write);
    return;
  }
  DeviceSelection chosen = select_devices(wanted, parse_device_choice(o.machine.device));
  devices = std::move(chosen.devices);
  if (!chosen.remark.empty()) remark(o.machine.json, chosen.remark);
  // Compilers share the processors that GPUs leave; those of a CPU are all theirs while nothing is timed.
  const bool is_gpu = chosen.facts.kind == DeviceKind::cuda;
  if (!is_gpu) builder = o.machine.builder();
  place = std::make_unique<Placed>(devices.front().placement);
  device = is_gpu ? chosen.facts : cpu_facts();
  if (is_gpu) builder = o.machine.builder();
  store = o.store.open(store::Access::read_write);
}

record::RunOptions new_run(const EvolveOptions& o, const Workload& workload, const DeviceFacts& device) {
  record::RunOptions options;
  options.workload = workload;
  options.families = o.family.empty() ? std::vector<std::string>() : split(o.family, ',');
  options.hold = o.hold;
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
  options.models = o.models;
  return options;
}

std::string shared_options(const EvolveOptions& o) {
  const MachineOptions usual;
  std::string options;
  const auto add = [&](const char* option, const std::string& value, const std::string& otherwise) {
    if (value != otherwise) options += fmt::format(" {} {}", option, shell_word(value));
  };
  add("--db", o.store.path, "");
  add("--device", o.machine.device, usual.device);
  add("--devices", o.devices, "");
  add("--cache", o.machine.cache, usual.cache);
  add("--compiler", o.machine.compiler, usual.compiler);
  add("--jobs", std::to_string(o.machine.jobs), std::to_string(usual.jobs));
  add("--launch-limit", fmt::format("{}", o.machine.launch_limit_s), fmt::format("{}", usual.launch_limit_s));
  add("--measure-limit", fmt::format("{}", o.machine.measure_limit_s), fmt::format("{}", usual.measure_limit_s));
  add("--evidence", o.evidence, "");
  if (o.into_book) options += o.book.empty() ? " --book" : " --book " + shell_word(o.book);
  if (o.activity_records) options += " --activity-records";
  if (o.machine.json) options += " --json";
  return options;
}

store::RunRecord evolve_one(const EvolveOptions& o, const Workshop& shop, const record::RunOptions& options,
                            const QkvTensors* tensors, std::optional<std::int64_t> resume) {
  Progress progress(o.machine.json);
  trial::Options trial_options = o.machine.trial_options();
  trial_options.activity_records = o.activity_records;
  evolve::Evolution evolution(*shop.store, *shop.builder, shop.device, options, trial_options, tensors, progress,
                              resume, shop.devices);
  if (shop.device.kind == DeviceKind::cuda)
    evolution.sanitize_champions_by([&](std::int64_t trial) { return objection_of_tools(o, trial); });
  const std::int64_t id = evolution.run_id();
  std::vector<std::string> searched;
  double configs = 0;
  for (const Family* family : evolution.families()) {
    const std::string_view why =
        o.family.empty() && searched.empty() ? family->made_for(options.workload, shop.device) : "";
    searched.push_back(why.empty() ? std::string(family->name())
                                   : fmt::format("{} (made for {})", family->name(), why));
    configs += space_size(variant_knobs(*family));
  }
  remark(o.machine.json,
         fmt::format("run {}: {} on {}, {} trials of {}: {:.2g} configs", id, to_string(options.workload),
                     shop.device.name, options.trials, join(searched, ", "), configs));
  try {
    (void)evolution.run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted)
      throw Error(ErrorCode::interrupted,
                  fmt::format("interrupted; every finished trial is stored. Go on with: heed evolve --resume {}{}", id,
                              shared_options(o)));
    throw;
  }
  return *shop.store->find_run(id);
}

int add_to_book(const EvolveOptions& o, const store::RunRecord& run, const Workshop& shop) {
  if (!report::has_champion(run.result)) {
    remark(o.machine.json, "no champion for the book");
    return 0;
  }
  try {
    const std::filesystem::path path = book_path(o.book);
    const nlohmann::json kept = put_into_book(path, {champion_of_run(run.id, *shop.store, *shop.builder)});
    remark(o.machine.json, fmt::format("book {}: {}", path.string(), trim(text_of_kept(kept))));
    return 0;
  } catch (const Error& error) {
    remark(true, fmt::format("heed: {}; heed book add {} tries again", error.what(), run.id));
    return 1;
  }
}

}  // namespace heed::cli
