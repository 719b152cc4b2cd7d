// Knobs that decide a launch alone, and no program.
#include <regex>
#include <set>

#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

// Their variants are one program: sources have such a knob at its standard, and no device code reads it.
TEST(Families, KnobsOfTheLaunchMakeNoOtherProgram) {
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  std::set<std::string> names;
  for (const Family* family : families())
    for (const Knob& knob : family->knobs())
      if (knob.of_launch) names.insert(knob.name);
  EXPECT_EQ(names, (std::set<std::string>{"grid", "max_splits"}));
  for (const auto& [path, content] : compile::device_files()) {
    if (!path.ends_with(".cuh")) continue;
    for (const std::string& name : names) {
      const std::regex reads("\\." + name + "\\b");
      EXPECT_FALSE(std::regex_search(content.begin(), content.end(), reads)) << path << " reads " << name;
    }
  }
  const auto variants_of = [&](const char* text, const char* workload, const char* one, const char* other) {
    const Workload w = parse_workload(workload);
    const Variant a = parse_variant(std::string(text) + one, w, hopper);
    const Variant b = parse_variant(std::string(text) + other, w, hopper);
    EXPECT_EQ(a.unit(), b.unit());
    EXPECT_NE(a.id(), b.id());
    EXPECT_NE(a.plan(w, hopper), b.plan(w, hopper));
  };
  variants_of("fwd_sm90_persistent:scheduler=static_persistent,", "b4h8l2048d128", "grid=full", "grid=balanced");
  variants_of("fwd_sm90_decode:", "b1h32hkv8l1k32768d128", "max_splits=0", "max_splits=2");
}

}  // namespace
}  // namespace heed
