/// A cache on a CPU and what is appended to it, through the C interface alone.
#pragma once

#include "c_library.hpp"
#include "heed/append.h"
#include "testing.hpp"

namespace heed::testing_support {

inline constexpr std::int64_t kRoom = 51;  ///< keys that an entry has room for

/// A cache of three entries, two heads and 16 columns in fp32, and rows behind what is in it.
class CpuAppend : public ::testing::Test {
 protected:
  CpuAppend() {
    heed_append_rows_init(&rows_);
    rows_.len_new = 4;
    heed_append_tensors_init(&t_);
    t_.new_k = new_k_.data();
    t_.new_v = new_v_.data();
    t_.k = k_.data();
    t_.v = v_.data();
    t_.lengths = lengths_.data();
    t_.lengths_after = after_.data();
    for (std::size_t i = 0; i < new_k_.size(); ++i) {
      new_k_[i] = static_cast<float>(i) + 1;
      new_v_[i] = -static_cast<float>(i) - 1;
    }
    for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<int>((i * 8) % 21);
  }
  ~CpuAppend() override { heed_append_destroy(append_); }

  void make_paged(std::int64_t page_size = 8) {
    p_.flags |= HEED_PAGED;
    p_.page_size = page_size;
    p_.pages = 3 * ((kRoom + page_size - 1) / page_size);
    t_.page_table = table_.data();
  }
  void create() {
    heed_append_destroy(append_);
    append_ = nullptr;
    ASSERT_EQ(heed_append_create(&p_, &rows_, nullptr, &append_), HEED_OK) << heed_last_error();
  }
  void expect_no_append(heed_status status, const std::string& words) {
    heed_append* append = nullptr;
    expect_status(heed_append_create(&p_, &rows_, nullptr, &append), status, words);
    EXPECT_EQ(append, nullptr);
  }
  // A run that is refused writes nothing.
  void expect_no_run(const std::string& words, std::uint32_t flags = 0) {
    const std::vector<float> k = k_, v = v_;
    const std::vector<int> after = after_;
    expect_status(heed_append_run(append_, &t_, nullptr, flags), HEED_INVALID_ARGUMENT, words);
    EXPECT_EQ(k_, k);
    EXPECT_EQ(v_, v);
    EXPECT_EQ(after_, after);
  }
  void run() { ASSERT_EQ(heed_append_run(append_, &t_, nullptr, 0), HEED_OK) << heed_last_error(); }

  heed_problem p_ = cpu_problem("b3h4hkv2l4k51d16:fp32");
  heed_append_rows rows_{};
  heed_append_tensors t_{};
  heed_append* append_ = nullptr;
  std::vector<float> new_k_ = std::vector<float>(3 * 2 * 4 * 16);
  std::vector<float> new_v_ = new_k_;
  std::vector<float> k_ = std::vector<float>(21 * 8 * 2 * 16, 77.0F);
  std::vector<float> v_ = k_;
  std::vector<int> lengths_ = {0, 47, 9};
  std::vector<int> after_ = {-1, -1, -1};
  std::vector<int> table_ = std::vector<int>(3 * 51);
};

}  // namespace heed::testing_support
