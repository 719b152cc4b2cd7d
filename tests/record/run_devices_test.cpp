// Devices and searches in the record of a run's base.
#include "record/run_devices.hpp"

#include "testing.hpp"

namespace heed::record {
namespace {

TEST(RunDevices, AReadingKeepsWhatItSaysNothingOf) {
  nlohmann::json base = {{"variant", "fwd_cpu"}};
  EXPECT_EQ(self_spread_on(base, "GPU 0"), std::nullopt);
  note_device(base, {.name = "GPU 0",
                     .self_spread = 0.002,
                     .processors = "0-3",
                     .processors_of_workers = "1",
                     .us = 3.5,
                     .self_ratio = measure::Ratio{1.001, 0.999, 1.002}});
  note_device(base, {.name = "GPU 1", .self_spread = 0.01});
  EXPECT_EQ(self_spread_on(base, "GPU 0"), 0.002);
  EXPECT_EQ(self_spread_on(base, "GPU 1"), 0.01);
  EXPECT_EQ(self_spread_on(base, "GPU 2"), std::nullopt);
  note_lost_device(base, "GPU 0", "it fell off the bus");
  EXPECT_EQ(base["devices"][0]["lost"], "it fell off the bus");
  note_device(base, {.name = "GPU 0", .self_spread = 0.003, .processors = "0-7"});
  ASSERT_EQ(base["devices"].size(), 2U);
  const nlohmann::json& again = base["devices"][0];
  EXPECT_EQ(again["us"], 3.5);
  EXPECT_EQ(again["self_ratio"]["low"], 0.999);
  EXPECT_EQ(again["self_spread"], 0.003);
  EXPECT_EQ(again["processors"], "0-7");
  EXPECT_TRUE(again["lost"].is_null());
  EXPECT_EQ(base["variant"], "fwd_cpu");
}

TEST(RunDevices, TheFirstDeviceHasTheReadingsOfTheBase) {
  nlohmann::json base = {{"us", 4.5}, {"self_ratio", {{"value", 1.0}}}};
  note_first_device(base, "GPU 0");
  EXPECT_EQ(base["devices"][0], (nlohmann::json{{"name", "GPU 0"}, {"us", 4.5}, {"self_ratio", {{"value", 1.0}}}}));
  EXPECT_EQ(self_spread_on(base, "GPU 0"), std::nullopt);
}

TEST(RunDevices, SearchesAreAList) {
  nlohmann::json base = nlohmann::json::object();
  note_search(base, {.began_s = 1.5, .trials_before = 0, .devices = {"GPU 0", "GPU 1"}});
  note_search(base, {.began_s = 9, .trials_before = 7, .devices = {"GPU 1"}});
  ASSERT_EQ(base["searches"].size(), 2U);
  EXPECT_EQ(base["searches"][1]["trials_before"], 7);
  EXPECT_EQ(base["searches"][0]["devices"], (nlohmann::json{"GPU 0", "GPU 1"}));
}

TEST(RunDevices, RecordsOfAnotherFormAreNone) {
  for (const nlohmann::json& base : {nlohmann::json(), nlohmann::json(3), nlohmann::json{{"devices", 3}},
                                     nlohmann::json{{"devices", {{{"name", 3}}, 4}}}})
    EXPECT_EQ(self_spread_on(base, "GPU 0"), std::nullopt) << base;
}

}  // namespace
}  // namespace heed::record
