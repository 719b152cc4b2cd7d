// Which files of a family a config runs, as far as includes and names tell.
#include "source/nearness.hpp"

#include "device/device.hpp"
#include "source/editable.hpp"
#include "testing.hpp"

namespace heed::source {
namespace {

std::map<std::string, Nearness> of_cpu(const std::string& knobs) {
  const Workload workload = parse_workload("b1h2l96d32:fp32");
  return nearness_of(parse_variant("fwd_cpu:" + knobs, workload, choose_device(DeviceChoice::cpu)));
}

TEST(Nearness, FilesOfOtherValuesOfKnobsAreFar) {
  const auto vector = of_cpu("unit=vector,lanes=queries");
  for (const char* run : {"entry", "cpu/forward.hpp", "cpu/vector_forward.hpp", "cpu/key_tile.hpp", "cpu/rows.hpp"})
    EXPECT_FALSE(vector.at(run).is_of_others) << run;
  for (const char* idle : {"cpu/matrix_forward.hpp", "cpu/matrix_packing.hpp", "cpu/tiles.hpp", "cpu/pieces.hpp",
                           "cpu/decode_forward.hpp", "cpu/decode_products.hpp"})
    EXPECT_TRUE(vector.at(idle).is_of_others) << idle;
  EXPECT_EQ(vector.at("entry").steps, 0);
  EXPECT_LT(vector.at("cpu/vector_forward.hpp").steps, vector.at("cpu/key_tile.hpp").steps);
}

TEST(Nearness, AScheduleThatTheConfigDoesNotHave) {
  const auto is_far = [](const std::string& knobs) {
    const Variant variant =
        parse_variant("fwd_sm90_persistent" + knobs, parse_workload("b1h8l512d64:fp16"), gpu_limits("sm_90a"));
    return nearness_of(variant).at("kernels/sm90/persistent/stream_k.cuh").is_of_others;
  };
  EXPECT_TRUE(is_far(":scheduler=single_tile"));
  EXPECT_FALSE(is_far(":scheduler=stream_k"));
}

TEST(Nearness, EditedTextsAreFollowed) {
  const Workload workload = parse_workload("b1h2l96d32:fp32");
  Variant variant = parse_variant("fwd_cpu:unit=vector,lanes=queries", workload, choose_device(DeviceChoice::cpu));
  const std::string path = "cpu/rows.hpp";
  variant.overlay = std::make_shared<const Overlay>(
      Overlay{{{path, "#include \"cpu/tiles.hpp\"\n" + editable(*variant.family).at(path)}}});
  EXPECT_FALSE(nearness_of(variant).at("cpu/tiles.hpp").is_of_others);
}

TEST(Nearness, EveryFamilyRunsItsEntryAndSomeOfItsFiles) {
  for (const Family* family : families()) {
    Config config;
    for (const Knob& knob : family->knobs()) config.push_back(knob.standard);
    const auto all = nearness_of(make_variant(*family, config, parse_workload("b1h8l512d64:fp16")));
    EXPECT_EQ(all.size(), editable(*family).size()) << family->name();
    EXPECT_EQ(all.at("entry").steps, 0);
    int run = 0;
    for (const auto& [path, one] : all) run += one.is_of_others ? 0 : 1;
    EXPECT_GT(run, 2) << family->name();
  }
}

}  // namespace
}  // namespace heed::source
