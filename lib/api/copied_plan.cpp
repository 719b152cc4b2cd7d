// Plans between copies: rows of another length than a program's, or that lie where no kernel reads them.
#include <array>
#include <cstring>

#include "api/plan.hpp"
#include "padding/padding.hpp"

namespace heed::api {
namespace {

// The workspace begins with that of the inner plan; the copies of Q, K, V and O follow.
class CopiedPlan final : public Plan {
 public:
  CopiedPlan(const Problem& problem, std::unique_ptr<Plan> inner, std::unique_ptr<Copies> copies)
      : Plan(problem, nothing_to_run(), LaunchPlan{}), inner_(std::move(inner)), copies_(std::move(copies)) {
    const Problem& to = inner_->problem();
    const Workload& w = to.workload;
    const auto bytes = static_cast<std::size_t>(element_bytes_);
    const auto take = [&](std::int64_t heads, std::int64_t rows, std::int64_t dim) {
      const std::size_t at = workspace_bytes_;
      workspace_bytes_ += workspace_part(static_cast<std::size_t>(w.batch * heads * rows * dim) * bytes);
      return at;
    };
    workspace_bytes_ = workspace_part(inner_->workspace_bytes());
    q_ = take(w.heads, w.len_q, w.dim);
    k_ = take(w.heads_kv, w.len_k, w.dim);
    v_ = take(w.heads_kv, w.len_k, w.dim_v);
    o_ = take(w.heads, w.len_q, w.dim_v);
    tensor_alignment_ = static_cast<std::uintptr_t>(element_bytes_);
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
    const Workload& from = problem_.workload;
    const Problem& inner = inner_->problem();
    const Workload& to = inner.workload;
    auto* const room = static_cast<char*>(workspace);
    double us = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Addresses at = checked(tensors[i]);
      if (problem_.has_keys) {
        const std::array<padding::RowCopy, 3> in = {
            copy(at.q, problem_.q, room + q_, inner.q, from.heads, from.len_q, from.dim, to.dim),
            copy(at.k, problem_.k, room + k_, inner.k, from.heads_kv, from.len_k, from.dim, to.dim),
            copy(at.v, problem_.v, room + v_, inner.v, from.heads_kv, from.len_k, from.dim_v, to.dim_v)};
        copies_->run(in, stream);
      }
      heed_tensors moved = tensors[i];
      moved.q = room + q_;
      moved.k = room + k_;
      moved.v = room + v_;
      moved.o = room + o_;
      us += inner_->run(&moved, 1, workspace, stream, 0);
      const padding::RowCopy out =
          copy(room + o_, inner.o, at.o, problem_.o, from.heads, from.len_q, to.dim_v, from.dim_v);
      copies_->run({&out, 1}, stream);
    }
    return us;
  }

  void info(heed_plan_info& info) const override {
    inner_->info(info);
    info.can_be_dependent = 0;
    info.workspace_bytes = workspace_bytes_;
    info.flops = problem_.has_keys ? problem_.workload.flops() : 0;
    info.o_strides = {};
  }

 private:
  [[nodiscard]] padding::RowCopy copy(const void* from, const TensorLayout& from_layout, void* to,
                                      const TensorLayout& to_layout, std::int64_t heads, std::int64_t rows,
                                      std::int64_t from_dim, std::int64_t to_dim) const {
    padding::RowCopy copy{.from = from,
                          .to = to,
                          .from_strides = from_layout,
                          .to_strides = to_layout,
                          .from_step = from_layout.step,
                          .to_step = to_layout.step,
                          .batch = problem_.workload.batch,
                          .heads = static_cast<int>(heads),
                          .rows = static_cast<int>(rows),
                          .from_dim = static_cast<int>(from_dim),
                          .to_dim = static_cast<int>(to_dim),
                          .is_wide = 0};
    copy.is_wide = padding::is_wide(copy) ? 1 : 0;
    return copy;
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
