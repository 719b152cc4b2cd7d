#include "emulator/emulate.hpp"

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/random.hpp"
#include "emulator/program.hpp"
#include "emulator/workloads.hpp"
#include "heed/heed.hpp"
#include "process/interrupt.hpp"
#include "verify/compare.hpp"
#include "verify/gate.hpp"
#include "verify/inputs.hpp"
#include "verify/scene.hpp"

namespace heed::emulator {
namespace {

constexpr double kOracleFlops = 0.2e9;  // for one scene

// The inputs and the schedule of one launch.
struct Run {
  verify::InputClass inputs;
  bool early;
  bool at_once;  // several thread blocks run at a time
  bool padded;   // rows of NaN after each head's own, else strides of each tensor's own
  bool with_lse;
};

// What lands late shows waits that are missing, what lands at once shows buffers that are taken too soon.
constexpr Run kRuns[] = {{verify::InputClass::normal, false, true, true, true},
                         {verify::InputClass::large_logits, true, false, false, false}};

class Emulation {
 public:
  Emulation(const Workload& workload, const DeviceFacts& device, jit::Builder& builder, const Options& options)
      : workload_(workload), device_(emulated_device(device)), builder_(builder), options_(options) {
    report_.seed = options.seed;
    report_.digest = emulator_digest();
  }

  Report run(const Variant& variant) {
    if (const auto why = refusal_of(variant)) return not_run(*why);
    const std::vector<SmallCase> cases = small_cases(variant, workload_, device_);
    if (cases.empty()) return not_run("no workload that is small enough for the emulator is legal for it");
    std::optional<Program> program;
    std::string built;  // the unit of `program`
    for (const SmallCase& one : cases) {
      check_interrupt();
      if (const std::string unit = one.variant.unit(); !program || unit != built) {
        program.reset();
        try {
          program.emplace(one.variant, builder_, options_.build_limit_s);
        } catch (const Error& error) {
          if (error.code() == ErrorCode::no_compiler || error.code() == ErrorCode::unsupported)
            return not_run(error.what());
          if (error.code() != ErrorCode::build_failed) throw;
          return not_run(fmt::format("the host's compiler does not take its sources: {}", error.what()));
        }
        built = unit;
        report_.build_ms += program->build_ms();
      }
      report_.workloads.push_back(to_string(one.workload));
      for (const Run& run : kRuns)
        if (!passes(*program, one, run)) return report_;
    }
    return report_;
  }

 private:
  Report not_run(const std::string& why) {
    report_.outcome = Outcome::not_run;
    report_.reason = why;
    return report_;
  }

  bool fail(Verdict verdict, Finding finding, const std::string& reason) {
    report_.outcome = Outcome::failed;
    report_.verdict = verdict;
    report_.finding = finding;
    report_.reason = reason;
    return false;
  }

  bool passes(const Program& program, const SmallCase& one, const Run& run) {
    const Workload& w = one.workload;
    report_.check = fmt::format("emulated {}, {}, copies land {}", to_string(w), verify::to_string(run.inputs),
                                run.early ? "at once" : "late");
    if (options_.on_launch) options_.on_launch(report_.check);
    const LaunchPlan plan = one.variant.plan(w, device_);
    verify::InputValues values = verify::make_inputs(w, run.inputs, next_seed());
    verify::poison_unseen_keys(w, values);
    const verify::SceneOptions layout{.with_lse = run.with_lse,
                                      .padding_rows = run.padded ? verify::kPaddingRows : 0,
                                      .stride_seed = run.padded ? 0 : next_seed()};
    const verify::Scene scene(w, values, plan, next_seed(), layout);
    const verify::Reference reference =
        verify::make_reference(scene, verify::choose_rows(w, kOracleFlops, next_seed()));
    Schedule schedule{.seed = next_seed(), .early = run.early};
    if (run.at_once && plan.cluster == 1) schedule.resident = static_cast<std::uint32_t>(device_.processors);
    const auto start = std::chrono::steady_clock::now();
    const Launched launched = program.launch(scene, plan, schedule, options_.launch_limit_s);
    report_.run_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    ++report_.launches;
    switch (launched.end) {
      case Launched::End::done:
        break;
      case Launched::End::objection:
      case Launched::End::crashed:
        return fail(Verdict::crashed, Finding::none, launched.reason);
      case Launched::End::timed_out:
        return fail(Verdict::timed_out, Finding::none, launched.reason);
      case Launched::End::failed:
        not_run(launched.reason);
        return false;
    }
    const verify::Comparison comparison = verify::compare(scene, launched.image.data(), reference, false);
    if (comparison.finding == Finding::none) {
      report_.check.clear();
      return true;
    }
    return fail(is_forbidden_write(comparison.finding) ? Verdict::cheating : Verdict::wrong, comparison.finding,
                comparison.text);
  }

  std::uint64_t next_seed() { return substream(options_.seed, ++seeds_); }

  const Workload& workload_;
  DeviceFacts device_;
  jit::Builder& builder_;
  const Options& options_;
  Report report_;
  std::uint64_t seeds_ = 0;
};

}  // namespace

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::passed:
      return "passed";
    case Outcome::failed:
      return "failed";
    case Outcome::not_run:
      return "not run";
  }
  return "";
}

Report emulate(const Variant& variant, const Workload& workload, const DeviceFacts& device, jit::Builder& builder,
               const Options& options) {
  return Emulation(workload, device, builder, options).run(variant);
}

}  // namespace heed::emulator
