/// A pool of keys in host memory on the stand-in for the driver, and what that has seen.
#pragma once

#include "device/device.hpp"
#include "heed/offload.h"
#include "jit/build.hpp"
#include "merge/merge.hpp"
#include "stub_gpu.hpp"
#include "workload/features.hpp"

namespace heed::testing_support {

inline void refuse(char what) {
  of_driver<void(char)>("stub_refuse")(what);
}
inline int in_use() {
  return of_driver<int()>("stub_in_use")();
}
inline int merged() {
  return of_driver<int()>("stub_merged")();
}
inline const merge::Merge& last_merge() {
  return *of_driver<const merge::Merge*()>("stub_merge")();
}

// Programs of the stand-in for all masks, the helpers, and one that runs on the processors.
class StubOffload : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    for (const bool with_cpu : {false, true}) {
      dispatch::ProgramFileWriter writer("0123");
      const auto add = [&](const std::string& arch, const std::string& workload, std::string_view variant,
                           std::string_view image) {
        dispatch::ProgramRecord record;
        record.arch = arch;
        record.workload = workload;
        record.variant = variant;
        record.origin = "rule";
        writer.add(record, std::string(image));
      };
      const DeviceFacts device = dispatch::representative_gpu("sm_90a");
      const Family& family = find_family(kPersistent);
      const std::string_view image(kImage, sizeof kImage);
      for (const char* mask : {"", ":causal_bottom_right", ":window=9/3"}) {
        const Workload w = with_features(parse_workload(std::string("b1h4hkv2l128d128") + mask), family.features());
        add("sm_90a", to_string(w), describe(make_variant(family, family.default_config(w, device), w)), image);
      }
      add("sm_90a", {}, padding::kCopyProgram, image);
      add("sm_90a", {}, merge::kMergeProgram, image);
      if (with_cpu) {
        const DeviceFacts cpu = cpu_facts();
        jit::BuilderOptions options;
        options.cache_folder = shared_cache();
        const Workload w = with_features(parse_workload("b1h4hkv2l128d128"), kAllFeatures);
        const Variant variant = parse_variant("fwd_cpu:unit=vector", w, cpu);
        const jit::BuildOutcome built = jit::Builder(options).build(jit::request_for(variant, w, cpu));
        ASSERT_TRUE(built.artifact) << built.log;
        add(cpu.arch, to_string(w), describe(variant), read_file(built.artifact->path, ErrorCode::cache));
      }
      write_file_atomically(path(with_cpu), writer.bytes(), ErrorCode::store);
    }
  }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override {
    heed_offload_config_init(&config_);
    config_.device_type = HEED_CUDA;
    config_.heads = 4;
    config_.heads_kv = 2;
    config_.dim = config_.dim_v = 128;
    config_.page_size = 16;
    config_.host_pages = 32;
    config_.device_pages = 4;
    config_.chunk_pages = 2;
    config_.link_rate = config_.host_rate = config_.device_rate = config_.device_flops = 1e9;
    config_.threads = 1;
    path_ = path(true);
    config_.programs = path_.c_str();
    heed_offload_call_init(&call_);
    call_.batch = 1;
    call_.sequences = &id_;
    call_.len_k = 16 * 10 + 3;
    call_.k = at(0);
    call_.v = at(1);
    call_.len_q = 4;
    call_.q = at(2);
    call_.o = at(3);
  }
  void TearDown() override {
    heed_offload_destroy(pool_);
    refuse(' ');
    of_driver<int(std::uintptr_t)>("cuCtxSetCurrent")(0x100);
  }
  static std::string path(bool with_cpu) { return folder_->file(with_cpu ? "both.programs" : "gpu.programs"); }
  void* at(std::size_t megabytes) {
    const std::size_t begin = (256 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 256) % 256;
    return memory_.data() + begin + (megabytes << 20);
  }
  void make() {
    ASSERT_EQ(heed_offload_create(&config_, &pool_), HEED_OK) << heed_last_error();
    ASSERT_EQ(heed_offload_add(pool_, &id_), HEED_OK) << heed_last_error();
  }
  static void expect_said(heed_status status, heed_status expected, const std::string& words) {
    expect_status(status, expected, words);
  }

  static inline TemporaryFolder* folder_ = nullptr;
  std::string path_;
  heed_offload_config config_{};
  heed_offload_call call_{};
  heed_offload* pool_ = nullptr;
  std::int64_t id_ = 0;
  std::vector<unsigned char> memory_ = std::vector<unsigned char>((5 << 20) + 256);
};

}  // namespace heed::testing_support
