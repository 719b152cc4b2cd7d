#include "evolve/run.hpp"

#include <fmt/format.h>

#include "base/random.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "compile/embedded.hpp"
#include "evolve/finish.hpp"
#include "evolve/search.hpp"
#include "evolve/shared_search.hpp"
#include "insights/harvest.hpp"
#include "record/json.hpp"

namespace heed::evolve {

Evolution::Evolution(store::Store& store, jit::Builder& builder, const DeviceFacts& device,
                     const record::RunOptions& options, const trial::Options& trial_options, const QkvTensors* tensors,
                     Observer& observer, std::optional<std::int64_t> resume, std::vector<DeviceOfRun> devices)
    : context_(store, builder, device, options, trial_options, tensors, observer), devices_(std::move(devices)) {
  (void)builder.toolchain(device.kind);  // no compiler: say so before a run exists
  if (device.kind == DeviceKind::cuda)
    context_.emulate = [this](const Variant& variant) {
      return emulator::emulate(variant, context_.options.workload, context_.device, context_.builder,
                               {.seed = fresh_seed() >> 1});
    };
  if (!devices_.empty()) expect_shareable(context_.options, device.kind, devices_.size());
  if (resume) {
    store.claim(*resume);
    context_.run = *resume;
    context_.take_trials(store.trials(*resume));
    if (!context_.trials.empty()) context_.earlier_s = context_.trials.back().run_elapsed_s;
    return;
  }
  store::RunRecord record;
  record.created = store::utc_now();
  record.workload = to_string(options.workload);
  record.families = join(context_.options.families, ",");
  record.device_kind = to_string(device.kind);
  record.device = record::to_json(device);
  record.options = to_json(context_.options);
  record.options["referee"] = kReferee;
  record.heed = kVersion;
  record.source_digest = compile::source_digest();
  context_.run = store.add_run(record);
}

record::RunResult Evolution::run() {
  store::Store& store = context_.store;
  try {
    const double floor_us = prepare_base();
    search(floor_us);  // the memory and the contexts that it took are in nobody's way from here on
    record::RunResult result = finish(context_);
    result.time = context_.time_shares();
    store.set_result(context_.run, record::to_json(result), store::RunState::finished);
    if (const auto finished = store.find_run(context_.run))
      for (const store::ObservationRecord& one : insights::harvest(*finished, context_.trials))
        store::add_observation(store, one);
    store.release(context_.run);
    return result;
  } catch (...) {
    // Whatever it was, the trials are stored; marking the run may fail for the same reason that ended it.
    try {
      store.set_state(context_.run, store::RunState::interrupted);
      store.release(context_.run);
    } catch (const Error&) {
    }
    throw;
  }
}

void Evolution::search(double floor_us) {
  const PartOfRun part(context_, "search");
  // What several devices began is gone on with as such, be it by one.
  if (devices_.empty() && !context_.store.generations(context_.run).empty())
    devices_.push_back(only_device(context_.device));
  context_.prepared_s = context_.elapsed_s() - context_.earlier_s;
  if (!devices_.empty()) {
    SharedSearch(context_, devices_, floor_us).run();
    return;
  }
  Search search(context_, floor_us);
  context_.prepared_s = context_.elapsed_s() - context_.earlier_s;
  search.run();
}

double Evolution::prepare_base() {
  const PartOfRun part(context_, "base");
  trial::TrialRunner& trial_runner = context_.trial_runner;
  const DeviceFacts& device = context_.device;
  const Variant variant =
      default_with(*context_.families.front(), context_.options.hold, context_.options.workload, device);
  context_.observer.message(fmt::format("building and verifying the base, {}", variant.id()));
  const trial::Built built = trial_runner.build(variant);
  trial_runner.set_base(built);
  const trial::TrialRunner::SelfComparison& self = trial_runner.base_against_itself();
  const measure::Floor floor = trial_runner.floor(device.processors);
  const std::optional<store::RunRecord> stored = context_.store.find_run(context_.run);
  if (stored && stored->base.is_object()) {
    context_.self_spread = record::self_spread_of(stored->base);  // decisions rest on what was recorded
  } else {
    const record::RunBase base{.variant = variant.id(),
                               .describe = describe(variant),
                               .self = self,
                               .noise = trial::noise_of(self),
                               .resources = built.artifact.resources,
                               .floor = floor};
    context_.self_spread = self.spread;
    if (is_too_noisy(base.noise))
      context_.observer.message("this machine is too noisy for a search at the moment: " +
                                describe(base.noise, device.kind == DeviceKind::cpu));
    context_.store.set_base(context_.run, record::to_json(base));
  }
  context_.observer.message(
      fmt::format("base {:.2f} us, {:.1f}% of the floor ({}: {:.2f} us); the base against itself: within {:.4f} of 1",
                  self.pair.base_median_us, 100 * floor.us() / self.pair.base_median_us, floor.bound(), floor.us(),
                  context_.self_spread));
  return floor.us();
}

}  // namespace heed::evolve
