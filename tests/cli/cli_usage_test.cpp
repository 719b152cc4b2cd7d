// Help, wrong usage and failures.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command_line.hpp"
#include "device/cpu_level.hpp"
#include "dispatch/program_file.hpp"
#include "store/store.hpp"
#include "tensors/safetensors.hpp"

namespace heed {
namespace {

TEST_F(Cli, LadderRefusesWhatItCannotRun) {
  expect_refusal("ladder --steps scalar,swizle", 2, "did you mean \"swizzle\"?");
  expect_refusal("ladder --shape b1h8", 2, "query length is missing");
  expect_refusal("ladder --device cpu", 1, "leave out --device cpu");
  EXPECT_THAT(heed_command("ladder --device cpu --json").out, ::testing::HasSubstr("\"no_device\""));
}

TEST_F(Cli, RulesOfDefaultsArePrintedAndWrongOnesNamed) {
  const Printed all = heed_command("rules");
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, ::testing::HasSubstr("fwd_sm90_persistent\n  schedule: the first row that holds decides"));
  const auto json = nlohmann::json::parse(heed_command("rules fwd_cpu --rule lanes --json").out);
  ASSERT_EQ(json["rules"].size(), 1U);
  EXPECT_EQ(json["rules"][0]["rows"][0]["knobs"], "lanes=columns,split_keys=512,prefetch=32");
  expect_refusal("rules fwd_sm80_decode", 2, "is decided by no table; those of fwd_cpu");
  expect_refusal("rules fwd_cpuu", 2, "did you mean \"fwd_cpu\"?");
  expect_refusal("rules fwd_cpu --rule lane", 2, "did you mean \"lanes\"?");
  expect_refusal("rules --measure --device cpu", 2, "needs a family");
  expect_refusal("rules --rule lanes", 2, "needs the family whose table it is");
  expect_refusal("rules fwd_cpu --measure --device cpu --evidence /dev/null/x.json", 1, "/dev/null");
  expect_refusal("rules fwd_cpu --evidence x.json", 2, "goes with --measure");
  expect_refusal("rules fwd_sm90_fp8 --measure --device cpu", 1, "no workload that runs on");
}

TEST_F(Cli, HelpAndVersion) {
  EXPECT_THAT(heed_command("--help").out, ::testing::HasSubstr("Examples:"));
  EXPECT_EQ(heed_command("--help").code, 0);
  EXPECT_EQ(heed_command("help").out, heed_command("--help").out);
  EXPECT_EQ(heed_command("help book add").out, heed_command("book add --help").out);
  EXPECT_THAT(heed_command("--version").out, ::testing::StartsWith("heed "));
  for (const char* command : {"evolve", "verify", "bench", "show", "runs", "replay", "families", "emit", "build",
                              "doctor", "selftest", "profile", "ladder", "report", "evidence", "run", "rules"}) {
    const Printed run = heed_command(std::string(command) + " --help");
    EXPECT_EQ(run.code, 0) << command;
    EXPECT_THAT(run.out, ::testing::AnyOf(::testing::HasSubstr("Example"), ::testing::HasSubstr("Exit code")))
        << command;
  }
  // Examples of a subcommand are its own or its command's, not the program's.
  for (const char* command : {"book add", "programs build", "library host", "insights why"}) {
    const Printed run = heed_command(std::string(command) + " --help");
    EXPECT_EQ(run.code, 0) << command;
    EXPECT_THAT(run.out, ::testing::HasSubstr("  heed " + std::string(command))) << command;
    EXPECT_THAT(run.out, ::testing::Not(::testing::HasSubstr("heed doctor"))) << command;
  }
}

TEST_F(Cli, WrongUsageExitsWithTwo) {
  expect_refusal("", 2, "subcommand");
  expect_refusal("evovle", 2, "did you mean \"evolve\"?");
  expect_refusal("book lst", 2, "unknown command \"lst\" of heed book; did you mean \"list\"?");
  expect_refusal("programs banana --json", 2, "unknown command \"banana\" of heed programs; it is one of build, list");
  for (const char* command : {"evolve", "run", "replay", "emit", "judge", "adopt", "simulate", "programs build"})
    expect_refusal(std::string(command) + " --no-such-option", 2, "--no-such-option");
  expect_refusal("evolve --shape b1h8l512d64 --trails 3 --jbos 2", 2,
                 "unknown option \"--trails\"; did you mean \"--trials\"?");
  expect_refusal("dispatch --shpae=b1h8l512d64", 2, "unknown option \"--shpae\"; did you mean \"--shape\"?");
  expect_refusal("programs list", 2, "file is required");
  for (const char* command : {"dispatch", "emit auto", "build auto -o x", "landscape -o x"})
    expect_refusal(std::string(command) + " --shape b1h8l512d64 --qkv q.safetensors", 2, "unknown option \"--qkv\"");
  for (const char* arguments :
       {"--json", "evovle --json", "evolve --json --trials many", "run --json", "evolve --json"}) {
    const Printed run = heed_command(arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    const auto said = nlohmann::json::parse(run.out, nullptr, false);
    ASSERT_TRUE(said.is_object()) << arguments << run.out;
    EXPECT_EQ(said["error"]["code"], "usage") << arguments;
  }
  expect_refusal("evolve " + db(), 2, "no workload");
  expect_refusal("evolve --shape b1h8l0d64 " + db(), 2, "l=0 is not positive");
  expect_refusal("evolve --shape b1h8l-4d64 " + db(), 2, "l=-4 is not positive");
  expect_refusal("evolve --shape b1h8l99999999999999999999d64 " + db(), 2, "too large");
  expect_refusal("evolve --shape b1h9hkv2l8d64 " + db(), 2, "multiple of hkv");
  expect_refusal("evolve --shape banana " + db(), 2, "unknown dimension");
  expect_refusal("evolve --shape b1h1l8d16 --dtype fp8 " + db(), 2, "unknown dtype");
  expect_refusal("evolve --shape b1h1l8d16 --causal left " + db(), 2, "unknown mask");
  expect_refusal("evolve --shape b1h1l8d16 --scale -1 " + db(), 2, "finite and positive");
  expect_refusal("evolve --shape b1h1l8d16 --device tpu " + db(), 2, "unknown device");
  expect_refusal(
      "evolve --shape b1h1l8d16:fp32 --family fwd_cpu --hold rowsum=mma --device cpu " + db() + " " + cache(), 2,
      "unknown knob \"rowsum\"");
  expect_refusal("evolve --shape b1h1l8d16 --family fwd_gpu --device cpu " + db() + " " + cache(), 2, "unknown family");
  expect_refusal("evolve --shape b1h1l8d16 --family fwd_cpu, --device cpu " + db() + " " + cache(), 2,
                 "unknown family \"\"");
  expect_refusal("evolve --shape b1h1l8d16 --family fwd_cpu,fwd_cpu --device cpu " + db() + " " + cache(), 2,
                 "fwd_cpu is named twice");
  expect_refusal("evolve --shape b1h1l8d16 --strategy luck --device cpu " + db() + " " + cache(), 2,
                 "unknown strategy");
  expect_refusal("evolve --shape b1h1l8d16 --trials 0 --device cpu " + db() + " " + cache(), 2, "--trials 0");
  expect_refusal("evolve --shape b1h1l8d16 --trials -3 --device cpu " + db() + " " + cache(), 2, "--trials -3");
  expect_refusal("evolve --shape b1h1l8d16 --trials many " + db(), 2, "many");
  expect_refusal("evolve --shape b1h1l8d16 --drafts 0 " + db(), 2, "--drafts");
  expect_refusal("evolve --resume 77 " + db(), 2, "there is no run 77");
  expect_refusal("bench fwd_cpu:blok_m=64 --shape b1h1l8d16 --device cpu " + cache(), 2, "did you mean \"block_m\"?");
  expect_refusal("bench fwd_cpu:block_m=63 --shape b1h1l8d16 --device cpu " + cache(), 2,
                 "knob block_m cannot be \"63\"");
  expect_refusal("families fwd_none", 2, "unknown family");
  expect_refusal("show", 2, "run");
  expect_refusal("replay x", 2, "\"x\" is no trial");
  expect_refusal("replay t17 " + db(), 2, "there is no trial 17");
  expect_refusal("report t1", 2, "run cannot be \"t1\": a number is wanted");
  expect_refusal("book", 2, "a subcommand of book is wanted: add, list, export, import, verify, remove");
  for (const char* number : {"nan", "-1", "0", "1x", ""})
    expect_refusal(fmt::format("verify --shape b1h1l8d16 --launch-limit \"{}\"", number), 2,
                   fmt::format("--launch-limit: \"{}\" is no number above 0", number));
  expect_refusal("evolve --shape b1h1l8d16 --budget -1", 2, "\"-1\" is no number from 0 on");
  expect_refusal("emit fwd_sm80 --shape b1h8l512d64 --arch sm_42", 2, "unknown GPU architecture");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("b.db")));
}

TEST_F(Cli, FailuresExitWithOne) {
  expect_refusal("runs " + db(), 1, "there is no database");
  for (const char* verb : {"list", "verify", "export o.heed", "import none.heed"})
    expect_refusal(fmt::format("book {} --book {}", verb, folder_.file("none.heed")), 1, "there is no book");
  expect_refusal("book list --book " + folder_.file("none.heed"), 1, "heed book add, or heed evolve --book, makes it");
  expect_refusal("evolve --shape b1h1l8d16dv32 --device cpu " + db() + " " + cache(), 1, "value dim 32");
  expect_refusal("evolve --shape b1h1l8d2000 --device cpu " + db() + " " + cache(), 1, "head dim 2000");
  expect_refusal(
      "bench fwd_cpu:unit=vector,pack_gqa=off,tile_rows=12,tile_vectors=4 --shape b1h1l20d16 --device cpu " + cache(),
      1, "does not fit");
  expect_refusal("evolve --shape b1h1l8d16 --device cpu --compiler no-such-compiler " + db() + " " + cache(), 1,
                 "\"no-such-compiler\" is not on the PATH");
  expect_refusal("evolve --shape b1h1l8d16 --device cpu " + db() + " " + cache(), 1, "no C++ compiler on the PATH",
                 "PATH=/nonexistent");
  expect_refusal("evolve --shape b1h1l8d16 --device cpu --cache /dev/null/x " + db(), 1, "cannot create the folder");
  if (run_process({"nvidia-smi"}, {}, 20).ok()) return;
  expect_refusal("evolve --shape b1h1l8d16 --device cuda " + db() + " " + cache(), 1, "no GPU can be used");
  expect_refusal("selftest --device cuda " + cache(), 1, "no GPU can be used");
  expect_refusal("profile fwd_sm80 --shape b1h8l512d64 " + cache(), 1, "no GPU can be used");
}

TEST_F(Cli, BadTensorFilesAreNamed) {
  write_file_atomically(folder_.file("bad.safetensors"), "12345678901234567890", ErrorCode::internal);
  expect_refusal("evolve --qkv " + folder_.file("none.safetensors") + " " + db(), 1, "No such file");
  expect_refusal("evolve --qkv " + folder_.file("bad.safetensors") + " --device cpu " + db(), 1, "no safetensors file");
  expect_refusal("evolve --q " + folder_.file("bad.safetensors") + " " + db(), 2, "belong together");
  expect_refusal("evolve --qkv a --shape b1h1l8d16 " + db(), 1, "No such file");
  expect_refusal("verify --qkv a --q b " + cache(), 2, "not both");
}

TEST_F(Cli, BadDatabasesAreNamedAndKept) {
  const std::string junk(5000, 'x');
  write_file_atomically(folder_.file("a.db"), junk, ErrorCode::internal);
  expect_refusal("runs " + db(), 1, "corrupt or no SQLite database");
  expect_refusal(tiny_evolution(), 1, "corrupt or no SQLite database");
  EXPECT_EQ(read_file(folder_.file("a.db"), ErrorCode::internal), junk);
}

// A newer Heed goes on with a file of its own where the default database is an older one's.
TEST_F(Cli, TheDefaultDatabaseOfAnOlderHeedStays) {
  const std::string data = "XDG_DATA_HOME=" + folder_.file("data");
  const std::string usual = folder_.file("data/heed/heed.db");
  std::filesystem::create_directories(folder_.file("data/heed"));
  store::Database(usual, store::Access::read_write).execute("PRAGMA user_version = 1");
  const std::string before = read_file(usual, ErrorCode::internal);
  const std::string newer = folder_.file(fmt::format("data/heed/heed.layout{}.db", store::kSchemaVersion));

  expect_refusal("evolve --shape banana", 2, "unknown dimension", data);
  expect_refusal("runs", 1, "layout 1, written by an older Heed", data);
  EXPECT_FALSE(std::filesystem::exists(newer));
  const Printed begun = heed_command("insights harvest", data);
  EXPECT_EQ(begun.code, 0) << begun.err;
  EXPECT_EQ(begun.err, fmt::format("heed: {} is of an older Heed, and stays as it is; runs go to {}\n", usual, newer));
  EXPECT_EQ(heed_command("insights harvest", data).err, "");
  EXPECT_EQ(heed_command("runs", data).code, 0);
  EXPECT_THAT(heed_command("runs --help", data).out, ::testing::HasSubstr(newer));
  EXPECT_EQ(read_file(usual, ErrorCode::internal), before);
}

TEST_F(Cli, DispatchTakesEveryArchitectureOfFilesOfPrograms) {
  const std::string none = " --book \"\" --programs " + folder_.file("none.programs");
  for (const char* arch : {"", "--arch cpu", "--arch compute_80", "--arch sm_90a", "--arch x86-64-v3"})
    expect_refusal(fmt::format("dispatch --shape b1h8l512d64 {}", arch) + none, 1, "cannot read");
  expect_refusal("dispatch --shape b1h8l512d64 --arch sm_42" + none, 2, "unknown GPU architecture");
  expect_refusal("dispatch --shape b1h8l512d64 --arch pentium" + none, 2, "unknown architecture");
}

TEST_F(Cli, ProgramsOfAnotherContractAreToldByVerify) {
  dispatch::ProgramFileWriter writer("5555555555555555");
  dispatch::ProgramRecord record;
  record.arch = "x86-64-v3";
  record.workload = "b1h1l40d16:fp32";
  record.variant = "fwd_cpu";
  record.origin = "rule";
  record.contract = "1234567812345678";
  writer.add(record, "image");
  write_file_atomically(folder_.file("old.programs"), writer.bytes(), ErrorCode::internal);
  expect_refusal("programs verify " + folder_.file("old.programs"), 1,
                 "is whole, but holds programs for the kernel contract 1234567812345678");
}

TEST_F(Cli, ProgramsAreBuiltForCpuLevels) {
  std::vector<std::string> own;
  for (const CpuLevel* level : cpu_levels_of(own_machine())) own.emplace_back(level->name);
  if (own.empty()) GTEST_SKIP() << "no levels of this machine's instruction set";
  const std::string little = " --dtypes fp32 --dims 16 --masks none --samples 3 --most 1 " + cache();
  const Printed dry = heed_command("programs build --dry-run --arch " + own[0] + little);
  EXPECT_THAT(dry.out, ::testing::StartsWith(own[0] + "  b"));
  const Printed pages = heed_command("programs build --dry-run --page-dtypes int8 --arch " + own[0] + little);
  EXPECT_THAT(pages.out, ::testing::HasSubstr(":quantised=kv/int8/head"));
  EXPECT_THAT(dry.out, ::testing::Not(::testing::HasSubstr("quantised=kv")));
  const auto planned =
      nlohmann::json::parse(heed_command("programs build --dry-run --json --arch " + own[0] + little).out)["programs"];
  ASSERT_FALSE(planned.empty());
  EXPECT_EQ(planned[0]["arch"], own[0]);
  EXPECT_GT(planned[0]["problems"], 0);
  EXPECT_THAT(planned[0]["variant"].get<std::string>(), ::testing::StartsWith("fwd_cpu:"));
  const std::string file = folder_.file("heed.programs");
  // A level that is named twice is built once.
  const Printed built = heed_command("programs build --arch cpu," + own[0] + " -o " + file + little);
  ASSERT_EQ(built.code, 0) << built.err;
  EXPECT_EQ(heed_command("programs verify " + file).code, 0);
  const auto listed = nlohmann::json::parse(heed_command("programs list --json " + file).out);
  std::map<std::string, std::set<std::string>> variants;
  for (const auto& program : listed["programs"])
    EXPECT_TRUE(variants[program["arch"]]
                    .insert(program["variant"].get<std::string>() + program["workload"].get<std::string>())
                    .second);
  EXPECT_EQ(variants.size(), own.size());
  for (const std::string& level : own) EXPECT_EQ(variants.count(level), 1U) << level;

  // A file that is made again costs no compiler, and says what its programs cost once.
  const auto costs =
      nlohmann::json::parse(heed_command("programs build --json --arch " + own[0] + " -o " + file + little).out);
  ASSERT_EQ(costs["archs"].size(), 1U) << costs;
  EXPECT_EQ(costs["archs"][0]["arch"], own[0]);
  EXPECT_EQ(costs["archs"][0]["programs"], costs["programs"]);
  EXPECT_EQ(costs["compilers"]["from_cache"], costs["programs"]);
  EXPECT_EQ(costs["compilers"]["unknown"], 0);
  EXPECT_GT(costs["compilers"]["processor_s"], 0);
  EXPECT_GE(costs["compilers"]["processor_s"], costs["compilers"]["longest_s"]);
  EXPECT_EQ(costs["bytes"], read_file(file, ErrorCode::internal).size());
  EXPECT_LT(costs["archs"][0]["bytes"], costs["bytes"]);
  EXPECT_THAT(built.out, ::testing::HasSubstr("s of compilers"));
  EXPECT_THAT(built.out, ::testing::HasSubstr("\nall  "));

  expect_refusal("programs build --arch x86-64-v2 -o " + file, 2, "did you mean \"x86-64-v3\"?");
  expect_refusal("programs build --arch sm_42 -o " + file, 2, "unknown GPU architecture");
  expect_refusal("programs build --dry-run --page-dtypes fp16 --arch " + own[0] + little, 2,
                 "unknown element type of pages \"fp16\"; it is one of e4m3, e5m2, int8");
  for (const CpuLevel& level : cpu_levels())
    if (level.machine != own_machine())
      expect_refusal(fmt::format("programs build --arch {} -o {} {}", level.name, file, little), 1,
                     "need a C++ compiler for");
}

TEST_F(Cli, AVariantIsBuiltForACpuLevel) {
  expect_refusal("build auto --arch x86-64-v9 --shape b1h1l8d16 -o " + folder_.file("x"), 2,
                 "unknown architecture \"x86-64-v9\"; did you mean \"x86-64-v3\"? it is one of x86-64-v3");
  EXPECT_THAT(heed_command("emit auto --arch x86-64-v3 --shape b1h1l64d16:fp32").out,
              ::testing::HasSubstr("heed::cpu::Unit::vector"));
  const auto levels = cpu_levels_of(own_machine());
  if (levels.empty()) GTEST_SKIP() << "no levels of this machine's instruction set";
  const Printed built = heed_command(fmt::format("build auto --arch {} --shape b1h2l64d16:fp32 --json -o {} {}",
                                                 levels[0]->name, folder_.file("k.so"), cache()));
  ASSERT_EQ(built.code, 0) << built.err;
  const auto json = nlohmann::json::parse(built.out);
  EXPECT_EQ(json["device"]["arch"], std::string(levels[0]->name));
  EXPECT_FALSE(json.contains("floor"));  // of a processor that is not at hand
  EXPECT_THAT(json["config"].get<std::string>(), ::testing::StartsWith("fwd_cpu:"));
}

}  // namespace
}  // namespace heed
