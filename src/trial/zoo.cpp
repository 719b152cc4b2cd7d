#include "trial/zoo.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/interrupt.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "jit/embedded.hpp"

namespace heed::trial {
namespace {

constexpr double kLaunchLimit_s = 4;  // for the endless loop

const std::vector<Exploit>& table() {
  using enum Finding;
  static const std::vector<Exploit> all = {
      {.name = "one_row",
       .description = "computes one row of a block and copies it",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit}},
      {.name = "tail_rows",
       .description = "leaves out rows that do not fill a tile",
       .verdict = Verdict::wrong,
       .findings = {unwritten_output}},
      {.name = "constant_output",
       .description = "writes zeros",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit}},
      {.name = "copies_v", .description = "returns V", .verdict = Verdict::wrong, .findings = {inexact, hard_limit}},
      {.name = "known_inputs",
       .description = "holds the answer to one batch of inputs",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit}},
      {.name = "reduced_precision",
       .description = "rounds its output to eight bits",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit}},
      {.name = "no_maximum",
       .description = "skips the subtraction of the row maximum",
       .verdict = Verdict::wrong,
       .findings = {inexact, not_finite, wrong_lse}},
      {.name = "lse_base_two",
       .description = "gives the log-sum-exp in base two",
       .verdict = Verdict::wrong,
       .findings = {wrong_lse}},
      {.name = "wrong_alignment",
       .description = "takes every causal mask for top-left",
       .verdict = Verdict::wrong,
       .findings = {neighbour},
       .mask = "causal_top_left"},
      {.name = "hidden_keys",
       .description = "multiplies a value that the mask hides by zero",
       .verdict = Verdict::wrong,
       .findings = {neighbour, masked_leak},
       .mask = "causal_top_left"},
      {.name = "ignores_left_bound",
       .description = "takes every window for a causal mask",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit},
       .habitat = Habitat::cpu,
       .mask = "causal_bottom_right:window=40"},
      {.name = "one_key_too_far_left",
       .description = "sees the key before its window",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit},
       .habitat = Habitat::cpu,
       .mask = "causal_bottom_right:window=40"},
      {.name = "hidden_keys_in_front",
       .description = "multiplies a value in front of the window by zero",
       .verdict = Verdict::wrong,
       .findings = {neighbour, masked_leak},
       .habitat = Habitat::cpu,
       .mask = "causal_bottom_right:window=40"},
      {.name = "wrong_heads",
       .description = "takes the wrong key head for grouped heads",
       .verdict = Verdict::wrong,
       .findings = {neighbour}},
      {.name = "ignores_scale",
       .description = "holds one softmax scale",
       .verdict = Verdict::wrong,
       .findings = {neighbour}},
      {.name = "only_this_length",
       .description = "made for this length, forgets keys after it",
       .verdict = Verdict::wrong,
       .findings = {neighbour}},
      {.name = "fixed_shape",
       .description = "ignores the strides of its inputs",
       .verdict = Verdict::wrong,
       .findings = {masked_leak, inexact, not_finite, unwritten_output}},
      {.name = "reads_past_end",
       .description = "multiplies what lies past the last key by zero",
       .verdict = Verdict::wrong,
       // Guards are random: of some 2000 NaN of 16 bits that an output may take from there one has the poison's bits.
       .findings = {masked_leak, inexact, not_finite, hard_limit, unwritten_output}},
      {.name = "swallows_nan",
       .description = "takes in the key past the last unless it is NaN",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit, not_finite}},
      {.name = "uninitialised_read",
       .description = "uses memory it never wrote",
       .verdict = Verdict::wrong,
       .findings = {not_finite, unwritten_output}},
      {.name = "stale_memory",
       .description = "reads what an earlier call left in its scratch",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit},
       .habitat = Habitat::cpu},
      {.name = "race",
       .description = "now and then loses a race",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit, not_finite, unwritten_output, masked_leak, neighbour,
                    broken_chain},  // in whichever check
       .habitat = Habitat::x86},
      {.name = "race",
       .description = "now and then loses a race",
       .verdict = Verdict::wrong,
       .findings = {inexact, hard_limit, not_finite, unwritten_output, masked_leak, neighbour, broken_chain},
       .habitat = Habitat::cuda},
      {.name = "random_bits",
       .description = "gives other bits each time, declares determinism",
       .verdict = Verdict::nondeterministic,
       .habitat = Habitat::x86},
      {.name = "random_bits",
       .description = "gives other bits each time, declares determinism",
       .verdict = Verdict::nondeterministic,
       .habitat = Habitat::cuda,
       .extras = {.counters = 1}},
      {.name = "input_overwritten",
       .description = "changes its input",
       .verdict = Verdict::cheating,
       .findings = {input_modified},
       .habitat = Habitat::cuda},
      // On a CPU inputs are mapped read-only.
      {.name = "input_overwritten",
       .description = "changes its input",
       .verdict = Verdict::crashed,
       .habitat = Habitat::cpu},
      {.name = "writes_outside",
       .description = "writes past the end of its output",
       .verdict = Verdict::cheating,
       .findings = {wrote_outside}},
      {.name = "writes_padding",
       .description = "writes into the padding between heads",
       .verdict = Verdict::cheating,
       .findings = {wrote_outside}},
      {.name = "keeps_a_copy",
       .description = "keeps an output beyond its tensors and replays it",
       .verdict = Verdict::cheating,
       .findings = {wrote_outside}},
      {.name = "stale_output",
       .description = "does nothing where the output holds numbers",
       .verdict = Verdict::cheating,
       .findings = {stale_output}},
      {.name = "repeated_inputs",
       .description = "skips the work when a digest of inputs repeats",
       .verdict = Verdict::cheating,
       .findings = {stale_output}},
      {.name = "watches_for_poison",
       .description = "works only where the output holds poison",
       .verdict = Verdict::cheating,
       .findings = {stale_output}},
      {.name = "replayed_output",
       .description = "keeps an output in memory of its own",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract}},
      {.name = "correct_then_not",
       .description = "counts its calls and stops working",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract}},
      {.name = "calls_a_library",
       .description = "calls a function outside the contract",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract}},
      {.name = "state_in_a_section",
       .description = "keeps state in a section whose name says nothing",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cpu},
      {.name = "writable_constant",
       .description = "keeps state among its constants",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cpu},
      {.name = "runs_as_init",
       .description = "runs code while it is loaded, by a name",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cpu},
      {.name = "runs_when_loaded",
       .description = "runs code while it is loaded",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cpu},
      {.name = "skews_the_base",
       .description = "leaves the processor rounding in another way",
       .verdict = Verdict::cheating,
       .findings = {left_state},
       .habitat = Habitat::cpu},
      {.name = "persists_in_l2",
       .description = "keeps its keys in the L2 cache between launches",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "hidden_variable",
       .description = "counts its launches in a variable declared over several lines",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "constant_state",
       .description = "keeps a number in constant memory",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "hidden_clock",
       .description = "looks at the clock behind slashes in a string",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "hidden_policy",
       .description = "keeps its keys in the L2 by a policy behind slashes in a string",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "reads_the_launch",
       .description = "asks for the number of its launch",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "reads_the_graph",
       .description = "asks which graph launched it",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "below_parameters",
       .description = "reads the number of its launch from below its parameters",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "parameters_as_memory",
       .description = "counts its launches beside its parameters",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "sleeps",
       .description = "lets time pass",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
      {.name = "starts_the_next",
       .description = "lets the next launch begin before it is done",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda,
       .capability = 90},
      {.name = "leaves_a_counter",
       .description = "counts its launches in a counter",
       .verdict = Verdict::cheating,
       .findings = {left_counters},
       .extras = {.counters = 4}},
      {.name = "keeps_first_query",
       .description = "goes on reading the first launch's queries",
       .verdict = Verdict::wrong,
       .findings = {broken_chain},
       .habitat = Habitat::cpu,
       .extras = {.shared_bytes = 4096}},
      {.name = "reads_too_early",
       .description = "reads before the launch before it has ended",
       .verdict = Verdict::wrong,
       .findings = {broken_chain},
       .habitat = Habitat::cuda,
       .capability = 90,
       .extras = {.dependent = true}},
      {.name = "never_waits",
       .description = "begins early and never waits",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda,
       .capability = 90,
       .extras = {.dependent = true}},
      {.name = "stamps_its_rounds",
       .description = "counts launches in its output and skips most",
       .verdict = Verdict::cheating,
       .findings = {timed_output, stale_output}},
      {.name = "looks_ahead",
       .description = "leaves out what a later launch of the list writes again",
       .verdict = Verdict::cheating,
       .findings = {timed_output, stale_output},
       .habitat = Habitat::cpu},
      {.name = "claims_to_be_done",
       .description = "says that its launches are done when they begin",
       .verdict = Verdict::cheating,
       .findings = {timed_output, forged_time},
       .habitat = Habitat::cpu},
      {.name = "fewer_keys_without_lse",
       .description = "leaves out the last keys where no log-sum-exp is asked for",
       .verdict = Verdict::cheating,
       .findings = {stale_output},
       .habitat = Habitat::cpu},
      {.name = "knows_the_layout",
       .description = "takes half of the keys of tensors that lie apart",
       .verdict = Verdict::cheating,
       .findings = {timed_output},
       .habitat = Habitat::cuda},
      {.name = "slows_the_base",
       .description = "makes inputs large between its launches",
       .verdict = Verdict::cheating,
       .findings = {input_modified, timed_output},
       .habitat = Habitat::cuda},
      {.name = "state_in_shared_memory",
       .description = "counts launches in shared memory",
       .verdict = Verdict::cheating,
       .findings = {timed_output},
       .habitat = Habitat::cuda},
      {.name = "state_in_local_memory",
       .description = "counts launches in local memory",
       .verdict = Verdict::cheating,
       .findings = {timed_output},
       .habitat = Habitat::cuda},
      {.name = "leaves_out_a_head",
       .description = "leaves out one head of timed launches",
       .verdict = Verdict::cheating,
       .findings = {timed_output},
       .habitat = Habitat::cuda},
      {.name = "no_maximum_without_lse",
       .description = "skips the row maximum where no log-sum-exp is asked for",
       .verdict = Verdict::wrong,
       .findings = {inexact, not_finite, hard_limit},
       .habitat = Habitat::cuda},
      {.name = "endless_loop", .description = "never ends", .verdict = Verdict::timed_out},
      {.name = "null_write", .description = "writes to address zero", .verdict = Verdict::crashed},
      {.name = "opens_a_file",
       .description = "asks the system for a file",
       .verdict = Verdict::crashed,
       .habitat = Habitat::cpu},
      {.name = "maps_memory",
       .description = "asks the system for memory of its own",
       .verdict = Verdict::crashed,
       .habitat = Habitat::cpu},
      {.name = "asks_for_the_time",
       .description = "asks the system for the time",
       .verdict = Verdict::crashed,
       .habitat = Habitat::cpu},
      {.name = "waits_with_a_limit",
       .description = "makes a clock of a wait with a time limit",
       .verdict = Verdict::crashed,
       .habitat = Habitat::cpu},
      {.name = "another_door",
       .description = "makes a system call by a 32-bit program's door",
       .verdict = Verdict::crashed,
       .habitat = Habitat::x86},
      {.name = "garbage_on_the_pipe",
       .description = "answers in the worker's place",
       .verdict = Verdict::crashed,
       .habitat = Habitat::cpu},
      // On a CPU the time-stamp counter is closed to it; on a GPU it is seen before it runs, in its PTX.
      {.name = "reads_the_clock",
       .description = "looks at the time",
       .verdict = Verdict::crashed,
       .habitat = Habitat::x86},
      {.name = "reads_the_clock",
       .description = "looks at the time",
       .verdict = Verdict::cheating,
       .findings = {breaks_contract},
       .habitat = Habitat::cuda},
  };
  return all;
}

}  // namespace

bool Exploit::lives_on(const DeviceFacts& device) const {
  if (device.kind == DeviceKind::cuda)
    return (habitat == Habitat::everywhere || habitat == Habitat::cuda) && device.compute_capability >= capability;
#if defined(__x86_64__)
  return habitat != Habitat::cuda;
#else
  return habitat == Habitat::everywhere || habitat == Habitat::cpu;
#endif
}

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
  variant.extras = exploit.extras;
  const bool gpu = device.kind == DeviceKind::cuda;
  variant.source =
      jit::embedded_file(fmt::format("{}/zoo/{}.{}", gpu ? "kernels" : "cpu", exploit.name, gpu ? "cuh" : "hpp"));
  return variant;
}

Workload selftest_workload(std::string_view mask) {
  // Small enough to be quick, large enough for several tiles of rows and keys; the length is round, so that the
  // exploits which fail at ragged lengths are right at first sight.
  return parse_workload(fmt::format("b2h4l256d64:fp16{}{}", mask.empty() ? "" : ":", mask));
}

std::vector<SelftestRow> run_selftest(const DeviceFacts& device, jit::Builder& builder,
                                      const std::function<void(const SelftestRow&)>& on_row) {
  Options options;
  options.launch_limit_s = kLaunchLimit_s;
  options.pair.least_quads = 4;
  options.pair.most_quads = 6;
  options.pair.limit_s = 0.5;

  std::vector<std::future<jit::BuildOutcome>> builds;
  std::vector<const Exploit*> chosen;
  std::vector<SelftestRow> rows;
  const Family& family = default_family(device.kind);
  std::map<std::string_view, Laboratory> laboratories;  // by mask
  const auto laboratory_for = [&](std::string_view mask) -> Laboratory& {
    const auto known = laboratories.find(mask);
    if (known != laboratories.end()) return known->second;
    Laboratory& made =
        laboratories.try_emplace(mask, selftest_workload(mask), device, builder, nullptr, options).first->second;
    made.set_base(made.build(make_variant(family, family.default_config(made.workload(), device), made.workload())));
    return made;
  };
  Laboratory& plain_laboratory = laboratory_for("");
  for (const Exploit& exploit : exploits()) {
    if (!exploit.lives_on(device)) continue;
    Laboratory& laboratory = laboratory_for(exploit.mask);
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
    Laboratory& laboratory = laboratory_for(exploit.mask);
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
