// The emulated GPU notices what a real one would get wrong now and then.
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/matrix_descriptor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace heed::emulator {
namespace {

Launch one_warpgroup() {
  Launch launch;
  launch.threads = 128;
  launch.shared_bytes = 32 * 1024;
  return launch;
}
const Launch kOneWarpgroup = one_warpgroup();

// A (rows, 64) tensor of 16-bit elements that count up.
struct Counting {
  explicit Counting(int rows) : elements(static_cast<std::size_t>(rows) * 64) {
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = round_16(false, static_cast<float>(i % 7) - 3);
    const EmulatedMap m{
        reinterpret_cast<const std::byte*>(elements.data()), {64, rows, 1, 1}, {1, 64, 0, 0}, 64, std::min(rows, 64)};
    std::memcpy(map.opaque, &m, sizeof(m));
  }
  std::vector<std::uint16_t> elements;
  TensorMap map{};
};

// One thread copies a tile, every thread reads its first row.
void copy_and_read(bool wait, bool initialise, std::vector<float>& seen) {
  const Counting tensor(64);
  seen.assign(128, 0);
  run(kOneWarpgroup, [&](char* memory) {
    const unsigned shared = ptx::shared_address(memory);
    const unsigned barrier = shared + 16 * 1024;
    if (threadIdx.x == 0) {
      if (initialise) ptx::mbarrier_init(barrier, 1);
      ptx::mbarrier_arrive_expect_tx(barrier, 64 * 128);
      ptx::cp_async_bulk_tensor_4d(shared, tensor.map, barrier, 0, 0, 0, 0);
    }
    __syncthreads();
    if (wait || threadIdx.x == 127) ptx::mbarrier_wait(barrier, 0);
    seen[threadIdx.x] = load_16(false, pointer_to(shared, 2));
  });
}

TEST(Emulator, CopiesArriveOnlyWhereTheyAreWaitedFor) {
  std::vector<float> seen;
  copy_and_read(true, true, seen);
  for (const float x : seen) EXPECT_EQ(x, -3);
  copy_and_read(false, true, seen);
  EXPECT_TRUE(std::isnan(seen[0])) << "shared memory starts as NaN, and nothing has arrived yet";
  EXPECT_EQ(seen[127], -3);
  EXPECT_THROW(copy_and_read(true, false, seen), std::logic_error);
}

TEST(Emulator, DeadlocksAreToldWithTheirPlace) {
  try {
    run(kOneWarpgroup, [](char* memory) {
      const unsigned barrier = ptx::shared_address(memory);
      if (threadIdx.x == 0) ptx::mbarrier_init(barrier, 2);
      __syncthreads();
      if (threadIdx.x == 0) ptx::mbarrier_arrive(barrier);  // one of two
      ptx::mbarrier_wait(barrier, 0);
    });
    FAIL() << "it ended";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("32 threads at mbarrier wait (block 0, warp 3)"));
  }
}

TEST(Emulator, ArrivalsBeyondThePhaseAreAnError) {
  EXPECT_THROW(run(kOneWarpgroup,
                   [](char* memory) {
                     const unsigned barrier = ptx::shared_address(memory);
                     if (threadIdx.x != 0) return;
                     ptx::mbarrier_init(barrier, 1);
                     ptx::mbarrier_arrive_expect_tx(barrier, 16);  // its bytes never come
                     ptx::mbarrier_arrive_expect_tx(barrier, 16);
                   }),
               std::logic_error);
}

TEST(Emulator, ClustersNeedALaunchWithClusters) {
  EXPECT_THROW(run(kOneWarpgroup, [](char* memory) { (void)ptx::mapa(ptx::shared_address(memory), 0); }),
               std::logic_error);
}

// The cluster's barrier waits for the threads that are left.
TEST(Emulator, ThreadsThatEndedAreNotWaitedForByTheCluster) {
  Launch launch = kOneWarpgroup;
  launch.cluster = 2;
  launch.grid = {2, 1, 1};
  unsigned passed = 0;
  run(launch, [&](char*) {
    ptx::barrier_cluster_arrive_relaxed();
    if (threadIdx.x < 32) return;
    for (int round = 0; round < 2; ++round) {
      ptx::barrier_cluster_wait_acquire();
      ptx::barrier_cluster_arrive_release();
    }
    ptx::barrier_cluster_wait_acquire();
    ++passed;
  });
  EXPECT_EQ(passed, 2 * 96U);
}

TEST(Emulator, CopiesNobodyWaitedForAreAnError) {
  const Counting tensor(64);
  EXPECT_THROW(run(kOneWarpgroup,
                   [&](char* memory) {
                     const unsigned barrier = ptx::shared_address(memory) + 16 * 1024;
                     if (threadIdx.x != 0) return;
                     ptx::mbarrier_init(barrier, 1);
                     ptx::cp_async_bulk_tensor_4d(ptx::shared_address(memory), tensor.map, barrier, 0, 0, 0, 0);
                   }),
               std::logic_error);
}

TEST(Emulator, LanesOfAWarpStayTogether) {
  EXPECT_THROW(run(kOneWarpgroup,
                   [](char*) {
                     if (threadIdx.x % 2 == 0)
                       __syncwarp();
                     else
                       (void)__any_sync(~0U, true);
                   }),
               std::logic_error);
}

// What synccheck reports on a GPU: a barrier that warps of a block reach from two places, or after some have ended.
TEST(Emulator, ThreadsMeetFromOnePlace) {
  unsigned first = 0;
  const auto two_places = [&](char*) {
    if (threadIdx.x < 96) {
      ptx::bar_sync(1, 128);
      ++first;
    } else {
      ptx::bar_sync(1, 128);
    }
  };
  Launch launch = kOneWarpgroup;
  launch.one_place = true;
  try {
    run(launch, two_places);
    FAIL() << "it ended";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("warps meet at bar.sync from different places of the program: "));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("3"));
  }
  EXPECT_NO_THROW(run(kOneWarpgroup, two_places)) << "PTX asks for one place of the lanes of a warp alone";
  // Rounds of a loop, halves of a block with a barrier each, and arrivals of threads that do not wait.
  EXPECT_NO_THROW(run(launch, [](char*) {
    for (int round = 0; round < 3; ++round) ptx::bar_sync(1 + static_cast<int>(threadIdx.x) / 64, 64);
    if (threadIdx.x < 32)
      ptx::bar_arrive(3, 128);
    else
      ptx::bar_sync(3, 128);
  }));
  EXPECT_THROW(run(launch,
                   [](char*) {
                     if (threadIdx.x < 32) return;
                     __syncthreads();
                   }),
               std::logic_error);
}

// A cp.async that lands late is not there before its group was committed and waited for.
TEST(Emulator, AsynchronousCopiesLandWhenTheirGroupIsWaitedFor) {
  alignas(16) static const float source[4] = {1, 2, 3, 4};
  const auto first_after = [&](bool early, bool commit, bool wait) {
    Launch launch = kOneWarpgroup;
    launch.early = early;
    launch.readable = {{source, sizeof source}};
    float seen = 0;
    run(launch, [&](char* memory) {
      if (threadIdx.x > 0) return;
      ptx::cp_async_cg_16(ptx::shared_address(memory), source, 16);
      if (commit) ptx::cp_async_commit_group();
      if (wait) ptx::cp_async_wait_group<0>();
      std::memcpy(&seen, memory, 4);
    });
    return seen;
  };
  EXPECT_EQ(first_after(false, true, true), 1);
  EXPECT_EQ(first_after(true, false, false), 1);
  EXPECT_TRUE(std::isnan(first_after(false, true, false)));
  EXPECT_TRUE(std::isnan(first_after(false, false, true)));
  Launch elsewhere = kOneWarpgroup;
  elsewhere.readable = {{source, 8}};
  EXPECT_THROW(run(elsewhere, [&](char* memory) { ptx::cp_async_cg_16(ptx::shared_address(memory), source, 16); }),
               std::logic_error);
}

// Two bulk copies out of shared memory to one place: that both were read says nothing of which is written last.
TEST(Emulator, BulkCopiesWriteInNoOrderUnlessTheyAreWaitedFor) {
  const auto last_written = [](int seed, bool wait_for_writes) {
    const Counting tensor(8);
    Launch launch = kOneWarpgroup;
    launch.seed = static_cast<std::uint64_t>(seed);
    run(launch, [&](char* memory) {
      if (threadIdx.x != 0) return;
      for (unsigned copy = 1; copy <= 2; ++copy) {
        std::memset(memory, static_cast<int>(copy), 8 * 128);
        ptx::fence_proxy_async();
        ptx::cp_async_bulk_tensor_4d_store(tensor.map, ptx::shared_address(memory), 0, 0, 0, 0);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read<0>();
        if (wait_for_writes) ptx::cp_async_bulk_wait_group<0>();
      }
    });
    return tensor.elements.front() & 0xffU;
  };
  int first_wins = 0;
  for (int seed = 0; seed < 20; ++seed) {
    first_wins += last_written(seed, false) == 1 ? 1 : 0;
    EXPECT_EQ(last_written(seed, true), 2U);
  }
  EXPECT_GT(first_wins, 0);
  EXPECT_LT(first_wins, 20);
}

TEST(Emulator, SharedMemoryHasAnEnd) {
  EXPECT_THROW(run(kOneWarpgroup, [](char* memory) { ptx::st_shared_v4(ptx::shared_address(memory) + 32 * 1024, 0); }),
               std::logic_error);
}

// S = Q K^T of one tile, with or without waiting for the products.
std::vector<float> multiply(bool wait) {
  const Counting tensor(64);
  std::vector<float> first(128);
  run(kOneWarpgroup, [&](char* memory) {
    const unsigned shared = ptx::shared_address(memory);
    const unsigned barrier = shared + 16 * 1024;
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::mbarrier_arrive_expect_tx(barrier, 64 * 128);
      ptx::cp_async_bulk_tensor_4d(shared, tensor.map, barrier, 0, 0, 0, 0);
    }
    __syncthreads();
    ptx::mbarrier_wait(barrier, 0);
    float d[32];
    for (int k = 0; k < 4; ++k) {
      const auto operand = tile::matrix_descriptor(shared, 16) + tile::descriptor_advance(32 * k);
      ptx::wgmma_ss<Element::fp16, 64>(d, operand, operand, k > 0);
    }
    ptx::wgmma_commit_group();
    if (wait) ptx::wgmma_wait_group(0);
    first[threadIdx.x] = d[0];
    ptx::wgmma_wait_group(0);
  });
  return first;
}

TEST(Emulator, ProductsAreNoNumbersBeforeTheyAreWaitedFor) {
  const Counting tensor(64);
  const std::vector<float> products = multiply(true);
  for (unsigned t = 0; t < 128; ++t) {
    const unsigned row = t / 32 * 16 + t % 32 / 4;
    const unsigned column = 2 * (t % 4);
    float expected = 0;
    for (unsigned c = 0; c < 64; ++c)
      expected += (static_cast<float>((row * 64 + c) % 7) - 3) * (static_cast<float>((column * 64 + c) % 7) - 3);
    EXPECT_EQ(products[t], expected);
  }
  EXPECT_TRUE(std::isnan(multiply(false)[5]));
}

TEST(Emulator, BlocksOfAClusterWriteToEachOther) {
  Launch launch = kOneWarpgroup;
  launch.grid.x = 2;
  launch.cluster = 2;
  std::vector<float> received(256);
  run(launch, [&](char* memory) {
    const unsigned shared = ptx::shared_address(memory);
    const unsigned barrier = shared + 16 * 1024;
    const unsigned rank = ptx::cluster_ctarank();
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::mbarrier_arrive_expect_tx(barrier, 128 * 8);
    }
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait_acquire();
    const unsigned mine = shared + 8 * threadIdx.x;
    ptx::st_async_v2_if(true, ptx::mapa(mine, 1 - rank), static_cast<float>(threadIdx.x), static_cast<float>(rank),
                        ptx::mapa(barrier, 1 - rank));
    ptx::mbarrier_wait(barrier, 0);
    float got[2];
    ptx::ld_shared_v2(got, mine);
    received[rank * 128 + threadIdx.x] = got[0] + 1000 * got[1];
  });
  for (unsigned t = 0; t < 128; ++t) {
    EXPECT_EQ(received[t], static_cast<float>(t + 1000));
    EXPECT_EQ(received[128 + t], static_cast<float>(t));
  }
}

// Each of two blocks waits for the other's words, which land one by one.
TEST(Emulator, BlocksThatRunAtATimeHandEachOtherWords) {
  alignas(16) unsigned words[2][4] = {};
  unsigned rounds = 0;
  const auto exchange = [&](char*) {
    const unsigned mine = blockIdx.x;
    if (threadIdx.x == 0) ptx::st_relaxed_gpu_v4_if(true, words[mine], {1, 2, 3, 4 + mine});
    uint4 got{};
    do {
      ptx::ld_relaxed_gpu_v4(got, words[1 - mine], true);
      rounds += 1;
    } while (got.x == 0 || got.y == 0 || got.z == 0 || got.w == 0);
    EXPECT_EQ(got.w, 5 - mine);
  };
  Launch launch;
  launch.grid = {2, 1, 1};
  launch.resident = 2;
  run(launch, exchange);
  EXPECT_GT(rounds, 64U);  // some had to ask again
  std::memset(words, 0, sizeof words);
  launch.resident = 1;
  EXPECT_THAT([&] { run(launch, exchange); },
              ::testing::ThrowsMessage<std::logic_error>(::testing::HasSubstr("words of another block")));
}

TEST(Emulator, BlocksBeginWhenOthersEnd) {
  for (const unsigned resident : {1U, 2U, 5U, 9U}) {
    Launch launch;
    launch.grid = {7, 1, 1};
    launch.threads = 64;  // warps of other blocks run between these two
    launch.resident = resident;
    std::set<unsigned> begun;
    unsigned running = 0;
    unsigned most = 0;
    run(launch, [&](char*) {
      if (threadIdx.x == 0) {
        begun.insert(blockIdx.x);
        most = std::max(most, ++running);
      }
      __syncthreads();
      __syncthreads();
      if (threadIdx.x == 0) --running;
    });
    EXPECT_EQ(begun.size(), 7U);
    EXPECT_LE(most, resident);
    EXPECT_EQ(most > 1, resident > 1);
  }
}

}  // namespace
}  // namespace heed::emulator
