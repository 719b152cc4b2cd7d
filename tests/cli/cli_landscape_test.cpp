// heed landscape --count without a device, heed simulate on the landscapes of this tree, and refusals.
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"
#include "folders.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

class CliLandscape : public Cli {
 protected:
  static std::string file(const std::string& name) {
    return std::string(testing_support::kSourceFolder) + "/landscapes/h200/" + name + ".json";
  }
};

TEST_F(CliLandscape, CountsThePointsOfAGpuWithoutOne) {
  const std::string count =
      "landscape --count --arch sm_90a --shape b1h8l1024d64 --family fwd_sm80 --knobs block_m=32/64,stages=1/2 --json";
  const Printed printed = heed_command(count);
  ASSERT_EQ(printed.code, 0) << printed.err;
  EXPECT_GE(nlohmann::json::parse(printed.out)["points"], 1);
  expect_refusal("landscape --arch sm_90a --shape b1h8l1024d64 --knobs stages", 2, "--count");
  expect_refusal("landscape --count --arch sm_1 --shape b1h8l1024d64 --knobs stages", 2, "sm_1");
}

TEST_F(CliLandscape, SimulatesAndWritesEvidence) {
  const std::string simulate =
      "simulate " + file("decode_b8h32hkv4l1k8192d128") + " --searches elite,random --seeds 3 --trials 6 ";
  const Printed printed = heed_command(simulate + "--json --evidence " + folder_.file("e.json"));
  ASSERT_EQ(printed.code, 0) << printed.err;
  const nlohmann::json simulations = nlohmann::json::parse(printed.out)["simulations"];
  ASSERT_EQ(simulations.size(), 1U);
  EXPECT_EQ(simulations[0]["searches"].size(), 2U);
  const nlohmann::json evidence = nlohmann::json::parse(read_file(folder_.file("e.json"), ErrorCode::internal));
  EXPECT_EQ(evidence["what"], "simulation");
  EXPECT_EQ(evidence["device"], "NVIDIA H200");
  EXPECT_EQ(evidence["rows"], simulations);
  EXPECT_THAT(evidence["table"].get<std::string>(), HasSubstr("median regret"));
  EXPECT_EQ(evidence["rows"][0]["under_way"], 3) << "as on one GPU";
  const Printed drafting = heed_command(simulate + "--under-way 0 --drafts 3 --noise 0.01 --refused 0.1 --json");
  ASSERT_EQ(drafting.code, 0) << drafting.err;
  EXPECT_EQ(nlohmann::json::parse(drafting.out)["simulations"][0]["drafts"], 3);
  expect_refusal(simulate + "--noise 2", 2, "--noise");
  expect_refusal(simulate + "--under-way -1", 2, "--under-way");
  expect_refusal(simulate + "--evidence /dev/null/x.json", 1, "/dev/null");
  expect_refusal("simulate " + folder_.file("none.json"), 2, "none.json");
}

TEST_F(CliLandscape, EvidenceIsOfOneDevice) {
  nlohmann::json other = nlohmann::json::parse(read_file(file("decode_b8h32hkv4l1k8192d128"), ErrorCode::internal));
  other["heed"]["device"]["name"] = "Another GPU";
  write_file_atomically(folder_.file("other.json"), other.dump(), ErrorCode::internal);
  expect_refusal("simulate " + file("decode_b8h32hkv4l1k8192d128") + " " + folder_.file("other.json") +
                     " --searches random --seeds 1 --trials 2 --evidence " + folder_.file("e.json"),
                 2, "Another GPU");
}

}  // namespace
}  // namespace heed
