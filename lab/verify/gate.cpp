#include "verify/gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/parallel.hpp"
#include "base/random.hpp"
#include "process/interrupt.hpp"
#include "variant/strictness.hpp"
#include "verify/chain.hpp"
#include "verify/nonfinite.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

constexpr int kRepeats = 3;  // equal launches that must agree
constexpr double kNeighbourFlops = 0.05e9;
constexpr double kClassShare = 0.25;   // of the oracle's flops: for each kind of inputs but the first
constexpr int kDependentRepeats = 20;  // a race may be lost only sometimes
constexpr int kStreamRepeats = 2;      // launches that begin when the one before has ended have no race to lose

// memcpy by all processors: images of long decoding workloads are 130 MB.
void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = 4 << 20;
  parallel_for(static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece), 0, [&](std::int64_t piece) {
    const std::uint64_t at = static_cast<std::uint64_t>(piece) * kPiece;
    std::memcpy(to + at, from + at, std::min(kPiece, bytes - at));
  });
}

class Gate {
 public:
  Gate(worker::Worker& worker, int slot, const Variant& variant, const Workload& workload, const DeviceFacts& device,
       const GateOptions& options)
      : worker_(worker), slot_(slot), variant_(variant), workload_(workload), device_(device), options_(options) {}

  GateReport run() {
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

 private:
  std::byte* result() { return worker_.arena().data() + result_offset_; }

  LaunchPlan plan_for(const Workload& workload) const { return variant_.plan(workload, device_); }

  std::uint64_t next_seed() { return substream(options_.seed, ++seeds_); }

  void start(const std::string& name) {
    check_interrupt();
    report_.check = name;
    if (options_.on_check) options_.on_check(name);
  }

  void fail(Verdict verdict, Finding finding, std::string reason) {
    report_.verdict = verdict;
    report_.finding = finding;
    report_.reason = std::move(reason);
  }

  // Image to the arena, one launch, result in the arena behind it.
  void launch(const Scene& scene) {
    const std::uint64_t bytes = scene.image().size();
    result_offset_ = (bytes + 4095) / 4096 * 4096;
    if (result_offset_ + bytes > worker_.arena().size())
      throw Error(ErrorCode::internal, "the gate's arena is too small");
    copy_bytes(worker_.arena().data(), scene.image().data(), bytes);
    worker_.run(slot_, 0, bytes, result_offset_, scene.launch(), options_.launch_limit_s);
  }

  // A failed comparison as a verdict; `context` replaces an inexactness by what it means in this check.
  bool judge(const Comparison& comparison, const Reference& reference, Finding context, bool required = true) {
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
    const bool cheating = is_trespass(comparison.finding) || context == Finding::stale_output;
    const bool value_error = comparison.finding == Finding::inexact || comparison.finding == Finding::hard_limit ||
                             comparison.finding == Finding::not_finite || comparison.finding == Finding::wrong_lse;
    fail(cheating ? Verdict::cheating : Verdict::wrong,
         context != Finding::none && value_error ? context : comparison.finding, comparison.text);
    return false;
  }

  void add_check(bool passed) {
    report_.checks.emplace_back();
    report_.checks.back().name = report_.check;
    report_.checks.back().passed = passed;
  }

  Scene make_scene(const Workload& workload, const InputValues& values, const SceneOptions& options = {}) {
    return {workload, values, plan_for(workload), next_seed(), options};
  }

  // Which launches ask for the log-sum-exp: the path without it must be right on every kind of inputs too.
  enum class Lse { drawn, both };

  // One scene, one comparison a launch.
  bool check_scene(Scene scene, const Reference& reference, bool hard_limit, Finding context, Lse lse) {
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
  bool check_scene(Scene scene, double oracle_flops, bool hard_limit, Finding context, Lse lse = Lse::drawn) {
    const Reference reference = make_reference(scene, choose_rows(scene.workload(), oracle_flops, next_seed()));
    return check_scene(std::move(scene), reference, hard_limit, context, lse);
  }

  void run_checks() {
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
    if (!check_padding() || !check_permutation() || !check_nonfinite() || !check_chains()) return;
    for (const Workload& neighbour : neighbours(variant_, workload_)) {
      if (!may_run(neighbour)) continue;
      start(fmt::format("neighbour {}", to_string(neighbour)));
      InputValues values = make_inputs(neighbour, InputClass::normal, next_seed());
      poison_unseen_keys(neighbour, values);
      if (!check_scene(make_scene(neighbour, values), kNeighbourFlops, false, Finding::neighbour)) return;
    }
    if (options_.tensors != nullptr && !check_given()) return;
    report_.check.clear();
  }

  bool check_class(InputClass inputs) {
    if (inputs == InputClass::equal_heads && workload_.batch * workload_.heads == 1) return true;
    start(std::string(to_string(inputs)));
    const std::uint64_t seed = next_seed();
    Scene scene = make_scene(workload_, make_inputs(workload_, inputs, seed));
    if (inputs == InputClass::equal_heads) return check_equal_heads(std::move(scene), seed);
    const bool both = inputs == InputClass::large_logits || inputs == InputClass::one_hot ||
                      inputs == InputClass::peaked || inputs == InputClass::peaked_late;
    if (inputs == InputClass::constant_v)
      return check_scene(scene, options_.oracle_flops * kClassShare, false, Finding::none) && check_constant(scene);
    return check_scene(std::move(scene), options_.oracle_flops * kClassShare, false, Finding::none,
                       both ? Lse::both : Lse::drawn);
  }

  // Every row of every head and batch entry against the oracle of the first head.
  bool check_equal_heads(Scene scene, std::uint64_t seed) {
    Workload head = workload_;
    head.batch = head.heads = head.heads_kv = 1;
    Reference reference = make_reference(scene, choose_rows(head, options_.oracle_flops * kClassShare, next_seed()));
    reference.columns = equal_head_columns(workload_, seed);
    return check_scene(std::move(scene), reference, false, Finding::none, Lse::drawn);
  }

  bool check_given() {
    start("the given tensors");
    const Scene scene = make_scene(workload_, values_of(*options_.tensors));
    const Reference reference = make_reference(scene, choose_rows(workload_, options_.oracle_flops, next_seed()));
    if (2 * reference.tolerance.unresolved > static_cast<std::int64_t>(reference.rows.size())) {
      double size = 0;
      for (const RowCondition& row : reference.condition) size = std::max(size, row.score_size);
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("the scores of the given tensors are sums of products that add up to {:.3g}; fp32, in which "
                      "every kernel computes them, is then off by about {:.2g}, so that {} of {} rows cannot be "
                      "told right from wrong; give tensors whose scores differ by more than that",
                      size, fp32_score_error(size, workload_.dim), reference.tolerance.unresolved,
                      reference.rows.size()));
    }
    return check_scene(scene, reference, false, Finding::none, Lse::both);
  }

  // A program for fixed sizes runs no other workload.
  [[nodiscard]] bool may_run(const Workload& w) const {
    return variant_.runs(w) && !variant_.family->refuses(w, device_) && !variant_.is_illegal(w, device_);
  }

  [[nodiscard]] bool hard() const { return workload_.dtype == Dtype::fp16 && !workload_.scale; }

  // The workload itself: right, the same every time, and right again when the inputs change under the same addresses.
  bool check_workload() {
    start("normal");
    Scene scene = make_scene(workload_, make_inputs(workload_, InputClass::normal, next_seed()));
    const std::vector<RowIndex> rows = choose_rows(workload_, options_.oracle_flops, next_seed());
    const Reference reference = make_reference(scene, rows);
    launch(scene);
    const Comparison first = compare(scene, result(), reference, hard());
    report_.error = first.error;
    if (!judge(first, reference, Finding::none)) return false;
    const std::vector<std::byte> after(result(), result() + scene.image().size());

    start("repeated launches");
    const bool deterministic = variant_.family->is_deterministic(variant_.config);
    for (int repeat = 1; repeat < kRepeats; ++repeat) {
      launch(scene);
      const auto differs = [&](const Place& place) {
        return std::memcmp(after.data() + place.offset, result() + place.offset, place.bytes) != 0;
      };
      // Values before bits: a race that is lost now and then is wrong, not merely nondeterministic.
      if (!judge(compare(scene, result(), reference, hard()), reference, Finding::none)) return false;
      if (deterministic && (differs(scene.o()) || differs(scene.lse()))) {
        fail(Verdict::nondeterministic, Finding::none,
             fmt::format("launch {} of the same inputs gave other bits than the first", repeat + 1));
        return false;
      }
    }

    start("inputs changed in place");
    scene.disturb(next_seed());
    scene.keep_outputs_of(after.data());
    return check_scene(std::move(scene), options_.oracle_flops * kClassShare, false, Finding::stale_output, Lse::both);
  }

  bool check_without_lse() {
    start("normal, no log-sum-exp asked for");
    SceneOptions options;
    options.with_lse = false;
    return check_scene(make_scene(workload_, make_inputs(workload_, InputClass::normal, next_seed()), options),
                       options_.oracle_flops * kClassShare, hard(), Finding::none);
  }

  // Every row of the output against the constant, not only the rows the oracle was computed for.
  bool check_constant(const Scene& scene) {
    const Workload& w = workload_;
    const std::byte* after = result();
    const double slack = 2e-3;  // of the constant's size: far above rounding, far below any mix-up of heads or columns
    for (std::int64_t batch = 0; batch < w.batch; ++batch)
      for (std::int64_t head = 0; head < w.heads; ++head) {
        const Strides& vs = scene.v().strides;
        const auto v_base = static_cast<std::size_t>(batch * vs.batch + head / (w.heads / w.heads_kv) * vs.head);
        for (std::int64_t row = 0; row < w.len_q; ++row) {
          const Strides& os = scene.o().strides;
          const auto o_base = static_cast<std::size_t>(batch * os.batch + head * os.head + row * os.row);
          for (std::int64_t d = 0; d < w.dim_v; ++d) {
            const double expected = w.keys_of(row).is_empty()
                                        ? 0.0
                                        : load_element(w.dtype, scene.image().data() + scene.v().offset,
                                                       v_base + static_cast<std::size_t>(d));
            const double got = load_element(w.dtype, after + scene.o().offset, o_base + static_cast<std::size_t>(d));
            if (std::abs(got - expected) <=
                slack * std::max(1.0, std::abs(expected)) * (w.dtype == Dtype::bf16 ? 8 : 1))
              continue;
            fail(Verdict::wrong, Finding::inexact,
                 fmt::format("V is constant, but O at (batch {}, head {}, row {}, column {}) is {:.6g}, not {:.6g}",
                             batch, head, row, d, got, expected));
            return false;
          }
        }
      }
    return true;
  }

  // Heads further apart than their rows, the gap filled with NaN.
  bool check_padding() {
    start("NaN beyond the ends");
    Workload w = workload_;
    w.batch = std::min<std::int64_t>(w.batch, 2);
    if (!variant_.runs(w)) w = workload_;
    SceneOptions options;
    options.padding_rows = kPaddingRows;
    InputValues values = make_inputs(w, InputClass::normal, next_seed());
    poison_unseen_keys(w, values);
    return check_scene(make_scene(w, values, options), options_.oracle_flops * kClassShare, false,
                       Finding::masked_leak);
  }

  // NaN, infinity and scores beyond fp32 show in the rows that see them, and in no others.
  bool check_nonfinite() {
    Workload w = workload_;
    w.batch = 2;
    w.heads_kv = 3;
    w.heads = 3 * (workload_.heads / workload_.heads_kv);
    w.len_q = std::min<std::int64_t>(w.len_q, 37);
    w.len_k = std::min<std::int64_t>(w.len_k, 83);
    if (!may_run(w)) w = workload_;
    Workload shared = with_a_shared_key(w);
    if (!may_run(shared)) shared = w;
    return check_blemishes("NaN, infinity and scores beyond fp32", shared, seen_by_all(shared), true) &&
           check_blemishes("NaN and infinity that the mask hides from some rows, scores below fp32", w,
                           hidden_from_some(w), false);
  }

  static std::int64_t any_key(const KeyRange& keys, Random& random) {
    if (keys.is_empty()) return 0;
    return keys.begin + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(keys.count())));
  }

  // As many blemishes a scene as there are key heads.
  bool check_blemishes(const char* name, const Workload& w, const std::vector<Blemish>& blemishes, bool by_all) {
    const bool strict = is_strict_with_nan(*variant_.family);
    const auto heads = static_cast<std::size_t>(w.batch * w.heads_kv);
    for (std::size_t first = 0; first < blemishes.size(); first += heads) {
      start(name);
      Random random(next_seed());
      InputValues values = make_inputs(w, InputClass::normal, next_seed());
      std::vector<RowIndex> rows = choose_rows(w, kNeighbourFlops, next_seed());
      for (std::size_t i = first; i < std::min(blemishes.size(), first + heads); ++i) {
        const auto head = static_cast<std::int64_t>(i - first);
        std::int64_t row = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(w.len_q)));
        if (w.keys_of(row).is_empty()) row = seeing_row(w);
        if (w.keys_of(row).is_empty()) continue;
        // Of all rows that see it, or of those up to the edge of the mask that this row stands at.
        const bool at_left = w.has_left_bound() && (!w.has_right_bound() || i % 2 == 1);
        const std::int64_t key = by_all    ? any_key(seen_by_every_row(w), random)
                                 : at_left ? w.keys_of(row).begin
                                           : w.keys_of(row).end - 1;
        apply(blemishes[i], w, values, head / w.heads_kv, head % w.heads_kv, key, random);
        for (std::int64_t r = 0; r < w.len_q; r += std::max<std::int64_t>(1, w.len_q / 16))
          rows.push_back({head / w.heads_kv, head % w.heads_kv * (w.heads / w.heads_kv), r});
      }
      for (std::int64_t r = 0; r < w.batch * w.heads * w.len_q; ++r)
        if (std::any_of(values.q.begin() + r * w.dim, values.q.begin() + (r + 1) * w.dim,
                        [](float x) { return std::isnan(x); }))
          rows.push_back({r / w.len_q / w.heads, r / w.len_q % w.heads, r % w.len_q});
      Scene scene = make_scene(w, values);
      Reference reference = make_reference(scene, rows);
      reference.finite = false;  // rows that are not listed may see them too
      reference.lse_shows = strict;
      launch(scene);
      if (!judge(compare(scene, result(), reference, false), reference, Finding::masked_leak, by_all || strict))
        return false;
    }
    return true;
  }

  // Launches that feed each other and follow at once, as programmatic dependents where the plan allows it, against the
  // same launches waited for.
  bool check_chains() {
    for (const Workload& w : chain_workloads(variant_, workload_, device_)) {
      start(w == workload_ ? "chained launches" : fmt::format("chained launches {}", to_string(w)));
      const LaunchPlan plan = plan_for(w);
      const Chain chain(w, plan, next_seed());
      const std::uint64_t bytes = chain.image().size();
      result_offset_ = (bytes + 4095) / 4096 * 4096;
      if (result_offset_ + bytes > worker_.arena().size())
        throw Error(ErrorCode::internal, "the gate's arena is too small for a chain");
      const auto run = [&](worker::Follow follow) {
        std::memcpy(worker_.arena().data(), chain.image().data(), bytes);
        worker_.run_chain(slot_, 0, bytes, result_offset_, chain.launches(), follow, options_.launch_limit_s);
      };
      run(worker::Follow::waited);
      const std::vector<std::byte> waited(result(), result() + bytes);
      const bool exact = variant_.family->is_deterministic(variant_.config);
      const int repeats = plan.dependent ? kDependentRepeats : kStreamRepeats;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        run(plan.dependent ? worker::Follow::dependent : worker::Follow::in_stream);
        const Chain::Difference difference = chain.compare(waited.data(), result(), exact);
        if (difference.finding == Finding::none) continue;
        add_check(false);
        fail(is_trespass(difference.finding) ? Verdict::cheating : Verdict::wrong, difference.finding, difference.text);
        return false;
      }
      add_check(true);
    }
    return true;
  }

  // Keys and values in another order: the same output. Under a mask the order means something, so nothing to
  // check.
  bool check_permutation() {
    if (workload_.is_masked()) return true;
    start("permuted keys");
    const Workload& w = workload_;
    const std::uint64_t seed = next_seed();
    InputValues values = make_inputs(w, InputClass::normal, seed);
    const Scene original = make_scene(w, values);
    std::vector<std::int64_t> order(static_cast<std::size_t>(w.len_k));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    Random random(next_seed());
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    const auto permute = [&](Values& tensor, std::int64_t dim) {
      Values to(tensor.size());
      parallel_for(w.batch * w.heads_kv, 0, [&](std::int64_t head) {
        for (std::int64_t j = 0; j < w.len_k; ++j)
          std::copy_n(tensor.begin() + (head * w.len_k + order[static_cast<std::size_t>(j)]) * dim, dim,
                      to.begin() + (head * w.len_k + j) * dim);
      });
      tensor.swap(to);
    };
    permute(values.k, w.dim);
    permute(values.v, w.dim_v);
    const Scene permuted = make_scene(w, values);
    // The reference is that of the original order: what is tested is that order does not matter.
    const Reference reference =
        make_reference(original, choose_rows(w, options_.oracle_flops * kClassShare, next_seed()));
    return check_scene(permuted, reference, hard(), Finding::none, Lse::drawn);
  }

  worker::Worker& worker_;
  int slot_;
  const Variant& variant_;
  const Workload& workload_;
  const DeviceFacts& device_;
  const GateOptions& options_;
  GateReport report_;
  std::uint64_t result_offset_ = 0;
  std::uint64_t seeds_ = 0;
};

}  // namespace

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
