/// What tests of GPU plans on the stand-in for the driver share (tests/api/stub_cuda.cpp): what it counted, plans of a
/// program that it loads, and memory that its launches write to.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <string>
#include <vector>

#include "api/c_library.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/program_file.hpp"
#include "kernels/attention/features.hpp"
#include "padding/padding.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::testing_support {

constexpr const char* kPersistent = "fwd_sm90_persistent";
constexpr char kImage[] = "cubin of nothing";

/// A function of the stand-in, by its name.
template <typename Function>
Function* of_driver(const char* name) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(::dlsym(driver, name));
}
/// Tensor maps that were encoded, and kernels that were launched.
inline int encoded() {
  return of_driver<int()>("stub_encoded")();
}
inline int launched() {
  return of_driver<int()>("stub_launched")();
}

/// What most tests ask for.
inline heed_problem stub_problem() {
  return gpu_problem("b2h4hkv2l128k192d64");
}

inline heed_options with_image(const char* variant = kPersistent) {
  heed_options o;
  heed_options_init(&o);
  o.variant = variant;
  o.image = kImage;
  o.image_bytes = sizeof kImage;
  return o;
}

/// A plan of a variant with an image that the stand-in loads.
struct Made {
  explicit Made(const heed_problem& problem, const char* variant = kPersistent) {
    const heed_options o = with_image(variant);
    EXPECT_EQ(heed_plan_create(&problem, &o, &plan), HEED_OK) << heed_last_error();
  }
  ~Made() { heed_plan_destroy(plan); }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  heed_plan* plan = nullptr;
};

/// Host memory that a launch of the stand-in writes to.
struct Memory {
  Memory() : bytes(std::size_t{8} << 20, 0) {
    heed_tensors_init(&t);
    const std::size_t begin = (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256) % 256;
    unsigned char* at = bytes.data() + begin;
    t.q = at;
    t.k = at + (1 << 20);
    t.v = at + (2 << 20);
    t.o = at + (3 << 20);
    t.lse = reinterpret_cast<float*>(at + (4 << 20));
    workspace = at + (5 << 20);
  }
  [[nodiscard]] FeatureParams seen() const {
    FeatureParams p;
    std::memcpy(&p, t.o, sizeof p);
    return p;
  }
  [[nodiscard]] std::vector<std::uint64_t> map_of_k() const {
    std::vector<std::uint64_t> words(8);
    std::memcpy(words.data(), static_cast<const char*>(t.o) + sizeof(FeatureParams), 64);
    return words;
  }
  std::vector<unsigned char> bytes;
  heed_tensors t;
  void* workspace;
};

/// Adds the default of a family for a workload, for sm_90a.
inline void add_default(dispatch::ProgramFileWriter& writer, const Family& family, const Workload& w) {
  dispatch::ProgramRecord record;
  record.arch = "sm_90a";
  record.workload = to_string(w);
  record.variant = describe(make_variant(family, family.default_config(w, dispatch::representative_gpu("sm_90a")), w));
  record.origin = "rule";
  writer.add(record, kImage);
}
/// Adds a pass of the library's, which is of no workload.
inline void add_pass(dispatch::ProgramFileWriter& writer, std::string_view name) {
  dispatch::ProgramRecord record;
  record.arch = "sm_90a";
  record.variant = name;
  record.origin = "rule";
  writer.add(record, kImage);
}

/// A file with a program for head dim 128 and the copies, for sm_90a.
class StubPrograms : public ::testing::Test {
 protected:
  void SetUp() override {
    dispatch::ProgramFileWriter writer("0123");
    add_default(writer, find_family(kPersistent), parse_workload("b1h1l128d128"));
    add_pass(writer, padding::kCopyProgram);
    write_file_atomically(path_, writer.bytes(), ErrorCode::store);
    heed_options_init(&options_);
    options_.programs = path_.c_str();
  }
  TemporaryFolder folder_;
  std::string path_ = folder_.file("heed.programs");
  heed_options options_{};
};

}  // namespace heed::testing_support
