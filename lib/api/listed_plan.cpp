#include "api/listed_plan.hpp"

#include "api/cpu_launcher.hpp"
#include "workload/mask.hpp"

namespace heed::api {
namespace {

constexpr std::int64_t kLeastRows = 256;
constexpr std::int64_t kLeastKeys = 512;
constexpr const char* kRemark =
    "; before each launch a pass over the bias lists the blocks of 64 x 64 scores that it leaves, and which of them it "
    "leaves as they are";

std::int64_t blocks_of(std::int64_t count) {
  return (count + listing::kBlock - 1) / listing::kBlock;
}

// The pass of a problem, without addresses.
listing::Pass pass_of(const Problem& problem, const FeatureParams& launch) {
  const Workload& w = problem.workload;
  const TensorLayout& bias = problem.bias;
  const bool shares_rows = bias.row == 0;
  // Bounds that are the same for all that share a list.
  const bool has_bounds = !shares_rows && !w.has_lengths() && w.prefix == 0;
  listing::Pass pass{};
  pass.bias_batch = bias.batch;
  pass.bias_head = bias.head;
  pass.bias_row = bias.row;
  pass.bias_key = bias.step;
  pass.batch = bias.batch == 0 ? 1 : static_cast<int>(w.batch);
  pass.heads = bias.head == 0 ? 1 : static_cast<int>(w.heads);
  pass.len_q = shares_rows ? 1 : static_cast<int>(w.len_q);
  pass.len_k = static_cast<int>(w.len_k);
  pass.row_blocks = static_cast<int>(blocks_of(pass.len_q));
  pass.most = static_cast<int>(blocks_of(pass.len_k));
  pass.element = launch.bias_element;
  pass.mask = static_cast<int>(has_bounds ? mask_kind(w) : MaskKind::none);
  pass.left_offset = launch.left_offset;
  pass.right_offset = launch.right_offset;
  return pass;
}

Problem with_lists(const Problem& problem) {
  Problem inner = problem;
  const TensorLayout& bias = problem.bias;
  const std::int64_t most = blocks_of(problem.workload.len_k);
  const std::int64_t rows = bias.row == 0 ? 1 : blocks_of(problem.workload.len_q);
  const std::int64_t heads = bias.head == 0 ? 1 : problem.workload.heads;
  inner.workload.blocks = BlockPattern{
      .rows = listing::kBlock, .keys = listing::kBlock, .by_batch = bias.batch != 0, .by_head = bias.head != 0};
  inner.block_most = most;
  inner.block_counts = {{bias.batch == 0 ? 0 : heads * rows, bias.head == 0 ? 0 : rows, bias.row == 0 ? 0 : 1}, 1};
  const TensorLayout& counts = inner.block_counts;
  inner.block_indices = {{counts.batch * most, counts.head * most, counts.row * most}, 1};
  return inner;
}

// The workspace begins with that of the inner plan; the lists follow.
class ListedPlan final : public Plan {
 public:
  ListedPlan(const Problem& problem, std::string reason, std::unique_ptr<Plan> inner, std::unique_ptr<Lister> lister)
      : Plan(problem, nothing_to_run(), LaunchPlan{}),
        reason_(std::move(reason)),
        inner_(std::move(inner)),
        lister_(std::move(lister)),
        pass_(pass_of(problem, parameters())) {
    const auto lists = static_cast<std::size_t>(listing::lists_of(pass_));
    counts_ = workspace_part(inner_->workspace_bytes());
    indices_ = counts_ + workspace_part(lists * sizeof(int));
    workspace_bytes_ = indices_ + workspace_part(lists * static_cast<std::size_t>(pass_.most) * sizeof(int));
    tensor_alignment_ = 1;  // the inner plan's own is what counts
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
    auto* const room = static_cast<char*>(workspace);
    double us = 0;
    for (std::size_t i = 0; i < count; ++i) {
      listing::Pass pass = pass_;
      pass.bias = checked(tensors[i], workspace).bias;
      pass.counts = reinterpret_cast<int*>(room + counts_);
      pass.indices = reinterpret_cast<int*>(room + indices_);
      us += lister_->list(listing::with_width(pass), stream);
      heed_tensors listed = tensors[i];
      listed.block_counts = pass.counts;
      listed.block_indices = pass.indices;
      us += inner_->run(&listed, 1, workspace, stream, 0);
    }
    return us;
  }

  void info(heed_plan_info& info) const override {
    inner_->info(info);
    info.can_be_dependent = 0;
    info.workspace_bytes = workspace_bytes_;
    info.reason = reason_.c_str();
    info.flops = flops_of(problem_);
  }

 private:
  std::string reason_;
  std::unique_ptr<Plan> inner_;
  std::unique_ptr<Lister> lister_;
  listing::Pass pass_;
  std::size_t counts_ = 0;
  std::size_t indices_ = 0;
};

// Lists are shared by the plan's threads, as blocks of a program are.
class CpuLister final : public Lister {
 public:
  explicit CpuLister(std::shared_ptr<CpuLauncher> threads) : threads_(std::move(threads)) {}

  double list(const listing::Pass& pass, void*) const override {
    FeatureParams params{};
    listing::Pass own = pass;
    params.workspace = &own;
    const auto entry = [](const ForwardParams* p, long long index, void*) {
      listing::list_on_host(*static_cast<const listing::Pass*>(p->workspace), index);
    };
    return threads_->run(entry, &params, 1, listing::lists_of(pass));
  }

 private:
  std::shared_ptr<CpuLauncher> threads_;
};

}  // namespace

bool pays_to_list(const Problem& problem) {
  const Workload& w = problem.workload;
  return w.bias && w.len_q >= kLeastRows && w.len_k >= kLeastKeys &&
         (w.bias->dtype == BiasDtype::boolean || (w.heads > 1 && problem.bias.head == 0));
}

std::optional<ListedDecision> decide_listed(const Problem& problem, const Options& options, const DeviceFacts& device) {
  const Workload& w = problem.workload;
  if (options.listing == HEED_LIST_OFF || !w.bias || w.blocks || problem.is_empty || !problem.has_keys ||
      !options.variant.empty())
    return std::nullopt;
  if (options.listing == HEED_LIST_AUTO && !pays_to_list(problem)) return std::nullopt;
  ListedDecision decision{with_lists(problem), nothing_to_run(), nothing_to_run()};
  try {
    if (problem.device == DeviceKind::cuda) decision.lister = choose_lister(options, device);
    decision.choice = decide(decision.inner, options, device).choice;
  } catch (const Error& error) {
    // It is run as it is; what is wrong with that is said there.
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::programs) throw;
    return std::nullopt;
  }
  decision.choice.reason += kRemark;
  return decision;
}

std::unique_ptr<Plan> make_listed_plan(const Problem& problem, ListedDecision decision, const Options& options) {
  const DeviceFacts device = facts_of_device(problem);
  std::unique_ptr<Lister> lister = problem.device == DeviceKind::cpu
                                       ? std::make_unique<CpuLister>(cpu_launcher(options, device, 0))
                                       : make_gpu_lister(problem, decision.lister);
  return std::make_unique<ListedPlan>(problem, std::move(decision.choice.reason), make_plan(decision.inner, options),
                                      std::move(lister));
}

}  // namespace heed::api
