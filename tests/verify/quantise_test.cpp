// Scale factors of given values, the elements that they make, and the total error of an output.
#include "verify/quantise.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "testing.hpp"
#include "verify/accuracy.hpp"
#include "verify/scene.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

Scene scene_of(const Workload& w, const InputValues& values, std::int64_t padding = 0) {
  return {w, values, LaunchPlan{}, 1, {.with_lse = true, .padding_rows = padding}};
}

float factor(const Scene& scene, Scene::FeatureInput input, std::size_t index) {
  float value = 0;
  std::memcpy(&value, scene.image().data() + scene.feature(input).offset + index * sizeof value, sizeof value);
  return value;
}

TEST(Quantise, AFactorIsTheLargestValueOverTheLargestElement) {
  const Workload w = parse_workload("b2h3l70d64:quantised=q/int8/block16+k/e4m3/token+v/e5m2/channel");
  const InputValues values = make_inputs(w, InputClass::outliers, 3);
  const Scene scene = scene_of(w, values);
  EXPECT_EQ(scene.feature(Scene::q_scales).bytes, 2U * 3 * 5 * 4);
  EXPECT_EQ(scene.feature(Scene::k_scales).bytes, 2U * 3 * 70 * 4);
  EXPECT_EQ(scene.feature(Scene::v_scales).bytes, 2U * 3 * 64 * 4);
  float largest = 0;
  for (std::size_t i = 0; i < 6 * 64; ++i)
    largest = std::max(largest, std::abs(values.q[static_cast<std::size_t>((4 * 70 + 64) * 64) + i]));
  EXPECT_EQ(factor(scene, Scene::q_scales, 4 * 5 + 4), largest / 127);  // the last block of head 4, of 6 rows
  // Every number is within half a step of its value: none saturates.
  const HostTensors t = scene.tensors();
  for (std::size_t row = 0; row < 2 * 3 * 70; ++row)
    for (std::size_t d = 0; d < 64; ++d) {
      const float f = t.q_scales.at[row / 70 * 5 + row % 70 / 16];
      ASSERT_NEAR(load_element(Dtype::int8, t.q, row * 64 + d) * f, values.q[row * 64 + d], f * 0.5001F);
      const float k = values.k[row * 64 + d], g = t.k_scales.at[row];
      ASSERT_NEAR(load_element(Dtype::e4m3, t.k, row * 64 + d) * g, k,
                  std::max(std::abs(k) * 0x1p-4F, g * 0x1p-10F) * 1.001F);
      const float v = values.v[row * 64 + d], h = t.v_scales.at[row / 70 * 64 + d];
      ASSERT_NEAR(load_element(Dtype::e5m2, t.v, row * 64 + d) * h, v,
                  std::max(std::abs(v) * 0x1p-3F, h * 0x1p-17F) * 1.001F);
    }
}

TEST(Quantise, BlocksOfZerosHaveAFactorOfOneAndUnseenOnesNaN) {
  const Workload w = parse_workload("b1h2l64d64:quantised=qk/int8/block32+v/e4m3/head");
  InputValues values = make_inputs(w, InputClass::normal, 3);
  std::fill_n(values.q.begin(), 32 * 64, 0.0F);
  std::fill(values.v.begin(), values.v.end(), 0.0F);
  std::fill_n(values.k.begin() + 32 * 64, 32 * 64, std::numeric_limits<float>::quiet_NaN());
  const Scene scene = scene_of(w, values, 3);
  EXPECT_EQ(factor(scene, Scene::q_scales, 0), 1);
  EXPECT_EQ(factor(scene, Scene::v_scales, 0), 1);
  EXPECT_TRUE(std::isnan(factor(scene, Scene::k_scales, 1)));  // of keys that are all poison
  EXPECT_TRUE(std::isnan(factor(scene, Scene::q_scales, 2)));  // of rows of padding
  EXPECT_EQ(load_element(Dtype::int8, scene.tensors().k, 40 * 64), -128);
  // A value of infinity saturates and leaves the factor to the others.
  values.v[5] = -INFINITY;
  values.v[6] = 2;
  const Scene other = scene_of(w, values);
  EXPECT_EQ(factor(other, Scene::v_scales, 0), 2.0F / 448);
  EXPECT_EQ(load_element(Dtype::e4m3, other.tensors().v, 5), -448);
  EXPECT_EQ(load_element(Dtype::e4m3, other.tensors().v, 6), 448);
}

TEST(Quantise, TheOracleIsThatOfElementsTimesFactors) {
  // Two problems of the same numbers: quantised, and as fp32.
  for (const char* text : {"b2h4hkv2l37k51d16:fp32:quantised=qkv/e4m3/tensor",
                           "b2h4hkv2l37k51d16:fp32:causal_bottom_right:quantised=qk/int8/block8+v/e5m2/channel",
                           "b3h4hkv2l37k51d16:fp32:ragged:quantised=qkv/int8/token",
                           "b3h4hkv2l37k51d16:fp32:ragged:page=8:quantised=q/int8/token+kv/e4m3/block4",
                           "b3h4hkv2l37k51d16:fp32:key_lengths:page=16:quantised=kv/int8/head",
                           "b2h2l37k51d16:fp32:blhd:window=9/3:quantised=kv/e4m3/token"}) {
    const Workload w = parse_workload(text);
    InputValues values = make_inputs(w, InputClass::normal, 7);
    const Scene scene = scene_of(w, values);
    const HostTensors t = scene.tensors();
    InputValues given = values;
    const auto give = [&](Values& to, std::int64_t heads, std::int64_t rows, bool are_queries,
                          const std::optional<QuantisedTensor>& tensor, const Place& place, const HostScales& scales) {
      if (!tensor) return;
      const bool by_rows = scales.strides.row != 0;
      for (std::int64_t b = 0; b < w.batch; ++b) {
        const EntryLengths& own = scene.places().lengths()[static_cast<std::size_t>(b)];
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t r = 0; r < (are_queries ? own.len_q : own.len_k); ++r) {
            const RowPlace at = are_queries ? scene.places().query(b, r) : scene.places().key(b, r);
            const std::int64_t first = (by_rows ? at.block : b) * scales.strides.batch + h * scales.strides.head +
                                       at.row / scales.rows * scales.strides.row;
            for (std::int64_t d = 0; d < w.dim; ++d)
              to[static_cast<std::size_t>(((b * heads + h) * rows + r) * w.dim + d)] =
                  load_element(tensor->dtype, scene.image().data() + place.offset,
                               static_cast<std::size_t>(element_index(place.strides, at, h) + d)) *
                  scales.at[first + d * scales.channel];
          }
      }
    };
    give(given.q, w.heads, w.len_q, true, w.quantised->q, scene.q(), t.q_scales);
    give(given.k, w.heads_kv, w.len_k, false, w.quantised->k, scene.k(), t.k_scales);
    give(given.v, w.heads_kv, w.len_k, false, w.quantised->v, scene.v(), t.v_scales);
    Workload plain = w;
    plain.quantised.reset();
    const Scene same = scene_of(plain, given);
    std::vector<RowIndex> rows;
    for (const RowIndex& row : all_rows(w))
      if (row.row < scene.rows_of(row.batch)) rows.push_back(row);
    const ReferenceRows a = reference_attention(w, t, rows);
    const ReferenceRows b = reference_attention(plain, same.tensors(), rows);
    for (std::size_t i = 0; i < a.out.size(); ++i) ASSERT_NEAR(a.out[i], b.out[i], 2e-6) << text << " " << i;
  }
}

TEST(Quantise, TheTotalErrorIsThatOfTheValuesBefore) {
  const Workload w = parse_workload("b1h2l40d64:fp32:quantised=qk/int8/token+v/e4m3/head");
  const InputValues values = make_inputs(w, InputClass::normal, 3);
  const Scene scene = scene_of(w, values);
  Workload plain = w;
  plain.quantised.reset();
  const std::vector<RowIndex> rows = all_rows(w);
  const auto accuracy_of = [&](const ReferenceRows& out, double times) {
    std::vector<std::byte> after = scene.image();
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t d = 0; d < 64; ++d)
        store_element(Dtype::fp32, after.data() + scene.o().offset, scene.o_index(rows[i]) + d,
                      static_cast<float>(out.out[i * 64 + d] * times));
    return total_error(scene, values, after.data(), rows);
  };
  const ReferenceRows original = reference_attention(plain, scene_of(plain, values).tensors(), rows);
  const ReferenceRows quantised = reference_attention(w, scene.tensors(), rows);
  const Accuracy none = accuracy_of(original, 1);
  EXPECT_LT(none.rel_rms, 1e-6);
  EXPECT_NEAR(none.cosine, 1, 1e-12);
  const Accuracy tenth = accuracy_of(original, 1.1);  // of a known error
  EXPECT_NEAR(tenth.rel_rms, 0.1, 1e-6);
  EXPECT_NEAR(tenth.rel_l1, 0.1, 1e-6);
  EXPECT_NEAR(tenth.worst_row, 0.1, 1e-5);
  EXPECT_NEAR(tenth.cosine, 1, 1e-9);
  const Accuracy cost = accuracy_of(quantised, 1);
  EXPECT_GT(cost.rel_rms, 5e-3);
  EXPECT_LT(cost.rel_rms, 6e-2);
  EXPECT_LT(cost.cosine, 1 - 1e-5);
}

TEST(Quantise, AnImageFitsWhatIsAskedForIt) {
  for (const char* text :
       {"b2h4hkv2l37k51d16:fp32:quantised=qkv/e4m3/token", "b3h4l9k77d64:page=16:quantised=kv/int8/token",
        "b3h4l9k77d64:page=1:ragged:quantised=qkv/int8/token", "b5h4l9k7d64:quantised=v/int8/channel"})
    for (const std::int64_t padding : {0, 3}) {
      const Workload w = parse_workload(text);
      const Scene scene = scene_of(w, make_inputs(w, InputClass::normal, 1), padding);
      EXPECT_LE(scene.image().size(), image_bytes(w, {}, padding)) << text;
    }
}

}  // namespace
}  // namespace heed::verify
