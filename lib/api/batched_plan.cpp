// Plans of more batch entries than a grid counts: several launches one after another.
#include <algorithm>
#include <type_traits>

#include "api/plan.hpp"

namespace heed::api {
namespace {

// All but the last launch have the batch entries of `whole`; the last one has those that are left. They share one
// workspace, for they follow each other on one stream.
class BatchedPlan final : public Plan {
 public:
  BatchedPlan(const Problem& problem, std::string reason, std::unique_ptr<Plan> whole, std::unique_ptr<Plan> last)
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
      (void)checked(tensors[i]);
      const std::int64_t step = whole_->problem().workload.batch;
      for (std::int64_t entry = 0; entry < problem_.workload.batch; entry += step) {
        const Plan& plan = problem_.workload.batch - entry >= step ? *whole_ : *last_;
        const heed_tensors part = from(tensors[i], entry);
        us += plan.run(&part, 1, workspace, stream, flags);
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
  [[nodiscard]] heed_tensors from(const heed_tensors& all, std::int64_t entry) const {
    const Workload& w = problem_.workload;
    heed_tensors part = all;
    const auto move = [&](auto& address, std::int64_t elements, std::int64_t element_bytes) {
      using Address = std::remove_reference_t<decltype(address)>;
      if (address != nullptr)
        address = static_cast<Address>(const_cast<void*>(
            static_cast<const void*>(reinterpret_cast<const char*>(address) + entry * elements * element_bytes)));
    };
    // Rows of ragged tensors and of pages are found by the arrays that say where an entry's lie.
    if (!w.ragged) {
      move(part.q, problem_.q.batch, element_bytes_);
      move(part.o, problem_.o.batch, element_bytes_);
      move(part.lse, w.heads * w.len_q, sizeof(float));
    }
    if (!w.ragged && w.page_size == 0) {
      move(part.k, problem_.k.batch, element_bytes_);
      move(part.v, problem_.v.batch, element_bytes_);
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
    if (w.dropout > 0) part.dropout_first_entry += static_cast<std::int32_t>(entry);
    return part;
  }

  std::string reason_;
  std::unique_ptr<Plan> whole_;
  std::unique_ptr<Plan> last_;  ///< null: none is left
};

}  // namespace

std::unique_ptr<Plan> make_batched_plan(const Problem& problem, std::string reason, std::unique_ptr<Plan> whole,
                                        std::unique_ptr<Plan> last) {
  return std::make_unique<BatchedPlan>(problem, std::move(reason), std::move(whole), std::move(last));
}

}  // namespace heed::api
