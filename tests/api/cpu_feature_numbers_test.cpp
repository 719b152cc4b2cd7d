// Addresses, workspaces and numbers of features that are wrong, on a CPU: which sentence names them.
#include <array>

#include "cpu_features.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::CpuFeatures;
using testing_support::expect_status;
using testing_support::FeatureCase;

class CpuFeatureNumbers : public CpuFeatures {};

TEST_F(CpuFeatureNumbers, NumbersThatCannotBeCountAsTheNearest) {
  FeatureCase one("b2h2l9k21d16:fp32:key_lengths:page=8");
  heed_tensors t = one.tensors();
  heed_problem p = one.problem();
  p.page_table_stride = 4;
  const auto output = [&](const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& pages) {
    t.seqused_k = lengths.data();
    t.page_table = pages.data();
    return outputs_of(one, p, t);
  };
  const auto last = static_cast<std::int32_t>(p.pages - 1);
  EXPECT_EQ(output({-7, 4000}, {0, 0, 0, -1, -9, 1, 1 << 30, -1}), output({0, 21}, {0, 0, 0, 0, 0, 1, last, 0}));
}

TEST_F(CpuFeatureNumbers, NumbersThatCannotBeAreNamedInDebugging) {
  FeatureCase one("b2h2l9k21d16:fp32:key_lengths:page=8");
  heed_tensors t = one.tensors();
  const std::vector<std::int32_t> lengths = {21, 3}, pages = {0, 1, 5, 99, -1, -1};
  t.seqused_k = lengths.data();
  t.page_table = pages.data();
  heed_plan* plan = plan_of(one.problem(), 1);
  std::vector<unsigned char> room(1 << 16);
  expect_status(heed_plan_run(plan, &t, room.data(), nullptr), HEED_INVALID_ARGUMENT,
                "page_table[3] is 99; there are pages 0 to 7");
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatureNumbers, AWorkspaceLiesApartFromTensors) {
  heed_problem p = cpu_problem("b1h2l6k6d12:fp32:causal_top_left");
  heed_plan* plan = plan_of(p);
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  ASSERT_GT(info.workspace_bytes, 0U);
  alignas(256) static std::array<float, 1 << 16> room;
  const auto at = [&](std::size_t bytes) { return reinterpret_cast<char*>(room.data()) + bytes; };
  const std::size_t behind = (info.workspace_bytes + 255) / 256 * 256;
  ASSERT_LT(behind + 4096, sizeof room);
  for (int overlapping = -1; overlapping < 4; ++overlapping) {
    const auto place = [&](int tensor) {
      return at(tensor == overlapping ? 0 : behind + 1024 * static_cast<std::size_t>(tensor));
    };
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = place(0);
    t.k = place(1);
    t.v = place(2);
    t.o = place(3);
    if (overlapping < 0)
      EXPECT_EQ(heed_plan_run(plan, &t, room.data(), nullptr), HEED_OK) << heed_last_error();
    else
      expect_status(heed_plan_run(plan, &t, room.data(), nullptr), HEED_INVALID_ARGUMENT,
                    std::string("the workspace overlaps ") + "QKVO"[overlapping]);
  }
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatureNumbers, AddressesThatCannotBeAreNamed) {
  const auto expect = [](FeatureCase& one, const heed_problem& p, const std::string& words, auto change) {
    heed_tensors t = one.tensors();
    change(t);
    heed_plan* plan = plan_of(p);
    std::vector<unsigned char> room(512);
    void* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
    expect_status(heed_plan_run(plan, &t, workspace, nullptr), HEED_INVALID_ARGUMENT, words);
    heed_plan_destroy(plan);
  };
  FeatureCase plain(kShape);
  const auto each = [&](const std::string& features, const std::string& name, auto heed_tensors::*tensor) {
    FeatureCase one(kShape + features);
    const heed_problem p = one.problem();
    expect(one, p, "the address of " + name + " is null", [&](heed_tensors& t) { t.*tensor = nullptr; });
    const auto moved = [&](std::ptrdiff_t bytes) {
      return [tensor, bytes](heed_tensors& t) {
        const auto address = reinterpret_cast<std::uintptr_t>(t.*tensor) + static_cast<std::uintptr_t>(bytes);
        t.*tensor = reinterpret_cast<std::remove_reference_t<decltype(t.*tensor)>>(address);
      };
    };
    expect(one, p, name + " lies at", moved(1));
    expect(one, p, "O overlaps " + name,
           [&](heed_tensors& t) { t.o = const_cast<void*>(static_cast<const void*>(t.*tensor)); });
    expect(plain, plain.problem(), name + " is given, which is of problems with",
           [&](heed_tensors& t) { t.*tensor = static_cast<std::remove_reference_t<decltype(t.*tensor)>>(t.q); });
  };
  each(":bias=fp16", "bias", &heed_tensors::bias);
  each(":sinks", "sinks", &heed_tensors::sinks);
  each(":alibi", "alibi_slopes", &heed_tensors::alibi_slopes);
  each(":ragged", "cu_seqlens_q", &heed_tensors::cu_seqlens_q);
  each(":ragged", "cu_seqlens_k", &heed_tensors::cu_seqlens_k);
  each(":key_lengths", "seqused_k", &heed_tensors::seqused_k);
  each(":page=8", "page_table", &heed_tensors::page_table);
  each(":causal_top_left:prefix=8", "prefix_lengths", &heed_tensors::prefix_lengths);
  each(":relative=32/128", "relative_bias", &heed_tensors::relative_bias);
  each(":out_gate=element", "out_gate", &heed_tensors::out_gate);
  each(":out_norm=1e-5", "out_norm_weight", &heed_tensors::out_norm_weight);
  each(":blocks=64", "block_counts", &heed_tensors::block_counts);
  each(":blocks=64", "block_indices", &heed_tensors::block_indices);
  FeatureCase paged(kShape + ":ragged:page=8");
  expect(paged, paged.problem(), "cu_seqlens_k is given, which is of problems with HEED_RAGGED, without HEED_PAGED",
         [](heed_tensors& t) { t.cu_seqlens_k = t.cu_seqlens_q; });
}

TEST_F(CpuFeatureNumbers, NumbersOfDropoutThatCannotBeAreNamed) {
  FeatureCase one(kShape + ":dropout=0.5"), plain(kShape);
  const auto expect = [](FeatureCase& with, const std::string& words, auto change) {
    heed_tensors t = with.tensors();
    change(t);
    heed_plan* plan = plan_of(with.problem());
    expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, words);
    heed_plan_destroy(plan);
  };
  const std::string of_none = "a seed, an offset or a first entry of dropout is given";
  expect(plain, of_none, [](heed_tensors& t) { t.dropout_seed = 1; });
  expect(plain, of_none, [](heed_tensors& t) { t.dropout_offset = 1; });
  expect(plain, of_none, [](heed_tensors& t) { t.dropout_first_entry = 1; });
  expect(one, "dropout_first_entry is -1;", [](heed_tensors& t) { t.dropout_first_entry = -1; });
  expect(one, "dropout_first_entry is 2147483647;", [](heed_tensors& t) { t.dropout_first_entry = 0x7fffffff; });
  expect(one, "reserved fields of heed_tensors", [](heed_tensors& t) { t.reserved_dropout = 1; });
  expect(one, "reserved fields of heed_tensors", [](heed_tensors& t) { t.reserved_flags = 1; });
  expect(one, "reserved fields of heed_tensors", [](heed_tensors& t) { t.reserved[7] = 1; });
}

TEST_F(CpuFeatureNumbers, RowsPastARaggedTensorAreRefused) {
  FeatureCase one(kShape + ":ragged");
  const heed_problem p = one.problem();
  const heed_tensors good = one.tensors();
  heed_plan* plan = plan_of(p);
  const auto refused = [&](auto heed_tensors::*array, std::int64_t total, const std::string& name) {
    for (const std::int64_t wrong :
         {std::int64_t{-1}, total + 1, std::int64_t{std::numeric_limits<std::int32_t>::min()}}) {
      std::vector<std::int32_t> begins = {0, 1, static_cast<std::int32_t>(wrong), 2};
      heed_tensors t = good;
      t.*array = begins.data();
      expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT,
                    fmt::format("{}[2] is {}; the tensor has rows 0 to {}", name, wrong, total - 1));
    }
  };
  refused(&heed_tensors::cu_seqlens_q, p.total_q, "cu_seqlens_q");
  refused(&heed_tensors::cu_seqlens_k, p.total_k, "cu_seqlens_k");
  heed_plan_destroy(plan);
}

}  // namespace
}  // namespace heed
