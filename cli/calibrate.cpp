// heed calibrate: what quantising costs, of every mode, on inputs of several kinds or on a user's own tensors
#include <fmt/format.h>

#include <algorithm>

#include "base/files.hpp"
#include "base/random.hpp"
#include "cli/calibration_choices.hpp"
#include "cli/command.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "report/evidence.hpp"
#include "report/table.hpp"
#include "verify/quantisation_modes.hpp"

namespace heed::cli {
namespace {

constexpr double kCalibrationFlops = 0.3e9;  // of the oracle, for one mode and kind of inputs

struct CalibrateOptions {
  WorkloadOptions workload;
  std::vector<std::string> modes;
  std::uint64_t seed = 0;
  double most = 0;
  std::string evidence;
  std::string choices;
  std::string layer;
  bool json = false;
};

// The kinds of inputs whose accuracy papers and users ask for.
constexpr verify::InputClass kCalibrationInputs[] = {
    verify::InputClass::normal,          verify::InputClass::outliers, verify::InputClass::outlier_channel,
    verify::InputClass::channel_offsets, verify::InputClass::peaked,   verify::InputClass::attention_sink};

struct Cost {
  std::string_view mode;
  std::string inputs;
  verify::Accuracy accuracy;
};

// Relative RMS errors, a line for each mode and a column for each kind of inputs.
std::string table_of(const std::vector<Cost>& costs) {
  std::vector<std::string> titles = {"relative RMS error"};
  std::vector<std::pair<std::string_view, std::vector<std::string>>> lines;
  for (const Cost& cost : costs) {
    if (std::find(titles.begin(), titles.end(), cost.inputs) == titles.end()) titles.push_back(cost.inputs);
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const auto& one) { return one.first == cost.mode; });
    auto& cells =
        line == lines.end() ? lines.emplace_back(cost.mode, std::vector{std::string(cost.mode)}).second : line->second;
    cells.push_back(fmt::format("{:.1e}", cost.accuracy.rel_rms));
  }
  report::Table table(titles);
  for (auto& [mode, cells] : lines) table.add(std::move(cells));
  return table.str();
}

int run(const CalibrateOptions& o) {
  expect_choices(o.choices, o.layer);
  const std::optional<QkvTensors> tensors = o.workload.tensors();
  const Workload w = o.workload.workload(tensors);
  if (o.most < 0 || !(o.most == o.most))
    throw Error(ErrorCode::usage, fmt::format("--most {} is no relative RMS error; give a positive number", o.most),
                std::to_string(o.most));
  std::vector<const quantise::Mode*> modes;
  for (const std::string& name : o.modes) modes.push_back(&quantise::find_mode(name));
  std::vector<std::string> refused;
  if (modes.empty())
    for (const quantise::Mode& mode : quantise::modes()) modes.push_back(&mode);
  std::erase_if(modes, [&](const quantise::Mode* mode) {
    try {
      (void)quantise::quantised_by(w, *mode);
      return false;
    } catch (const Error& error) {
      if (!o.modes.empty()) throw;
      refused.push_back(fmt::format("{}: {}", mode->name, error.what()));
      return true;
    }
  });
  if (modes.empty()) throw Error(ErrorCode::unsupported, "no mode quantises this workload: " + refused.front());

  const std::uint64_t seed = o.seed != 0 ? o.seed : fresh_seed() >> 1;
  const std::vector<RowIndex> rows = verify::choose_rows(w, kCalibrationFlops, seed);
  std::vector<Cost> costs;
  const auto add = [&](const std::string& inputs, const verify::InputValues& values) {
    for (const quantise::Mode* mode : modes) {
      check_interrupt();
      costs.push_back({mode->name, inputs, verify::cost_of(w, *mode, values, rows, substream(seed, 2))});
    }
  };
  if (tensors)
    add("given", verify::values_of(*tensors));
  else
    for (const verify::InputClass inputs : kCalibrationInputs)
      add(std::string(to_string(inputs)), verify::make_inputs(w, inputs, substream(seed, 1)));

  // The mode whose worst relative RMS error over the inputs is least.
  const auto worst_of = [&](std::string_view mode) {
    double worst = 0;
    for (const Cost& cost : costs)
      if (cost.mode == mode) worst = std::max(worst, cost.accuracy.rel_rms);
    return worst;
  };
  const quantise::Mode* best = *std::min_element(
      modes.begin(), modes.end(), [&](const auto* a, const auto* b) { return worst_of(a->name) < worst_of(b->name); });
  const bool is_chosen = o.most == 0 || worst_of(best->name) <= o.most;

  if (!o.choices.empty()) {
    nlohmann::json layer = {{"mode", is_chosen ? nlohmann::json(best->name) : nlohmann::json()},
                            {"workload", to_string(w)},
                            {"rel_rms", worst_of(best->name)},
                            {"heed", HEED_VERSION}};
    if (o.most > 0) layer["most"] = o.most;
    if (tensors) layer["tensors_digest"] = tensors->digest;
    write_choice(o.choices, o.layer, std::move(layer));
  }
  if (o.json || !o.evidence.empty()) {
    nlohmann::json all = report::evidence_header("calibration", record::to_json(cpu_facts()), sources());
    all.update({{"workload", to_string(w)},
                {"seed", seed},
                {"rows_of_o", rows.size()},
                {"refused", refused},
                {"chosen", is_chosen ? nlohmann::json(best->name) : nlohmann::json()},
                {"rows", nlohmann::json::array()},
                {"table", table_of(costs)}});
    if (tensors) all["tensors_digest"] = tensors->digest;
    for (const Cost& cost : costs) {
      nlohmann::json one = record::to_json(cost.accuracy);
      one["mode"] = cost.mode;
      one["inputs"] = cost.inputs;
      one["quantised"] = to_string(*quantise::quantised_by(w, quantise::find_mode(cost.mode)).quantised);
      all["rows"].push_back(std::move(one));
    }
    const std::string text = json_text(all, 1) + "\n";
    if (!o.evidence.empty()) write_file_atomically(o.evidence, text, ErrorCode::store);
    if (o.json) {
      print(text);
      return is_chosen ? 0 : 1;
    }
  }
  report::Table table({"inputs", "mode", "rel. RMS", "rel. L1", "1 - cosine", "worst row"});
  table.align_left(1);
  for (const Cost& cost : costs)
    table.add({cost.inputs, std::string(cost.mode), fmt::format("{:.2e}", cost.accuracy.rel_rms),
               fmt::format("{:.2e}", cost.accuracy.rel_l1), fmt::format("{:.2e}", 1 - cost.accuracy.cosine),
               fmt::format("{:.2e}", cost.accuracy.worst_row)});
  print(fmt::format("workload  {}, {} rows, seed {}\n{}", to_string(w), rows.size(), seed, table.str()));
  for (const std::string& text : refused) print(fmt::format("left out  {}\n", text));
  print(is_chosen ? fmt::format("chosen    {}: {}; at most {:.2e} relative RMS; quantised={}\n", best->name,
                                best->words, worst_of(best->name), best->tensors)
                  : fmt::format("chosen    none: the best, {}, is off by {:.2e} relative RMS, more than {:.2e}\n",
                                best->name, worst_of(best->name), o.most));
  return is_chosen ? 0 : 1;
}

}  // namespace

void add_calibrate(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "What quantising Q, K and V costs in accuracy, of every mode, and which mode costs least");
  o->workload.add_to(*command);
  std::string modes = "Modes by name [all]: ";
  for (const quantise::Mode& mode : quantise::modes())
    modes += fmt::format("{}{}, {}", &mode == &quantise::modes().front() ? "" : "; ", mode.name, mode.words);
  command->add_option("--modes", o->modes, modes)->delimiter(',');
  command->add_option("--most", o->most,
                      "The largest relative RMS error that a mode may have to be chosen; exit code 1 where none has so "
                      "little [any]");
  command->add_option("--seed", o->seed, "Seed of the inputs and of rotations [fresh]");
  command->add_option(
      "--choices", o->choices,
      "Write what was chosen to this JSON file, which heed.sdpa(precision=FILE) takes; what it says of other "
      "layers stays");
  command->add_option("--layer", o->layer,
                      "The module that the tensors are of, as model.named_modules() names it [*, for every call]");
  command->add_option("--evidence", o->evidence, "Write the result as evidence to this JSON file");
  command->add_flag("--json", o->json, "Print the result as JSON");
  command->footer(
      "Errors are of exact attention on the quantised numbers against exact attention on the inputs: what a kernel "
      "adds "
      "is what heed verify prints.\n"
      "Examples:\n"
      "  heed calibrate --shape b1h8l2048d64\n"
      "  heed calibrate --qkv layer3.safetensors --modes int8_smooth,fp8_rotated --most 0.02 --json\n"
      "  heed calibrate --qkv layer3.safetensors --most 0.02 --choices choices.json --layer encoder.layer.3");
  command->callback([o, &exit_code] { exit_code = run(*o); });
}

}  // namespace heed::cli
