// heed evolve --devices: what it refuses, and a run of two devices from start to evidence.
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"
#include "device/processors.hpp"

namespace heed {
namespace {

TEST_F(Cli, ListsOfDevicesThatAreNoneAreRefused) {
  const std::string tiny = tiny_evolution(1) + " --devices ";
  for (const auto& [list, words] : std::vector<std::pair<std::string, std::string>>{
           {"\"\"", "an empty item"},
           {"0,,1", "an empty item"},
           {"x", "\"x\" is no device"},
           {"3-1", "ends before it begins; write 1-3"},
           {"1,0-2", "lists 1 twice"},
           {"1000", "there is no processor 1000 that this process may run on"}})
    expect_refusal(tiny + list, 2, words);
  expect_refusal("evolve --shape b1h1l48d16:fp32 --device cuda --devices 0 " + db() + " " + cache(), 1, "no GPU",
                 "LD_LIBRARY_PATH=/nowhere");
}

// GPUs of a stand-in for the driver: two of a kind, and a third of another.
TEST_F(Cli, GpusThatAreNotOfAKindAreRefused) {
  const std::filesystem::path folder =
      std::filesystem::path(testing_support::kHeedBinary).parent_path() / "tests" / "stub";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "built without CUDA support";
  const std::string stub = "LD_LIBRARY_PATH=" + folder.string();
  const std::string evolve = "evolve --shape b1h1l48d64:fp16 --device cuda " + db() + " " + cache() + " --devices ";
  expect_refusal(evolve + "0,2", 1, "GPU 0 is Stub H100", stub);
  expect_refusal(evolve + "all", 1, "GPU 2 is Stub T4", stub);
  expect_refusal(evolve + "0-1,3", 2, "GPU 3; the driver sees 3", stub);
  expect_refusal(evolve + "0+1", 2, "write a comma", stub);
}

TEST_F(Cli, OneDeviceOfAListJudgesAndIsNamed) {
  const std::string processor = std::to_string(allowed_processors().front());
  const Printed evolve =
      heed_command(tiny_evolution(3) + " --json --devices " + processor + " --evidence " + folder_.file("x.json"));
  ASSERT_EQ(evolve.code, 0) << evolve.err;
  EXPECT_THAT(evolve.err, ::testing::HasSubstr("trials a minute; processor " + processor + " waits"));
  const auto json = nlohmann::json::parse(evolve.out);
  ASSERT_EQ(json["devices"]["devices"].size(), 1U);
  EXPECT_GT(json["devices"]["trials_a_minute"].get<double>(), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(json["trials"][i]["device"], "processor " + processor);
  const auto evidence = nlohmann::json::parse(read_file(folder_.file("x.json"), ErrorCode::internal));
  ASSERT_EQ(evidence["run"]["devices"].size(), 1U) << evidence["run"];
  EXPECT_GE(evidence["run"]["devices"][0]["trials"].size(), 3U);
  const Printed show = heed_command("show 1 " + db());
  EXPECT_THAT(show.out, ::testing::HasSubstr("processor " + processor));
  EXPECT_THAT(show.out, ::testing::HasSubstr("trials a minute"));
}

// Each device is one of another number of processors than a whole machine is.
TEST_F(Cli, ARunGoesOnWithDevicesOfItsKindAlone) {
  const Printed taskset = {run_process({"taskset", "-c", "0,1", "true"}, {}, 20).exit_code, "", ""};
  if (taskset.code != 0) GTEST_SKIP() << "two processors are needed";
  const std::string heed = "taskset -c 0,1 ";
  const auto on_two = [&](const std::string& arguments) {
    const ProcessResult result =
        run_process({"sh", "-c", heed + std::string(testing_support::kHeedBinary) + " " + arguments}, {}, kLimit_s);
    return std::pair{result.exit_code, result.output};
  };
  const auto [code, printed] = on_two(tiny_evolution(4) + " --devices 0,1");
  ASSERT_EQ(code, 0) << printed;
  EXPECT_THAT(printed, ::testing::HasSubstr("verifying the base on 2 devices"));
  const std::string resume = "evolve --resume 1 --device cpu --measure-limit 0.02 --trials 6 " + db() + " " + cache();
  const auto [refused, why] = on_two(resume);
  EXPECT_EQ(refused, 1) << why;
  EXPECT_THAT(why, ::testing::HasSubstr("was made on 1 processors"));
  const auto [resumed, again] = on_two(resume + " --devices 1");
  EXPECT_EQ(resumed, 0) << again;
  const auto json = nlohmann::json::parse(heed_command("show 1 --json " + db()).out);
  EXPECT_GE(json["trials"].size(), 6U);
  const auto [unlike, sentence] = on_two(tiny_evolution(1) + " --devices 0+1,2");
  EXPECT_EQ(unlike, 2) << sentence;  // there may be no processor 2
}

}  // namespace
}  // namespace heed
