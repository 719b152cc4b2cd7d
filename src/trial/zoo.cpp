#include "trial/zoo.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/interrupt.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "jit/embedded.hpp"

namespace heed::trial {
namespace {

constexpr double kLaunchLimit_s = 4;  // for the endless loop

#if defined(__x86_64__)
constexpr bool kClockCanBeClosed = true;  // prctl(PR_SET_TSC)
#else
constexpr bool kClockCanBeClosed = false;
#endif

const std::vector<Exploit>& table() {
  using enum Finding;
  static const std::vector<Exploit> all = {
      {"one_row",
       "computes one row of a block and copies it",
       Verdict::wrong,
       {inexact, hard_limit},
       true,
       true,
       false},
      {"tail_rows", "leaves out rows that do not fill a tile", Verdict::wrong, {unwritten_output}, true, true, false},
      {"constant_output", "writes zeros", Verdict::wrong, {inexact, hard_limit}, true, true, false},
      {"copies_v", "returns V", Verdict::wrong, {inexact, hard_limit}, true, true, false},
      {"reduced_precision",
       "rounds its output to eight bits",
       Verdict::wrong,
       {inexact, hard_limit},
       true,
       true,
       false},
      {"no_maximum",
       "skips the subtraction of the row maximum",
       Verdict::wrong,
       {inexact, not_finite, wrong_lse},
       true,
       true,
       false},
      {"wrong_alignment", "takes every causal mask for top-left", Verdict::wrong, {neighbour}, true, true, true},
      {"fixed_shape",
       "ignores the strides of its inputs",
       Verdict::wrong,
       {masked_leak, inexact, not_finite, unwritten_output},
       true,
       true,
       false},
      {"reads_past_end",
       "multiplies what lies past the last key by zero",
       Verdict::wrong,
       {masked_leak, inexact, not_finite, hard_limit},
       true,
       true,
       false},
      {"uninitialised_read",
       "uses memory it never wrote",
       Verdict::wrong,
       {not_finite, unwritten_output},
       true,
       false,
       false},
      {"input_overwritten", "changes its input", Verdict::cheating, {input_modified}, true, true, false},
      {"writes_outside", "writes past the end of its output", Verdict::cheating, {wrote_outside}, true, true, false},
      {"stale_output",
       "does nothing where the output already holds numbers",
       Verdict::cheating,
       {stale_output},
       true,
       true,
       false},
      {"correct_then_not",
       "counts its calls and stops working",
       Verdict::cheating,
       {breaks_contract},
       true,
       true,
       false},
      {"calls_a_library",
       "calls a function outside the contract",
       Verdict::cheating,
       {breaks_contract},
       true,
       true,
       false},
      {"runs_when_loaded", "runs code while it is loaded", Verdict::cheating, {breaks_contract}, true, false, false},
      {"random_bits", "gives other bits each time", Verdict::nondeterministic, {}, true, true, false},
      {"endless_loop", "never ends", Verdict::timed_out, {}, true, true, false},
      {"null_write", "writes to address zero", Verdict::crashed, {}, true, true, false},
      {"opens_a_file", "makes a system call", Verdict::crashed, {}, true, false, false},
      {"garbage_on_the_pipe", "answers in the worker's place", Verdict::crashed, {}, true, false, false},
      // On a GPU it is seen before it runs, in its PTX; on a CPU the time-stamp counter is closed to it.
      {"reads_the_clock", "looks at the time", Verdict::crashed, {}, kClockCanBeClosed, false, false},
      {"reads_the_clock", "looks at the time", Verdict::cheating, {breaks_contract}, false, true, false},
  };
  return all;
}

}  // namespace

std::span<const Exploit> exploits() {
  return table();
}

const Exploit& find_exploit(std::string_view name) {
  for (const Exploit& exploit : table())
    if (exploit.name == name) return exploit;
  std::vector<std::string_view> known;
  for (const Exploit& exploit : table()) known.push_back(exploit.name);
  throw Error(ErrorCode::usage, fmt::format("the zoo has no \"{}\"; {}", name, one_of(name, known)), std::string(name));
}

Variant exploit_variant(const Exploit& exploit, const Workload& workload, const DeviceFacts& device) {
  const Family& family = default_family(device.kind);
  Variant variant = make_variant(family, family.default_config(workload, device), workload);
  variant.label = fmt::format("zoo.{}", exploit.name);
  const bool gpu = device.kind == DeviceKind::cuda;
  variant.source =
      jit::embedded_file(fmt::format("{}/zoo/{}.{}", gpu ? "kernels" : "cpu", exploit.name, gpu ? "cuh" : "hpp"));
  return variant;
}

std::vector<SelftestRow> run_selftest(const DeviceFacts& device, jit::Builder& builder,
                                      const std::function<void(const SelftestRow&)>& on_row) {
  // Small enough to be quick, large enough for several tiles of rows and keys; the length is round, so that the
  // exploits which fail at ragged lengths are right at first sight.
  const Workload plain = parse_workload("b2h4l256d64:fp16");
  Workload causal = plain;
  causal.mask = Mask::causal_top_left;

  Options options;
  options.launch_limit_s = kLaunchLimit_s;
  options.pair.least_quads = 4;
  options.pair.most_quads = 6;
  options.pair.limit_s = 0.5;

  std::vector<std::future<jit::BuildOutcome>> builds;
  std::vector<const Exploit*> chosen;
  std::vector<SelftestRow> rows;
  Laboratory plain_laboratory(plain, device, builder, nullptr, options);
  Laboratory causal_laboratory(causal, device, builder, nullptr, options);
  const auto laboratory_for = [&](const Exploit& exploit) -> Laboratory& {
    return exploit.causal ? causal_laboratory : plain_laboratory;
  };
  const Family& family = default_family(device.kind);
  for (Laboratory* laboratory : {&plain_laboratory, &causal_laboratory})
    laboratory->set_base(laboratory->build(
        make_variant(family, family.default_config(laboratory->workload(), device), laboratory->workload())));
  for (const Exploit& exploit : exploits()) {
    if (device.kind == DeviceKind::cpu ? !exploit.on_cpu : !exploit.on_cuda) continue;
    Laboratory& laboratory = laboratory_for(exploit);
    builds.push_back(builder.start(laboratory.request_for(exploit_variant(exploit, laboratory.workload(), device))));
    chosen.push_back(&exploit);
  }

  // An honest kernel must pass where the exploits fail.
  {
    const Outcome outcome = plain_laboratory.judge(
        plain_laboratory.base().variant, {.artifact = plain_laboratory.base().artifact, .timed_out = false, .log = {}},
        fresh_seed() >> 1);
    rows.push_back({"honest", fmt::format("{} as it comes", family.name()), "ok",
                    std::string(to_string(outcome.verdict)), outcome.reason, outcome.ok()});
    on_row(rows.back());
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    check_interrupt();
    const Exploit& exploit = *chosen[i];
    Laboratory& laboratory = laboratory_for(exploit);
    const jit::BuildOutcome build = builds[i].get();
    check_interrupt();
    const Outcome outcome =
        laboratory.judge(exploit_variant(exploit, laboratory.workload(), device), build, fresh_seed() >> 1);
    const bool finding_fits = exploit.findings.empty() || std::find(exploit.findings.begin(), exploit.findings.end(),
                                                                    outcome.finding) != exploit.findings.end();
    SelftestRow row;
    row.name = exploit.name;
    row.description = exploit.description;
    row.expected = to_string(exploit.verdict);
    row.found = outcome.finding == Finding::none
                    ? std::string(to_string(outcome.verdict))
                    : fmt::format("{} ({})", to_string(outcome.verdict), to_string(outcome.finding));
    row.reason = outcome.check.empty() ? outcome.reason : fmt::format("{}: {}", outcome.check, outcome.reason);
    row.caught = outcome.verdict == exploit.verdict && finding_fits;
    rows.push_back(std::move(row));
    on_row(rows.back());
  }
  return rows;
}

}  // namespace heed::trial
