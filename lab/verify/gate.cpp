#include "verify/gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/parallel.hpp"
#include "process/interrupt.hpp"
#include "verify/gate_run.hpp"

namespace heed::verify {
namespace {

// memcpy by all processors: images of long decoding workloads are 130 MB.
void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = 4 << 20;
  parallel_for(static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece), 0, [&](std::int64_t piece) {
    const std::uint64_t at = static_cast<std::uint64_t>(piece) * kPiece;
    std::memcpy(to + at, from + at, std::min(kPiece, bytes - at));
  });
}

}  // namespace

GateReport Gate::run() {
  try {
    run_checks();
  } catch (const worker::WorkerFailure& failure) {
    if (failure.kind() == worker::WorkerFailure::Kind::killed) throw;  // no candidate's doing
    report_.verdict = verdict_of(failure);
    report_.finding = finding_of(failure);
    report_.reason = failure.what();
  }
  return std::move(report_);
}

void Gate::start(const std::string& name) {
  check_interrupt();
  report_.check = name;
  if (options_.on_check) options_.on_check(name);
}

void Gate::fail(Verdict verdict, Finding finding, std::string reason) {
  report_.verdict = verdict;
  report_.finding = finding;
  report_.reason = std::move(reason);
}

void Gate::launch(const Scene& scene) {
  const std::uint64_t bytes = scene.image().size();
  result_offset_ = (bytes + 4095) / 4096 * 4096;
  if (result_offset_ + bytes > worker_.arena().size())
    throw Error(ErrorCode::internal, "the gate's arena is too small");
  copy_bytes(worker_.arena().data(), scene.image().data(), bytes);
  worker_.run(slot_, 0, bytes, result_offset_, scene.launch(), options_.launch_limit_s);
}

bool Gate::judge(const Comparison& comparison, const Reference& reference, Finding context, bool required) {
  const bool passed = comparison.finding == Finding::none;
  CheckResult check{.name = report_.check,
                    .passed = passed,
                    .required = required,
                    .has_errors = true,
                    .error = comparison.error,
                    .allowed = {},
                    .unfused = reference.unfused,
                    .text = comparison.text};
  check.allowed.max_abs = reference.tolerance.max_abs;
  check.allowed.rel_rms = reference.tolerance.rel_rms;
  check.allowed.worst_row = reference.tolerance.worst_row;
  check.allowed.lse = reference.tolerance.lse;
  check.allowed.unresolved = reference.tolerance.unresolved;
  const bool repeated = !report_.checks.empty() && report_.checks.back().name == check.name;
  if (!repeated)
    report_.checks.push_back(std::move(check));
  else if (!passed || check.error.max_abs > report_.checks.back().error.max_abs)
    report_.checks.back() = std::move(check);
  if (passed || !required) return true;
  const bool cheating = is_forbidden_write(comparison.finding) || context == Finding::stale_output;
  const bool value_error = comparison.finding == Finding::inexact || comparison.finding == Finding::hard_limit ||
                           comparison.finding == Finding::not_finite || comparison.finding == Finding::wrong_lse;
  fail(cheating ? Verdict::cheating : Verdict::wrong,
       context != Finding::none && value_error ? context : comparison.finding, comparison.text);
  return false;
}

void Gate::add_check(bool passed) {
  report_.checks.emplace_back();
  report_.checks.back().name = report_.check;
  report_.checks.back().passed = passed;
}

void Gate::add_total_error(const Scene& scene, const InputValues& values, const std::vector<RowIndex>& rows) {
  if (workload_.quantised && !report_.checks.empty())
    report_.checks.back().total = total_error(scene, values, result(), rows);
}

Scene Gate::make_scene(const Workload& workload, const InputValues& values, const SceneOptions& options) {
  return {workload, values, plan_for(workload), next_seed(), options};
}

SceneOptions Gate::drawn_strides(const Workload& workload, double probability) {
  SceneOptions options;
  Random random(next_seed());
  if (random.chance(probability) && may_spread(variant_, workload, device_)) options.stride_seed = random.next();
  return options;
}

bool Gate::check_scene(Scene scene, const Reference& reference, bool hard_limit, Finding context, Lse lse) {
  const std::string name = report_.check;
  if (lse == Lse::both) {
    launch(scene);
    if (!judge(compare(scene, result(), reference, hard_limit), reference, context)) return false;
    start(name + ", no log-sum-exp asked for");
    scene.drop_lse();
  } else if (Random(next_seed()).chance(0.5)) {
    scene.drop_lse();
  }
  launch(scene);
  return judge(compare(scene, result(), reference, hard_limit), reference, context);
}

bool Gate::check_scene(Scene scene, double oracle_flops, bool hard_limit, Finding context, Lse lse) {
  const Reference reference = make_reference(scene, choose_rows(scene.workload(), oracle_flops, next_seed()));
  return check_scene(std::move(scene), reference, hard_limit, context, lse);
}

void Gate::run_checks() {
  // ---- a small ragged neighbour: most wrong kernels fail here, for almost nothing
  Workload small = workload_;
  small.batch = 1;
  small.heads = workload_.heads / workload_.heads_kv;
  small.heads_kv = 1;
  small.len_q = std::min<std::int64_t>(workload_.len_q, 37);
  small.len_k = std::min<std::int64_t>(workload_.len_k, 83);
  if (variant_.runs(small)) {
    start(fmt::format("small {}", to_string(small)));
    if (!check_scene(make_scene(small, make_inputs(small, InputClass::normal, next_seed())), kNeighbourFlops, hard(),
                     Finding::none))
      return;
  }

  if (!check_workload() || !check_without_lse()) return;
  for (const InputClass inputs : all_input_classes())
    if (inputs != InputClass::normal && !check_class(inputs)) return;
  if (!check_lengths() || !check_padding() || !check_permutation() || !check_nonfinite() || !check_chains()) return;
  for (const Workload& neighbour : neighbours(variant_, workload_)) {
    if (!may_run(neighbour)) continue;
    start(fmt::format("neighbour {}", to_string(neighbour)));
    InputValues values = make_inputs(neighbour, InputClass::normal, next_seed());
    poison_unseen_keys(neighbour, values);
    const SceneOptions options = drawn_strides(neighbour, 0.5);
    if (!check_scene(make_scene(neighbour, values, options), kNeighbourFlops, false, Finding::neighbour)) return;
  }
  if (!check_held_back()) return;
  if (options_.tensors != nullptr && !check_given()) return;
  report_.check.clear();
}

bool Gate::may_run(const Workload& w) const {
  return variant_.runs(w) && !variant_.family->refuses(w, device_) && !variant_.is_illegal(w, device_);
}

GateReport run_gate(worker::Worker& worker, int slot, const Variant& variant, const Workload& workload,
                    const DeviceFacts& device, const GateOptions& options) {
  return Gate(worker, slot, variant, workload, device, options).run();
}

Verdict verdict_of(const worker::WorkerFailure& failure) {
  switch (failure.kind()) {
    case worker::WorkerFailure::Kind::launch_failed:
      return Verdict::launch_failed;
    case worker::WorkerFailure::Kind::crashed:
      return Verdict::crashed;
    case worker::WorkerFailure::Kind::timed_out:
      return Verdict::timed_out;
    case worker::WorkerFailure::Kind::garbage:
    case worker::WorkerFailure::Kind::killed:
      return Verdict::crashed;
    case worker::WorkerFailure::Kind::left_state:
      return Verdict::cheating;
  }
  return Verdict::crashed;
}

Finding finding_of(const worker::WorkerFailure& failure) {
  return failure.kind() == worker::WorkerFailure::Kind::left_state ? Finding::left_state : Finding::none;
}

}  // namespace heed::verify
