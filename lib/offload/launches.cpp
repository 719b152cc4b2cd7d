// Launches over the pages of a piece: their problems, plans and runs.
#include <algorithm>
#include <limits>

#include "offload/offload.hpp"
#include "padding/padding.hpp"

namespace heed::offload {
namespace {

constexpr std::size_t kMostPlans = 512;

}  // namespace

heed_problem Offload::problem_of(const View& view, const Launch& launch, const heed_strides& q_strides,
                                 const heed_strides& o_strides) const {
  const Piece& piece = *launch.piece;
  const Call& call = *view.call;
  const bool on_host = piece.place == Place::host;
  heed_problem p;
  heed_problem_init(&p);
  p.device_type = !on_host && config_.kind == DeviceKind::cuda ? HEED_CUDA : HEED_CPU;
  p.device = on_host ? 0 : config_.ordinal;
  p.batch = view.entries;
  p.heads = config_.heads;
  p.heads_kv = config_.heads_kv;
  p.len_q = piece.rows;
  p.len_k = launch.table_pages * config_.pages.page_size;
  p.dim = config_.dim;
  p.dim_v = config_.dim_v;
  p.dtype_q = p.dtype_o = static_cast<int>(config_.dtype);
  p.dtype_k = p.dtype_v = static_cast<int>(config_.dtype_kv);
  if (piece.mask.right == 0) {
    p.mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
    p.window_left = piece.mask.left;
  } else if (piece.mask != PieceMask{}) {
    p.mask = HEED_MASK_WINDOW_BOTTOM_RIGHT;
    p.window_left = piece.mask.left;
    p.window_right = piece.mask.right;
  }
  p.scale = call.scale;
  p.softcap = call.softcap;
  p.q_strides = q_strides;
  p.o_strides = o_strides;
  const std::int64_t size = config_.pages.page_size;
  const auto strides = [&](std::int64_t dim) {
    return config_.heads_outer ? heed_strides{config_.heads_kv * size * dim, size * dim, dim, 1}
                               : heed_strides{config_.heads_kv * size * dim, dim, config_.heads_kv * dim, 1};
  };
  p.k_strides = strides(config_.dim);
  p.v_strides = strides(config_.dim_v);
  p.page_size = size;
  p.pages = piece.place == Place::device     ? config_.pages.device_pages
            : piece.place == Place::streamed ? config_.chunks * config_.chunk_pages
                                             : config_.pages.host_pages;
  p.page_table_stride = launch.table_pages;
  p.flags = HEED_PAGED | HEED_KEY_LENGTHS | HEED_WANTS_LSE;
  if (config_.has_eight_bits()) {
    p.flags |= HEED_SCALED;
    p.k_scales.head = p.v_scales.head = 1;
  }
  return p;
}

std::shared_ptr<const api::Plan> Offload::plan_of(const heed_problem& problem) {
  const std::string key(reinterpret_cast<const char*>(&problem), sizeof problem);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  if (plans_.size() >= kMostPlans) plans_.clear();
  api::Options options;
  options.programs = config_.programs;
  options.threads = problem.device_type == HEED_CPU ? config_.threads : 0;
  const api::Problem read = api::read_problem(&problem);
  std::shared_ptr<const api::Plan> plan;
  try {
    plan = api::make_plan(read, options);
  } catch (const Error& error) {
    // Of pages of 8 bits files have few programs, and rows are not padded to fit one: NVRTC makes what a GPU lacks.
    const bool builds = config_.has_eight_bits() && problem.device_type == HEED_CUDA;
    if (!builds || error.code() != ErrorCode::unsupported) throw;
    options.build = HEED_BUILD_WAIT;
    plan = api::make_plan(read, options);
  }
  plans_.emplace(key, plan);
  return plan;
}

// A piece with more rows than a launch takes is several over the same pages, whose log-sum-exps are put side by side.
void Offload::run_piece(const View& view, const Launch& launch, const std::int32_t* numbers, std::byte* o, float* lse,
                        const heed_strides& o_strides) {
  if (launch.groups.size() == 1) return run_rows(view, launch, numbers, o, lse, o_strides);
  const Piece& piece = *launch.piece;
  const std::int64_t lines = view.entries * config_.heads;
  const RowGroup& longest = launch.groups.front();
  auto* const own = reinterpret_cast<float*>(at_least(work_->lse, static_cast<std::size_t>(lines * longest.rows * 4)));
  for (std::size_t i = 0; i < launch.groups.size(); ++i) {
    const RowGroup& group = launch.groups[i];
    Piece part;
    part.place = piece.place;
    part.mask = group.mask;
    part.first_row = piece.first_row + group.first_row;
    part.rows = group.rows;
    Launch one = launch;
    one.piece = &part;
    one.keys += static_cast<std::int64_t>(i) * view.entries;
    run_rows(view, one, numbers, o + group.first_row * o_strides.row * config_.element_bytes(), own, o_strides);
    const padding::RowCopy copy{.from = own,
                                .to = lse + group.first_row,
                                .from_strides = {0, 0, group.rows},
                                .to_strides = {0, 0, piece.rows},
                                .from_step = 1,
                                .to_step = 1,
                                .batch = 1,
                                .heads = 1,
                                .rows = static_cast<int>(lines),
                                .from_dim = static_cast<int>(group.rows),
                                .to_dim = static_cast<int>(group.rows),
                                .is_wide = 0,
                                .element_bytes = 4};
    lanes_->copy_rows(Lane::compute, {&copy, 1});
  }
}

void Offload::run_rows(const View& view, const Launch& launch, const std::int32_t* numbers, std::byte* o, float* lse,
                       const heed_strides& o_strides) {
  const Call& call = *view.call;
  const Piece& piece = *launch.piece;
  const std::shared_ptr<const api::Plan> plan = plan_of(problem_of(view, launch, call.q_strides, o_strides));
  if (graph_ != nullptr) graph_->plans.push_back(plan);
  const PageMemory memory = piece.place == Place::device
                                ? device_pages(call.layer)
                                : PageMemory{static_cast<std::byte*>(work_->ring.at),
                                             static_cast<std::byte*>(work_->ring.at) +
                                                 config_.chunks * config_.chunk_pages * config_.k_page_bytes(),
                                             config_.chunks * config_.chunk_pages};
  heed_plan_info known;
  heed_plan_info_init(&known);
  plan->info(known);
  if (known.workspace_bytes > work_->workspace.bytes) work_->prepared = std::numeric_limits<std::size_t>::max();
  std::byte* const workspace = at_least(work_->workspace, known.workspace_bytes);
  // A plan that asks for no zeros writes where another has them.
  if (known.workspace_bytes > 0 && known.workspace_zeroed != work_->prepared) {
    if (known.workspace_zeroed > 0) lanes_->prepare(plan, workspace);
    work_->prepared = known.workspace_zeroed;
  }
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = call.q +
        (view.first_entry * call.q_strides.batch + piece.first_row * call.q_strides.row) * config_.element_bytes();
  t.k = memory.k;
  t.v = memory.v;
  t.o = o;
  t.lse = lse;
  t.page_table = numbers + launch.table;
  t.seqused_k = numbers + launch.keys;
  if (config_.has_eight_bits()) {
    t.k_scale = static_cast<const float*>(scales_.at) + call.layer * config_.heads_kv;
    t.v_scale = t.k_scale + config_.k_scales.size();
  }
  lanes_->run(plan, t, workspace);
}

// Of a plan that runs on the processors.
void Offload::take_host_scales(heed_tensors& tensors, int layer) const {
  if (!config_.has_eight_bits()) return;
  tensors.k_scale = config_.k_scales.data() + layer * config_.heads_kv;
  tensors.v_scale = config_.v_scales.data() + layer * config_.heads_kv;
}

}  // namespace heed::offload
