#include "cli/command.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/files.hpp"
#include "base/text.hpp"
#include "compile/embedded.hpp"
#include "device/cpu_level.hpp"
#include "process/interrupt.hpp"
#include "process/shell_word.hpp"

namespace heed::cli {

namespace {

// The name stands in --help behind the type.
CLI::Validator numbers(const char* name, const char* words, bool (*fits)(double)) {
  return CLI::Validator(
      [words, fits](std::string& text) {
        double number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool is_number = error == std::errc() && end == text.data() + text.size();
        return is_number && fits(number) ? std::string() : fmt::format("\"{}\" is no number {}", text, words);
      },
      name);
}

}  // namespace

CLI::Validator above_zero() {
  return numbers("POSITIVE", "above 0", [](double x) { return x > 0; });
}

CLI::Validator zero_or_above() {
  return numbers("NONNEGATIVE", "from 0 on", [](double x) { return x >= 0; });
}

void MachineOptions::add_to(CLI::App& app) {
  app.add_flag("--json", json, "Print the result as JSON on stdout; everything else goes to stderr");
  app.add_option("--device", device, "auto (a GPU if there is one), cpu or cuda")->capture_default_str();
  app.add_option("--cache", cache, fmt::format("Folder for built kernels [{}]", default_cache_folder().string()));
  app.add_option("--compiler", compiler, "C++ compiler for CPU kernels [g++, else clang++]");
  app.add_option("--jobs", jobs, "Builds at a time [one a processor]")->check(zero_or_above());
  app.add_option("--launch-limit", launch_limit_s, "Seconds after which a launch is given up")
      ->capture_default_str()
      ->check(above_zero());
  app.add_option("--measure-limit", measure_limit_s, "Seconds one paired comparison may take; a noisy one uses them up")
      ->capture_default_str()
      ->check(above_zero());
}

trial::Options MachineOptions::trial_options() const {
  trial::Options options;
  options.launch_limit_s = launch_limit_s;
  options.final_pair.limit_s *= measure_limit_s / options.pair.limit_s;
  options.pair.limit_s = measure_limit_s;
  return options;
}

Variant admitted(const std::string& text, const Workload& workload, const DeviceFacts& device) {
  Variant variant =
      parse_variant(text == kAutomatic ? std::string(default_family(workload, device).name()) : text, workload, device);
  if (const auto reason = variant.is_illegal(workload, device))
    throw Error(ErrorCode::unsupported, fmt::format("{} is illegal on {}: {}", describe(variant), device.arch, *reason),
                text);
  return variant;
}

std::unique_ptr<jit::Builder> MachineOptions::builder() const {
  jit::BuilderOptions options;
  options.cache_folder = cache.empty() ? default_cache_folder() : std::filesystem::path(cache);
  options.host_compiler = compiler;
  options.jobs = jobs;
  return std::make_unique<jit::Builder>(options);
}

void WorkloadOptions::add_shape_to(CLI::App& app) {
  app.add_option("--shape", shape, "Workload, e.g. b1h8l512d64 or b8h32hkv4l1k8192d128:bf16:causal_top_left");
  app.add_option("--dtype", dtype, "fp16, bf16 or fp32 [fp16]");
  app.add_option("--causal", causal, "top-left or bottom-right: which corner the causal mask is aligned to [no mask]");
  app.add_option(
      "--window", window,
      "LEFT or LEFT/RIGHT: how many keys before its own and after it a query sees, aligned to the bottom right "
      "or as --causal says [all keys]");
  app.add_option("--scale", scale, "Softmax scale [1/sqrt(d)]");
  app.add_option("--layout", layout, "bhld (batch, head, length, dim) or blhd [bhld]");
  app.add_option(
      "--quantised", quantised,
      "TENSORS/DTYPE/GRANULARITY, e.g. qkv/e4m3/head or q/int8/block128+k/int8/block64: 8-bit Q, K or V with "
      "scale factors, which Heed makes of the inputs [none]");
}

void WorkloadOptions::add_to(CLI::App& app) {
  may_be_tensors = true;
  add_shape_to(app);
  app.add_option(
      "--features", features,
      "Features as a workload's text names them, for tensors of your own, e.g. softcap=50:sinks:key_lengths. "
      "Values come from the file of --qkv (bias, alibi_slopes, relative_bias, sinks, out_norm_weight, "
      "out_gate, key_lengths, prefix_lengths); heed run needs each, other commands draw what is not there");
  app.add_option(
      "--qkv", qkv,
      "A .safetensors file with tensors q, k and v: shape and dtype are taken from them. Of three dimensions "
      "(rows, heads, dim), beside cu_seqlens_q and cu_seqlens_k, they are a ragged batch");
  app.add_option("--q", q, "A .npy file with Q, together with --k and --v");
  app.add_option("--k", k, "A .npy file with K");
  app.add_option("--v", v, "A .npy file with V");
}

std::vector<std::string> WorkloadOptions::tensor_paths() const {
  std::vector<std::string> paths;
  for (const std::string& path : {qkv, q, k, v})
    if (!path.empty()) paths.push_back(std::filesystem::absolute(path).string());
  return paths;
}

std::optional<QkvTensors> WorkloadOptions::tensors() const {
  if (!has_tensors()) return std::nullopt;
  const Layout order = layout.empty() ? Layout::bhld : parse_layout(layout);
  if (!qkv.empty()) {
    if (!q.empty() || !k.empty() || !v.empty())
      throw Error(ErrorCode::usage, "give either --qkv or --q, --k and --v, not both", qkv);
    return read_qkv_safetensors(qkv, order);
  }
  if (q.empty() || k.empty() || v.empty())
    throw Error(ErrorCode::usage, "--q, --k and --v belong together; all three are needed");
  return read_qkv_npy(q, k, v, order);
}

Workload WorkloadOptions::workload(const std::optional<QkvTensors>& tensors) const {
  if (tensors && !shape.empty())
    throw Error(ErrorCode::usage, "--shape and tensor files exclude each other: the shape is taken from the tensors",
                shape);
  if (tensors && !dtype.empty())
    throw Error(ErrorCode::usage, "--dtype and tensor files exclude each other: the dtype is taken from the tensors",
                dtype);
  if (!tensors && shape.empty())
    throw Error(ErrorCode::usage, fmt::format("no workload: give --shape, e.g. --shape b1h8l512d64{}",
                                              may_be_tensors ? ", or tensors with --qkv" : ""));
  Workload workload = tensors ? tensors->workload : parse_workload(shape);
  if (!dtype.empty()) workload.dtype = parse_dtype(dtype);
  if (!causal.empty()) workload.mask = parse_mask(causal);
  if (!window.empty()) workload = parse_workload(fmt::format("{}:window={}", to_string(workload), window));
  if (!layout.empty()) workload.layout = parse_layout(layout);
  if (tensors && !tensors->lengths.empty() && workload.layout != Layout::blhd)
    throw Error(ErrorCode::usage, "a ragged batch is (rows of all entries, heads, dim); leave --layout out", layout);
  if (scale) workload.scale = scale;
  if (!quantised.empty()) workload = parse_workload(fmt::format("{}:quantised={}", to_string(workload), quantised));
  if (!features.empty()) workload = parse_workload(fmt::format("{}:{}", to_string(workload), features));
  validate(workload);
  return reduced(workload);
}

void StoreOptions::add_to(CLI::App& app) {
  app.add_option("--db", path, fmt::format("Database [{}]", file().string()));
}

std::string StoreOptions::as_given() const {
  return path.empty() ? std::string() : " --db " + shell_word(path);
}

std::filesystem::path StoreOptions::file() const {
  if (!path.empty()) return path;
  const std::filesystem::path usual = default_database_path();
  const int layout = store::layout_of(usual);
  if (layout == 0 || layout >= store::kSchemaVersion) return usual;
  return usual.parent_path() /
         fmt::format("{}.layout{}{}", usual.stem().string(), store::kSchemaVersion, usual.extension().string());
}

std::unique_ptr<store::Store> StoreOptions::open(store::Access access) const {
  const std::filesystem::path chosen = file();
  if (path.empty() && chosen != default_database_path() && !std::filesystem::exists(chosen)) {
    // Nothing to read yet: the sentence about the older file tells more than that there is no newer one.
    if (access == store::Access::read_only) return std::make_unique<store::Store>(default_database_path(), access);
    remark(true, fmt::format("heed: {} is of an older Heed, and stays as it is; runs go to {}",
                             default_database_path().string(), chosen.string()));
  }
  return std::make_unique<store::Store>(chosen, access);
}

void check_evidence_can_be_written(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path))
    throw Error(ErrorCode::store, fmt::format("--evidence {} is a folder; name a file", path.string()), path.string());
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) return;  // /dev/stdout, a pipe
  if (!path.parent_path().empty()) make_folder(path.parent_path(), ErrorCode::store);
  const std::filesystem::path probe = path.string() + ".probe";
  write_file_atomically(probe, "evidence", ErrorCode::store);
  std::filesystem::remove(probe);
}

report::Sources sources() {
  return {compile::source_digest(), compile::family_digests()};
}

namespace {

bool printed = false;
std::atomic<int> stdout_error = 0;  // errno of the first write that failed

// stdio forgets what a failed flush held, so that only the first failure tells.
void write_to(std::FILE* stream, const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0) return;
  if (stream != stdout) return;
  int none = 0;
  stdout_error.compare_exchange_strong(none, errno != 0 ? errno : EIO);
  // A reader that has gone, as head, waits for nothing more: work ends as by Ctrl-C, with everything stored.
  if (errno == EPIPE) interrupt();
}

}  // namespace

void print(const std::string& text) {
  printed = printed || !text.empty();
  write_to(stdout, text);
}

bool has_printed() {
  return printed;
}

void remark(bool json, const std::string& text) {
  write_to(json ? stderr : stdout, fmt::format("{}\n", text));
}

void open_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream)
    if (::fcntl(stream, F_GETFD) < 0) (void)::open("/dev/null", O_RDONLY);  // the lowest that is free: this one
}

void check_stdout() {
  if (!std::cout.flush() && stdout_error == 0) stdout_error = errno != 0 ? errno : EIO;
  if (stdout_error == 0 || stdout_error == EPIPE) return;
  throw Error(ErrorCode::store, fmt::format("cannot write to stdout: {}", std::strerror(stdout_error)), "stdout");
}

DeviceFacts device_named(const std::string& arch) {
  if (const CpuLevel* level = find_cpu_level(arch)) return representative_cpu(*level);
  if (arch.starts_with("sm_") || arch.starts_with("compute_")) return gpu_limits(arch);
  std::vector<std::string_view> choices;
  for (const CpuLevel& level : cpu_levels()) choices.push_back(level.name);
  choices.insert(choices.end(), kGpuArchitectures.begin(), kGpuArchitectures.end());
  throw Error(ErrorCode::usage, fmt::format("unknown architecture \"{}\"; {}", arch, one_of(arch, choices)), arch);
}

std::optional<std::int64_t> id_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return number;
}

}  // namespace heed::cli
