// The commands beside a search: emit, build, verify, profile, doctor.
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.hpp"
#include "cli/command_line.hpp"
#include "kernels/contract.hpp"
#include "store/store.hpp"

namespace heed {
namespace {

TEST_F(Cli, EmitPrintsWhatIsCompiled) {
  const Printed cpu = heed_command("emit fwd_cpu:block_m=64 --shape b1h1l20d8:fp32");
  EXPECT_THAT(cpu.out, ::testing::HasSubstr(".block_m = 64"));
  const Printed gpu = heed_command("emit fwd_sm80 --shape b1h8l512d64:bf16:top-left --arch sm_80");
  EXPECT_THAT(gpu.out, ::testing::HasSubstr("heed::Element::bf16, .head_dim = 64, .mask = heed::MaskKind::causal"));
  const Printed automatic = heed_command("emit auto --shape b1h8l512d64 --arch sm_90a");
  EXPECT_THAT(automatic.out, ::testing::HasSubstr("kernels/sm90/split/"));
  expect_refusal("emit fwd_sm80:stages=4,block_n=128,kv_groups=2 --shape b1h8l512d64 --arch sm_89", 1,
                 "illegal on sm_89");
  expect_refusal("emit fwd_sm70 --shape b1h8l512d64", 2, "unknown family");
}

// Ranges of NVTX, as a tool that is loaded by its variable sees them.
TEST_F(Cli, ATimelineHasBuildsGatesAndMeasurements) {
  if (std::string(testing_support::kNvtxListener).empty()) GTEST_SKIP() << "NVTX's header was not found";
  const std::string messages = folder_.file("messages");
  const Printed run = heed_command(
      "evolve --shape b1h1l32d16:fp32 --device cpu --population 2 --no-peers --measure-limit 0.1 --trials 2 " + db() +
          " --cache " + folder_.file("cache"),
      "NVTX_INJECTION64_PATH=" + std::string(testing_support::kNvtxListener) + " HEED_NVTX_MESSAGES=" + messages);
  ASSERT_EQ(run.code, 0) << run.err;
  const std::string text = read_file(messages, ErrorCode::internal);
  for (const char* range : {"build ", "gate fwd_cpu", "measure fwd_cpu"})
    EXPECT_THAT(text, ::testing::HasSubstr(range));
  std::istringstream lines(text);
  int open = 0;
  for (std::string line; std::getline(lines, line);) open += line == "/" ? -1 : 1;
  EXPECT_EQ(open, 0) << "ranges without an end";
}

TEST_F(Cli, BuildDeliversABinaryAndItsLaunch) {
  const Printed cpu = heed_command("build fwd_cpu:block_m=64 --shape b2h3l100d16:fp32 --json -o " +
                                   folder_.file("v/k.so") + " " + cache());
  ASSERT_EQ(cpu.code, 0) << cpu.err;
  const auto json = nlohmann::json::parse(cpu.out);
  EXPECT_EQ(read_file(json["file"].get<std::string>(), ErrorCode::internal).substr(1, 3), "ELF");
  EXPECT_EQ(json["grid"], nlohmann::json({12, 1, 1}));
  EXPECT_EQ(json["entry"], "heed_forward");
  EXPECT_EQ(json["workload"], "b2h3l100d16:fp32");
  EXPECT_THAT(json["config"].get<std::string>(), ::testing::HasSubstr("block_m=64,"));
  EXPECT_GT(json["floor"]["us"].get<double>(), 0);
  EXPECT_EQ(json["contract"]["size"], sizeof(ForwardParams));
  EXPECT_EQ(json["contract"]["offsets"]["scale"], offsetof(ForwardParams, scale));
  EXPECT_EQ(json["source_digest"].get<std::string>().size(), 16U);

  expect_refusal("build fwd_cpu --shape b1h1l8d16", 2, "give a variant with --shape and -o FILE");
  expect_refusal("build fwd_cpu -o " + folder_.file("x"), 2, "no workload");
  expect_refusal("build fwd_none --shape b1h1l8d16 -o " + folder_.file("x"), 2, "unknown family");
  expect_refusal("build auto --device cpu --arch sm_80 --shape b1h1l8d16 -o " + folder_.file("x"), 2,
                 "leave it out with --device cpu");
  expect_refusal("build auto --arch sm_42 --shape b1h1l8d16 -o " + folder_.file("x"), 2, "unknown GPU architecture");
  expect_refusal("build auto --arch sm_89 --shape b1h8l512d192 -o " + folder_.file("x"), 1, "head dim 192");
  expect_refusal("build fwd_cpu --shape b1h1l8d16 -o /dev/null/x " + cache(), 1, "/dev/null");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("x")));
}

TEST_F(Cli, BuildForAGpuNeedsNone) {
  const auto build = [&](const std::string& variant) {
    return heed_command("build " + variant + " --arch sm_90a --shape b1h8l512d64 --json -o " + folder_.file("k.cubin") +
                        " " + cache());
  };
  const Printed portable = build("fwd_sm80");
  if (portable.code != 0 && portable.err.find("nvrtc") != std::string::npos) HEED_LACKS("nvrtc", portable.err);
  ASSERT_EQ(portable.code, 0) << portable.err;
  auto json = nlohmann::json::parse(portable.out);
  EXPECT_EQ(read_file(folder_.file("k.cubin"), ErrorCode::internal).substr(1, 3), "ELF");
  EXPECT_EQ(json["grid"], nlohmann::json({16, 8, 1}));
  EXPECT_EQ(json["device"]["arch"], "sm_90a");
  EXPECT_EQ(json["max_shared_bytes"], 227 * 1024);
  EXPECT_EQ(json["semaphores"], 0);
  EXPECT_TRUE(json["tensor_maps"].is_null());
  EXPECT_EQ(json["supports_pdl"], false);
  EXPECT_FALSE(json.contains("floor"));  // an architecture has no clock
  EXPECT_FALSE(json.contains("made_for"));

  const Printed hopper = build("auto");  // tensor maps, a cluster and a dependent launch
  ASSERT_EQ(hopper.code, 0) << hopper.err;
  json = nlohmann::json::parse(hopper.out);
  EXPECT_EQ(json["family"], "fwd_sm90_split");
  EXPECT_EQ(json["made_for"], "Hopper");
  EXPECT_EQ(json["grid"], nlohmann::json({16, 8, 1}));
  EXPECT_EQ(json["cluster"], 2);
  EXPECT_EQ(json["tensor_maps"]["q_rows"], 64);
  EXPECT_EQ(json["tensor_maps"]["l2_bytes"], 256);
  EXPECT_EQ(json["supports_pdl"], true);
  EXPECT_TRUE(json["o_strides"].is_null());

  const Printed dense = build("fwd_sm90_split:specialize=shape,o_layout=dense,gqa=on");
  ASSERT_EQ(dense.code, 0) << dense.err;
  EXPECT_EQ(nlohmann::json::parse(dense.out)["o_strides"], nlohmann::json({8 * 512 * 64, 512 * 64, 64}));

  const Printed decode = heed_command("build auto --arch sm_90a --shape b8h32hkv4l1k8192d128 --json -o " +
                                      folder_.file("d.cubin") + " " + cache());
  ASSERT_EQ(decode.code, 0) << decode.err;
  EXPECT_EQ(nlohmann::json::parse(decode.out)["family"], "fwd_sm90_decode");
  EXPECT_EQ(nlohmann::json::parse(decode.out)["tensor_maps"]["l2_bytes"], 0);
  EXPECT_THAT(nlohmann::json::parse(decode.out)["made_for"].get<std::string>(), ::testing::HasSubstr("few queries"));
}

TEST_F(Cli, BuildOfAListSaysWhatItCannotHave) {
  write_file_atomically(folder_.file("list"),
                        "# a comment\nb1h1l40d16:fp32 fwd_cpu:block_m=16,tile_vectors=1,tile_rows=4\n\n"
                        "b1h2l80d16:fp32\tfwd_cpu:block_m=16,tile_vectors=1,tile_rows=4  # the same binary\n"
                        "b1h1l8d16 fwd_sm80\n",
                        ErrorCode::internal);
  const std::string arguments =
      "build --device cpu --list " + folder_.file("list") + " --into " + folder_.file("into") + " " + cache();
  const Printed run = heed_command(arguments + " --json");
  ASSERT_EQ(run.code, 0) << run.err;
  const auto builds = nlohmann::json::parse(run.out)["builds"];
  ASSERT_EQ(builds.size(), 3U);
  EXPECT_EQ(builds[0]["file"], builds[1]["file"]);
  EXPECT_NE(builds[0]["grid"], builds[1]["grid"]);
  EXPECT_THAT(builds[2]["refused"].get<std::string>(), ::testing::HasSubstr("it runs on NVIDIA GPUs"));
  EXPECT_FALSE(builds[2].contains("file"));
  EXPECT_THAT(heed_command(arguments).out, ::testing::HasSubstr("b1h1l8d16:fp16  -  "));
  const Printed dry =
      heed_command("build --device cpu --list " + folder_.file("list") + " --dry-run --json " + cache());
  ASSERT_EQ(dry.code, 0) << dry.err;
  const auto known = nlohmann::json::parse(dry.out)["builds"];
  EXPECT_EQ(known[0]["key"], builds[0]["key"]);
  EXPECT_EQ(known[0]["key"], known[1]["key"]) << "the same binary";
  EXPECT_FALSE(known[0].contains("file"));
  EXPECT_EQ(known[2]["refused"], builds[2]["refused"]);

  write_file_atomically(folder_.file("list"), "b1h1l8d16\n", ErrorCode::internal);
  expect_refusal(arguments, 2, "list:1: a line is a workload and a variant");
  write_file_atomically(folder_.file("list"), "banana auto\n", ErrorCode::internal);
  expect_refusal(arguments, 2, "unknown dimension");
  expect_refusal("build --list none --into " + folder_.file("into"), 1, "none");
  expect_refusal("build --list none", 2, "--list FILE with --into FOLDER or --dry-run");
  expect_refusal("build --list none --dry-run --into " + folder_.file("into"), 2, "--into FOLDER or --dry-run");
}

TEST_F(Cli, VerifyFailsWhenAVariantFails) {
  EXPECT_EQ(heed_command("verify fwd_cpu --shape b1h1l64d16:fp32 --device cpu " + cache()).code, 0);
  const Printed wrong = heed_command("verify fwd_cpu:exp2=degree3 --shape b1h1l64d16:fp32 --device cpu " + cache());
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.out, ::testing::HasSubstr("inexact"));
  EXPECT_EQ(heed_command("verify auto --shape b1h1l64d16:fp32 --device cpu " + cache()).code, 0);
  expect_refusal("verify auto --shape b1h1l64d513:fp32 --device cpu " + cache(), 1,
                 "fwd_cpu: head dim 513 is not supported");
  const Printed spare = heed_command(
      "verify fwd_cpu --shape b1h1l64d16:fp32 --device cpu --spare-features softcap,pages --json " + cache());
  EXPECT_EQ(spare.code, 0) << spare.err;
  EXPECT_THAT(spare.out, ::testing::HasSubstr("softcap_pages"));
  expect_refusal("verify fwd_cpu --shape b1h1l64d16:fp32 --device cpu --spare-features banana " + cache(), 2,
                 "--spare-features has no \"banana\"");
}

TEST_F(Cli, ProfileDiagnosesWithoutCounters) {
  const std::string svg = folder_.file("roofline.svg");
  const Printed text =
      heed_command("profile fwd_cpu:threads=1 --shape b1h1l48d16:fp32 --roofline " + svg + " " + cache());
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, ::testing::HasSubstr("no hardware counters: "));
  EXPECT_THAT(text.out, ::testing::HasSubstr("(without counters)"));
  EXPECT_TRUE(
      run_process({"python3", "-c", "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])", svg}, {}, 20).ok());
  const Printed json = heed_command("profile fwd_cpu --shape b1h1l48d16:fp32 --json " + cache());
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_GT(parsed["us"].get<double>(), 0);
  EXPECT_EQ(parsed["diagnosis"]["with_counters"], false);
  EXPECT_TRUE(parsed["diagnosis"]["shares"].contains("fma"));
  EXPECT_EQ(parsed["programs"].size(), 1U);
  EXPECT_TRUE(parsed["programs"].contains(parsed["variant"].get<std::string>()));
}

TEST_F(Cli, ProfileSaysWhyThereAreNoCounters) {
  const std::string cpu = "profile fwd_cpu --shape b1h1l48d16:fp32 " + cache() + " --cupti ";
  const bool built =
      heed_command(cpu + "/nonexistent/libcupti.so").err.find("built without CUPTI") == std::string::npos;
  expect_refusal(cpu + "/nonexistent/libcupti.so", 1, built ? "No such file" : "built without CUPTI");
  write_file_atomically(folder_.file("libcupti.so"), "no library", ErrorCode::internal);
  expect_refusal(cpu + folder_.file("libcupti.so"), 1, built ? "CUPTI was not found" : "built without CUPTI");
  expect_refusal(cpu + "libm.so.6", 1, built ? "lacks cuptiGetVersion" : "built without CUPTI");
  expect_refusal("profile fwd_cpu:exp2=degree3 --shape b1h1l64d16:fp32 " + cache(), 1, "does not pass the gate");
  expect_refusal("profile fwd_cpu --shape b1h1l48d16:fp32 --roofline /dev/null/x.svg " + cache(), 1, "/dev/null");
  expect_refusal("profile fwd_none --shape b1h1l48d16:fp32", 2, "unknown family");
  expect_refusal("profile", 2, "no workload");
}

TEST_F(Cli, ProfilePrintsTheNsightComputeCommand) {
  const Printed run = heed_command("profile fwd_sm80:kv_groups=4 --shape b1h8l512d64 --causal top-left --ncu");
  EXPECT_EQ(run.code, 0) << run.err;
  for (const char* part :
       {"ncu ", "--clock-control none", "--target-processes all", "--kernel-name heed_forward",
        "--section SpeedOfLight", " verify 'fwd_sm80:", "kv_groups=4", "--shape 'b1h8l512d64:fp16:causal_top_left'"})
    EXPECT_THAT(run.out, ::testing::HasSubstr(part));
  expect_refusal("profile fwd_cpu --shape b1h8l512d64 --ncu", 2, "runs on the CPU");
  EXPECT_THAT(heed_command("profile --shape b8h32hkv4l1k8192d128 --ncu").out,
              ::testing::HasSubstr("'fwd_sm90_decode:"));
}

TEST_F(Cli, DoctorNamesWhatIsMissing) {
  const Printed run = heed_command("doctor " + db() + " " + cache());
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, ::testing::HasSubstr("C++ compiler"));
  EXPECT_THAT(run.out, ::testing::ContainsRegex("(ok|--) +counters "));
  const Printed broken = heed_command("doctor " + db() + " --cache /dev/null/x", "PATH=/nonexistent");
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.out, ::testing::HasSubstr("so: nothing can be built"));
}

// Each fault of a machine fails the line it belongs to, and the command.
TEST_F(Cli, DoctorFailsWhereARunWould) {
  const auto failed = [&](const std::string& arguments, const std::string& limits) {
    const TemporaryFolder folder;
    const std::string command = limits + std::string(testing_support::kHeedBinary) + " doctor --json --device cpu " +
                                arguments + " >" + folder.file("out") + " 2>" + folder.file("err");
    const ProcessResult result = run_process({"sh", "-c", command}, {}, kLimit_s);
    const nlohmann::json printed =
        nlohmann::json::parse(read_file(folder.file("out"), ErrorCode::internal), nullptr, false);
    EXPECT_TRUE(printed.is_object()) << command << read_file(folder.file("err"), ErrorCode::internal);
    if (!printed.is_object()) return std::set<std::string>{};
    EXPECT_EQ(printed["usable"].get<bool>(), result.exit_code == 0);
    return printed["failed"].get<std::set<std::string>>();
  };
  EXPECT_EQ(failed(db() + " " + cache(), ""), std::set<std::string>{});
  EXPECT_EQ(failed(db() + " " + cache(), "ulimit -n 40; ").count("files"), 1U);
  EXPECT_EQ(failed(db() + " " + cache() + " --compiler no-such-compiler", ""),
            (std::set<std::string>{"C++ compiler", "CPU kernel"}));
  EXPECT_EQ(failed("--db " + folder_.path().string() + " " + cache(), ""), std::set<std::string>{"database"});
  EXPECT_EQ(failed(db() + " --cache /proc/heed", ""), (std::set<std::string>{"CPU kernel", "cache"}));
}

// No candidate is loaded before a worker answers: no verdict on one.
TEST_F(Cli, AWorkerThatDoesNotStartIsTheMachinesError) {
  const TemporaryFolder folder;
  const ProcessResult result =
      run_process({"sh", "-c",
                   "ulimit -n 40; " + std::string(testing_support::kHeedBinary) +
                       " verify fwd_cpu --shape b1h1l32d16:fp32 --device cpu " + cache() + " 2>&1"},
                  {}, kLimit_s);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, ::testing::HasSubstr("a worker does not start on this machine"));
  EXPECT_THAT(result.output, ::testing::Not(::testing::HasSubstr("crashed")));
}

// A kernel on one's own tensors: against NumPy's layout of the output, and the reference of Heed.
// Values of features come from the file; none of them is drawn.
// Bytes changed anywhere in a database: what is printed is JSON, or an error.
TEST_F(Cli, ADamagedDatabaseNeverPrintsWhatIsNoJson) {
  ASSERT_EQ(heed_command(tiny_evolution(2)).code, 0);
  {
    store::Store store(folder_.file("a.db"));
    store.database().execute("PRAGMA wal_checkpoint(TRUNCATE)");
  }
  const std::string whole = read_file(folder_.file("a.db"), ErrorCode::internal);
  Random random(7);
  for (int round = 0; round < 40; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 1 + round % 8; ++i)
      bytes[100 + random.below(bytes.size() - 100)] = static_cast<char>(random.below(256));
    write_file_atomically(folder_.file("a.db"), bytes, ErrorCode::internal);
    for (const std::string& command : {"show 1 --json " + db(), "runs --json " + db()}) {
      const Printed run = heed_command(command);
      EXPECT_FALSE(nlohmann::json::parse(run.out, nullptr, false).is_discarded()) << round << run.out.substr(0, 300);
      EXPECT_TRUE(run.code == 0 || run.code == 1 || run.code == 2) << run.code;
      EXPECT_EQ(run.err.find("terminate called"), std::string::npos);
    }
  }
}

// What passed is timed for a moment too; the same options as a gate's alone.
TEST_F(Cli, VerifyTimesWhatPassed) {
  const Printed run = heed_command("verify fwd_cpu --shape b1h4l1k600d64:bf16 --device cpu --timed " + cache());
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, ::testing::HasSubstr("1 of 1 passed"));
  expect_refusal("verify fwd_sm80 --shape b1h4l64d64 --timed --emulate", 2, "--emulate");
}

}  // namespace
}  // namespace heed
