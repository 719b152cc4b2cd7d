// Strides that each tensor of a scene has of its own: what lies between rows, and that nothing may be written there.
#include "verify/scene_strides.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "testing.hpp"
#include "verify/compare.hpp"
#include "verify/gate.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

Scene spread_scene(const Workload& w, std::uint64_t seed) {
  return {w, make_inputs(w, InputClass::normal, 5), LaunchPlan{}, 6, {.with_lse = true, .stride_seed = seed}};
}

TEST(SceneStrides, WithoutASeedRowsFollowEachOther) {
  const Extent extent{2, 3, 40, 16};
  const Spread inner = SceneStrides(Layout::bhld, 0).of(SceneStrides::q, extent, 3, 2);
  EXPECT_EQ(inner.strides, (Strides{3 * 43 * 16, 43 * 16, 16}));
  EXPECT_EQ(inner.elements, 2 * 3 * 43 * 16);
  const Spread outer = SceneStrides(Layout::blhd, 0).of(SceneStrides::q, extent, 3, 2);
  EXPECT_EQ(outer.strides, (Strides{3 * 43 * 16, 16, 3 * 16}));
  EXPECT_EQ(outer.elements, inner.elements);
}

TEST(SceneStrides, NoTwoTensorsHaveTheSame) {
  const Extent extent{2, 3, 40, 16};
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const SceneStrides strides(Layout::bhld, seed);
    std::set<std::int64_t> batches, inner;
    for (const SceneStrides::Tensor tensor : {SceneStrides::q, SceneStrides::k, SceneStrides::v, SceneStrides::o}) {
      const Strides s = strides.of(tensor, extent, 0, 2).strides;
      for (const std::int64_t stride : {s.batch, s.head, s.row}) EXPECT_EQ(stride * 2 % 16, 0);
      EXPECT_GT(std::min(s.head, s.row), 16);
      EXPECT_GE(std::max(s.head, s.row), std::min(s.head, s.row) * (s.head > s.row ? 40 : 3));
      inner.insert(std::min(s.head, s.row));
      batches.insert(s.batch);
    }
    EXPECT_EQ(inner.size(), 4U);
  }
}

TEST(SceneStrides, GapsAreNaNAndMustStayAsTheyAre) {
  for (const char* text : {"b2h3hkv1l9k14d16:fp16", "b2h2l9k14d16:fp32:blhd:out_gate=element",
                           "b3h2l9k40d16:bf16:ragged", "b2h2l5k40d16:fp16:key_lengths:page=8"})
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const Workload w = parse_workload(text);
      const Scene scene = spread_scene(w, seed);
      EXPECT_LE(scene.image().size(), image_bytes(w, {}, 0, true)) << text;
      const std::size_t size = size_of(w.dtype);
      std::set<std::size_t> of_rows;
      for (const RowIndex& row : all_rows(w)) {
        if (row.row >= scene.rows_of(row.batch)) continue;
        for (std::int64_t d = 0; d < w.dim_v; ++d) {
          const std::size_t at = scene.o_index(row) + static_cast<std::size_t>(d);
          ASSERT_TRUE(of_rows.insert(at).second) << "two elements of O in one place";
          ASSERT_LE((at + 1) * size, scene.o().bytes);
        }
      }
      std::int64_t gaps = 0;
      std::vector<std::byte> after = scene.image();
      for (std::size_t i = 0; i < scene.o().bytes / size; ++i) {
        std::byte& byte = after[scene.o().offset + i * size];
        byte ^= std::byte{1};
        const bool is_row = of_rows.contains(i);
        gaps += is_row ? 0 : 1;
        ASSERT_EQ(scene.forbidden_write(after.data()).finding, is_row ? Finding::none : Finding::wrote_outside) << i;
        byte ^= std::byte{1};
      }
      EXPECT_GT(gaps, 0);
      std::int64_t numbers = 0;
      for (std::size_t i = 0; i < scene.q().bytes / size; ++i)
        numbers += std::isfinite(load_element(w.dtype, scene.image().data() + scene.q().offset, i)) ? 1 : 0;
      EXPECT_EQ(numbers, static_cast<std::int64_t>(of_rows.size()));  // Q has the rows of O, and NaN between them
    }
}

// The reference reads the values of a scene wherever they lie.
TEST(SceneStrides, TheReferenceIsThatOfDenseTensors) {
  for (const char* text : {"b2h4hkv2l9k14d16:fp16:causal_top_left", "b2h2l9k14d16:bf16:out_norm=1e-5:out_gate=head",
                           "b2h2l9k14d16:fp16:quantised=q/e4m3/head+k/int8/token+v/e4m3/channel"}) {
    const Workload w = parse_workload(text);
    const Reference dense = make_reference(spread_scene(w, 0), all_rows(w));
    const Reference spread = make_reference(spread_scene(w, 3), all_rows(w));
    EXPECT_EQ(dense.oracle.out, spread.oracle.out) << text;
    EXPECT_EQ(dense.oracle.lse, spread.oracle.lse) << text;
  }
}

}  // namespace
}  // namespace heed::verify
