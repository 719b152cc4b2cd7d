// heed calibrate, and quantised inputs in heed verify and heed run.
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"
#include "quantise/modes.hpp"
#include "tensors/safetensors.hpp"
#include "workload/elements.hpp"

namespace heed {
namespace {

TEST_F(Cli, CalibrateSaysWhatEveryModeCosts) {
  const Printed all = heed_command("calibrate --shape b1h2l48d64 --seed 3 --json");
  ASSERT_EQ(all.code, 0) << all.err;
  const auto json = nlohmann::json::parse(all.out);
  EXPECT_EQ(json["workload"], "b1h2l48d64:fp16");
  EXPECT_EQ(json["rows"].size(), 6 * quantise::modes().size());
  for (const auto& cost : json["rows"]) {
    EXPECT_GT(cost["rel_rms"].get<double>(), 0);
    EXPECT_GE(cost["worst_row"].get<double>(), 0.9 * cost["rel_rms"].get<double>());
  }
  EXPECT_TRUE(json["chosen"].is_string());
  const Printed text = heed_command("calibrate --shape b1h2l48d64 --seed 3");
  EXPECT_THAT(text.out, ::testing::HasSubstr("chosen    " + json["chosen"].get<std::string>()));
  const std::string file = folder_.file("calibration.json");
  ASSERT_EQ(heed_command("calibrate --shape b1h2l48d64 --seed 3 --evidence " + file).code, 0);
  const auto evidence = nlohmann::json::parse(read_file(file, ErrorCode::internal));
  EXPECT_EQ(evidence["rows"], json["rows"]);
  EXPECT_THAT(evidence["table"].get<std::string>(), ::testing::HasSubstr("fp8_rotated"));
  const Printed none = heed_command("calibrate --shape b1h2l48d64 --modes fp8,int8 --most 1e-9");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.out, ::testing::HasSubstr("chosen    none: the best, "));
  // Modes that would change the result are left out, or refused where they are named.
  const Printed capped = heed_command("calibrate --shape b1h1l48d64:softcap=20 --seed 3");
  EXPECT_EQ(capped.code, 0);
  EXPECT_THAT(capped.out, ::testing::HasSubstr("left out  int8_smooth: "));
  expect_refusal("calibrate --shape b1h1l48d64:softcap=20 --modes int8_smooth", 1, "moves all scores of a row");
  expect_refusal("calibrate --shape b1h1l48d64 --modes int4", 2, "unknown mode \"int4\"");
  expect_refusal("calibrate --shape b1h1l48d64 --most -1", 2, "--most -1 is no relative RMS error");
  expect_refusal("calibrate --shape b1h1l48d64 --most 0", 2, "--most 0 is no relative RMS error");
  expect_refusal("calibrate --shape b1h1l48d64:quantised=k/int8/head --modes fp8", 2, "quantised already");
}

TEST_F(Cli, CalibrateSaysWhichValuesBecomeInfinite) {
  std::map<std::string, HostTensor> tensors;
  for (const char* name : {"q", "k", "v"}) {
    HostTensor one{Dtype::fp32, {1, 1, 8, 16}, std::string(8 * 16 * 4, '\0')};
    for (std::size_t i = 0; i < 8 * 16; ++i)
      store_element(Dtype::fp32, one.bytes.data(), i, 1e-37F * static_cast<float>(i % 7));
    tensors[name] = one;
  }
  for (std::size_t d = 0; d < 16; ++d) store_element(Dtype::fp32, tensors["q"].bytes.data(), 3 * 16 + d, 3e38F);
  const std::string path = folder_.file("large.safetensors");
  write_safetensors(path, tensors);
  const std::string lost = "lost      fp8_rotated of given: smoothing or rotating makes infinite ";
  const Printed both = heed_command("calibrate --qkv " + path + " --seed 3 --modes fp8,fp8_rotated");
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_THAT(both.out, ::testing::HasSubstr(lost));
  EXPECT_THAT(both.out, ::testing::HasSubstr("of Q, the first in batch entry 0, head 0, row 3, column "));
  EXPECT_THAT(both.out, ::testing::HasSubstr("chosen    fp8: "));
  const Printed one = heed_command("calibrate --qkv " + path + " --seed 3 --modes fp8_rotated");
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(one.out, ::testing::HasSubstr("chosen    none: every mode makes values infinite"));
}

TEST_F(Cli, CalibrateWritesWhatItChoseForALayer) {
  const std::string choices = folder_.file("choices.json");
  const std::string command = "calibrate --shape b1h2l48d64 --seed 3 --modes int8_smooth,fp8 --choices " + choices;
  ASSERT_EQ(heed_command(command).code, 0);
  ASSERT_EQ(heed_command(command + " --layer encoder.layer.3 --most 1e-9").code, 1);  // none is as exact
  ASSERT_EQ(heed_command(command + " --layer encoder.layer.3 --most 1e-8").code, 1);
  const auto layers = nlohmann::json::parse(read_file(choices, ErrorCode::internal))["layers"];
  EXPECT_EQ(layers.size(), 2);
  EXPECT_EQ(layers["*"]["mode"], "int8_smooth");
  EXPECT_EQ(layers["*"]["workload"], "b1h2l48d64:fp16");
  EXPECT_GT(layers["*"]["rel_rms"].get<double>(), 1e-3);
  EXPECT_TRUE(layers["encoder.layer.3"]["mode"].is_null());
  EXPECT_EQ(layers["encoder.layer.3"]["most"], 1e-8);
  expect_refusal("calibrate --shape b1h2l48d64 --layer a", 2, "give --choices too");
  write_file_atomically(choices, "[]", ErrorCode::internal);
  expect_refusal(command, 2, "no file of choices");
}

TEST_F(Cli, VerifyAndRunPrintTheTotalErrorOfQuantisedInputs) {
  const Printed verify = heed_command(
      "verify fwd_cpu --shape b1h2l20d16:fp32 --quantised qk/int8/token+v/e4m3/channel --seed 3 --json --device cpu " +
      cache());
  ASSERT_EQ(verify.code, 0) << verify.err;
  EXPECT_THAT(verify.err, ::testing::HasSubstr("total error against the values before quantisation"));
  int with_total = 0;
  const auto json = nlohmann::json::parse(verify.out);
  for (const auto& check : json["results"][0]["checks"])
    if (check.contains("total_error")) {
      ++with_total;
      EXPECT_GT(check["total_error"]["rel_rms"].get<double>(), check["error"]["rel_rms"].get<double>());
    }
  EXPECT_GT(with_total, 8);
  expect_refusal("verify fwd_cpu --shape b1h2l20d16:fp32 --quantised q/fp4/token", 2, "\"fp4\"");
  const std::string given = std::string(testing_support::kSourceFolder) + "/tests/cases/qwen_fp16_4000_200.safetensors";
  const std::string out = folder_.file("o.safetensors");
  const Printed run = heed_command("run fwd_cpu --qkv " + given + " --quantised qkv/e4m3/token -o " + out +
                                   " --json --measure-limit 0.1 --device cpu " + cache());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_GT(nlohmann::json::parse(run.out)["total_error"]["rel_rms"].get<double>(), 1e-3);
}

}  // namespace
}  // namespace heed
