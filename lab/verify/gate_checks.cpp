// The checks of the gate.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/parallel.hpp"
#include "variant/strictness.hpp"
#include "verify/against_unfused.hpp"
#include "verify/chain.hpp"
#include "verify/gate_run.hpp"
#include "verify/given_features.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

constexpr int kLengthDraws = 4;
constexpr int kRepeats = 3;            // equal launches that must agree
constexpr double kClassShare = 0.25;   // of the oracle's flops: for each kind of inputs but the first
constexpr int kDependentRepeats = 20;  // a race may be lost only sometimes
constexpr int kStreamRepeats = 2;      // launches that begin when the one before has ended have no race to lose

// Shapes for NaN: of a few tiles at most, and long ones for as many operations, or for a share of the workload's.
constexpr std::int64_t kFewRows = 37;
constexpr std::int64_t kFewKeys = 83;
constexpr double kLongFlops = 0.5e9;
constexpr double kLongShare = 0.1;

}  // namespace

bool Gate::check_class(InputClass inputs) {
  if (inputs == InputClass::equal_heads && (workload_.batch * workload_.heads == 1 || !heads_are_alike())) return true;
  start(std::string(to_string(inputs)));
  const std::uint64_t seed = next_seed();
  const InputValues values = make_inputs(workload_, inputs, seed);
  Scene scene = make_scene(workload_, values);
  if (inputs == InputClass::equal_heads) return check_equal_heads(std::move(scene), seed);
  const bool both = inputs == InputClass::large_logits || inputs == InputClass::one_hot ||
                    inputs == InputClass::peaked || inputs == InputClass::peaked_late;
  if (inputs == InputClass::constant_v && !workload_.has_features())
    return check_scene(scene, options_.oracle_flops * kClassShare, false, Finding::none) && check_constant(scene);
  const double flops = options_.oracle_flops * kClassShare;
  const Lse lse = both ? Lse::both : Lse::drawn;
  if (!workload_.quantised) return check_scene(std::move(scene), flops, false, Finding::none, lse);
  if (!check_scene(scene, flops, false, Finding::none, lse)) return false;
  add_total_error(scene, values, choose_rows(workload_, flops, next_seed()));
  return true;
}

bool Gate::has_blocks_of_scales() const {
  const auto has = [](const std::optional<QuantisedTensor>& tensor) { return tensor && tensor->by == ScaleBy::block; };
  return workload_.quantised &&
         (has(workload_.quantised->q) || has(workload_.quantised->k) || has(workload_.quantised->v));
}

bool Gate::heads_are_alike() const {
  const bool has_own_lists = workload_.blocks && (workload_.blocks->by_batch || workload_.blocks->by_head);
  return !workload_.bias && !workload_.relative && !workload_.alibi && !workload_.sinks && !workload_.has_lengths() &&
         !has_own_lists && workload_.prefix == 0 && workload_.dropout == 0 && !has_blocks_of_scales() &&
         !workload_.changes_output();
}

bool Gate::check_lengths() {
  if (!workload_.has_lengths() && workload_.prefix == 0) return true;
  for (int draw = 0; draw < kLengthDraws; ++draw) {
    start("entries of other lengths, none among them");
    InputValues values = make_inputs(workload_, InputClass::normal, next_seed());
    draw_lengths(workload_, next_seed(), values);
    poison_unseen_keys(workload_, values);
    if (!check_scene(make_scene(workload_, values), options_.oracle_flops * kClassShare, false, Finding::neighbour))
      return false;
  }
  return true;
}

bool Gate::check_equal_heads(Scene scene, std::uint64_t seed) {
  Workload head = workload_;
  head.batch = head.heads = head.heads_kv = 1;
  Reference reference = make_reference(scene, choose_rows(head, options_.oracle_flops * kClassShare, next_seed()));
  reference.columns = equal_head_columns(workload_, seed);
  return check_scene(std::move(scene), reference, false, Finding::none, Lse::drawn);
}

bool Gate::check_given() {
  start(std::string(kGivenTensors));
  const Scene scene = make_scene(workload_, given_inputs(*options_.tensors, workload_, next_seed()).values);
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

bool Gate::check_workload() {
  start("normal");
  const InputValues values = make_inputs(workload_, InputClass::normal, next_seed());
  Scene scene = make_scene(workload_, values);
  const std::vector<RowIndex> rows = choose_rows(workload_, options_.oracle_flops, next_seed());
  const Reference reference = make_reference(scene, rows);
  launch(scene);
  const Comparison first = compare(scene, result(), reference, hard());
  report_.error = first.error;
  if (!judge(first, reference, Finding::none)) return false;
  add_total_error(scene, values, rows);
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

bool Gate::check_without_lse() {
  start("normal, no log-sum-exp asked for");
  SceneOptions options;
  options.with_lse = false;
  return check_scene(make_scene(workload_, make_inputs(workload_, InputClass::normal, next_seed()), options),
                     options_.oracle_flops * kClassShare, hard(), Finding::none);
}

bool Gate::check_constant(const Scene& scene) {
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
          if (std::abs(got - expected) <= slack * std::max(1.0, std::abs(expected)) * (w.dtype == Dtype::bf16 ? 8 : 1))
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

bool Gate::check_padding() {
  start("NaN beyond the ends");
  Workload w = workload_;
  w.batch = std::min<std::int64_t>(w.batch, 2);
  if (!variant_.runs(w)) w = workload_;
  SceneOptions options;
  options.padding_rows = kPaddingRows;
  InputValues values = make_inputs(w, InputClass::normal, next_seed());
  poison_unseen_keys(w, values);
  const double flops = options_.oracle_flops * kClassShare;
  if (!check_scene(make_scene(w, values, options), flops, false, Finding::masked_leak)) return false;
  options = drawn_strides(w, 1);
  if (options.stride_seed == 0) return true;
  start("strides of each tensor's own");
  return check_scene(make_scene(w, values, options), flops, false, Finding::neighbour);
}

Workload Gate::nonfinite_shape(bool is_long) {
  Random random(next_seed());
  Workload w = workload_;
  w.batch = 2;
  w.heads_kv = 3;
  w.heads = 3 * (workload_.heads / workload_.heads_kv);
  const auto up_to = [&](std::int64_t most) {
    return most - static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most + 1) / 2));
  };
  if (!is_long) {
    w.len_q = std::min(w.len_q, up_to(kFewRows));
    w.len_k = std::min(w.len_k, up_to(kFewKeys));
  } else if (random.chance(0.5)) {
    w.len_q = up_to(w.len_q);
    w.len_k = up_to(w.len_k);
  }
  const double most_flops = std::max(kLongFlops, kLongShare * workload_.flops());
  while ((w.flops() > most_flops || !may_run(w) || scene_bytes(variant_, w, device_) > most_scene_bytes()) &&
         w.len_k > kFewKeys) {
    if (w.len_q > kFewRows)
      w.len_q /= 2;
    else
      w.len_k /= 2;
  }
  return may_run(w) ? w : workload_;
}

bool Gate::check_nonfinite() {
  if (workload_.bias) return true;  // a key that a bias hides from some rows must be finite: 0 times NaN is NaN
  for (const bool is_long : {false, true}) {
    if (is_long && workload_.len_q <= kFewRows && workload_.len_k <= kFewKeys) continue;
    const Workload w = nonfinite_shape(is_long);
    Workload shared = with_a_shared_key(w);
    if (!may_run(shared)) shared = w;
    if (!check_blemishes("NaN, infinity and scores beyond fp32", shared, seen_by_all(shared), true) ||
        !check_blemishes("NaN and infinity that the mask hides from some rows, scores below fp32", w,
                         hidden_from_some(w), false))
      return false;
    if (variant_.problem.sizes.len_q > 0) break;
  }
  return true;
}

std::int64_t Gate::any_key(const KeyRange& keys, Random& random) {
  if (keys.is_empty()) return 0;
  return keys.begin + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(keys.count())));
}

bool Gate::check_blemishes(const char* name, const Workload& w, const std::vector<Blemish>& blemishes, bool by_all) {
  const bool strict = is_strict_with_nan(*variant_.family);
  const auto heads = static_cast<std::size_t>(w.batch * w.heads_kv);
  for (std::size_t first = 0; first < blemishes.size(); first += heads) {
    start(name);
    Random random(next_seed());
    InputValues values = make_inputs(w, InputClass::normal, next_seed());
    // Which keys all rows see is said of whole lengths.
    values.lengths.assign(values.lengths.size(), {w.len_q, w.len_k});
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
      const auto add_row = [&](std::int64_t r) {
        rows.push_back({head / w.heads_kv, head % w.heads_kv * (w.heads / w.heads_kv), r});
      };
      for (std::int64_t r = 0; r < w.len_q; r += std::max<std::int64_t>(1, w.len_q / 16)) add_row(r);
      // The last row that it is hidden from shares a tile with the first that sees it.
      for (const std::int64_t r : {row - 1, row, row + 1})
        if (r >= 0 && r < w.len_q) add_row(r);
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

bool Gate::check_held_back() {
  for (const Workload& w : held_back(variant_, workload_, device_, next_seed(), most_scene_bytes())) {
    start(fmt::format("held back {}", to_string(w)));
    InputValues values = make_inputs(w, InputClass::normal, next_seed());
    poison_unseen_keys(w, values);
    const SceneOptions options = drawn_strides(w, 0.5);
    if (!check_scene(make_scene(w, values, options), kNeighbourFlops, false, Finding::neighbour)) return false;
  }
  return true;
}

bool Gate::check_chains() {
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
    const int repeats = plan.supports_pdl ? kDependentRepeats : kStreamRepeats;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      run(plan.supports_pdl ? worker::Follow::dependent : worker::Follow::in_stream);
      const Chain::Difference difference = chain.compare(waited.data(), result(), exact);
      if (difference.finding == Finding::none) continue;
      add_check(false);
      fail(is_forbidden_write(difference.finding) ? Verdict::cheating : Verdict::wrong, difference.finding,
           difference.text);
      return false;
    }
    add_check(true);
  }
  return true;
}

bool Gate::check_permutation() {
  if (workload_.is_masked() || workload_.bias || workload_.relative || workload_.alibi || workload_.has_lengths() ||
      workload_.blocks || workload_.dropout > 0 || has_blocks_of_scales())
    return true;
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

}  // namespace heed::verify
