// The emulated GPU from the command line: any variant of a GPU family, and edits before they are adopted.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"
#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "source/stored.hpp"
#include "store/store.hpp"
#include "variant/overlay.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kWorkload = "b1h1l40k70d64:fp16";

class Emulated : public Cli {
 protected:
  /// A trial of a GPU that passed there, with more lines at the end of a source that the kernel includes.
  std::string trial_with(const std::string& lines) {
    const Workload workload = parse_workload(kWorkload);
    Variant variant = parse_variant("fwd_sm80", workload, gpu_limits("sm_90a"));
    const std::string path = "kernels/attention/exp2.cuh";
    const std::string carried(compile::device_file(path));
    variant.overlay = std::make_shared<const Overlay>(Overlay{{{path, carried + lines}}});
    store::Store store(folder_.file("a.db"));
    store::RunRecord run;
    run.workload = to_string(workload);
    run.families = "fwd_sm80";
    run.device_kind = "cuda";
    run.device = {{"arch", "sm_90a"}, {"name", "NVIDIA H100 80GB HBM3"}};
    run.state = store::RunState::judged;
    store::TrialRecord trial;
    trial.run = store.add_run(run);
    trial.variant = variant.id();
    trial.config = describe(variant);
    trial.edits = source::stored(variant, "tests the emulator");
    trial.source_digest = compile::source_digest();
    trial.ratio = trial.ratio_low = trial.ratio_high = 1.1;
    return std::to_string(store.add_trial(trial));
  }
};

TEST_F(Emulated, AFamilyIsVerifiedWithoutAGpu) {
  const Printed run =
      heed_command("verify fwd_sm80 --shape " + std::string(kWorkload) + " --emulate --arch sm_89 --json " + cache());
  EXPECT_EQ(run.code, 0) << run.err;
  const auto result = nlohmann::json::parse(run.out)["results"][0];
  EXPECT_EQ(result["outcome"], "passed");
  EXPECT_EQ(result["arch"], "sm_89");
  EXPECT_EQ(result["workload"], kWorkload);
  EXPECT_GT(result["launches"].get<int>(), 0);
}

TEST_F(Emulated, WhatItCannotRunIsASentence) {
  expect_refusal("verify fwd_cpu --shape b1h1l8d16 --emulate " + cache(), 1, "it runs on the CPU");
  const std::string variant = "verify fwd_sm80 --shape " + std::string(kWorkload) + " --emulate " + cache();
  const Printed without = heed_command(variant + " --compiler no-such");
  EXPECT_EQ(without.code, 1);
  EXPECT_THAT(without.out, HasSubstr("\"no-such\" is not on the PATH"));
  expect_refusal("verify fwd_sm80 --random-workloads 3 --emulate", 2, "--emulate looks at the variants that are named");
  expect_refusal(variant + " --arch sm_1", 2, "sm_1");
  expect_refusal(variant + " --sanitize", 2, "excludes");
}

TEST_F(Emulated, EditsAreAdoptedAfterTheyPassed) {
  const std::string id = trial_with("\nnamespace heed {\nstruct NoUse {};\n}  // namespace heed\n");
  const Printed adopted = heed_command("adopt " + id + " --unsanitized " + db() + " " + cache());
  EXPECT_EQ(adopted.code, 0) << adopted.err;
  EXPECT_THAT(adopted.out, StartsWith("diff --git a/kernels/attention/exp2.cuh"));
  EXPECT_THAT(heed_command("show 1 " + db()).out, HasSubstr("emulator, trial " + id + ": passed, "));
}

// Every probability is as large as the largest.
TEST_F(Emulated, BrokenEditsAreNotAdopted) {
  const std::string id = trial_with("\n#define ex2_approx_ftz(x) lg2_approx_ftz(x)\n");
  expect_refusal("adopt " + id + " --unsanitized " + db() + " " + cache(), 1, "on the emulated GPU it ended wrong");
  EXPECT_THAT(heed_command("show 1 " + db()).out, HasSubstr("emulator, trial " + id + ": wrong: "));
  EXPECT_EQ(nlohmann::json::parse(heed_command("show 1 --json " + db()).out)["comparisons"][0]["kind"], "emulated");
  EXPECT_EQ(heed_command("adopt " + id + " --unsanitized --unemulated " + db()).code, 0);
}

TEST_F(Emulated, EditsThatItCannotRunAreNotAdopted) {
  const std::string id = trial_with("\nstruct NoSuch { heed_no_such_type x; };\n");
  expect_refusal("adopt " + id + " --unsanitized " + db() + " " + cache(), 1, "--unemulated leaves it out");
}

}  // namespace
}  // namespace heed
