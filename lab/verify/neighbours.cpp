// Shapes beside the workload that the gate launches a variant for, and the memory all of them take.
#include <algorithm>

#include "verify/chain.hpp"
#include "verify/gate.hpp"
#include "verify/other_features.hpp"
#include "workload/mask.hpp"

namespace heed::verify {
namespace {

constexpr std::uint64_t kMostSpread = std::uint64_t{1} << 30;  // bytes: beyond, gaps would cost what memory there is

std::uint64_t bytes_of(const Variant& variant, const Workload& workload, const DeviceFacts& device, bool own_strides) {
  return image_bytes(workload, LaunchMemory::of(variant.plan(workload, device)), kPaddingRows, own_strides);
}

}  // namespace

std::vector<Workload> neighbours(const Variant& variant, const Workload& workload) {
  std::vector<Workload> shapes;
  if (variant.problem.sizes.len_q > 0) {
    shapes.push_back(workload);
    if (variant.problem.sizes.o_strides.row == 0) shapes.back().layout = other_layout(workload.layout);
    shapes.back().scale = 0.3;
    return shapes;
  }
  const std::int64_t group = workload.heads / workload.heads_kv;
  const auto add = [&](const auto& change) {
    Workload w = workload;
    w.batch = 1;
    w.heads = group;
    w.heads_kv = 1;
    change(w);
    if (w.len_q < 1 || w.len_k < 1 || w == workload) return;
    shapes.push_back(w);
  };
  add([](Workload& w) { ++w.len_q, ++w.len_k; });
  add([](Workload& w) { --w.len_q, --w.len_k; });
  add([](Workload& w) { w.len_q = 1; });
  add([](Workload& w) { w.len_k = 1; });
  add([&](Workload& w) { w.batch = 3, w.heads_kv = 2, w.heads = 2 * group, w.len_q = 77, w.len_k = 129; });
  add([](Workload& w) { w.heads_kv = 2, w.heads = 6, w.len_q = 65, w.len_k = 191; });
  add([&](Workload& w) {
    w.layout = other_layout(w.layout);
    w.batch = 2, w.heads_kv = 3, w.heads = 3, w.len_q = 50, w.len_k = 70;
  });
  add([](Workload& w) { w.len_q = 33, w.len_k = 47, w.scale = 0.3; });
  const bool window = is_window(workload.mask);
  if (workload.is_masked())
    for (const Mask mask : {window ? Mask::window_top_left : Mask::causal_top_left,
                            window ? Mask::window_bottom_right : Mask::causal_bottom_right}) {
      add([&](Workload& w) {
        w.mask = mask, w.len_q = 130, w.len_k = 67;
      });  // bottom-right: rows with nothing to attend to
      add([&](Workload& w) { w.mask = mask, w.len_q = 67, w.len_k = 130; });  // top-left: keys nobody attends to
      if (!workload.has_left_bound()) continue;
      // Keys in front that nobody sees: the first row's window begins inside a tile, and at the end of one.
      for (const std::int64_t left : {9, 63})
        add([&](Workload& w) { w.mask = mask, w.len_q = 40, w.len_k = 240, w.window.left = left; });
      // The own key alone; rows that see nothing; a window that hides nothing.
      add([&](Workload& w) { w.mask = mask, w.len_q = 150, w.len_k = 90, w.window.left = 0; });
      add([&](Workload& w) { w.mask = mask, w.len_q = 90, w.len_k = 150, w.window.left = 1000; });
    }
  if (workload.dropout > 0) {
    // Others are dropped, all are; keys in front that nobody sees, an even number and an odd one.
    add([](Workload& w) { w.batch = 2, w.heads *= 2, w.heads_kv = 2, w.len_q = 45, w.len_k = 70, w.dropout = 0.6; });
    add([](Workload& w) { w.len_q = 20, w.len_k = 30, w.dropout = 1; });
    if (workload.has_left_bound())
      for (const std::int64_t len_k : {140, 141})
        add([&](Workload& w) { w.len_q = 40, w.len_k = len_k, w.window.left = 20; });
  }
  if (workload.quantised) {
    // Scale factors of every other granularity, of blocks that tiles do not begin with among them.
    const auto add_granularity = [&](ScaleBy by, std::int64_t rows) {
      add([&](Workload& w) {
        w.batch = 2, w.heads *= 2, w.heads_kv = 2, w.len_q = 70, w.len_k = 150;
        for (std::optional<QuantisedTensor>* tensor : {&w.quantised->q, &w.quantised->k, &w.quantised->v})
          if (*tensor) (*tensor)->by = by, (*tensor)->rows = rows;
        if (workload.quantised->v && by == ScaleBy::head) w.quantised->v->by = ScaleBy::channel;
      });
    };
    for (const ScaleBy by : {ScaleBy::tensor, ScaleBy::head, ScaleBy::token}) add_granularity(by, 1);
    const bool may_have_blocks = !workload.ragged;
    for (const std::int64_t rows : {7, 64})
      if (may_have_blocks) add_granularity(ScaleBy::block, rows);
  }
  if (workload.relative) {
    // The other kind of table, and buckets near and far from own keys.
    add([](Workload& w) { w.len_q = 70, w.len_k = 300, w.relative->bidirectional = !w.relative->bidirectional; });
    add([](Workload& w) { w.len_q = 300, w.len_k = 90, w.relative = RelativeBias{.buckets = 12, .max_distance = 20}; });
  }
  if (workload.softcap > 0) add([](Workload& w) { w.len_q = 40, w.len_k = 90, w.softcap = 7.5; });
  if (workload.page_size > 0)
    for (const std::int64_t size : {2 * workload.page_size, std::int64_t{24}})
      add([&](Workload& w) { w.batch = 2, w.len_q = 40, w.len_k = 150, w.page_size = size; });
  if (workload.bias) {
    // A bias that entries, heads and rows have of their own where they shared it, and the other way round.
    add([](Workload& w) {
      w.batch = 2, w.heads *= 2, w.heads_kv = 2, w.len_q = 50, w.len_k = 90;
      w.bias->by_batch = !w.bias->by_batch, w.bias->by_head = !w.bias->by_head;
    });
    add([](Workload& w) {
      w.batch = 2, w.heads *= 2, w.heads_kv = 2, w.len_q = 50, w.len_k = 90;
      w.bias->by_batch = true, w.bias->by_row = !w.bias->by_row;
    });
  }
  if (const Workload plain = without_features(workload); plain != workload)
    add([&](Workload& w) {
      w = without_features(w);
      w.batch = 2, w.len_q = 45, w.len_k = 90;
    });
  if (workload.changes_output()) {
    // Weights of each head or shared ones, gates of elements or of rows, rows that no tile ends with.
    add([](Workload& w) {
      w.batch = 2, w.heads *= 2, w.heads_kv = 2, w.len_q = 77, w.len_k = 150;
      if (w.out_norm) w.out_norm = OutNorm{.eps = 1e-2, .by_head = !w.out_norm->by_head};
      if (w.out_gate != OutGate::none) w.out_gate = w.out_gate == OutGate::head ? OutGate::element : OutGate::head;
    });
  }
  if (workload.blocks) {
    // The other sizes of blocks, lists of other heads and entries, and rows without a block.
    add([](Workload& w) {
      w.batch = 2, w.heads *= 2, w.heads_kv = 2, w.len_q = 200, w.len_k = 330;
      w.blocks = BlockPattern{
          .rows = 192 - w.blocks->rows, .keys = 64, .density = 0.4, .seed = 3, .by_batch = true, .by_head = true};
    });
    add([](Workload& w) {
      w.len_q = 330, w.len_k = 200;
      w.blocks = BlockPattern{.rows = w.blocks->rows, .keys = 192 - w.blocks->keys, .density = 0.3, .seed = 5};
    });
  }
  return shapes;
}

bool may_spread(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  return bytes_of(variant, workload, device, true) <= kMostSpread;
}

std::uint64_t scene_bytes(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  return bytes_of(variant, workload, device, may_spread(variant, workload, device));
}

std::uint64_t gate_arena_bytes(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  std::vector<Workload> shapes = neighbours(variant, workload);
  shapes.push_back(workload);
  shapes.push_back(with_many_heads(workload));
  std::uint64_t most = 0;
  for (const Workload& shape : shapes) {
    if (!variant.runs(shape) || variant.family->refuses(shape, device)) continue;
    most = std::max(most, scene_bytes(variant, shape, device));
  }
  for (const Workload& chain : chain_workloads(variant, workload, device))
    most = std::max(most, chain_bytes(chain, variant.plan(chain, device)));
  return 2 * (most + 4096);
}

}  // namespace heed::verify
