// heed calibrate: what quantising costs, of every mode, on inputs of several kinds or on a user's own tensors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/files.hpp"
#include "base/random.hpp"
#include "cli/calibration_choices.hpp"
#include "cli/command.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "report/evidence.hpp"
#include "report/table.hpp"
#include "verify/given_features.hpp"
#include "verify/quantisation_modes.hpp"

namespace heed::cli {
namespace {

constexpr double kCalibrationFlops = 0.3e9;  // of the oracle, for one mode and kind of inputs

struct CalibrateOptions {
  WorkloadOptions workload;
  std::vector<std::string> files;  // of --qkv, which calibrate takes several times
  std::vector<std::string> modes;
  std::uint64_t seed = 0;
  std::optional<double> most;
  std::string evidence;
  std::string choices;
  std::string layer;
  bool json = false;
};

// The kinds of inputs whose accuracy papers and users ask for.
constexpr verify::InputClass kCalibrationInputs[] = {
    verify::InputClass::normal,          verify::InputClass::outliers, verify::InputClass::outlier_channel,
    verify::InputClass::channel_offsets, verify::InputClass::peaked,   verify::InputClass::attention_sink};

// One kind of inputs, or the tensors of one file.
struct Inputs {
  std::string name;
  Workload workload;
  std::string digest;  // of tensors; empty for drawn inputs
  verify::InputValues values;
};

struct Cost {
  const quantise::Mode* mode;
  const Inputs* inputs;
  verify::Accuracy accuracy;
};

// What is chosen for inputs: the mode whose relative RMS error is least, if that is at most what is asked for.
struct Choice {
  const quantise::Mode* best = nullptr;
  double rel_rms = 0;
  bool is_chosen = false;
};

// Relative RMS errors, a line for each mode and a column for each kind of inputs.
std::string table_of(const std::vector<Cost>& costs) {
  std::vector<std::string> titles = {"relative RMS error"};
  std::vector<std::pair<std::string_view, std::vector<std::string>>> lines;
  for (const Cost& cost : costs) {
    if (std::find(titles.begin(), titles.end(), cost.inputs->name) == titles.end()) titles.push_back(cost.inputs->name);
    const std::string_view mode = cost.mode->name;
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const auto& one) { return one.first == mode; });
    auto& cells = line == lines.end() ? lines.emplace_back(mode, std::vector{std::string(mode)}).second : line->second;
    cells.push_back(fmt::format("{:.1e}", cost.accuracy.rel_rms));
  }
  report::Table table(titles);
  for (auto& [mode, cells] : lines) table.add(std::move(cells));
  return table.str();
}

// Files are known by their names without folder and ending, or by their paths where two of those are equal.
std::vector<std::string> names_of(const std::vector<std::string>& files) {
  if (files.size() == 1) return {"given"};
  std::vector<std::string> names;
  for (const std::string& file : files) {
    if (std::count(files.begin(), files.end(), file) > 1)
      throw Error(ErrorCode::usage, fmt::format("--qkv {} is given twice; give each file once", file), file);
    names.push_back(std::filesystem::path(file).stem().string());
  }
  std::vector<std::string> distinct = names;
  std::sort(distinct.begin(), distinct.end());
  return std::adjacent_find(distinct.begin(), distinct.end()) == distinct.end() ? names : files;
}

std::vector<Inputs> inputs_of(const CalibrateOptions& o, std::uint64_t seed) {
  std::vector<Inputs> all;
  const auto add_given = [&](const std::string& name, const WorkloadOptions& workload) {
    const std::optional<QkvTensors> tensors = workload.tensors();
    const Workload w = workload.workload(tensors);
    all.push_back({name, w, tensors->digest, verify::given_inputs(*tensors, w, substream(seed, 1)).values});
  };
  const std::vector<std::string> names = names_of(o.files);
  for (std::size_t i = 0; i < o.files.size(); ++i) {
    WorkloadOptions one = o.workload;
    one.qkv = o.files[i];
    add_given(names[i], one);
  }
  if (o.files.empty() && o.workload.has_tensors()) add_given("given", o.workload);
  if (!all.empty()) return all;
  const Workload w = o.workload.workload(std::nullopt);
  for (const verify::InputClass inputs : kCalibrationInputs)
    all.push_back({std::string(to_string(inputs)), w, "", verify::make_inputs(w, inputs, substream(seed, 1))});
  return all;
}

// The mode with the least of the largest errors over some inputs.
Choice choose(const std::vector<const quantise::Mode*>& modes, const std::vector<Cost>& costs,
              std::optional<double> most, const Inputs* only) {
  Choice choice;
  for (const quantise::Mode* mode : modes) {
    double worst = 0;
    for (const Cost& cost : costs)
      if (cost.mode == mode && (only == nullptr || cost.inputs == only)) worst = std::max(worst, cost.accuracy.rel_rms);
    if (choice.best == nullptr || worst < choice.rel_rms) choice = {mode, worst, false};
  }
  choice.is_chosen = std::isfinite(choice.rel_rms) && (!most || choice.rel_rms <= *most);
  return choice;
}

std::string text_of(const Choice& choice, std::optional<double> most) {
  if (!std::isfinite(choice.rel_rms)) return "none: every mode makes values infinite\n";
  if (choice.is_chosen)
    return fmt::format("{}: {}; at most {:.2e} relative RMS; quantised={}\n", choice.best->name, choice.best->words,
                       choice.rel_rms, choice.best->tensors);
  return fmt::format("none: the best, {}, is off by {:.2e} relative RMS, more than {:.2e}\n", choice.best->name,
                     choice.rel_rms, most.value_or(0));
}

nlohmann::json json_of(const Choice& choice) {
  return choice.is_chosen ? nlohmann::json(choice.best->name) : nlohmann::json();
}

// To the file that precision= takes. Of several files the choice that serves all of them.
void write_choices(const CalibrateOptions& o, const std::vector<Inputs>& inputs, const Choice& choice) {
  nlohmann::json layer = {{"mode", json_of(choice)},
                          {"workload", to_string(inputs.front().workload)},
                          {"rel_rms", choice.rel_rms},
                          {"heed", HEED_VERSION}};
  if (o.most) layer["most"] = *o.most;
  if (!inputs.front().digest.empty()) layer["tensors_digest"] = inputs.front().digest;
  write_choice(o.choices, o.layer, std::move(layer));
}

int run(const CalibrateOptions& o) {
  expect_choices(o.choices, o.layer);
  if (!o.layer.empty() && o.files.size() > 1)
    throw Error(ErrorCode::usage, "--layer is of one file; give one --qkv", o.layer);
  if (!o.files.empty() && (!o.workload.q.empty() || !o.workload.k.empty() || !o.workload.v.empty()))
    throw Error(ErrorCode::usage, "give either --qkv or --q, --k and --v, not both", o.files.front());
  if (o.most && !(*o.most > 0))
    throw Error(ErrorCode::usage, fmt::format("--most {} is no relative RMS error; give a positive number", *o.most),
                std::to_string(*o.most));
  std::vector<const quantise::Mode*> modes;
  for (const std::string& name : o.modes) modes.push_back(&quantise::find_mode(name));
  const std::uint64_t seed = o.seed != 0 ? o.seed : fresh_seed() >> 1;
  const std::vector<Inputs> inputs = inputs_of(o, seed);
  // Every file is a choice of its own; drawn inputs are kinds that one mode has to serve.
  const bool is_many = !inputs.front().digest.empty() && inputs.size() > 1;

  std::vector<std::string> refused;
  if (modes.empty())
    for (const quantise::Mode& mode : quantise::modes()) modes.push_back(&mode);
  std::erase_if(modes, [&](const quantise::Mode* mode) {
    try {
      for (const Inputs& one : inputs) (void)quantise::quantised_by(one.workload, *mode);
      return false;
    } catch (const Error& error) {
      if (!o.modes.empty()) throw;
      refused.push_back(fmt::format("{}: {}", mode->name, error.what()));
      return true;
    }
  });
  if (modes.empty()) throw Error(ErrorCode::unsupported, "no mode quantises this workload: " + refused.front());

  std::vector<Cost> costs;
  std::size_t rows_of_o = 0;
  for (const Inputs& one : inputs) {
    const std::vector<RowIndex> rows = verify::choose_rows(one.workload, kCalibrationFlops, seed);
    rows_of_o = std::max(rows_of_o, rows.size());
    for (const quantise::Mode* mode : modes) {
      check_interrupt();
      costs.push_back({mode, &one, verify::cost_of(one.workload, *mode, one.values, rows, substream(seed, 2))});
    }
  }
  std::vector<std::string> lost;
  for (const Cost& cost : costs)
    if (!std::isfinite(cost.accuracy.rel_rms))
      lost.push_back(
          fmt::format("{} of {}: smoothing or rotating makes infinite {}", cost.mode->name, cost.inputs->name,
                      verify::lost_values(cost.inputs->workload, *cost.mode, cost.inputs->values, substream(seed, 2))));
  const Choice of_all = choose(modes, costs, o.most, nullptr);
  std::vector<Choice> choices;  // of each file, where there are several
  if (is_many)
    for (const Inputs& one : inputs) choices.push_back(choose(modes, costs, o.most, &one));
  const bool is_chosen = is_many
                             ? std::all_of(choices.begin(), choices.end(), [](const Choice& c) { return c.is_chosen; })
                             : of_all.is_chosen;

  if (!o.choices.empty()) write_choices(o, inputs, of_all);
  if (o.json || !o.evidence.empty()) {
    nlohmann::json all = report::evidence_header("calibration", record::to_json(cpu_facts()), sources());
    all.update({{"seed", seed},
                {"rows_of_o", rows_of_o},
                {"refused", refused},
                {"lost", lost},
                {"chosen", json_of(of_all)},
                {"rows", nlohmann::json::array()},
                {"table", table_of(costs)}});
    if (!is_many) all["workload"] = to_string(inputs.front().workload);
    if (!is_many && !inputs.front().digest.empty()) all["tensors_digest"] = inputs.front().digest;
    for (std::size_t i = 0; i < choices.size(); ++i)
      all["files"].push_back({{"name", inputs[i].name},
                              {"workload", to_string(inputs[i].workload)},
                              {"tensors_digest", inputs[i].digest},
                              {"chosen", json_of(choices[i])}});
    for (const Cost& cost : costs) {
      nlohmann::json one = record::to_json(cost.accuracy);
      one["mode"] = cost.mode->name;
      one["inputs"] = cost.inputs->name;
      one["quantised"] = to_string(*quantise::quantised_by(cost.inputs->workload, *cost.mode).quantised);
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
    table.add({cost.inputs->name, std::string(cost.mode->name), fmt::format("{:.2e}", cost.accuracy.rel_rms),
               fmt::format("{:.2e}", cost.accuracy.rel_l1), fmt::format("{:.2e}", 1 - cost.accuracy.cosine),
               fmt::format("{:.2e}", cost.accuracy.worst_row)});
  print(fmt::format("workload  {}{}, {} rows, seed {}\n{}", to_string(inputs.front().workload),
                    is_many ? fmt::format(" and {} more files", inputs.size() - 1) : "", rows_of_o, seed, table.str()));
  for (const std::string& text : refused) print(fmt::format("left out  {}\n", text));
  for (const std::string& text : lost) print(fmt::format("lost      {}\n", text));
  for (std::size_t i = 0; i < choices.size(); ++i)
    print(fmt::format("chosen    for {} {}", inputs[i].name, text_of(choices[i], o.most)));
  print(fmt::format("chosen    {}{}", is_many ? "for all " : "", text_of(of_all, o.most)));
  return is_chosen ? 0 : 1;
}

}  // namespace

void add_calibrate(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Errors of O when Q, K and V are quantised to 8 bits, by mode, and the mode with the least");
  o->workload.add_to(*command);
  command->remove_option(command->get_option("--qkv"));
  command->add_option("--qkv", o->files,
                      "A .safetensors file with tensors q, k and v: shape and dtype are taken from them; may be given "
                      "several times, for each of which a mode is chosen");
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
      "  heed calibrate --qkv layer3.safetensors --most 0.02 --choices choices.json --layer encoder.layer.3\n"
      "  heed calibrate --qkv layer0.safetensors --qkv layer1.safetensors --evidence calibration.json");
  command->callback([o, &exit_code] { exit_code = run(*o); });
}

}  // namespace heed::cli
