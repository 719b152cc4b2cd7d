// Plans that quantise their inputs before each launch.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "api/cpu_launcher.hpp"
#include "api/precision.hpp"
#include "api/row_copy.hpp"
#include "quantise/quantise.hpp"
#include "workload/mask.hpp"

namespace heed::api {
namespace {

// Of rotations: the same for every plan, so that a call gives the same again.
constexpr std::uint64_t kSeedOfSigns = 48;

// One of Q, K and V in a workspace.
struct Place {
  std::size_t elements = 0;
  std::size_t factors = 0;
  std::size_t largest = 0;
};

// The workspace begins with that of the inner plan; quantised tensors, their factors and what the pass keeps follow.
class PrecisionPlan final : public Plan {
 public:
  PrecisionPlan(const Problem& problem, const PrecisionDecision& decision, std::unique_ptr<Plan> inner,
                std::unique_ptr<Quantiser> quantiser, std::unique_ptr<Copies> copies, bool debug)
      : Plan(problem, nothing_to_run(), LaunchPlan{}),
        mode_(*decision.mode),
        inner_problem_(decision.inner),
        reason_(decision.choice.reason),
        inner_(std::move(inner)),
        quantiser_(std::move(quantiser)),
        copies_(std::move(copies)),
        copies_v_(decision.copies_v),
        copies_o_(decision.copies_o),
        debug_(debug) {
    workspace_bytes_ = workspace_part(inner_->workspace_bytes());
    const Problem& to = inner_problem_;
    const Workload& w = problem_.workload;
    const FeatureParams& launch = parameters();
    pass_.rows = {.cu_seqlens_q = nullptr,
                  .cu_seqlens_k = nullptr,
                  .seqused_k = nullptr,
                  .prefix_lengths = nullptr,
                  .batch = static_cast<int>(w.batch),
                  .len_q = static_cast<int>(w.len_q),
                  .len_k = static_cast<int>(w.len_k),
                  .total_q = static_cast<int>(problem_.total_q),
                  .total_k = static_cast<int>(problem_.total_k),
                  .mask = static_cast<int>(mask_kind(w)),
                  .left_offset = launch.left_offset,
                  .right_offset = launch.right_offset,
                  .aligned_to_the_end = launch.aligned_to_the_end};
    const auto take = [&](TensorPass& t, Place& place, const std::optional<QuantisedTensor>& tensor,
                          const TensorLayout& from, const TensorSizes& sizes, const TensorLayout& layout,
                          const TensorSizes& of_inner, const TensorScales& scales, bool are_keys) {
      t.from_strides = from;
      t.from_step = from.step;
      t.to_strides = layout;
      if (w.ragged) t.from_strides.batch = t.to_strides.batch = 0;
      t.scales = scales;
      t.element = static_cast<int>(w.dtype);
      t.heads = static_cast<int>(sizes.heads);
      t.dim = static_cast<int>(sizes.dim);
      t.to_dim = static_cast<int>(of_inner.dim);
      t.are_keys = are_keys ? 1 : 0;
      if (!tensor) return;
      t.to_element = static_cast<int>(tensor->dtype);
      const bool by_rows = tensor->by == ScaleBy::block || tensor->by == ScaleBy::token;
      t.count =
          scale_sizes(*tensor, by_rows ? of_inner.batch : w.batch, of_inner.heads, of_inner.rows, of_inner.dim).count();
      place.elements = room(static_cast<std::size_t>(of_inner.batch * of_inner.heads * of_inner.rows * of_inner.dim));
      place.factors = room(static_cast<std::size_t>(t.count) * sizeof(float));
      place.largest = room(static_cast<std::size_t>(t.count) * sizeof(unsigned));
    };
    const Quantised& quantised = *to.workload.quantised;
    take(pass_.q, q_, quantised.q, problem_.q, problem_.q_sizes(), to.q, to.q_sizes(), to.q_scales, false);
    take(pass_.k, k_, quantised.k, problem_.k, problem_.k_sizes(), to.k, to.k_sizes(), to.k_scales, true);
    take(pass_.v, v_, quantised.v, problem_.v, problem_.v_sizes(), to.v, to.v_sizes(), to.v_scales, true);
    if (mode_.rotates) {
      pass_.q.is_rotated = pass_.k.is_rotated = 1;
      pass_.norm = quantise::rotation_norm(pass_.k.dim);
      quantise::draw_signs(kSeedOfSigns, pass_.k.dim, pass_.signs);
    }
    pass_.scale = static_cast<float>(w.softmax_scale());
    if (mode_.smooths) {
      const auto heads = static_cast<std::size_t>(w.batch * w.heads_kv) * static_cast<std::size_t>(w.dim);
      sums_ = room(heads * static_cast<std::size_t>(quantise::chunks_of(pass_.rows.len_k)) * sizeof(double));
      mean_ = room(heads * sizeof(float));
      if (problem_.wants_lse) {
        const TensorSizes o = problem_.o_sizes();
        pass_.shift_count = o.batch * o.heads * o.rows;
        shift_ = room(static_cast<std::size_t>(pass_.shift_count) * sizeof(float));
      }
    }
    const auto copied = [&](bool is, const TensorSizes& s) {
      return is ? room(static_cast<std::size_t>(s.batch * s.heads * s.rows * s.dim) *
                       static_cast<std::size_t>(bytes_.o))
                : 0;
    };
    v_copy_ = copied(copies_v_, to.v_sizes());
    o_copy_ = copied(copies_o_, to.o_sizes());
    lost_ = debug_ ? room(3 * sizeof(quantise::Lost)) : 0;
  }

  void prepare(void* workspace, void* stream) const override {
    require_workspace(workspace);
    inner_->prepare(workspace, stream);
  }

  double run(const heed_tensors* tensors, std::size_t count, void* workspace, void* stream,
             std::uint32_t flags) const override {
    if (flags != 0)
      throw Error(ErrorCode::usage, "this plan cannot be launched as a dependent; leave out HEED_RUN_DEPENDENT");
    require_workspace(workspace);
    double us = 0;
    for (std::size_t i = 0; i < count; ++i) us += run_one(tensors[i], static_cast<char*>(workspace), stream);
    return us;
  }

  void info(heed_plan_info& info) const override {
    inner_->info(info);
    info.can_be_dependent = 0;
    info.workspace_bytes = workspace_bytes_;
    info.reason = reason_.c_str();
    info.flops = flops_of(problem_);
    info.precision = mode_.name.data();
    if (copies_o_) info.o_strides = {};
  }

 private:
  // So many bytes behind what the workspace has. @return where they begin
  std::size_t room(std::size_t bytes) {
    const std::size_t at = workspace_bytes_;
    workspace_bytes_ += workspace_part(bytes);
    return at;
  }

  double run_one(const heed_tensors& tensors, char* room_of, void* stream) const {
    const Addresses at = checked(tensors, room_of);
    quantise::Pass pass = pass_;
    pass.rows.cu_seqlens_q = at.cu_seqlens_q;
    pass.rows.cu_seqlens_k = at.cu_seqlens_k;
    pass.rows.seqused_k = at.seqused_k;
    pass.rows.prefix_lengths = at.prefix_lengths;
    heed_tensors moved = tensors;
    const auto bind = [&](TensorPass& t, const Place& place, const void* from, const void*& to, const float*& factors) {
      t.from = from;
      if (t.count == 0) return;
      t.to = reinterpret_cast<unsigned char*>(room_of + place.elements);
      t.factors = reinterpret_cast<float*>(room_of + place.factors);
      t.largest = reinterpret_cast<unsigned*>(room_of + place.largest);
      t = quantise::with_width(t, pass.rows);
      to = t.to;
      factors = t.factors;
    };
    bind(pass.q, q_, at.q, moved.q, moved.q_scale);
    bind(pass.k, k_, at.k, moved.k, moved.k_scale);
    bind(pass.v, v_, at.v, moved.v, moved.v_scale);
    if (mode_.smooths) {
      pass.sums = reinterpret_cast<double*>(room_of + sums_);
      pass.mean = reinterpret_cast<float*>(room_of + mean_);
      if (pass.shift_count > 0) pass.shift = reinterpret_cast<float*>(room_of + shift_);
      pass.lse = at.lse;
    }
    if (debug_) pass.lost = reinterpret_cast<quantise::Lost*>(room_of + lost_);
    double us = quantiser_->quantise(pass, stream);
    const Problem& to = inner_problem_;
    if (copies_v_) {
      const padding::RowCopy copy =
          row_copy(at.v, problem_.v, problem_.v_sizes(), room_of + v_copy_, to.v, to.workload.dim_v, bytes_.o);
      copies_->run({&copy, 1}, stream);
      moved.v = room_of + v_copy_;
    }
    if (copies_o_) moved.o = room_of + o_copy_;
    us += inner_->run(&moved, 1, room_of, stream, 0);
    if (copies_o_) {
      const padding::RowCopy copy =
          row_copy(room_of + o_copy_, to.o, to.o_sizes(), at.o, problem_.o, problem_.workload.dim_v, bytes_.o);
      copies_->run({&copy, 1}, stream);
    }
    if (pass.shift != nullptr) us += quantiser_->shift_lse(pass, stream);
    if (debug_) expect_none_lost(pass, mode_, quantiser_->lost(pass, stream));
    return us;
  }

  using TensorPass = quantise::TensorPass;

  const quantise::Mode& mode_;
  Problem inner_problem_;
  std::string reason_;
  std::unique_ptr<Plan> inner_;
  std::unique_ptr<Quantiser> quantiser_;
  std::unique_ptr<Copies> copies_;
  bool copies_v_;
  bool copies_o_;
  bool debug_;
  quantise::Pass pass_{};
  Place q_;
  Place k_;
  Place v_;
  std::size_t sums_ = 0;
  std::size_t mean_ = 0;
  std::size_t shift_ = 0;
  std::size_t v_copy_ = 0;
  std::size_t o_copy_ = 0;
  std::size_t lost_ = 0;
};

// Pieces of a stage are shared by the plan's threads, as blocks of a program are.
class CpuQuantiser final : public Quantiser {
 public:
  explicit CpuQuantiser(std::shared_ptr<CpuLauncher> threads) : threads_(std::move(threads)) {}

  double quantise(const quantise::Pass& pass, void*) const override {
    for (const quantise::TensorPass* t : {&pass.q, &pass.k, &pass.v})
      if (t->to != nullptr) std::memset(t->largest, 0, static_cast<std::size_t>(t->count) * sizeof(unsigned));
    double us = 0;
    for (const Stage stage : {Stage::sums, Stage::means, Stage::largest, Stage::elements}) us += run(pass, stage);
    return us;
  }
  double shift_lse(const quantise::Pass& pass, void*) const override { return run(pass, Stage::lse); }
  double quantise_by_given_factors(const quantise::Pass& pass, void*) const override {
    return run(pass, Stage::elements);
  }
  std::array<quantise::Lost, 3> lost(const quantise::Pass& pass, void*) const override {
    std::array<quantise::Lost, 3> all;
    all.fill({0, quantise::kNoneLost});
    quantise::Pass own = pass;
    own.lost = all.data();
    run(own, Stage::lost);
    return all;
  }

 private:
  using Stage = quantise::Stage;
  struct Work {
    const quantise::Pass& pass;
    Stage stage;
  };

  double run(const quantise::Pass& pass, Stage stage) const {
    const long long pieces = quantise::pieces_of(pass, stage);
    // One piece wakes nobody.
    if (pieces == 1) quantise::run_piece(pass, stage, 0);
    if (pieces <= 1) return 0;
    Work work{pass, stage};
    FeatureParams params{};
    params.workspace = &work;
    const auto entry = [](const ForwardParams* p, long long piece, void*) {
      const auto& own = *static_cast<const Work*>(p->workspace);
      quantise::run_piece(own.pass, own.stage, piece);
    };
    return threads_->run(entry, &params, 1, pieces);
  }

  std::shared_ptr<CpuLauncher> threads_;
};

}  // namespace

std::unique_ptr<Quantiser> make_cpu_quantiser(const Options& options, const DeviceFacts& device) {
  return std::make_unique<CpuQuantiser>(cpu_launcher(options, device, 0));
}

std::unique_ptr<Plan> make_precision_plan(const Problem& problem, const Options& options) {
  const DeviceFacts device = facts_of_device(problem);
  const PrecisionDecision decision = decide_precision(problem, options, device);
  Options plain = options;
  plain.precision.clear();
  if (decision.is_plain) return make_plan(problem, plain);
  const bool cpu = problem.device == DeviceKind::cpu;
  std::unique_ptr<Copies> copies;
  if (decision.copies_v || decision.copies_o)
    copies = cpu ? make_cpu_copies() : make_gpu_copies(problem, choose_copies(plain, device));
  std::unique_ptr<Quantiser> quantiser;
  if (cpu) {
    quantiser = make_cpu_quantiser(plain, device);
  } else {
    std::optional<Choice> lost;
    if (options.debug) lost = choose_lost(plain, device);
    quantiser = make_gpu_quantiser(problem, choose_quantiser(plain, device), lost ? &*lost : nullptr);
  }
  return std::make_unique<PrecisionPlan>(problem, decision, make_plan(decision.inner, plain), std::move(quantiser),
                                         std::move(copies), options.debug);
}

}  // namespace heed::api
