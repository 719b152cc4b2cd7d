// Pages of 8 bits: scale factors on the device, and new keys quantised before they are written.
#include "offload/offload.hpp"
#include "offload/parts.hpp"
#include "quantise/quantise.hpp"

namespace heed::offload {

void Offload::bring_scales() {
  if (!config_.has_eight_bits()) return;
  const std::size_t bytes = config_.k_scales.size() * sizeof(float);
  std::byte* const at = at_least(scales_, 2 * bytes);
  (void)lanes_->use(nullptr);
  lanes_->copy_in(Lane::compute, at, config_.k_scales.data(), bytes);
  lanes_->copy_in(Lane::compute, at + bytes, config_.v_scales.data(), bytes);
  lanes_->finish(lanes_->record(Lane::compute));
}

// The call with keys and values of 8 bits, dense, which the compute lane makes: once, for the pages of the host and
// those of the device. The next call's come behind this one's end, when they were written to pages.
Call Offload::with_eight_bits(const Call& given) {
  const auto batch = static_cast<std::int64_t>(given.ids.size());
  const std::int64_t rows = batch * config_.heads_kv * given.new_keys;
  std::byte* const k = at_least(fresh_, static_cast<std::size_t>(whole(rows * config_.dim) + rows * config_.dim_v));
  std::byte* const v = k + whole(rows * config_.dim);
  Call call = given;
  call.is_quantised = true;
  const auto dense = [&](std::int64_t dim) {
    return heed_strides{config_.heads_kv * given.new_keys * dim, given.new_keys * dim, dim, 1};
  };
  call.k = k;
  call.v = v;
  call.k_strides = dense(config_.dim);
  call.v_strides = dense(config_.dim_v);

  quantise::Pass pass{};
  pass.rows.batch = static_cast<int>(batch);
  pass.rows.len_q = 1;  // that sees all keys
  pass.rows.len_k = static_cast<int>(given.new_keys);
  pass.rows.mask = static_cast<int>(MaskKind::none);
  const auto tensor = [&](const std::byte* from, const heed_strides& strides, std::byte* to, const heed_strides& own,
                          std::int64_t dim, float* factors) {
    quantise::TensorPass t{};
    t.from = from;
    t.from_strides = {strides.batch, strides.head, strides.row};
    t.from_step = strides.dim;
    t.to = reinterpret_cast<unsigned char*>(to);
    t.to_strides = {own.batch, own.head, own.row};
    t.factors = factors;
    t.scales.strides.head = 1;
    t.scales.rows = 1;
    t.element = static_cast<int>(config_.dtype);
    t.to_element = static_cast<int>(config_.dtype_kv);
    t.heads = static_cast<int>(config_.heads_kv);
    t.dim = t.to_dim = static_cast<int>(dim);
    t.are_keys = 1;
    return quantise::with_width(t, pass.rows);
  };
  float* const factors = static_cast<float*>(scales_.at) + given.layer * config_.heads_kv;
  pass.k = tensor(given.k, given.k_strides, k, call.k_strides, config_.dim, factors);
  pass.v = tensor(given.v, given.v_strides, v, call.v_strides, config_.dim_v, factors + config_.k_scales.size());
  lanes_->quantise(pass);
  return call;
}

// Plans copy no tensors beside quantised ones: queries that kernels do not read as they lie are copied here, once.
Call Offload::with_dense_rows(const Call& given) {
  const auto batch = static_cast<std::int64_t>(given.ids.size());
  const heed_strides& s = given.q_strides;
  const api::TensorSizes sizes{batch, config_.heads, given.rows, config_.dim};
  if (!config_.has_eight_bits() || given.rows == 0 || batch == 0 ||
      api::layout_refusal("Q", sizes, {{s.batch, s.head, s.row}, s.dim}, config_.dtype, config_.kind).empty())
    return given;
  Call call = given;
  const std::int64_t elements = batch * config_.heads * given.rows * config_.dim;
  std::byte* const q = at_least(work_->q, static_cast<std::size_t>(elements * config_.element_bytes()));
  call.q = q;
  call.q_strides = {config_.heads * given.rows * config_.dim, given.rows * config_.dim, config_.dim, 1};
  copy_queries(given.q, s, batch, given.rows, q);
  return call;
}

// Whether a launch over all keys may write O as it lies; else it writes a dense part, and the merge writes O.
bool Offload::writes_in_place(const Call& call) const {
  const heed_strides& s = call.o_strides;
  const api::TensorSizes sizes{static_cast<std::int64_t>(call.ids.size()), config_.heads, call.rows, config_.dim_v};
  return !config_.has_eight_bits() ||
         api::layout_refusal("O", sizes, {{s.batch, s.head, s.row}, s.dim}, config_.dtype, config_.kind).empty();
}

}  // namespace heed::offload
