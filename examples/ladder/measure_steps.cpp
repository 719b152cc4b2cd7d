#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>

#include "base/random.hpp"
#include "base/text.hpp"
#include "ladder/ladder.hpp"
#include "process/interrupt.hpp"

namespace heed::ladder {
namespace {

// A block of readings takes about 700 launches: 0.2 s of a kernel of 300 us. Slow steps differ by factors, and few
// readings show that.
constexpr double kSlow_us = 60;
constexpr int kQuadsOfSlow = 3;
constexpr int kPeerReadings = 5;  // of each backend, to find the best one

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

class StepRunner {
 public:
  StepRunner(const Workload& workload, const DeviceFacts& device, jit::Builder& builder, const Options& options,
             const std::function<void(const std::string&)>& on_message)
      : options_(options),
        on_message_(on_message),
        builder_(builder),
        trial_runner_(workload, device, builder, nullptr, options.trial) {
    result_.workload = workload;
    result_.device = device;
  }

  Result run(std::span<const Step> steps) {
    const auto begin = std::chrono::steady_clock::now();
    result_.date = utc_now();
    start_builds(steps);
    find_best_peer();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      check_interrupt();
      Row row;
      row.step = steps[i];
      if (steps[i].variant.empty())
        measure_backend(row);
      else
        measure_variant(row, i);
      if (row.measured()) {
        if (first_us_ <= 0) first_us_ = row.us;
        row.to_first = first_us_ / row.us;
        row.tflops = result_.workload.flops() / row.us * 1e-6;
        before_ = row.step.name;
        before_us_ = row.us;
      }
      on_message_(describe_row(row));
      result_.rows.push_back(std::move(row));
    }
    result_.floor = trial_runner_.floor(result_.device.processors);
    result_.elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(result_);
  }

 private:
  // All builds are queued first; measuring the first steps overlaps the last builds on a GPU, and on a CPU would be
  // disturbed by them.
  void start_builds(std::span<const Step> steps) {
    const Workload& w = result_.workload;
    for (const Step& step : steps) {
      builds_.emplace_back();
      variants_.emplace_back();
      refusals_.emplace_back();
      if (step.variant.empty()) continue;
      const Family& family = find_family(std::string_view(step.variant).substr(0, step.variant.find(':')));
      if (const auto reason = family.refuses(w, result_.device)) {
        refusals_.back() = *reason;
        continue;
      }
      variants_.back() = parse_variant(step.variant, w, result_.device);
      if (const auto reason = trial_runner_.refuses(*variants_.back())) {
        refusals_.back() = *reason;
        continue;
      }
      builds_.back() = builder_.start(trial_runner_.request_for(*variants_.back()));
    }
    if (result_.device.kind == DeviceKind::cpu)
      for (auto& build : builds_)
        if (build.valid()) build.wait();
  }

  void find_best_peer() {
    if (!options_.peers) {
      result_.peers_reason = "not asked for";
      return;
    }
    on_message_("asking PyTorch for its backends");
    const measure::TimingPlan timing = measure::plan_timing(result_.workload, result_.device, measure::Caches::warm);
    sdpa_ = std::make_unique<measure::SdpaPeer>(options_.python, result_.workload, result_.device, timing, fresh_seed(),
                                                /*with_hybrid=*/true);
    if (!sdpa_->available()) {
      result_.peers_reason = sdpa_->reason();
      on_message_(fmt::format("no comparison with PyTorch: {}", sdpa_->reason()));
      return;
    }
    result_.torch = sdpa_->torch_version();
    result_.cudnn = sdpa_->cudnn_version();
    double best_us = 0;
    for (const measure::PeerBackend& backend : sdpa_->backends()) {
      if (backend.name == measure::kHybridBackend) continue;  // a step of the ladder, not SDPA
      check_interrupt();
      Peer peer{backend.name, 0, backend.kernels, backend.refused};
      if (peer.refused.empty()) try {
          const measure::Block block = sdpa_->block(backend.name);
          (void)block();  // captures its graph
          std::vector<double> us;
          for (int i = 0; i < kPeerReadings; ++i) us.push_back(block().us);
          peer.us = measure::median(us);
          if (best_us == 0 || peer.us < best_us) {
            best_us = peer.us;
            result_.best_peer = peer.backend;
          }
        } catch (const Error& error) {
          if (error.code() == ErrorCode::interrupted) throw;
          peer.refused = error.what();
        }
      result_.peers.push_back(std::move(peer));
    }
  }

  [[nodiscard]] measure::PairOptions pair_options(double us) const {
    measure::PairOptions pair = options_.trial.pair;
    if (us > kSlow_us) pair.least_quads = std::min(pair.least_quads, kQuadsOfSlow);
    return pair;
  }

  void measure_variant(Row& row, std::size_t index) {
    if (!refusals_[index].empty()) {
      row.reason = refusals_[index];
      return;
    }
    const Variant& variant = *variants_[index];
    row.variant_id = variant.id();
    const LaunchPlan plan = variant.plan(result_.workload, result_.device);
    row.shared_bytes = plan.shared_bytes;
    row.blocks = plan.grid[0] * plan.grid[1] * plan.grid[2];
    row.threads = plan.threads;
    const jit::BuildOutcome build = builds_[index].get();
    check_interrupt();
    if (build.artifact) {
      row.resources = build.artifact->resources;
      row.machine_code = build.artifact->machine_code;
    }

    // The first step has nothing before it: it is judged against itself, once it has passed the gate by itself.
    const bool is_first = !last_.has_value();
    if (is_first && build.artifact && build.artifact->violation.empty()) {
      const trial::Built itself{variant, *build.artifact};
      const verify::GateReport report = trial_runner_.verify(itself, fresh_seed() >> 1);
      if (!report.passed()) {
        row.verdict = report.verdict;
        row.finding = report.finding;
        row.reason = fmt::format("{}: {}", report.check, report.reason);
        return;
      }
      trial_runner_.set_base(itself);
    } else if (!is_first) {
      if (trial_runner_.base().variant.id() != last_->variant.id()) trial_runner_.set_base(*last_);
    } else {
      row.verdict = build.artifact ? Verdict::cheating : Verdict::build_failed;
      row.finding = build.artifact ? Finding::breaks_contract : Finding::none;
      row.reason = build.artifact    ? build.artifact->violation
                   : build.timed_out ? std::string("the compiler did not end in time")
                                     : trim(build.log);
      return;
    }
    const trial::Outcome outcome =
        trial_runner_.judge(variant, build, fresh_seed() >> 1, pair_options(is_first ? kSlow_us + 1 : before_us_));
    row.verdict = outcome.verdict;
    row.finding = outcome.finding;
    row.clocks_before = outcome.before;
    row.clocks_after = outcome.after;
    if (!outcome.ok()) {
      row.reason = outcome.check.empty() ? outcome.reason : fmt::format("{}: {}", outcome.check, outcome.reason);
      return;
    }
    row.us = outcome.pair.trial_median_us;
    row.max_abs = outcome.error.max_abs;
    row.rel_rms = outcome.error.rel_rms;
    if (!is_first && before_ == last_name_) {
      row.before = before_;
      row.to_before = outcome.pair.ratio;
    }
    last_ = trial::Built{variant, *build.artifact};
    last_name_ = row.step.name;
    compare_outside(row);
    if (options_.profiler) row.shares = options_.profiler(*last_, result_.workload, result_.device);
  }

  // Pairs with what PyTorch runs: the best backend, and the step before where that is PyTorch's.
  void compare_outside(Row& row) {
    const bool after_backend = row.before.empty() && !before_.empty();
    if (!sdpa_ || !sdpa_->available() || (result_.best_peer.empty() && !after_backend)) return;
    try {
      const measure::Block ours = trial_runner_.standalone_block(*last_);
      if (!result_.best_peer.empty())
        row.to_peer = measure::measure_pair(sdpa_->block(result_.best_peer), ours, pair_options(row.us)).ratio;
      if (after_backend) {
        row.to_before = measure::measure_pair(sdpa_->block(measure::kHybridBackend), ours, pair_options(row.us)).ratio;
        row.before = before_;
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::interrupted) throw;
      on_message_(fmt::format("{}: no comparison with PyTorch: {}", row.step.name, error.what()));
    }
  }

  void measure_backend(Row& row) {
    if (!sdpa_ || !sdpa_->available()) {
      row.reason = fmt::format("PyTorch: {}", result_.peers_reason);
      return;
    }
    const auto backend = std::find_if(sdpa_->backends().begin(), sdpa_->backends().end(),
                                      [&](const measure::PeerBackend& b) { return b.name == row.step.backend; });
    if (backend == sdpa_->backends().end() || !backend->refused.empty()) {
      row.reason = backend == sdpa_->backends().end() ? std::string("the helper does not know it") : backend->refused;
      return;
    }
    try {
      const measure::Block theirs = sdpa_->block(row.step.backend);
      (void)theirs();  // captures its graph
      row.clocks_before = device_state(result_.device.kind);
      if (last_) {
        const measure::Block ours = trial_runner_.standalone_block(*last_);
        const measure::PairResult pair = measure::measure_pair(ours, theirs, pair_options(before_us_));
        row.us = pair.trial_median_us;
        row.to_before = pair.ratio;
        row.before = last_name_;
      } else {
        std::vector<double> us;
        for (int i = 0; i < kPeerReadings; ++i) us.push_back(theirs().us);
        row.us = measure::median(us);
      }
      if (!result_.best_peer.empty())
        row.to_peer = measure::measure_pair(sdpa_->block(result_.best_peer), theirs, pair_options(row.us)).ratio;
      row.max_abs = sdpa_->max_abs_error(row.step.backend);
      row.clocks_after = device_state(result_.device.kind);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::interrupted) throw;
      row.us = 0;
      row.to_before.reset();
      row.reason = error.what();
    }
  }

  static std::string describe_row(const Row& row) {
    if (row.measured())
      return fmt::format("{:<16} {:9.2f} us{}", row.step.name, row.us,
                         row.to_before ? fmt::format("  {:.3f} times as fast as {}", row.to_before->value, row.before)
                                       : std::string());
    return fmt::format("{:<16} {}: {}", row.step.name, row.verdict ? to_string(*row.verdict) : "-",
                       split(row.reason, '\n').front().substr(0, 160));
  }

  const Options& options_;
  const std::function<void(const std::string&)>& on_message_;
  jit::Builder& builder_;
  trial::TrialRunner trial_runner_;
  std::unique_ptr<measure::SdpaPeer> sdpa_;
  std::vector<std::future<jit::BuildOutcome>> builds_;
  std::vector<std::optional<Variant>> variants_;
  std::vector<std::string> refusals_;
  std::optional<trial::Built> last_;  // last good variant: the base of the next
  std::string last_name_;
  std::string before_;  // last good step, variant or backend
  double before_us_ = 0;
  double first_us_ = 0;
  Result result_;
};

}  // namespace

bool Result::passed() const {
  return std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.failed(); });
}

Result measure_steps(std::span<const Step> steps, const Workload& workload, const DeviceFacts& device,
                     jit::Builder& builder, const Options& options,
                     const std::function<void(const std::string&)>& on_message) {
  return StepRunner(workload, device, builder, options, on_message).run(steps);
}

}  // namespace heed::ladder
