// Appends to a cache on a GPU, with a stand-in for the driver: one launch, which may be a dependent one, and what it is
// told.
#include <deque>

#include "append/append.hpp"
#include "heed/append.h"
#include "stub_gpu.hpp"

namespace heed {
namespace {

using testing_support::expect_status;
using testing_support::gpu_problem;
using testing_support::kImage;
using testing_support::launched;
using testing_support::of_driver;
using testing_support::TemporaryFolder;

class GpuAppends : public ::testing::Test {
 protected:
  GpuAppends() {
    heed_append_rows_init(&rows_);
    rows_.len_new = 1;
    heed_append_tensors_init(&t_);
    // The stand-in reads and writes nothing there.
    const auto place = [](std::uintptr_t number) { return reinterpret_cast<void*>(number << 40); };
    t_.new_k = place(1);
    t_.new_v = place(2);
    t_.k = place(3);
    t_.v = place(4);
    t_.lengths = numbers_.data();
    t_.lengths_after = numbers_.data() + 64;
    t_.page_table = numbers_.data() + 128;
    heed_options_init(&options_);
  }
  // A file with the program of the append, or with that of copies alone.
  void write(const char* arch, bool with_append = true) {
    dispatch::ProgramFileWriter writer("0123");
    dispatch::ProgramRecord record;
    record.arch = arch;
    record.origin = "library";
    record.variant = padding::kCopyProgram;
    writer.add(record, kImage);
    record.variant = append::kAppendProgram;
    if (with_append) writer.add(record, kImage);
    const std::string& path = paths_.emplace_back(folder_.file(fmt::format("{}{}.programs", arch, with_append)));
    write_file_atomically(path, writer.bytes(), ErrorCode::store);
    options_.programs = path.c_str();
  }
  heed_append* made() {
    heed_append* append = nullptr;
    EXPECT_EQ(heed_append_create(&p_, &rows_, &options_, &append), HEED_OK) << heed_last_error();
    return append;
  }

  TemporaryFolder folder_;
  std::deque<std::string> paths_;
  std::vector<int> numbers_ = std::vector<int>(1024);
  heed_problem p_ = gpu_problem("b16h32hkv8l1k4096d128:bf16:page=16:key_lengths");
  heed_append_rows rows_{};
  heed_append_tensors t_{};
  heed_options options_{};
};

TEST_F(GpuAppends, AreOneLaunchThatAllocatesNothingAndWaitsForNothing) {
  write("sm_90a");
  heed_append* const append = made();
  ASSERT_EQ(heed_append_can_be_dependent(append), 1);
  const int before = launched();
  const int waits = of_driver<int()>("stub_allocated_or_waited")();
  ASSERT_EQ(heed_append_run(append, &t_, nullptr, 0), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 1);
  EXPECT_EQ(of_driver<int()>("stub_allocated_or_waited")(), waits);
  const append::Append& seen = *of_driver<const append::Append*()>("stub_append")();
  const auto blocks = [] { return of_driver<unsigned()>("stub_append_blocks")(); };
  const auto attributes = [] { return of_driver<unsigned()>("stub_append_attributes")(); };
  EXPECT_EQ(attributes(), 0U);
  EXPECT_EQ(blocks(), 16U);  // 16 entries of 8 heads, a warp each
  EXPECT_EQ(seen.k.rows.from, t_.new_k);
  EXPECT_EQ(seen.v.rows.to, t_.v);
  EXPECT_EQ(seen.lengths, t_.lengths);
  EXPECT_EQ(seen.lengths_after, t_.lengths_after);
  EXPECT_EQ(seen.page_table, t_.page_table);
  EXPECT_EQ(seen.cu_seqlens, nullptr);
  EXPECT_EQ(seen.page_size, 16);
  EXPECT_EQ(seen.pages, 16 * 256);
  EXPECT_EQ(seen.len_cache, 4096);
  EXPECT_EQ(seen.k.is_copied_wide, 1);
  EXPECT_EQ(heed_append_run(append, &t_, nullptr, HEED_RUN_DEPENDENT), HEED_OK) << heed_last_error();
  EXPECT_EQ(attributes(), 1U);
  // As many blocks as a GPU runs at a time, whatever there is to do.
  heed_append_destroy(append);
  rows_.len_new = 4096;
  heed_append* const large = made();
  EXPECT_EQ(heed_append_run(large, &t_, nullptr, 0), HEED_OK) << heed_last_error();
  EXPECT_EQ(blocks(), 8U * 132U);
  heed_append_destroy(large);
}

TEST_F(GpuAppends, ProgramsOfOlderArchitecturesAreNoDependentLaunches) {
  write("sm_80");
  EXPECT_FALSE(append::can_be_dependent("sm_80"));
  EXPECT_FALSE(append::can_be_dependent("sm_89"));
  EXPECT_FALSE(append::can_be_dependent("compute_80"));
  EXPECT_FALSE(append::can_be_dependent(""));
  EXPECT_TRUE(append::can_be_dependent("sm_90a"));
  EXPECT_TRUE(append::can_be_dependent("sm_100a"));
  heed_append* append = nullptr;
  // The stand-in is an sm_90: machine code of sm_80 does not run there.
  expect_status(heed_append_create(&p_, &rows_, &options_, &append), HEED_UNSUPPORTED,
                "no program that appends to a cache");
  write("compute_80");
  if (heed_append_create(&p_, &rows_, &options_, &append) != HEED_OK) return;  // PTX that the stand-in does not take
  EXPECT_EQ(heed_append_can_be_dependent(append), 0);
  expect_status(heed_append_run(append, &t_, nullptr, HEED_RUN_DEPENDENT), HEED_INVALID_ARGUMENT,
                "this append cannot be a dependent launch");
  heed_append_destroy(append);
}

TEST_F(GpuAppends, WithoutTheProgramItIsRefused) {
  write("sm_90a", false);
  heed_append* append = nullptr;
  expect_status(heed_append_create(&p_, &rows_, &options_, &append), HEED_UNSUPPORTED,
                "holds no program that appends to a cache on sm_90a");
  write("sm_90a");
  p_ = gpu_problem("b1h1l1k64d264:fp16:quantised=kv/e4m3/head");
  expect_status(heed_append_create(&p_, &rows_, &options_, &append), HEED_UNSUPPORTED,
                "K of 8 bits and head dim 264 is not supported by the append on a GPU");
  EXPECT_EQ(append, nullptr);
}

TEST_F(GpuAppends, AStreamOfAnotherContextIsRefused) {
  write("sm_90a");
  heed_append* const append = made();
  expect_status(heed_append_run(append, &t_, reinterpret_cast<void*>(0x77), 0), HEED_INVALID_ARGUMENT,
                "the stream is of another context");
  heed_append_destroy(append);
}

}  // namespace
}  // namespace heed
