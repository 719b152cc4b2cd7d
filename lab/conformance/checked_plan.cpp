#include "conformance/checked_plan.hpp"

#include "api/problem.hpp"
#include "conformance/status.hpp"
#include "verify/inputs.hpp"

namespace heed::conformance {
namespace {

constexpr double kOracleFlops = 2e8;  // about a tenth of a second of the reference
constexpr std::int64_t kPaddingRows = 3;

verify::Scene scene_of(const Workload& workload, std::uint64_t seed) {
  verify::InputValues values = verify::make_inputs(workload, verify::InputClass::normal, seed);
  verify::make_features(workload, seed, values);
  verify::draw_lengths(workload, seed, values);
  if (workload.has_lengths()) values.lengths[0] = {workload.len_q, workload.len_k};  // never all 0
  return {workload, values, LaunchPlan{}, seed, {.with_lse = true, .padding_rows = kPaddingRows}};
}

}  // namespace

heed_problem problem_of(const verify::Scene& scene, DeviceKind device) {
  const Workload& w = scene.workload();
  heed_problem p = api::problem_of(w, device);
  if (scene.lse().bytes > 0) p.flags |= HEED_WANTS_LSE;
  const auto strides = [](const verify::Place& place) {
    return heed_strides{place.strides.batch, place.strides.head, place.strides.row, 1};
  };
  p.q_strides = strides(scene.q());
  p.k_strides = strides(scene.k());
  p.v_strides = strides(scene.v());
  p.o_strides = strides(scene.o());
  const FeatureParams& launch = scene.launch().shape;
  p.bias_strides = {launch.bias_batch, launch.bias_head, launch.bias_row, launch.bias_key};
  if (w.ragged) {
    p.total_q = scene.places().query_rows();
    p.total_k = w.page_size > 0 ? 0 : scene.places().key_rows();
  }
  if (w.ragged && w.page_size > 0) p.flags |= HEED_KEY_LENGTHS;
  p.pages = scene.places().pages();
  if (w.blocks) {
    p.block_most = launch.block_most;
    const auto strides_from = [](const TensorStrides& s, std::int64_t dim) {
      return heed_strides{s.batch, s.head, s.row, dim};
    };
    p.block_count_strides = strides_from(launch.block_count_strides, 0);
    p.block_index_strides = strides_from(launch.block_index_strides, 1);
  }
  const auto scales = [&](const std::optional<QuantisedTensor> Quantised::*tensor, const TensorScales& s) {
    if (!w.quantised || !(*w.quantised.*tensor)) return heed_scales{};
    return heed_scales{s.strides.batch, s.strides.head, s.strides.row, s.channel, s.strides.row == 0 ? 1 : s.rows};
  };
  p.q_scales = scales(&Quantised::q, launch.q_scales);
  p.k_scales = scales(&Quantised::k, launch.k_scales);
  p.v_scales = scales(&Quantised::v, launch.v_scales);
  const TensorStrides& gates = launch.out_gate_strides;
  p.out_gate_strides = {gates.batch, gates.head, gates.row, launch.out_gate_column};
  return p;
}

heed_tensors tensors_of(const verify::Scene& scene, std::byte* base) {
  const auto at = [&](const verify::Place& place) -> void* { return place.bytes == 0 ? nullptr : base + place.offset; };
  const auto numbers = [&](verify::Scene::FeatureInput input) {
    return static_cast<const std::int32_t*>(at(scene.feature(input)));
  };
  using S = verify::Scene;
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = at(scene.q());
  t.k = at(scene.k());
  t.v = at(scene.v());
  t.o = at(scene.o());
  t.lse = static_cast<float*>(at(scene.lse()));
  t.bias = at(scene.feature(S::bias));
  t.sinks = static_cast<const float*>(at(scene.feature(S::sinks)));
  t.alibi_slopes = static_cast<const float*>(at(scene.feature(S::alibi_slopes)));
  t.cu_seqlens_q = numbers(S::cu_seqlens_q);
  t.cu_seqlens_k = numbers(S::cu_seqlens_k);
  t.seqused_k = numbers(S::seqused_k);
  t.page_table = numbers(S::page_table);
  t.block_counts = numbers(S::block_counts);
  t.block_indices = numbers(S::block_indices);
  t.prefix_lengths = numbers(S::prefix_lengths);
  t.relative_bias = static_cast<const float*>(at(scene.feature(S::relative_bias)));
  t.q_scale = static_cast<const float*>(at(scene.feature(S::q_scales)));
  t.k_scale = static_cast<const float*>(at(scene.feature(S::k_scales)));
  t.v_scale = static_cast<const float*>(at(scene.feature(S::v_scales)));
  t.out_gate = at(scene.feature(S::out_gate));
  t.out_norm_weight = static_cast<const float*>(at(scene.feature(S::out_norm_weight)));
  t.dropout_seed = scene.launch().shape.dropout_seed;
  t.dropout_offset = scene.launch().shape.dropout_offset;
  t.dropout_first_entry = scene.launch().shape.dropout_first_entry;
  return t;
}

PlanHandle::PlanHandle(const heed_problem& problem, const Program& program) {
  heed_options options;
  heed_options_init(&options);
  if (!program.variant.empty()) options.variant = program.variant.c_str();
  if (!program.image.empty()) {
    options.image = program.image.data();
    options.image_bytes = program.image.size();
  }
  if (!program.programs.empty()) options.programs = program.programs.c_str();
  options.threads = program.threads;
  expect_ok(heed_plan_create(&problem, &options, &plan_));
  heed_plan_info_init(&info_);
  (void)heed_plan_get_info(plan_, &info_);
}

CheckedPlan::CheckedPlan(const Workload& workload, DeviceKind device, const Program& program, std::uint64_t seed)
    : device_(device), scene_(scene_of(workload, seed)), plan_(problem_of(scene_, device), program) {
  enter_device(device);
}

verify::Comparison CheckedPlan::check(const std::vector<std::byte>& after) {
  if (!reference_) reference_ = verify::make_reference(scene_, verify::choose_rows(scene_.workload(), kOracleFlops, 5));
  return verify::compare(scene_, after.data(), *reference_, /*hard_limit=*/false);
}

CheckedRun::CheckedRun(const CheckedPlan& plan)
    : plan_(plan),
      stream_(plan.device()),
      image_(plan.device(), plan.scene().image().size()),
      workspace_(plan.device(), plan.plan().info().workspace_bytes),
      workspace_address_(plan.plan().info().workspace_bytes == 0 ? nullptr : workspace_.address()),
      tensors_(tensors_of(plan.scene(), image_.address())) {
  // Whatever lies in a workspace, the call below makes it ready.
  workspace_.put(std::vector<std::byte>(workspace_.bytes(), std::byte{0xff}), stream_);
  stream_.wait();
  expect_ok(heed_plan_prepare(plan_.plan().get(), workspace_address_, stream_.get()));
}

void CheckedRun::reset() {
  image_.put(plan_.scene().image(), stream_);
}

void CheckedRun::run() {
  expect_ok(heed_plan_run(plan_.plan().get(), &tensors_, workspace_address_, stream_.get()));
}

const std::vector<std::byte>& CheckedRun::result() {
  image_.get(result_, stream_);
  return result_;
}

}  // namespace heed::conformance
