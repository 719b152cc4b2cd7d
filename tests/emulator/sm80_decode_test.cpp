// fwd_sm80_decode on the emulated GPU: right results, nothing written elsewhere, semaphores back at zero, whatever the
// order of threads and blocks and whenever copies land.
#include "kernels/sm80/decode/forward.cuh"

#include "base/random.hpp"
#include "simt.hpp"
#include "testing.hpp"
#include "verify/scene.hpp"
#include "worker/protocol.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

enum class Copies { land_early, land_late };

constexpr std::int64_t kPaddingRows = 3;

/// A kernel with its config and problem fixed, and what its launches take.
struct Kernel {
  void (*run)(const ForwardParams&, char*);
  int threads;
  std::int64_t shared_bytes;
  Problem problem;
  sm80_decode::Config decode;  // of fwd_sm80_decode
};

template <sm80_decode::Config kConfig, Problem kProblem>
Kernel decode_kernel() {
  static_assert(sm80_decode::is_legal(kConfig, kProblem, 227 * 1024, 228 * 1024) == sm80_decode::Illegal::no);
  return {[](const ForwardParams& params, char* shared) {
            sm80_decode::Forward<emulator::kConstant<kConfig>, emulator::kConstant<kProblem>>(params, shared).run();
          },
          sm80_decode::threads(kConfig), sm80_decode::shared_plan(kConfig, kProblem.head_dim).total, kProblem, kConfig};
}

/// What one launch left behind: empty, or the first thing that is wrong.
std::string launch(const Kernel& kernel, const Workload& workload, const LaunchPlan& plan, Copies copies, bool with_lse,
                   std::uint64_t seed) {
  verify::InputValues values = verify::make_inputs(workload, verify::InputClass::normal, seed);
  const std::int64_t seen = workload.keys_of(workload.len_q - 1).end;
  for (verify::Values* tensor : {&values.k, &values.v})
    for (std::int64_t row = 0; row < workload.batch * workload.heads_kv * workload.len_k; ++row)
      if (row % workload.len_k >= seen) std::fill_n(tensor->begin() + row * workload.dim, workload.dim, std::nanf(""));
  const verify::Scene scene(workload, values, plan, seed, {.with_lse = with_lse, .padding_rows = kPaddingRows});
  std::vector<std::byte> image(scene.image().size() + 256);
  std::byte* base = image.data() + (256 - reinterpret_cast<std::uintptr_t>(image.data()) % 256);
  std::copy(scene.image().begin(), scene.image().end(), base);
  ForwardParams params = worker::resolve(scene.launch(), reinterpret_cast<std::uintptr_t>(base));
  std::vector<unsigned> semaphores(static_cast<std::size_t>(plan.semaphores), 0);
  params.semaphores = semaphores.data();
  emulator::Launch order;
  order.grid = {plan.grid[0], plan.grid[1], plan.grid[2]};
  order.threads = static_cast<unsigned>(kernel.threads);
  order.shared_bytes = static_cast<std::size_t>(plan.shared_bytes);
  order.seed = seed;
  order.early = copies == Copies::land_early;
  for (const verify::Place* place : {&scene.q(), &scene.k(), &scene.v()})
    order.readable.push_back({base + place->offset, place->bytes});
  try {
    emulator::run(order, [&](char* shared) { kernel.run(params, shared); });
  } catch (const std::logic_error& error) {
    return error.what();
  }

  if (const verify::Scene::ForbiddenWrite forbidden_write = scene.forbidden_write(base);
      forbidden_write.finding != Finding::none)
    return forbidden_write.text;
  for (const unsigned counter : semaphores)
    if (counter != 0) return "a counter is not back at zero";
  const std::vector<RowIndex> rows = all_rows(workload);
  const ReferenceRows expected = reference_attention(workload, scene.tensors(), rows, 1);
  const double tolerance = workload.dtype == Dtype::fp16 ? 2e-3 : 1.6e-2;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto [batch, head, row] = rows[r];
    const auto where = [&] {
      return " at batch " + std::to_string(batch) + " head " + std::to_string(head) + " row " + std::to_string(row);
    };
    const TensorStrides& s = params.o_strides;
    for (std::int64_t d = 0; d < workload.dim; ++d) {
      const float got = load_element(workload.dtype, params.o,
                                     static_cast<std::size_t>(batch * s.batch + head * s.head + row * s.row + d));
      const double want = expected.out[r * static_cast<std::size_t>(workload.dim) + static_cast<std::size_t>(d)];
      if (!(std::abs(got - want) <= tolerance))
        return "O is " + std::to_string(got) + " instead of " + std::to_string(want) + where() + " column " +
               std::to_string(d);
    }
    if (with_lse) {
      const float got = params.lse[(batch * workload.heads + head) * workload.len_q + row];
      if (!(got == expected.lse[r] || std::abs(got - expected.lse[r]) <= 2e-3))
        return "the log-sum-exp is " + std::to_string(got) + " instead of " + std::to_string(expected.lse[r]) + where();
    }
  }
  return {};
}

LaunchPlan plan_of(const Kernel& kernel, const Workload& w, int splits) {
  const sm80_decode::Config& c = kernel.decode;
  const std::int64_t tiles =
      w.heads_kv * sm80_decode::row_tiles(c, static_cast<int>(w.heads / w.heads_kv), static_cast<int>(w.len_q));
  LaunchPlan plan;
  plan.grid = {static_cast<std::uint32_t>(splits), static_cast<std::uint32_t>(tiles),
               static_cast<std::uint32_t>(w.batch)};
  plan.threads = static_cast<std::uint32_t>(kernel.threads);
  plan.shared_bytes = kernel.shared_bytes;
  plan.workspace_bytes = sm80_decode::workspace_bytes(c, w.batch * tiles, splits, static_cast<int>(w.dim));
  plan.semaphores = splits > 1 ? static_cast<int>(w.batch * tiles) : 0;
  return plan;
}

constexpr Problem kFp16D64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
constexpr Problem kFp16D64Causal{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
constexpr Problem kBf16D128{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::none};
constexpr Problem kFp16D128Causal{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::causal};

const std::vector<Kernel>& kernels() {
  using enum tile::SharedLayout;
  using enum attention::Rescale;
  static const std::vector<Kernel> all = {
      decode_kernel<{.block_n = 32, .kv_groups = 4, .stages = 3, .rescale = when_grown}, kFp16D64>(),
      decode_kernel<{.block_n = 32, .kv_groups = 4, .stages = 3, .rescale = when_grown}, kFp16D64Causal>(),
      decode_kernel<{.block_n = 16, .kv_groups = 4, .stages = 3, .rescale = when_grown}, kBf16D128>(),
      decode_kernel<{.block_n = 16, .kv_groups = 4, .stages = 3, .rescale = when_grown}, kFp16D128Causal>(),
      decode_kernel<{.block_n = 16,
                     .kv_groups = 2,
                     .stages = 1,
                     .min_blocks = 1,
                     .smem_layout = swizzled,
                     .q_in_registers = false,
                     .l2_prefetch_size = sm80_decode::L2PrefetchSize::b256},
                    kFp16D64Causal>(),
      decode_kernel<{.block_m = 32,
                     .block_n = 16,
                     .warp_rows = 32,
                     .kv_groups = 4,
                     .stages = 2,
                     .min_blocks = 1,
                     .rescale = conditional},
                    kFp16D128Causal>(),
      decode_kernel<{.block_m = 64, .block_n = 16, .warp_rows = 32, .kv_groups = 2, .stages = 2, .min_blocks = 1},
                    kFp16D64Causal>(),
      decode_kernel<{.block_m = 64,
                     .block_n = 64,
                     .warp_rows = 16,
                     .kv_groups = 1,
                     .stages = 2,
                     .min_blocks = 1,
                     .smem_layout = swizzled,
                     .l2_prefetch_size = sm80_decode::L2PrefetchSize::none},
                    kFp16D64>(),
      decode_kernel<{.block_m = 16, .block_n = 16, .kv_groups = 8, .stages = 2, .min_blocks = 1, .rescale = when_grown},
                    kBf16D128>(),
  };
  return all;
}

// Quarters, so that no test takes long on a small machine.
class DecodeEmulated : public ::testing::TestWithParam<int> {};

TEST_P(DecodeEmulated, IsRightWhateverTheOrder) {
  Random random(static_cast<std::uint64_t>(40 + GetParam()));
  constexpr int kLengths[] = {1, 2, 7, 16};
  constexpr int kHeadsAGroup[] = {1, 3, 4, 8};
  constexpr int kSplits[] = {1, 2, 3, 9};
  for (std::size_t k = 0; k < kernels().size(); ++k) {
    const Kernel& kernel = kernels()[k];
    for (int n = 0; n < 2; ++n) {
      Workload w;
      w.batch = n == 0 ? 1 : 2;
      w.heads_kv = n == 0 ? 2 : 1;
      w.heads = w.heads_kv * kHeadsAGroup[random.below(4)];
      w.len_q = kLengths[random.below(4)];
      w.len_k = 1 + static_cast<std::int64_t>(random.below(random.chance(0.3) ? 20 : 200));
      w.dim = w.dim_v = kernel.problem.head_dim;
      w.dtype = kernel.problem.element == Element::bf16 ? Dtype::bf16 : Dtype::fp16;
      if (has_right_bound(kernel.problem.mask))
        w.mask = random.chance(0.5) ? Mask::causal_top_left : Mask::causal_bottom_right;
      w.layout = random.chance(0.5) ? Layout::bhld : Layout::blhd;
      const int splits = kSplits[random.below(4)];
      SCOPED_TRACE("kernel " + std::to_string(k) + ", " + to_string(w) + ", " + std::to_string(splits) + " splits");
      for (const Copies copies : {Copies::land_early, Copies::land_late})
        EXPECT_EQ(launch(kernel, w, plan_of(kernel, w, splits), copies, random.chance(0.8), random.next() >> 1), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quarters, DecodeEmulated, ::testing::Values(0, 1, 2, 3));

TEST(DecodeEmulatedCorners, ManySplitsFewKeysAndRowsThatSeeNothing) {
  const Kernel& causal = kernels()[1];
  const Kernel& full = kernels()[0];
  const auto check = [](const Kernel& kernel, const char* text, int splits) {
    const Workload w = parse_workload(text);
    EXPECT_EQ(launch(kernel, w, plan_of(kernel, w, splits), Copies::land_late, true, 11), "") << text;
  };
  check(full, "h4hkv1l1k1d64", 5);                           // four of five blocks have no key
  check(full, "h4hkv1l1k1300d64", 40);                       // more splits than one batch of loads takes
  check(full, "h16hkv1l1k333d64", 7);                        // every row of a tile is real
  check(causal, "h2hkv1l16k5d64:causal_bottom_right", 2);    // eleven queries see nothing
  check(causal, "h2hkv1l7k300d64:causal_top_left", 3);       // most keys are seen by nobody
  check(causal, "h8hkv1l1k200d64:causal_top_left", 3);       // one key
  check(causal, "h8hkv2l77k129d64:causal_bottom_right", 2);  // many tiles of rows
}

// Warps that share a ring: none may ask for the next tile while another still reads this one.
TEST(DecodeEmulatedCorners, WarpsOfAGroupWaitForEachOther) {
  for (const std::size_t k : {6U, 7U})
    for (std::uint64_t seed = 1; seed <= 4; ++seed)
      for (const Copies copies : {Copies::land_early, Copies::land_late}) {
        const Kernel& kernel = kernels()[k];
        const Workload w = parse_workload(has_right_bound(kernel.problem.mask) ? "h4hkv1l16k600d64:causal_bottom_right"
                                                                               : "h4hkv1l16k600d64");
        EXPECT_EQ(launch(kernel, w, plan_of(kernel, w, 1), copies, true, seed), "") << k << " " << seed;
      }
}

}  // namespace
}  // namespace heed
