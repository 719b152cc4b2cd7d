#include "evolve/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "base/check.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "jit/embedded.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "variant/renames.hpp"

namespace heed::evolve {
namespace {

constexpr double kFloorReached = 1.05;  // a champion within 5% of the floor has nothing left to gain

// @throws Error(usage) for a name that is unknown or there twice, Error(unsupported) where one cannot run the workload
std::vector<const Family*> families_for(const RunOptions& options, const DeviceFacts& device) {
  std::vector<const Family*> all;
  if (options.families.empty()) all = searched_families(options.workload, device);
  for (const std::string& name : options.families) all.push_back(&find_family(name));
  for (std::size_t i = 0; i < all.size(); ++i)
    if (std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), all[i]) !=
        all.begin() + static_cast<std::ptrdiff_t>(i))
      throw Error(ErrorCode::usage, fmt::format("the family {} is named twice; once is enough", all[i]->name()),
                  std::string(all[i]->name()));
  for (const Family* family : all)
    if (const auto reason = family->refuses(options.workload, device))
      throw Error(
          ErrorCode::unsupported,
          fmt::format("{} cannot run {} on {}: {}", family->name(), to_string(options.workload), device.name, *reason),
          to_string(options.workload));
  return all;
}

// @throws Error(usage) for a variant of a family that is not searched, and whatever parse_variant does
std::vector<Variant> found_before(const RunOptions& options, const DeviceFacts& device,
                                  const std::vector<const Family*>& families) {
  std::vector<Variant> found;
  for (const std::string& text : options.found) {
    const Family& family = find_family(text.substr(0, text.find(':')));
    if (std::find(families.begin(), families.end(), &family) == families.end())
      throw Error(ErrorCode::usage,
                  fmt::format("the search cannot begin with a variant of {}, which is none of the families that it "
                              "goes through; name it with --family, too",
                              family.name()),
                  text);
    found.push_back(parse_variant(text, options.workload, device));
  }
  return found;
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
      families_(families_for(options, device)),
      found_(found_before(options, device, families_)),
      laboratory_(options.workload, device, builder, tensors, trial_options),
      started_(std::chrono::steady_clock::now()) {
  if (options_.trials < 1)
    throw Error(ErrorCode::usage, fmt::format("--trials {} makes no run; at least 1 is needed", options_.trials),
                std::to_string(options_.trials));
  options_.families.clear();
  for (const Family* family : families_) options_.families.emplace_back(family->name());
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
  record.families = join(options_.families, ",");
  record.device_kind = to_string(device_.kind);
  record.device = record::to_json(device_);
  record.options = to_json(options_);
  record.options["referee"] = kReferee;
  record.heed = kVersion;
  record.source_digest = jit::source_digest();
  run_ = store_.add_run(record);
}

Evolution::~Evolution() = default;

double Evolution::elapsed_s() const {
  return earlier_s_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

Budget Evolution::budget() const {
  return {options_.budget_s};
}

double Evolution::gate_s() const {
  double sum = 0;
  int gates = 0;
  for (const store::TrialRecord& t : trials_)
    if (t.verdict == to_string(Verdict::ok)) {
      sum += t.verify_ms / 1000;
      ++gates;
    }
  return gates > 0 ? sum / gates : prepared_s_ / 2;
}

// A trial takes about as long as those before it; the first as long as the base took.
int Evolution::trials_that_fit() const {
  const double trial_s =
      trials_.empty() ? prepared_s_ : trials_.back().run_elapsed_s / static_cast<double>(trials_.size());
  return budget().trials_left(elapsed_s(), trial_s, gate_s(), laboratory_.options().final_pair.limit_s);
}

bool Evolution::has_time_for(double seconds) const {
  return budget().left_s(elapsed_s()) >= seconds;
}

nlohmann::json Evolution::run() {
  try {
    prepare_base();
    evolve();
    drafting_.reset();  // its memory and its context are in nobody's way from here on
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
  const Variant base = parse_variant(families_.front()->name(), options_.workload, device_);
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
    const Noise noise = noise_of(comparison);
    self_spread_ = comparison.spread;
    if (is_too_noisy(noise))
      observer_.message("this machine is too noisy for a search at the moment: " +
                        describe(noise, device_.kind == DeviceKind::cpu));
    store_.set_base(run_, {{"variant", base.id()},
                           {"describe", describe(base)},
                           {"us", self.base_median_us},
                           {"self_ratio", record::to_json(self.ratio)},
                           {"self_spread", self_spread_},
                           {"noise", to_json(noise)},
                           {"self_samples", record::samples_json(self)},
                           {"resources", record::to_json(built.artifact.resources)},
                           {"floor", record::to_json(floor)}});
  }
  if (options_.strategy.drafts > 1) {
    try {
      drafting_.emplace(options_.workload, device_, builder_, nullptr, laboratory_.options());
      drafting_->set_base(built);  // its gate takes the memory that looks take, too
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;  // the memory is not enough for the inputs twice
      drafting_.reset();
      options_.strategy.drafts = 1;
      observer_.message(fmt::format("no drafts, every proposal is a trial: {}", error.what()));
    }
  }
  observer_.message(
      fmt::format("base {:.2f} us, {:.1f}% of the floor ({}: {:.2f} us); the base against itself: within {:.4f} of 1",
                  self.base_median_us, 100 * floor_us_ / self.base_median_us, floor.bound(), floor_us_, self_spread_));
  prepared_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

Variant Evolution::variant_of(const Proposal& proposal) const {
  return heed::variant_of(*families_[static_cast<std::size_t>(proposal.space)], proposal.config, options_.workload);
}

Variant Evolution::variant_of(const store::TrialRecord& trial) const {
  return parse_variant(with_current_names(trial.config), options_.workload, device_);
}

int Evolution::space_of(const Variant& variant) const {
  const auto at = std::find(families_.begin(), families_.end(), variant.family);
  HEED_CHECK(at != families_.end());
  return static_cast<int>(at - families_.begin());
}

double Evolution::best_certain() const {
  double best = 0;
  for (const store::TrialRecord& t : trials_)
    if (t.verdict == to_string(Verdict::ok)) best = std::max(best, t.ratio_low);
  return best;
}

std::vector<Individual> Evolution::individuals(int generation) const {
  std::vector<Individual> all;
  for (const store::TrialRecord& t : trials_) {
    const Variant variant = variant_of(t);
    all.push_back({t.number, t.generation, t.island, values_of(variant), t.verdict == to_string(Verdict::ok),
                   t.ratio_low, profile::bound_at(t.diagnosis, generation), space_of(variant)});
    for (const nlohmann::json& draft : t.drafts) {
      if (draft.at("config") == t.config) continue;
      const Variant drafted = parse_variant(draft.at("config").get<std::string>(), options_.workload, device_);
      all.push_back({t.number, t.generation, t.island, values_of(drafted), false, draft.at("certain").get<double>(),
                     Bound::unknown, space_of(drafted), true});
    }
  }
  return all;
}

std::vector<Space> Evolution::spaces() const {
  std::vector<Space> all;
  for (const Family* family : families_) all.push_back(evolve::space_of(*family, options_.workload, device_));
  for (const Variant& variant : found_)
    all[static_cast<std::size_t>(space_of(variant))].found.push_back(values_of(variant));
  return all;
}

void Evolution::evolve() {
  const std::vector<Space> where = spaces();
  const auto trials_done = [&] { return static_cast<int>(trials_.size()); };
  const auto has_no_time = [&] {
    if (trials_.empty() || trials_that_fit() > 0) return false;
    observer_.message(
        fmt::format("the budget of {} has room for no other trial beside the final comparison; stopping "
                    "after {} trials",
                    human_duration(options_.budget_s), trials_done()));
    return true;
  };
  // A generation's number is fixed by the trials of those before it, so a resumed run finds its place again.
  int generation = trials_.empty() ? 0 : trials_.back().generation;
  while (trials_done() < options_.trials) {
    if (has_no_time()) return;
    profile_elites(generation);
    const auto first = static_cast<int>(std::count_if(
        trials_.begin(), trials_.end(), [&](const store::TrialRecord& t) { return t.generation < generation; }));
    std::vector<Individual> known = individuals(generation);
    std::vector<Individual> earlier;
    std::copy_if(known.begin(), known.end(), std::back_inserter(earlier),
                 [&](const Individual& individual) { return individual.generation < generation; });
    std::vector<Place> places = places_of(propose(options_.strategy, where, generation, earlier));
    if (static_cast<int>(places.size()) > options_.trials - first)
      places.resize(static_cast<std::size_t>(options_.trials - first));
    if (places.empty()) {
      observer_.message("the space holds no variant that was not tried; stopping");
      return;
    }
    observer_.generation_started(generation, first, options_.trials);
    places.erase(places.begin(), places.begin() + (trials_done() - first));  // stored before the run was interrupted
    if (const auto fit = static_cast<std::size_t>(std::max(1, trials_that_fit())); places.size() > fit)
      places.resize(fit);
    draft(generation, where, std::move(known), places);
    for (Place& place : places) {
      check_interrupt();
      if (has_no_time()) return;
      store::TrialRecord record = run_best_of(trials_done(), generation, place);
      record.id = store_.add_trial(record);
      trials_.push_back(std::move(record));
      observer_.trial_finished(trials_.back(), best_certain(), options_.trials);
    }
    ++generation;
    floor_us_ = std::min(floor_us_, laboratory_.floor(device_.processors).us());
    for (const store::TrialRecord& t : trials_)
      if (t.verdict == to_string(Verdict::ok) && t.trial_us <= kFloorReached * floor_us_) {
        observer_.message(
            fmt::format("trial {} is within 5% of the floor of {:.2f} us; stopping", t.number, floor_us_));
        return;
      }
  }
}

}  // namespace heed::evolve
