#include "evolve/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "evolve/json.hpp"
#include "jit/embedded.hpp"
#include "measure/peer.hpp"

namespace heed::evolve {
namespace {

constexpr int kFinalists = 3;
constexpr int kFinalProcesses = 3;      // fresh processes in which the winner is measured
constexpr double kHopelessBelow = 0.9;  // a trial whose whole interval is below this is not measured further
constexpr int kAblationWinners = 3;     // trials that the ablation may add to a run
constexpr double kFloorReached = 1.05;  // a champion within 5% of the floor has nothing left to gain

double finite(double value) {
  return std::isfinite(value) ? value : 0.0;
}

}  // namespace

Evolution::Evolution(store::Store& store, jit::Builder& builder, const DeviceFacts& device, const RunOptions& options,
                     const trial::Options& trial_options, const QkvTensors* tensors, Observer& observer,
                     std::optional<std::int64_t> resume)
    : store_(store),
      builder_(builder),
      device_(device),
      options_(options),
      observer_(observer),
      family_(options.family.empty() ? default_family(device.kind) : find_family(options.family)),
      laboratory_(options.workload, device, builder, tensors, trial_options),
      started_(std::chrono::steady_clock::now()) {
  if (options_.trials < 1)
    throw Error(ErrorCode::usage, fmt::format("--trials {} makes no run; at least 1 is needed", options_.trials),
                std::to_string(options_.trials));
  options_.family = family_.name();
  if (const auto reason = family_.refuses(options_.workload, device_))
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} cannot run {} on {}: {}", family_.name(), to_string(options_.workload), device_.name, *reason),
        to_string(options_.workload));
  (void)builder_.toolchain(device_.kind);  // no compiler: say so before a run exists
  if (resume) {
    store_.claim(*resume);
    run_ = *resume;
    trials_ = store_.trials(run_);
    if (!trials_.empty()) earlier_s_ = trials_.back().run_elapsed_s;
    return;
  }
  store::RunRecord record;
  record.created = store::utc_now();
  record.workload = to_string(options_.workload);
  record.family = options_.family;
  record.device_kind = to_string(device_.kind);
  record.device = to_json(device_);
  record.options = to_json(options_);
  record.heed = kVersion;
  record.source_digest = jit::source_digest();
  run_ = store_.add_run(record);
}

Evolution::~Evolution() = default;

double Evolution::elapsed_s() const {
  return earlier_s_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

nlohmann::json Evolution::run() {
  try {
    prepare_base();
    evolve();
    nlohmann::json result = finish();
    store_.set_result(run_, result, store::RunState::finished);
    store_.release(run_);
    return result;
  } catch (...) {
    // Whatever it was, the trials are stored; marking the run may fail for the same reason that ended it.
    try {
      store_.set_state(run_, store::RunState::interrupted);
      store_.release(run_);
    } catch (const Error&) {
    }
    throw;
  }
}

void Evolution::prepare_base() {
  const Variant base = make_variant(family_, family_.default_config(options_.workload, device_), options_.workload);
  observer_.message(fmt::format("building and verifying the base, {}", base.id()));
  const trial::Built built = laboratory_.build(base);
  laboratory_.set_base(built);
  const trial::Laboratory::SelfComparison& comparison = laboratory_.base_against_itself();
  const measure::PairResult& self = comparison.pair;
  const measure::Floor floor = laboratory_.floor(device_.processors);
  floor_us_ = floor.us();
  const std::optional<store::RunRecord> stored = store_.find_run(run_);
  if (stored && stored->base.is_object()) {
    self_spread_ = stored->base.at("self_spread").get<double>();  // decisions rest on what was recorded
  } else {
    self_spread_ = comparison.spread;
    store_.set_base(run_, {{"variant", base.id()},
                           {"describe", describe(base)},
                           {"us", self.base_median_us},
                           {"self_ratio", to_json(self.ratio)},
                           {"self_spread", self_spread_},
                           {"self_samples", samples_json(self)},
                           {"resources", to_json(built.artifact.resources)},
                           {"floor", to_json(floor)}});
  }
  observer_.message(
      fmt::format("base {:.2f} us, {:.1f}% of the floor ({}: {:.2f} us); the base against itself: within {:.4f} of 1",
                  self.base_median_us, 100 * floor_us_ / self.base_median_us, floor.bound(), floor_us_, self_spread_));
}

std::vector<Individual> Evolution::individuals() const {
  std::vector<Individual> all;
  const Config defaults = family_.default_config(options_.workload, device_);
  for (const store::TrialRecord& t : trials_)
    all.push_back({t.number, t.generation, t.island, parse_config(family_.knobs(), defaults, t.config),
                   t.verdict == to_string(Verdict::ok), t.ratio});
  return all;
}

Space Evolution::space() const {
  return {&family_.knobs(), family_.default_config(options_.workload, device_),
          [this](const Config& config) { return !family_.is_illegal(config, options_.workload, device_); }};
}

void Evolution::evolve() {
  const Space where = space();
  const auto trials_done = [&] { return static_cast<int>(trials_.size()); };
  const auto best_ratio = [&] {
    double best = 0;
    for (const store::TrialRecord& t : trials_)
      if (t.verdict == to_string(Verdict::ok)) best = std::max(best, t.ratio);
    return best;
  };
  // A generation's number is fixed by the trials of those before it, so a resumed run finds its place again.
  int generation = trials_.empty() ? 0 : trials_.back().generation;
  while (trials_done() < options_.trials) {
    std::vector<Individual> earlier;
    for (const Individual& individual : individuals())
      if (individual.generation < generation) earlier.push_back(individual);
    const auto first = static_cast<int>(earlier.size());
    std::vector<Proposal> proposals = propose(options_.strategy, where, generation, earlier);
    if (static_cast<int>(proposals.size()) > options_.trials - first)
      proposals.resize(static_cast<std::size_t>(options_.trials - first));
    if (proposals.empty()) {
      observer_.message("the space holds no variant that was not tried; stopping");
      return;
    }
    observer_.generation_started(generation, first, options_.trials);
    std::vector<std::future<jit::BuildOutcome>> builds(proposals.size());
    for (std::size_t i = 0; i < proposals.size(); ++i)
      if (first + static_cast<int>(i) >= trials_done())
        builds[i] =
            builder_.start(laboratory_.request_for(make_variant(family_, proposals[i].config, options_.workload)));
    // On a GPU the first finished build is measured while the others are compiled. On a CPU the compiler would disturb
    // what is measured, so all builds come first.
    if (device_.kind == DeviceKind::cpu)
      for (auto& build : builds)
        if (build.valid()) build.wait();
    for (std::size_t i = 0; i < proposals.size(); ++i) {
      const int number = first + static_cast<int>(i);
      if (number < trials_done()) continue;  // stored before the run was interrupted
      check_interrupt();
      store::TrialRecord record = run_trial(number, generation, proposals[i], builds[i]);
      record.id = store_.add_trial(record);
      trials_.push_back(std::move(record));
      observer_.trial_finished(trials_.back(), best_ratio(), options_.trials);
    }
    ++generation;
    floor_us_ = std::min(floor_us_, laboratory_.floor(device_.processors).us());
    for (const store::TrialRecord& t : trials_)
      if (t.verdict == to_string(Verdict::ok) && t.trial_us <= kFloorReached * floor_us_) {
        observer_.message(
            fmt::format("trial {} is within 5% of the floor of {:.2f} us; stopping", t.number, floor_us_));
        return;
      }
    if (options_.budget_s > 0 && elapsed_s() > options_.budget_s) {
      observer_.message(fmt::format("the budget of {} is used up; stopping after {} trials",
                                    human_duration(options_.budget_s), trials_done()));
      return;
    }
  }
}

store::TrialRecord Evolution::run_trial(int number, int generation, const Proposal& proposal,
                                        std::future<jit::BuildOutcome>& build) {
  const Variant variant = make_variant(family_, proposal.config, options_.workload);
  store::TrialRecord record;
  record.run = run_;
  record.number = number;
  record.generation = generation;
  record.island = proposal.island;
  record.variant = variant.id();
  record.config = to_string(family_.knobs(), proposal.config);
  record.operation = to_string(proposal.operation);
  record.parents = proposal.parents;
  record.why = proposal.why;
  record.seed = fresh_seed() >> 1;  // fits SQLite's signed integers
  record.source_digest = jit::source_digest();
  record.resources = nlohmann::json::object();
  record.samples = nlohmann::json::object();
  record.clocks = nlohmann::json::object();

  const jit::BuildOutcome outcome = build.get();
  if (interrupted()) check_interrupt();  // a compiler killed by the interrupt is no verdict on the variant
  trial::Outcome judged;
  const LaunchPlan plan = family_.plan(proposal.config, options_.workload, device_);
  const store::TrialRecord* twin = nullptr;
  if (outcome.artifact)
    for (const store::TrialRecord& earlier : trials_)
      if (earlier.machine_code == outcome.artifact->machine_code && earlier.verdict != to_string(Verdict::duplicate)) {
        const Config config = parse_config(family_.knobs(), proposal.config, earlier.config);
        if (family_.plan(config, options_.workload, device_) == plan) twin = &earlier;
      }
  if (twin != nullptr) {
    judged.verdict = Verdict::duplicate;
    judged.reason = fmt::format("the same machine code and launch as trial {}", twin->number);
    judged.artifact = outcome.artifact;
  } else {
    measure::PairOptions pair = as_sharp_as_useful(laboratory_.options().pair);
    pair.seed = substream(options_.strategy.seed, static_cast<std::uint64_t>(number));
    pair.hopeless_below = kHopelessBelow;
    judged = laboratory_.judge(variant, outcome, record.seed, pair);
  }
  record.verdict = to_string(judged.verdict);
  record.finding = to_string(judged.finding);
  record.reason = judged.reason;
  record.check = judged.check;
  record.ratio = finite(judged.pair.ratio.value);
  record.ratio_low = finite(judged.pair.ratio.low);
  record.ratio_high = finite(judged.pair.ratio.high);
  record.base_us = finite(judged.pair.base_median_us);
  record.trial_us = finite(judged.pair.trial_median_us);
  record.max_abs = finite(judged.error.max_abs);
  record.rel_rms = finite(judged.error.rel_rms);
  record.worst_row = finite(judged.error.worst_row);
  record.samples = samples_json(judged.pair);
  record.clocks = {{"before", to_json(judged.before)}, {"after", to_json(judged.after)}};
  if (judged.artifact) {
    record.machine_code = judged.artifact->machine_code;
    record.resources = to_json(judged.artifact->resources);
    record.build_ms = judged.artifact->build_ms;
  }
  record.verify_ms = judged.verify_ms;
  record.measure_ms = judged.measure_ms;
  record.run_elapsed_s = elapsed_s();
  record.finished = store::utc_now();
  return record;
}

// An interval much narrower than what the base shows against itself on this machine decides nothing more.
measure::PairOptions Evolution::as_sharp_as_useful(measure::PairOptions options) const {
  options.target_uncertainty = std::max(options.target_uncertainty, self_spread_ / 4);
  return options;
}

// The best few of the run once more against the base, each in a fresh process: what won among many by luck falls back
// here.
nlohmann::json Evolution::compare_finalists() {
  std::vector<const store::TrialRecord*> best;
  for (const store::TrialRecord& t : trials_)
    if (t.verdict == to_string(Verdict::ok)) best.push_back(&t);
  std::stable_sort(best.begin(), best.end(), [](const auto* a, const auto* b) { return a->ratio > b->ratio; });
  if (best.size() > kFinalists) best.resize(kFinalists);

  nlohmann::json winner;
  for (const store::TrialRecord* t : best) {
    observer_.message(
        fmt::format("measuring trial {} again in a fresh process ({:.3f} in the search)", t->number, t->ratio));
    const nlohmann::json data = compare_in_fresh_process(*t);
    if (data["verdict"] == to_string(Verdict::ok) &&
        (winner.is_null() || data["ratio"]["value"] > winner["ratio"]["value"]))
      winner = data;
  }
  if (winner.is_null()) return winner;

  // Where the loader puts code and data moves a ratio from process to process; the interval quoted must span that.
  const auto same = [&](const store::TrialRecord* t) { return t->number == winner["trial"].get<int>(); };
  const store::TrialRecord& champion = **std::find_if(best.begin(), best.end(), same);
  std::vector<double> ratios = winner["samples"]["ratios"].get<std::vector<double>>();
  std::vector<double> base_us = winner["samples"]["base_us"].get<std::vector<double>>();
  std::vector<double> trial_us = winner["samples"]["trial_us"].get<std::vector<double>>();
  measure::Ratio span = ratio_from_json(winner["ratio"]);
  for (int process = 1; process < kFinalProcesses; ++process) {
    observer_.message(
        fmt::format("measuring trial {} in fresh process {} of {}", champion.number, process + 1, kFinalProcesses));
    const nlohmann::json data = compare_in_fresh_process(champion);
    if (data["verdict"] != to_string(Verdict::ok)) return data;
    const measure::Ratio one = ratio_from_json(data["ratio"]);
    span.low = std::min(span.low, one.low);
    span.high = std::max(span.high, one.high);
    const auto append = [&](std::vector<double>& all, const char* key) {
      for (const auto& value : data["samples"][key]) all.push_back(value.get<double>());
    };
    append(ratios, "ratios");
    append(base_us, "base_us");
    append(trial_us, "trial_us");
  }
  span.value = measure::median(ratios);
  winner["ratio"] = to_json(span);
  winner["base_us"] = measure::median(base_us);
  winner["trial_us"] = measure::median(trial_us);
  winner["samples"] = {{"ratios", ratios}, {"base_us", base_us}, {"trial_us", trial_us}};
  winner["processes"] = kFinalProcesses;
  return winner;
}

// One finished trial against the base once more, in a worker of its own; stored as a "final" comparison.
nlohmann::json Evolution::compare_in_fresh_process(const store::TrialRecord& t) {
  check_interrupt();
  const Config config = parse_config(family_.knobs(), family_.default_config(options_.workload, device_), t.config);
  const Variant variant = make_variant(family_, config, options_.workload);
  const jit::BuildOutcome build = builder_.build(laboratory_.request_for(variant));
  const trial::Outcome outcome =
      laboratory_.judge(variant, build, fresh_seed() >> 1, as_sharp_as_useful(laboratory_.options().final_pair),
                        /*fresh=*/true);
  const nlohmann::json data = {{"trial", t.number},
                               {"trial_id", t.id},
                               {"variant", variant.id()},
                               {"config", t.config},
                               {"verdict", to_string(outcome.verdict)},
                               {"reason", outcome.reason},
                               {"search_ratio", t.ratio},
                               {"ratio", to_json(outcome.pair.ratio)},
                               {"base_us", outcome.pair.base_median_us},
                               {"trial_us", outcome.pair.trial_median_us},
                               {"error", to_json(outcome.error)},
                               {"clocks", {{"before", to_json(outcome.before)}, {"after", to_json(outcome.after)}}},
                               {"samples", samples_json(outcome.pair)}};
  store_.add_comparison({0, run_, "final", variant.id(), laboratory_.base().variant.id(), data});
  return data;
}

nlohmann::json Evolution::compare_with_peers(const trial::Built& champion) {
  nlohmann::json peers = {{"rows", nlohmann::json::array()}};
  if (!options_.peers) {
    peers["reason"] = "not asked for";
    return peers;
  }
  observer_.message("looking for PyTorch");
  const measure::TimingPlan timing = laboratory_.timing();
  measure::SdpaPeer sdpa(options_.python, options_.workload, device_, timing, fresh_seed());
  if (!sdpa.available()) {
    peers["reason"] = sdpa.reason();
    observer_.message(fmt::format("no comparison with PyTorch: {}", sdpa.reason()));
    return peers;
  }
  peers["torch"] = sdpa.torch_version();
  peers["cudnn"] = sdpa.cudnn_version();
  const measure::Block ours = laboratory_.standalone_block(champion);
  for (const measure::PeerBackend& backend : sdpa.backends()) {
    check_interrupt();
    nlohmann::json row = {{"backend", backend.name}, {"kernels", backend.kernels}, {"refused", backend.refused}};
    if (backend.refused.empty()) {
      try {
        observer_.message(fmt::format("measuring against {}", backend.name));
        const measure::Block theirs = sdpa.block(backend.name);
        (void)theirs();  // captures its graph
        const measure::PairResult pair = measure::measure_pair(theirs, ours, laboratory_.options().final_pair);
        row["us"] = pair.base_median_us;
        row["champion_us"] = pair.trial_median_us;
        row["ratio"] = to_json(pair.ratio);
        row["max_abs"] = sdpa.max_abs_error(backend.name);
        row["samples"] = samples_json(pair);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::interrupted) throw;
        row["refused"] = error.what();
      }
    }
    store_.add_comparison({0, run_, "peer", champion.variant.id(), backend.name, row});
    peers["rows"].push_back(row);
  }
  for (const auto& row : peers["rows"])
    if (row.contains("us") && (!peers.contains("best") || row["us"].get<double>() < peers["best_us"].get<double>())) {
      peers["best"] = row["backend"];
      peers["best_us"] = row["us"];
      peers["best_ratio"] = row["ratio"];
    }
  return peers;
}

// Every knob in which the champion differs from the default, put back by itself.
nlohmann::json Evolution::ablate(const trial::Built& champion) {
  nlohmann::json rows = nlohmann::json::array();
  const Config defaults = family_.default_config(options_.workload, device_);
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < defaults.size(); ++i)
    if (champion.variant.config[i] != defaults[i]) changed.push_back(i);
  if (changed.empty()) return rows;
  observer_.message(fmt::format("ablation: taking back the champion's {} changes one by one", changed.size()));
  try {
    laboratory_.set_base(champion);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    observer_.message(fmt::format("no ablation: {}", error.what()));  // the result stands without it
    return rows;
  }
  std::vector<std::future<jit::BuildOutcome>> builds;
  std::vector<Variant> variants;
  for (const std::size_t i : changed) {
    Config config = champion.variant.config;
    config[i] = defaults[i];
    variants.push_back(make_variant(family_, config, options_.workload));
    const bool legal = !laboratory_.refuses(variants.back());
    builds.push_back(legal ? builder_.start(laboratory_.request_for(variants.back()))
                           : std::future<jit::BuildOutcome>());
  }
  if (device_.kind == DeviceKind::cpu)
    for (auto& build : builds)
      if (build.valid()) build.wait();
  for (std::size_t n = 0; n < changed.size(); ++n) {
    check_interrupt();
    const Knob& knob = family_.knobs()[changed[n]];
    nlohmann::json row = {{"knob", knob.name},
                          {"default", knob.text_of(defaults[changed[n]])},
                          {"champion", knob.text_of(champion.variant.config[changed[n]])},
                          {"config", to_string(family_.knobs(), variants[n].config)}};
    if (!builds[n].valid()) {
      row["verdict"] = to_string(Verdict::illegal);
      row["reason"] = *laboratory_.refuses(variants[n]);
    } else {
      const trial::Outcome outcome = laboratory_.judge(variants[n], builds[n].get(), fresh_seed() >> 1);
      row["verdict"] = to_string(outcome.verdict);
      row["reason"] = outcome.reason;
      if (outcome.ok()) {
        // How much slower without the change: the interval turns round with the ratio.
        const measure::Ratio& r = outcome.pair.ratio;
        row["bought"] = to_json(measure::Ratio{1 / r.value, 1 / r.high, 1 / r.low});
        row["without_us"] = outcome.pair.trial_median_us;
      }
    }
    store_.add_comparison({0, run_, "ablation", variants[n].id(), champion.variant.id(), row});
    rows.push_back(row);
  }
  return rows;
}

// Tries the variant that the ablation found fastest, if it beats the champion: it was measured against the champion
// then, and is now against the base like every trial. Says whether there is a new trial.
bool Evolution::try_ablation_winner(const nlohmann::json& ablation, int champion_trial) {
  const nlohmann::json* winner = nullptr;
  for (const auto& row : ablation)
    if (row.contains("bought") && row["bought"]["high"].get<double>() < 1 - self_spread_ &&
        (winner == nullptr || row["bought"]["value"] < (*winner)["bought"]["value"]))
      winner = &row;
  if (winner == nullptr) return false;
  const Proposal proposal{
      parse_config(family_.knobs(), space().default_config, (*winner)["config"].get<std::string>()),
      Operation::revert,
      {champion_trial},
      fmt::format("{} {} -> {} of trial {}", (*winner)["knob"].get<std::string>(),
                  (*winner)["champion"].get<std::string>(), (*winner)["default"].get<std::string>(), champion_trial),
      0};
  for (const store::TrialRecord& t : trials_)
    if (t.config == (*winner)["config"]) return false;  // it had its chance among the finalists
  observer_.message(fmt::format("faster with one change put back: {}", proposal.why));
  std::future<jit::BuildOutcome> build =
      builder_.start(laboratory_.request_for(make_variant(family_, proposal.config, options_.workload)));
  store::TrialRecord record =
      run_trial(static_cast<int>(trials_.size()), trials_.back().generation + 1, proposal, build);
  record.id = store_.add_trial(record);
  trials_.push_back(std::move(record));
  double best = 0;
  for (const store::TrialRecord& t : trials_)
    if (t.verdict == to_string(Verdict::ok)) best = std::max(best, t.ratio);
  observer_.trial_finished(trials_.back(), best, static_cast<int>(trials_.size()));
  return true;
}

nlohmann::json Evolution::finish() {
  nlohmann::json result;
  result["self_spread"] = self_spread_;
  const trial::Built base = laboratory_.base();
  nlohmann::json final;
  nlohmann::json ablation;
  std::optional<trial::Built> winner;
  for (int added = 0;; ++added) {
    store_.remove_comparisons(run_);  // of an earlier attempt that was interrupted here, or of the round before
    final = compare_finalists();
    if (final.is_null() || final["verdict"] != to_string(Verdict::ok)) {
      result["trials"] = trials_.size();
      result["outcome"] = "no_variant";
      result["summary"] = "no variant passed the gate and the final comparison";
      result["elapsed_s"] = elapsed_s();
      return result;
    }
    const int trial = final.at("trial").get<int>();
    winner =
        laboratory_.build(make_variant(family_,
                                       parse_config(family_.knobs(), family_.default_config(options_.workload, device_),
                                                    final.at("config").get<std::string>()),
                                       options_.workload));
    ablation = ablate(*winner);
    laboratory_.set_base(base);
    if (added == kAblationWinners || !try_ablation_winner(ablation, trial)) break;
  }
  result["trials"] = trials_.size();
  const trial::Built& champion = *winner;
  // The winner's interval must clear what the base shows against itself.
  const bool faster = measure::is_faster(ratio_from_json(final["ratio"]), self_spread_);
  result["outcome"] = faster ? "faster" : "not_faster";
  final["resources"] = to_json(champion.artifact.resources);
  result["final"] = final;

  const auto absolute = [&](const trial::Built& built) {
    check_interrupt();
    const trial::Absolute a = laboratory_.measure_absolute(built);
    return nlohmann::json{{"warm_us", a.warm_us},
                          {"cold_us", a.cold_us},
                          {"eager_us", a.eager_us},
                          {"eager_synchronised_us", a.eager_synchronised_us}};
  };
  observer_.message("measuring base and champion with warm and cold caches");
  result["base_times"] = absolute(base);
  result["champion_times"] = absolute(champion);
  const double champion_us = final["trial_us"].get<double>();
  const measure::Floor floor = laboratory_.floor(device_.processors);
  result["floor"] = to_json(floor);
  result["tflops"] = options_.workload.flops() / champion_us * 1e-6;
  result["peak_share"] = options_.workload.flops() / (champion_us * 1e-6) / laboratory_.peak_flops();
  result["floor_share"] = floor.us() / champion_us;
  result["peers"] = compare_with_peers(champion);
  result["ablation"] = ablation;
  result["summary"] = faster ? fmt::format("{:.3f} times as fast as the base, 95% interval [{:.3f}, {:.3f}]",
                                           final["ratio"]["value"].get<double>(), final["ratio"]["low"].get<double>(),
                                           final["ratio"]["high"].get<double>())
                             : "no variant is faster than the base beyond what the base shows against itself";
  result["elapsed_s"] = elapsed_s();
  return result;
}

}  // namespace heed::evolve
