// Plans of more batch entries or heads than a grid counts: several launches one after another.
#include <algorithm>
#include <type_traits>

#include "api/plan.hpp"

namespace heed::api {
namespace {

// All but the last launch have the batch entries, or the heads, of `whole`; the last one has those that are left. They
// share one workspace, for they follow each other on one stream.
class DividedPlan final : public Plan {
 public:
  DividedPlan(const Problem& problem, std::string reason, std::unique_ptr<Plan> whole, std::unique_ptr<Plan> last)
      : Plan(problem, nothing_to_run(), LaunchPlan{}),
        reason_(std::move(reason)),
        whole_(std::move(whole)),
        last_(std::move(last)) {
    workspace_bytes_ = std::max(whole_->workspace_bytes(), last_ == nullptr ? 0 : last_->workspace_bytes());
  }

  void prepare(void* workspace, void* stream) const override {
    require_workspace(workspace);
    // The zeroed parts begin where the workspace does, so that the larger holds the smaller.
    whole_->prepare(workspace, stream);
    if (last_ != nullptr) last_->prepare(workspace, stream);
  }

  double run(const heed_tensors* tensors, std::size_t count, void* workspace, void* stream,
             std::uint32_t flags) const override {
    double us = 0;
    for (std::size_t i = 0; i < count; ++i) {
      (void)checked(tensors[i], workspace);
      const Workload& all = problem_.workload;
      const Workload& part = whole_->problem().workload;
      const bool by_heads = part.heads < all.heads;
      const std::int64_t step = by_heads ? part.heads : part.batch;
      const std::int64_t count_of_all = by_heads ? all.heads : all.batch;
      for (std::int64_t first = 0; first < count_of_all; first += step) {
        const Plan& plan = count_of_all - first >= step ? *whole_ : *last_;
        const heed_tensors of_part = by_heads ? from_head(tensors[i], first) : from_entry(tensors[i], first);
        us += plan.run(&of_part, 1, workspace, stream, flags);
      }
    }
    return us;
  }

  void info(heed_plan_info& info) const override {
    whole_->info(info);
    info.reason = reason_.c_str();
    info.workspace_bytes = workspace_bytes_;
    info.flops = flops_of(problem_);
  }

 private:
  template <typename Address>
  static void move_by(Address& address, std::int64_t bytes) {
    if (address != nullptr)
      address = static_cast<Address>(
          const_cast<void*>(static_cast<const void*>(reinterpret_cast<const char*>(address) + bytes)));
  }

  // Launches of heads have one batch entry, or ragged ones: rows of log-sum-exps of a head follow those of the one
  // before.
  [[nodiscard]] heed_tensors from_head(const heed_tensors& all, std::int64_t head) const {
    const Workload& w = problem_.workload;
    const std::int64_t head_kv = head / (w.heads / w.heads_kv);
    heed_tensors part = all;
    move_by(part.q, head * problem_.q.head * bytes_.q);
    move_by(part.o, head * problem_.o.head * bytes_.o);
    move_by(part.k, head_kv * problem_.k.head * bytes_.k);
    move_by(part.v, head_kv * problem_.v.head * bytes_.v);
    constexpr auto kNumber = static_cast<std::int64_t>(sizeof(float));
    move_by(part.lse, head * problem_.o_sizes().rows * kNumber);
    if (w.bias) move_by(part.bias, head * problem_.bias.head * static_cast<std::int64_t>(size_of(w.bias->dtype)));
    move_by(part.sinks, head * kNumber);
    move_by(part.alibi_slopes, head * kNumber);
    if (w.relative) move_by(part.relative_bias, head * w.relative->buckets * kNumber);
    move_by(part.block_counts, head * problem_.block_counts.head * kNumber);
    move_by(part.block_indices, head * problem_.block_indices.head * kNumber);
    move_by(part.out_gate, head * problem_.out_gate.head * bytes_.o);
    if (w.out_norm && w.out_norm->by_head) move_by(part.out_norm_weight, head * problem_.out_columns * kNumber);
    move_by(part.q_scale, head * problem_.q_scales.strides.head * kNumber);
    move_by(part.k_scale, head_kv * problem_.k_scales.strides.head * kNumber);
    move_by(part.v_scale, head_kv * problem_.v_scales.strides.head * kNumber);
    return part;
  }

  [[nodiscard]] heed_tensors from_entry(const heed_tensors& all, std::int64_t entry) const {
    const Workload& w = problem_.workload;
    heed_tensors part = all;
    const auto move = [&](auto& address, std::int64_t elements, std::int64_t element_bytes) {
      move_by(address, entry * elements * element_bytes);
    };
    // Rows of ragged tensors and of pages are found by the arrays that say where an entry's lie.
    if (!w.ragged) {
      move(part.q, problem_.q.batch, bytes_.q);
      move(part.o, problem_.o.batch, bytes_.o);
      move(part.out_gate, problem_.out_gate.batch, bytes_.o);
      move(part.lse, w.heads * w.len_q, sizeof(float));
    }
    if (!w.ragged && w.page_size == 0) {
      move(part.k, problem_.k.batch, bytes_.k);
      move(part.v, problem_.v.batch, bytes_.v);
    }
    if (w.bias) move(part.bias, problem_.bias.batch, static_cast<std::int64_t>(size_of(w.bias->dtype)));
    if (problem_.alibi_by_batch) move(part.alibi_slopes, w.heads, sizeof(float));
    move(part.cu_seqlens_q, 1, sizeof(std::int32_t));
    move(part.cu_seqlens_k, 1, sizeof(std::int32_t));
    move(part.seqused_k, 1, sizeof(std::int32_t));
    move(part.page_table, problem_.table_stride, sizeof(std::int32_t));
    move(part.prefix_lengths, 1, sizeof(std::int32_t));
    move(part.block_counts, problem_.block_counts.batch, sizeof(std::int32_t));
    move(part.block_indices, problem_.block_indices.batch, sizeof(std::int32_t));
    move(part.q_scale, problem_.q_scales.strides.batch, sizeof(float));
    // Factors of rows of pages are found by the page.
    for (const auto& [address, scales] :
         {std::pair{&part.k_scale, &problem_.k_scales}, std::pair{&part.v_scale, &problem_.v_scales}})
      if (w.page_size == 0 || scales->strides.row == 0) move(*address, scales->strides.batch, sizeof(float));
    if (w.dropout > 0) part.dropout_first_entry += static_cast<std::int32_t>(entry);
    return part;
  }

  std::string reason_;
  std::unique_ptr<Plan> whole_;
  std::unique_ptr<Plan> last_;  ///< null: none is left
};

}  // namespace

std::unique_ptr<Plan> make_divided_plan(const Problem& problem, std::string reason, std::unique_ptr<Plan> whole,
                                        std::unique_ptr<Plan> last) {
  return std::make_unique<DividedPlan>(problem, std::move(reason), std::move(whole), std::move(last));
}

}  // namespace heed::api
