// heed run
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstring>
#include <map>

#include "base/files.hpp"
#include "base/random.hpp"
#include "cli/command.hpp"
#include "json/text.hpp"
#include "measure/statistics.hpp"
#include "measure/timed_sets.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "tensors/npy.hpp"
#include "tensors/safetensors.hpp"
#include "verify/accuracy.hpp"
#include "verify/compare.hpp"
#include "verify/equal_dims.hpp"
#include "verify/given_features.hpp"
#include "worker/worker.hpp"

namespace heed::cli {
namespace {

constexpr int kSlot = 0;
constexpr double kOracleFlops = 2e9;  // about a second of the reference on two processors
constexpr int kMostReadings = 15;
constexpr int kFewestReadings = 3;
constexpr double kWarmUp_ms = 150;  // an idle GPU reads up to 12% high for about that long

struct RunCommandOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  std::string variant = std::string(kAutomatic);
  std::string output;
  bool no_check = false;
};

enum class Format { safetensors, npy };

Format format_of(const std::filesystem::path& path) {
  if (path.extension() == ".safetensors") return Format::safetensors;
  if (path.extension() == ".npy") return Format::npy;
  throw Error(
      ErrorCode::usage,
      fmt::format("-o {}: the name must end in .safetensors (O and the log-sum-exp) or in .npy (O)", path.string()),
      path.string());
}

// Before any work: what is certain to fail at its end.
void expect_output(const RunCommandOptions& o, const Workload& workload) {
  const std::filesystem::path path = o.output;
  if (format_of(path) == Format::npy && !npy_descr(workload.dtype))
    throw Error(ErrorCode::usage,
                fmt::format("-o {}: a .npy file holds fp16 or fp32, not {}; write O to a .safetensors file", o.output,
                            to_string(workload.dtype)),
                o.output);
  for (const std::string& input : o.workload.tensor_paths()) {
    std::error_code error;
    if (std::filesystem::equivalent(input, path, error) || std::filesystem::absolute(path, error) == input)
      throw Error(ErrorCode::usage, fmt::format("-o {} is the file of the tensors; name another", o.output), o.output);
  }
  expect_writable(path, ErrorCode::invalid_input);
}

struct Result {
  std::map<std::string, HostTensor> tensors;  ///< "o" and "lse"
  std::optional<verify::Comparison> comparison;
  std::optional<verify::Accuracy> total;  ///< of quantised inputs
  std::size_t rows_checked = 0;
  double us = 0;
  int readings = 0;
};

// O and LSE lie in an image as dense tensors of the workload's layout. Of each row of O the first `columns` are V's.
std::map<std::string, HostTensor> outputs_of(const verify::Scene& scene, std::int64_t columns, const std::byte* image) {
  const Workload& w = scene.workload();
  const auto bytes_at = [&](const verify::Place& place) {
    return std::string(reinterpret_cast<const char*>(image) + place.offset, place.bytes);
  };
  HostTensor o{.dtype = w.dtype, .shape = {w.batch, w.heads, w.len_q, columns}, .bytes = bytes_at(scene.o())};
  if (columns < w.dim_v) {
    const std::size_t kept = static_cast<std::size_t>(columns) * size_of(w.dtype);
    const std::size_t row = static_cast<std::size_t>(w.dim_v) * size_of(w.dtype);
    std::string narrow;
    for (std::size_t at = 0; at < o.bytes.size(); at += row) narrow.append(o.bytes, at, kept);
    o.bytes = std::move(narrow);
  }
  if (w.layout == Layout::blhd) std::swap(o.shape[1], o.shape[2]);
  HostTensor lse{.dtype = Dtype::fp32, .shape = {w.batch, w.heads, w.len_q}, .bytes = bytes_at(scene.lse())};
  if (w.ragged) {
    const std::int64_t rows = scene.places().query_rows();
    o.shape = {rows, w.heads, columns};
    lse.shape = {w.heads, rows};
  }
  return {{"o", std::move(o)}, {"lse", std::move(lse)}};
}

// Medians of readings of launches on these very tensors, again and again: caches are as warm as they get.
void measure(worker::Worker& worker, const verify::Scene& scene, const DeviceFacts& device, const RunCommandOptions& o,
             Result& result) {
  const trial::Options limits = o.machine.trial_options();
  const measure::TimingPlan plan = measure::plan_timing(scene.workload(), device, measure::Caches::warm);
  std::memcpy(worker.arena().data(), scene.image().data(), scene.image().size());
  const std::vector<worker::Launch> launches(static_cast<std::size_t>(plan.launches), scene.launch());
  worker.prepare(0, scene.image().size(), {{kSlot, launches}}, {}, {}, limits.launch_limit_s);
  worker.warm_up(kSlot, kWarmUp_ms, limits.launch_limit_s);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<double> readings;
  while (static_cast<int>(readings.size()) < kMostReadings) {
    check_interrupt();
    const std::vector<worker::ChannelFactors> unchanged(static_cast<std::size_t>(plan.replays) + 1);
    readings.push_back(measure::median(worker.time(kSlot, plan.replays, unchanged, limits.launch_limit_s).us));
    const double elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (elapsed_s > limits.pair.limit_s && static_cast<int>(readings.size()) >= kFewestReadings) break;
  }
  result.us = measure::median(readings);
  result.readings = static_cast<int>(readings.size());
}

// None of them drawn but seeds of dropout, which no file holds.
verify::InputValues inputs_of(const Workload& workload, const QkvTensors& tensors) {
  verify::GivenInputs given = verify::given_inputs(tensors, workload, fresh_seed());
  if (!given.missing.empty())
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("the file has no tensor {} of numbers, which --features asks for", fmt::join(given.missing, ", ")),
        given.missing.front());
  return std::move(given.values);
}

// @param columns of V as it was given
Result launch(const trial::Built& built, const Workload& workload, std::int64_t columns,
              const verify::InputValues& values, const DeviceFacts& device, const RunCommandOptions& o) {
  const LaunchPlan plan = built.variant.plan(workload, device);
  const verify::Scene scene(workload, values, plan, fresh_seed());
  const std::uint64_t bytes = scene.image().size();
  const std::uint64_t result_at = (bytes + 4095) / 4096 * 4096;
  Result result;
  worker::Worker worker(device.kind, std::make_shared<worker::Arena>(2 * result_at));
  worker.load(kSlot, built.artifact.path.string(), plan);
  worker.seal();
  std::memcpy(worker.arena().data(), scene.image().data(), bytes);
  worker.run(kSlot, 0, bytes, result_at, scene.launch(), o.machine.launch_limit_s);
  const std::byte* after = worker.arena().data() + result_at;
  if (!o.no_check) {
    const std::vector<RowIndex> rows = verify::choose_rows(workload, kOracleFlops, fresh_seed());
    const verify::Reference reference = verify::make_reference(scene, rows);
    result.rows_checked = reference.rows.size();
    result.comparison = verify::compare(scene, after, reference, /*hard_limit=*/false);
    if (workload.quantised) result.total = verify::total_error(scene, values, after, rows);
  }
  result.tensors = outputs_of(scene, columns, after);
  if (!result.comparison || result.comparison->finding == Finding::none) measure(worker, scene, device, o, result);
  return result;
}

// As Workload::flops, of entries of the lengths that the file gives.
double flops_of(const Workload& workload, const verify::InputValues& values) {
  if (workload.blocks || !(workload.has_lengths() || workload.prefix > 0)) return workload.flops();
  double flops = 0;
  for (std::size_t b = 0; b < values.lengths.size(); ++b) {
    Workload entry = entry_of(workload, values.lengths[b]);
    if (workload.prefix > 0) entry.prefix = values.prefix_lengths[b];
    if (entry.len_q > 0) flops += entry.flops();
  }
  return flops;
}

int run(const RunCommandOptions& o) {
  if (!o.workload.has_tensors())
    throw Error(ErrorCode::usage, "no tensors: give --qkv FILE.safetensors, or --q, --k and --v with .npy files");
  (void)format_of(o.output);
  const std::optional<QkvTensors> tensors = o.workload.tensors();
  const Workload given = o.workload.workload(tensors);
  expect_output(o, given);
  if (given.ragged && tensors->lengths.empty())
    throw Error(
        ErrorCode::unsupported,
        "heed run takes the lengths of a ragged batch from the file: q, k and v of three dimensions (rows of all "
        "entries, heads, dim) beside cu_seqlens_q and cu_seqlens_k; leave ragged out of --features",
        to_string(given));
  verify::InputValues values = inputs_of(given, *tensors);
  const std::vector<std::string> unused = verify::features_without_use(*tensors, given);
  if (!unused.empty())
    remark(o.machine.json, fmt::format("heed: the file also holds {}, which --features does not name: O is without",
                                       fmt::join(unused, ", ")));
  const Workload workload = verify::with_equal_dims(given, values);
  const DeviceFacts device = o.machine.choose();
  const auto builder = o.machine.builder();
  const Variant variant = admitted(o.variant, workload, device);
  trial::TrialRunner trial_runner(workload, device, *builder, nullptr, o.machine.trial_options());
  const trial::Built built = trial_runner.build(variant);
  check_interrupt();
  Result result;
  try {
    result = launch(built, workload, given.dim_v, values, device, o);
  } catch (const worker::WorkerFailure& failure) {
    throw Error(ErrorCode::worker, fmt::format("{} did not run on these tensors: {}", variant.id(), failure.what()),
                variant.id());
  }
  if (result.comparison && result.comparison->finding != Finding::none)
    throw Error(ErrorCode::worker,
                fmt::format("the output of {} is not written, since it is wrong ({}): {}; --no-check writes it",
                            variant.id(), to_string(result.comparison->finding), result.comparison->text),
                variant.id());
  if (format_of(o.output) == Format::npy)
    write_npy(o.output, result.tensors.at("o"));
  else
    write_safetensors(o.output, result.tensors);

  const double tflops = result.us > 0 ? flops_of(given, values) / result.us * 1e-6 : 0;
  if (o.machine.json) {
    nlohmann::json all = {{"workload", to_string(given)},
                          {"variant", variant.id()},
                          {"config", describe(variant)},
                          {"device", record::to_json(device)},
                          {"us", result.us},
                          {"readings", result.readings},
                          {"tflops", tflops},
                          {"output", o.output},
                          {"tensors_digest", tensors->digest},
                          {"rows_checked", result.rows_checked}};
    if (given.dropout > 0) {
      all["dropout_seed"] = values.dropout_seed;
      all["dropout_offset"] = values.dropout_offset;
    }
    if (result.comparison) all["error"] = record::to_json(result.comparison->error);
    if (result.total) all["total_error"] = record::to_json(*result.total);
    print(json_text(all, 1) + "\n");
    return 0;
  }
  print(fmt::format("workload  {}\ndevice    {}\nvariant   {}\n          {}\n", to_string(given), device.name,
                    variant.id(), describe(variant)));
  if (given.dropout > 0)
    print(fmt::format("dropout   seed {}, offset {}: heed.dropout_mask says what was dropped\n", values.dropout_seed,
                      values.dropout_offset));
  print(fmt::format("time      {:.2f} us a launch, {:.3g} TFLOP/s (median of {} readings, caches warm)\n", result.us,
                    tflops, result.readings));
  print(result.comparison
            ? fmt::format("error     max {:.1e}, relative RMS {:.1e} against double precision, over {} rows\n",
                          result.comparison->error.max_abs, result.comparison->error.rel_rms, result.rows_checked)
            : std::string("error     not checked\n"));
  if (result.total)
    print(fmt::format(
        "          total, against the tensors before quantisation: relative RMS {:.1e}, relative L1 {:.1e}, "
        "1 - cosine {:.1e}, worst row {:.1e}\n",
        result.total->rel_rms, result.total->rel_l1, 1 - result.total->cosine, result.total->worst_row));
  print(fmt::format("output    {}: {}\n", o.output,
                    format_of(o.output) == Format::npy ? "O" : "o, and lse (natural logarithm, fp32)"));
  return 0;
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<RunCommandOptions>();
  CLI::App* command = app.add_subcommand("run", "Run a variant on your own tensors and write its output");
  command->add_option("variant", o->variant, "auto, family or family:knob=value,...")->capture_default_str();
  o->workload.add_to(*command);
  o->machine.add_to(*command);
  command
      ->add_option("-o,--output", o->output,
                   "Where O goes, in the dtype and the layout of the inputs: .safetensors (o and lse) or .npy (O)")
      ->required();
  command->add_flag("--no-check", o->no_check, "Do not compare rows with the double-precision reference");
  command->footer(
      "Examples:\n"
      "  heed run --qkv attention.safetensors -o out.safetensors --causal top-left\n"
      "  heed run --qkv attention.safetensors -o out.safetensors --features softcap=50:sinks\n"
      "  heed run --qkv ragged.safetensors -o out.safetensors      (with cu_seqlens_q and cu_seqlens_k)\n"
      "  heed run fwd_sm90_split --q q.npy --k k.npy --v v.npy --layout blhd -o o.npy\n"
      "The file is written as a whole, and only when the sampled rows are right.");
  command->callback([o, &exit_code] { exit_code = run(*o); });
}

}  // namespace heed::cli
