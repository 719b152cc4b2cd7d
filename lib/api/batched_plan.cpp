// Plans of more batch entries than a grid counts: several launches one after another.
#include <algorithm>

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
    info.flops = problem_.workload.flops();
  }

 private:
  [[nodiscard]] heed_tensors from(const heed_tensors& all, std::int64_t entry) const {
    const Workload& w = problem_.workload;
    const auto moved = [&](const void* address, const TensorLayout& layout) -> const void* {
      return static_cast<const char*>(address) + entry * layout.batch * element_bytes_;
    };
    heed_tensors part = all;
    part.q = moved(all.q, problem_.q);
    part.k = moved(all.k, problem_.k);
    part.v = moved(all.v, problem_.v);
    part.o = const_cast<void*>(moved(all.o, problem_.o));
    if (all.lse != nullptr) part.lse = all.lse + entry * w.heads * w.len_q;
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
