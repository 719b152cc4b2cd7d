// Tensors of a trained model (tests/cases/minilm) in heed verify, whose bar they are held to, and in heed calibrate.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"

namespace heed {
namespace {

const std::string kCases = std::string(testing_support::kSourceFolder) + "/tests/cases/";

class Minilm : public Cli {
 protected:
  std::string case_file(const std::string& text) {
    const std::string path = folder_.file("cases.txt");
    write_file_atomically(path, text, ErrorCode::internal);
    return path;
  }
};

TEST_F(Minilm, FwdCpuIsAsExactAsTheUnfusedComputation) {
  const std::string evidence = folder_.file("verify.json");
  const Printed run =
      heed_command("verify fwd_cpu --cases " + kCases + "minilm.txt --unfused-bar --device cpu --json " +
                   "--seed 3 --evidence " + evidence + " " + cache());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr(" of minilm/layer0_long.safetensors"));
  EXPECT_THAT(run.err, ::testing::HasSubstr("0 of 22 over the bar of 1.25x and 1.1x"));
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["results"].size(), 22U);
  EXPECT_EQ(json["results"][0]["tensors"], "layer0.safetensors");
  const auto rows = nlohmann::json::parse(read_file(evidence, ErrorCode::internal))["rows"];
  ASSERT_EQ(rows.size(), 22U);
  for (const auto& row : rows) EXPECT_GT(row["times_unfused"]["rel_rms"].get<double>(), 0.5) << row;
}

// Exponentials that are off by a unit roundoff of fp16, by turns up and down: all limits of the gate let that pass, for
// they allow twice the error of the unfused computation. The bar does not.
TEST_F(Minilm, AKernelThatRoundsOnceMoreIsOverTheBar) {
  const std::string exact = "const Vec p = exp2<kConfig.exp2>(scores_[j * kVectors + v] - reference[v]);";
  const std::string patch = folder_.file("edits.txt");
  write_file_atomically(
      patch,
      fmt::format("<insight>Less exact.</insight>\ncpu/vector_forward.hpp\n<<<<<<< SEARCH\n        {}\n"
                  "=======\n        {}\n>>>>>>> REPLACE\n",
                  exact,
                  "const Vec p = exp2<kConfig.exp2>(scores_[j * kVectors + v] - reference[v]) * "
                  "broadcast(j % 2 == 0 ? 1.0005F : 0.9995F);"),
      ErrorCode::internal);
  const Printed judged = heed_command(
      "judge --family fwd_cpu:unit=vector --shape b1h2l96d32:fp16 --measure-limit 0.1 --launch-limit 300 "
      "--json --patch " +
      patch + " " + db() + " " + cache());
  auto judgement = nlohmann::json::parse(judged.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(judgement.is_object()) << judged.err;
  ASSERT_EQ(judgement["verdict"], "ok") << judged.out << judged.err;
  const std::string verify =
      fmt::format("verify t{} --device cpu --seed 3 --cases {} {} {}", judgement["trial"].get<int>(),
                  case_file("qkv=" + kCases + "minilm/layer1.safetensors\n"), db(), cache());
  const Printed told = heed_command(verify);
  EXPECT_EQ(told.code, 0) << "told, not judged";
  EXPECT_THAT(told.out, ::testing::HasSubstr("1 of 1 over the bar"));
  EXPECT_EQ(heed_command(verify + " --unfused-bar").code, 1);
}

TEST_F(Minilm, CaseFilesNameTensorsByTheirOwnFolder) {
  std::filesystem::create_directory(folder_.file("real"));
  std::filesystem::copy(kCases + "minilm/layer5.safetensors", folder_.file("real"));
  const std::string cases =
      case_file("b1h1l20d16:fp32\nqkv=real/layer5.safetensors:fp32:causal_top_left  # a comment\n");
  const Printed run = heed_command("verify fwd_cpu --cases " + cases + " --device cpu --json --seed 3 " + cache());
  ASSERT_EQ(run.code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  ASSERT_EQ(json["results"].size(), 2U);
  EXPECT_FALSE(json["results"][0].contains("tensors"));
  EXPECT_EQ(json["results"][1]["workload"], "b1h12l128d32:fp32:causal_top_left");
  EXPECT_EQ(json["results"][1]["checks"].back()["name"], "the given tensors, no log-sum-exp asked for");
  EXPECT_FALSE(json["results"][1]["checks"].back().contains("times_unfused")) << "the bar is of fp16 and bf16";
  for (const char* features : {"sinks:bias=fp32/hlk:alibi", "prefix=8:blocks=64/window0:out_norm=1e-05/h"}) {
    const Printed with_features =
        heed_command(fmt::format("verify fwd_cpu --device cpu --seed 3 --cases {} {}",
                                 case_file(fmt::format("qkv=real/layer5.safetensors:fp32:{}\n", features)), cache()));
    EXPECT_EQ(with_features.code, 0) << features << "\n" << with_features.out << with_features.err;
  }

  const auto refused = [&](const std::string& line, int code, const std::string& words) {
    expect_refusal("verify fwd_cpu --device cpu --cases " + case_file(line) + " " + cache(), code, words);
  };
  expect_refusal("verify fwd_cpu --shape b1h1l8d16 --unfused-bar --sanitize " + cache(), 2, "leave out --cases");
  EXPECT_THAT(heed_command("verify fwd_cpu --shape b1h1l8d16:fp32 --unfused-bar --device cpu " + cache()).out,
              ::testing::HasSubstr("no inputs as models send them were compared"));
  refused("qkv=real/layer5.safetensors:d16", 2, "d pads rows to more");
  refused("qkv=", 2, "names no file");
  refused("qkv=real/none.safetensors", 1, "none.safetensors");
  refused("qkv=real/layer5.safetensors:fp8", 2, "fp8");
  refused("qkv=real/layer5.safetensors:fp16:bf16", 2, "fp16:bf16");
  refused("qkv=cases.txt", 1, "no safetensors file");
  expect_refusal("library cases --device cpu --cases " + case_file("qkv=real/layer5.safetensors"), 2,
                 "names the tensors of real/layer5.safetensors");
}

TEST_F(Minilm, CalibrateChoosesForEachFile) {
  const std::string files =
      "--qkv " + kCases + "minilm/layer0.safetensors --qkv " + kCases + "minilm/layer5.safetensors ";
  const std::string modes = "calibrate --seed 3 --modes int8,fp8 ";
  const Printed all = heed_command(modes + files + "--json");
  ASSERT_EQ(all.code, 0) << all.err;
  const auto json = nlohmann::json::parse(all.out);
  ASSERT_EQ(json["files"].size(), 2U);
  EXPECT_EQ(json["files"][0]["name"], "layer0");
  EXPECT_EQ(json["files"][1]["chosen"], "int8");
  EXPECT_NE(json["files"][0]["tensors_digest"], json["files"][1]["tensors_digest"]);
  ASSERT_EQ(json["rows"].size(), 4U);
  EXPECT_EQ(json["rows"][3]["inputs"], "layer5");
  EXPECT_THAT(json["table"].get<std::string>(), ::testing::HasSubstr("layer0   layer5"));
  // A file of its own says of the first what both say.
  const Printed one = heed_command(modes + "--qkv " + kCases + "minilm/layer0.safetensors --json");
  EXPECT_EQ(nlohmann::json::parse(one.out)["rows"][0]["rel_rms"], json["rows"][0]["rel_rms"]);
  EXPECT_EQ(nlohmann::json::parse(one.out)["rows"][0]["inputs"], "given");
  // int8 is off by 5.1e-3 in layer 0 and by 6.6e-3 in layer 5.
  const Printed capped = heed_command(modes + files + "--most 6e-3");
  EXPECT_EQ(capped.code, 1);
  EXPECT_THAT(capped.out, ::testing::HasSubstr("chosen    for layer0 int8: "));
  EXPECT_THAT(capped.out, ::testing::HasSubstr("chosen    for layer5 none: the best, int8, is off by"));

  expect_refusal("calibrate " + files + "--qkv " + kCases + "minilm/layer0.safetensors", 2, "is given twice");
  expect_refusal("calibrate " + files + "--q q.npy", 2, "not both");
  expect_refusal("calibrate " + files + "--shape b1h1l8d16", 2, "exclude each other");
  expect_refusal("calibrate --qkv " + folder_.file("none.safetensors"), 1, "none.safetensors");
}

}  // namespace
}  // namespace heed
