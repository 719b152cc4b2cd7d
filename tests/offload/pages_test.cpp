// Pages, planner and pieces of pools: bookkeeping alone, no memory.
#include "offload/pages.hpp"

#include <sys/resource.h>

#include <algorithm>

#include "offload/host_memory.hpp"
#include "offload/offload.hpp"
#include "offload/pieces.hpp"
#include "offload/planner.hpp"
#include "testing.hpp"

namespace heed::offload {
namespace {

constexpr PagesSizes kSizes{.layers = 2, .page_size = 8, .host_pages = 10, .device_pages = 4, .sink_pages = 1};

TEST(OffloadPages, SinksAndTheNewestPagesStayOnTheDevice) {
  Pages pages(kSizes);
  const std::int64_t id = pages.add();
  pages.append({id}, 0, 8 * 7 + 3);
  const Sequence& s = pages.of(id);
  EXPECT_THAT(s.host, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  std::vector<bool> resident;
  for (const std::int32_t slot : s.device) resident.push_back(slot != kNoSlot);
  EXPECT_THAT(resident, ::testing::ElementsAre(true, false, false, false, false, true, true, true));
  EXPECT_EQ(pages.resident(), 4);
  EXPECT_EQ(pages.remote(), 4);
  pages.append({id}, 1, 8 * 7 + 3);  // the other layer's keys lie in the same pages
  EXPECT_EQ(pages.free_host(), 2);
}

TEST(OffloadPages, TheSequenceWithMostPagesGivesThem) {
  Pages pages(kSizes);
  const std::int64_t one = pages.add();
  const std::int64_t two = pages.add();
  pages.append({one}, 0, 32);
  EXPECT_EQ(pages.of(one).resident(), 4);
  pages.append({two}, 0, 16);
  EXPECT_EQ(pages.of(one).resident(), 2);
  EXPECT_EQ(pages.of(two).resident(), 2);
  EXPECT_NE(pages.of(one).device[0], kNoSlot);
  EXPECT_NE(pages.of(one).device[3], kNoSlot);
}

TEST(OffloadPages, AFullPoolChangesNothing) {
  Pages pages(kSizes);
  const std::int64_t one = pages.add();
  const std::int64_t two = pages.add();
  pages.append({one, two}, 0, 40);
  try {
    pages.append({one, two}, 0, 1);
    FAIL() << "the pool is full";
  } catch (const OutOfRoom& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("1 more keys of 2 sequences take 2 pages of 8 keys, and 0 of 10"));
  }
  EXPECT_EQ(pages.of(one).keys[0], 40);
  pages.remove(two);
  pages.append({one}, 0, 1);
  EXPECT_EQ(pages.free_host(), 4);
}

TEST(OffloadPages, SequencesThatAreNotThere) {
  Pages pages(kSizes);
  const std::int64_t id = pages.add();
  EXPECT_THROW(pages.append({id, id}, 0, 1), Error);
  EXPECT_EQ(pages.of(id).keys[0], 0);
  pages.remove(id);
  EXPECT_THROW(pages.remove(id), Error);
  EXPECT_THROW((void)pages.of(id), Error);
  EXPECT_THROW(pages.append({7}, 0, 1), Error);
  EXPECT_NE(pages.add(), id) << "numbers do not come again";
}

// What a graph reads stays: other sequences get no page of it, and then none of the device.
TEST(OffloadPages, HeldSequencesKeepTheirPages) {
  Pages pages(kSizes);
  const std::int64_t held = pages.add();
  const std::int64_t other = pages.add();
  pages.append({held}, 0, 4 * 8);
  const std::vector<std::int32_t> slots = pages.of(held).device;
  pages.hold(held);
  pages.hold(held);
  pages.append({other}, 0, 2 * 8);
  EXPECT_EQ(pages.of(held).device, slots);
  EXPECT_EQ(pages.of(other).resident(), 0);
  for (int graph = 0; graph < 2; ++graph) {
    EXPECT_THROW(pages.remove(held), Error);
    EXPECT_THROW(pages.append({other, held}, 0, 1), Error);
    pages.append({held}, 0, 0);
    EXPECT_EQ(pages.of(other).keys[0], 16) << "nothing is changed where it throws";
    pages.let_go(held);
  }
  EXPECT_FALSE(pages.is_held(held));
  pages.append({other}, 0, 8);
  EXPECT_EQ(pages.of(other).resident(), 1);
  EXPECT_EQ(pages.of(held).resident(), 3);
  pages.remove(held);
  EXPECT_THROW(pages.hold(held), Error);
}

TEST(OffloadPages, RowsOfNewKeys) {
  Pages pages(kSizes);
  const std::int64_t id = pages.add();
  pages.append({id}, 0, 5);
  pages.append({id}, 0, 12);
  const std::vector<PageRows> rows = pages.rows_of(id, 5, 12);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].first_row, 5);
  EXPECT_EQ(rows[0].rows, 3);
  EXPECT_EQ(rows[1].rows, 8);
  EXPECT_EQ(rows[1].first_key, 3);
  EXPECT_EQ(rows[2].rows, 1);
  EXPECT_EQ(rows[2].first_row, 0);
}

// Full pages of all layers come back when the device has room again, the newest first.
TEST(OffloadPages, Promotion) {
  Pages pages(kSizes);
  const std::int64_t one = pages.add();
  const std::int64_t two = pages.add();
  for (const int layer : {0, 1}) pages.append({one}, layer, 35);
  for (const int layer : {0, 1}) pages.append({two}, layer, 16);
  EXPECT_TRUE(pages.promote(one, 8, 35).empty()) << "no slot is free";
  pages.remove(two);
  const auto before = pages.promote(one, 1, 31);
  ASSERT_EQ(before.size(), 1U);
  EXPECT_EQ(before[0].host, pages.of(one).host[2]) << "a key of page 3 is on the way to host memory";
  const auto moved = pages.promote(one, 1, 35);
  ASSERT_EQ(moved.size(), 1U);
  EXPECT_EQ(moved[0].host, pages.of(one).host[3]);
  EXPECT_EQ(pages.of(one).device[3], moved[0].device);
  pages.append({one}, 0, 8);
  pages.take_back({one}, 0, 8);
  EXPECT_EQ(pages.of(one).keys[0], 35);
}

// Of a call that failed nothing stays: no page, and no slot of the device.
TEST(OffloadPages, WhatIsTakenBackIsFree) {
  Pages pages(kSizes);
  const std::int64_t one = pages.add();
  const std::int64_t two = pages.add();
  pages.append({one}, 0, 20);
  pages.append({two}, 0, 3);
  pages.append({one, two}, 1, 30);
  pages.take_back({one, two}, 1, 30);
  EXPECT_EQ(pages.of(one).host.size(), 3U) << "those of layer 0 stay";
  EXPECT_EQ(pages.of(two).host.size(), 1U);
  EXPECT_EQ(pages.of(one).device.size(), 3U);
  EXPECT_EQ(pages.free_host(), 6);
  EXPECT_EQ(pages.free_device() + pages.of(one).resident() + pages.of(two).resident(), 4);
  pages.append({one, two}, 1, 24);
  EXPECT_EQ(pages.free_host(), 4);
  pages.remove(one);
  pages.remove(two);
  EXPECT_EQ(pages.free_host(), 10);
  EXPECT_EQ(pages.free_device(), 4);
}

// ---------------------------------------------------------------------------------------------------------- planner

constexpr Rates kRates{.link = 55e9, .host = 165e9, .device = 3e12, .device_flops = 600e12};

TEST(OffloadPlanner, LinkAndProcessorsEndTogether) {
  const DecodePlan plan = plan_decode(kRates, {.resident = 1e9, .remote = 4e9});
  EXPECT_NEAR(plan.streamed, 0.25, 1e-9);
  EXPECT_NEAR(plan.link_s, plan.host_s, 1e-9);
  EXPECT_LT(plan.step_s(), plan_decode(kRates, {1e9, 4e9}, 1).step_s() / 3.9) << "four times as fast as the link alone";
  for (const double other : {0.0, 0.1, 0.2, 0.3, 0.5, 1.0})
    EXPECT_LE(plan.step_s(), plan_decode(kRates, {1e9, 4e9}, other).step_s()) << other;
}

TEST(OffloadPlanner, NothingMovesWhereTheProcessorsEndFirst) {
  Rates slow_device = kRates;
  slow_device.device = 10e9;
  EXPECT_EQ(plan_decode(slow_device, {.resident = 4e9, .remote = 1e9}).streamed, 0);
  EXPECT_GT(plan_decode(slow_device, {.resident = 1e9, .remote = 20e9}).streamed, 0);
  EXPECT_EQ(plan_decode(kRates, {.resident = 4e9, .remote = 0}).streamed, 0);
  Rates no_host = kRates;
  no_host.host = 0;
  EXPECT_EQ(plan_decode(no_host, {.resident = 1e9, .remote = 1e9}).streamed, 1);
}

TEST(OffloadPlanner, RowsThatHideTheLink) {
  EXPECT_EQ(rows_that_hide_the_link(kRates, 8, 8, 2), 10910);
  EXPECT_EQ(rows_that_hide_the_link(kRates, 32, 8, 2), 2728);
  EXPECT_EQ(rows_that_hide_the_link(kRates, 8, 8, 4), 21819);
  EXPECT_EQ(rows_that_hide_the_link({}, 8, 8, 2), 0);
}

TEST(OffloadPlanner, APageMovesIfThatPays) {
  const double page = 1e6;
  const double steps = steps_to_pay(kRates, {.resident = 1e9, .remote = 4e9}, page);
  EXPECT_NEAR(steps, (55e9 + 165e9) / 55e9, 0.1);
  EXPECT_EQ(steps_to_pay(kRates, {.resident = 1e9, .remote = 0}, page), INFINITY);
  Rates slow_device = kRates;
  slow_device.device = 1e9;
  EXPECT_EQ(steps_to_pay(slow_device, {.resident = 4e9, .remote = 1e9}, page), INFINITY);
}

// ----------------------------------------------------------------------------------------------------------- pieces

struct Split {
  explicit Split(std::int64_t keys, std::int64_t rows, std::vector<bool> on_device) {
    s.keys = {keys};
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      s.host.push_back(static_cast<std::int32_t>(100 + i));
      s.device.push_back(on_device[i] ? static_cast<std::int32_t>(i) : kNoSlot);
    }
    wanted.entries = {&s};
    wanted.rows = rows;
    wanted.page_size = 8;
  }
  Sequence s;
  Wanted wanted;
};

TEST(OffloadPieces, DecodingDividesRemotePages) {
  const Split split(43, 1, {true, false, false, false, false, true});
  const std::vector<Piece> pieces = decode_pieces(split.wanted, 0.75, 2);
  ASSERT_EQ(pieces.size(), 4U);
  EXPECT_EQ(pieces[0].place, Place::device);
  EXPECT_THAT(pieces[0].pages[0], ::testing::ElementsAre(0, 5));
  EXPECT_EQ(pieces[0].keys[0], 11);
  EXPECT_EQ(pieces[1].place, Place::streamed);
  EXPECT_THAT(pieces[1].pages[0], ::testing::ElementsAre(101, 102));
  EXPECT_THAT(pieces[2].pages[0], ::testing::ElementsAre(103));
  EXPECT_EQ(pieces[3].place, Place::host);
  EXPECT_THAT(pieces[3].pages[0], ::testing::ElementsAre(104));
}

TEST(OffloadPieces, RowsThatDoNotSeeAllCountAnewOnlyWhereTheEndIsOnTheDevice) {
  Split split(43, 4, {true, false, false, false, false, true});
  split.wanted.causal = true;
  EXPECT_TRUE(can_be_counted_anew(split.wanted)) << "3 keys are hidden from the first row, and the last page has 3";
  EXPECT_EQ(decode_pieces(split.wanted, 0, 2)[0].mask.right, 0);
  split.wanted.rows = 5;
  EXPECT_FALSE(can_be_counted_anew(split.wanted));
  split.wanted.causal = false;
  EXPECT_TRUE(can_be_counted_anew(split.wanted));
  split.wanted.window_left = 3;
  EXPECT_FALSE(can_be_counted_anew(split.wanted));
}

TEST(OffloadPieces, APrefillTakesTheDevicesPagesFirstAndMasksTheEnd) {
  Split split(43, 20, {true, false, false, false, true, true});
  split.wanted.causal = true;  // row 0's own key is 23
  const std::vector<Piece> pieces = prefill_pieces(split.wanted, 2);
  ASSERT_EQ(pieces.size(), 4U);
  EXPECT_THAT(pieces[0].pages[0], ::testing::ElementsAre(0));
  EXPECT_EQ(pieces[0].mask, PieceMask{});
  EXPECT_THAT(pieces[1].pages[0], ::testing::ElementsAre(4, 5));
  EXPECT_EQ(pieces[1].first_row, 9);
  EXPECT_EQ(pieces[1].rows, 11);
  EXPECT_EQ(pieces[1].mask.right, 0);
  EXPECT_EQ(pieces[2].place, Place::streamed);
  EXPECT_THAT(pieces[2].pages[0], ::testing::ElementsAre(101, 102));
  EXPECT_THAT(pieces[3].pages[0], ::testing::ElementsAre(103));  // keys 24 to 31
  EXPECT_EQ(pieces[3].first_row, 1);
  EXPECT_EQ(pieces[3].mask.right, 11) << "keys 32 to 42 lie behind it";
}

TEST(OffloadPieces, AWindowLeavesPagesOut) {
  Split split(80, 2, std::vector<bool>(10, false));
  split.wanted.causal = true;
  split.wanted.window_left = 9;  // row 0 sees keys 69 to 78
  const std::vector<Piece> pieces = prefill_pieces(split.wanted, 4);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_THAT(pieces[0].pages[0], ::testing::ElementsAre(108, 109));
  EXPECT_EQ(pieces[0].mask.left, 9);
  EXPECT_EQ(pieces[0].mask.right, 0);
}

// Every row sees in its launch what it sees of the piece.
TEST(OffloadPieces, RowsOfSeveralLaunchesSeeWhatTheySaw) {
  const auto sees = [](std::int64_t row, std::int64_t key, std::int64_t rows, std::int64_t keys,
                       const PieceMask& mask) {
    const std::int64_t own = row + keys - rows;
    return key < keys && (mask.left < 0 || key >= own - mask.left) && (mask.right < 0 || key <= own + mask.right);
  };
  for (const std::int64_t rows : {1, 7, 8, 9, 20})
    for (const std::int64_t keys : {3, 8, 31})
      for (const std::int64_t left : {-1, 0, 5})
        for (const std::int64_t right : {-1, 0, 6, 40}) {
          const PieceMask mask{left, right};
          std::int64_t next = 0;
          for (const RowGroup& g : row_groups(mask, rows, 8)) {
            ASSERT_EQ(g.first_row, next);
            ASSERT_LE(g.rows, 8);
            ASSERT_TRUE(g.mask.left >= -1 && g.mask.right >= -1 && g.hidden >= 0);
            next += g.rows;
            for (std::int64_t row = 0; row < g.rows; ++row)
              for (std::int64_t key = 0; key < keys; ++key)
                ASSERT_EQ(sees(row, key, g.rows, std::max<std::int64_t>(0, keys - g.hidden), g.mask),
                          sees(g.first_row + row, key, rows, keys, mask))
                    << rows << " rows, " << keys << " keys, " << left << "/" << right << ", row " << g.first_row + row;
          }
          ASSERT_EQ(next, rows);
        }
  EXPECT_EQ(row_groups({-1, 40}, 20, 8)[0].mask, PieceMask{}) << "all of these rows see all keys";
}

TEST(OffloadHostMemory, PagesFarFromTheDeviceAreSaid) {
  EXPECT_EQ(about_nodes(1, 1), "NUMA      pages and GPU are on node 1\n");
  EXPECT_THAT(about_nodes(0, 1), ::testing::HasSubstr("far from the GPU on node 1"));
  EXPECT_THAT(about_nodes(0, 1), ::testing::HasSubstr("numactl --cpunodebind=1 --membind=1"));
  EXPECT_EQ(about_nodes(-1, 1), "");
  EXPECT_EQ(about_nodes(0, -1), "");
}

// A node that the machine does not have, or that a container may not ask for, is no reason to fail.
TEST(OffloadHostMemory, ANodeThatIsNotThereLeavesPagesWhereTheSystemPutsThem) {
  for (const int node : {1000, 1 << 20, -1}) {
    const HostMemory memory(10000, node);
    EXPECT_EQ(memory.data()[9999], std::byte{0});
  }
}

TEST(OffloadHostMemory, TheLimitOfLockedMemoryIsNamed) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(64 << 10, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  const std::string advice = advice_on_pinning();
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_THAT(advice, ::testing::HasSubstr("(ulimit -l); raise that limit, or give the pool fewer host_pages"));
  EXPECT_THAT(advice, ::testing::HasSubstr(readable(static_cast<double>(low.rlim_cur))));
}

TEST(OffloadHostMemory, MoreThanTheMachineHasIsRefused) {
  try {
    const HostMemory memory(std::size_t{1} << 58, -1);
    FAIL() << "no machine has that much";
  } catch (const OutOfRoom& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the host's part of a page pool"));
  }
  const HostMemory some(5000, 0);
  EXPECT_EQ(some.bytes(), 8192U);
  EXPECT_GE(some.node(), -1);
  EXPECT_THAT(advice_on_pinning(), ::testing::HasSubstr("host_pages"));
  EXPECT_EQ(readable(3.5e9), "3.5 GB");
}

}  // namespace
}  // namespace heed::offload
