// Plans between copies: rows of another length than a program's, or that lie where no kernel reads them.
#include <array>
#include <cstring>

#include "api/plan.hpp"
#include "api/row_copy.hpp"

namespace heed::api {
namespace {

// The workspace begins with that of the inner plan; the copies of Q, K, V and O follow.
class CopiedPlan final : public Plan {
 public:
  CopiedPlan(const Problem& problem, std::unique_ptr<Plan> inner, std::unique_ptr<Copies> copies)
      : Plan(problem, nothing_to_run(), LaunchPlan{}), inner_(std::move(inner)), copies_(std::move(copies)) {
    const Problem& to = inner_->problem();
    const auto bytes = static_cast<std::size_t>(bytes_.o);
    const auto take = [&](const TensorSizes& s) {
      const std::size_t at = workspace_bytes_;
      workspace_bytes_ += workspace_part(static_cast<std::size_t>(s.batch * s.heads * s.rows * s.dim) * bytes);
      return at;
    };
    workspace_bytes_ = workspace_part(inner_->workspace_bytes());
    q_ = take(to.q_sizes());
    k_ = take(to.k_sizes());
    v_ = take(to.v_sizes());
    o_ = take(to.o_sizes());
    tensor_alignment_ = 1;
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
    const Problem& from = problem_;
    const Problem& to = inner_->problem();
    auto* const room = static_cast<char*>(workspace);
    double us = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Addresses at = checked(tensors[i], workspace);
      if (problem_.has_keys) {
        const std::array<padding::RowCopy, 3> in = {
            copy(at.q, from.q, from.q_sizes(), room + q_, to.q, to.workload.dim),
            copy(at.k, from.k, from.k_sizes(), room + k_, to.k, to.workload.dim),
            copy(at.v, from.v, from.v_sizes(), room + v_, to.v, to.workload.dim_v)};
        copies_->run(in, stream);
      }
      heed_tensors moved = tensors[i];
      moved.q = room + q_;
      moved.k = room + k_;
      moved.v = room + v_;
      moved.o = room + o_;
      us += inner_->run(&moved, 1, workspace, stream, 0);
      const padding::RowCopy out = copy(room + o_, to.o, to.o_sizes(), at.o, from.o, from.workload.dim_v);
      copies_->run({&out, 1}, stream);
    }
    return us;
  }

  void info(heed_plan_info& info) const override {
    inner_->info(info);
    info.can_be_dependent = 0;
    info.workspace_bytes = workspace_bytes_;
    info.flops = flops_of(problem_);
    info.o_strides = {};
  }

 private:
  padding::RowCopy copy(const void* from, const TensorLayout& from_layout, const TensorSizes& sizes, void* to,
                        const TensorLayout& to_layout, std::int64_t to_dim) const {
    return row_copy(from, from_layout, sizes, to, to_layout, to_dim, bytes_.o);
  }

  std::unique_ptr<Plan> inner_;
  std::unique_ptr<Copies> copies_;
  std::size_t q_ = 0;
  std::size_t k_ = 0;
  std::size_t v_ = 0;
  std::size_t o_ = 0;
};

}  // namespace

std::unique_ptr<Plan> make_copied_plan(const Problem& problem, std::unique_ptr<Plan> inner,
                                       std::unique_ptr<Copies> copies) {
  return std::make_unique<CopiedPlan>(problem, std::move(inner), std::move(copies));
}

}  // namespace heed::api
