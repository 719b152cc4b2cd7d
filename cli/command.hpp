/// What the commands share: common options and how they become a workload, a device, a builder and a store.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.hpp"
#include "jit/build.hpp"
#include "report/evidence.hpp"
#include "store/store.hpp"
#include "tensors/tensor_file.hpp"
#include "trial/trial_runner.hpp"
#include "variant/family.hpp"

namespace heed::cli {

/// --json, --device, --cache, --compiler, --jobs, --launch-limit, --measure-limit
struct MachineOptions {
  bool json = false;
  std::string device = "auto";
  std::string cache;
  std::string compiler;
  int jobs = 0;
  double launch_limit_s = trial::Options{}.launch_limit_s;
  double measure_limit_s = trial::Options{}.pair.limit_s;

  void add_to(CLI::App& app);
  [[nodiscard]] DeviceFacts choose() const { return choose_device(parse_device_choice(device)); }
  [[nodiscard]] std::unique_ptr<jit::Builder> builder() const;
  [[nodiscard]] trial::Options trial_options() const;
};

/// --shape with --dtype, --causal, --window, --scale, --layout, --quantised; or real tensors with --qkv, or --q, --k
/// and --v
struct WorkloadOptions {
  std::string shape;
  std::string dtype;
  std::string causal;
  std::string window;
  std::optional<double> scale;
  std::string layout;
  std::string quantised;
  std::string features;
  std::string qkv;
  std::string q, k, v;
  bool may_be_tensors = false;

  /// --shape to --quantised: for commands that draw their inputs
  void add_shape_to(CLI::App& app);
  /// Those and real tensors
  void add_to(CLI::App& app);
  [[nodiscard]] bool has_tensors() const { return !qkv.empty() || !q.empty() || !k.empty() || !v.empty(); }
  /// The tensor files by their absolute paths, for the store; none when they were not given.
  [[nodiscard]] std::vector<std::string> tensor_paths() const;
  [[nodiscard]] std::optional<QkvTensors> tensors() const;
  /// @throws Error(usage) when there is neither a shape nor tensors, or both
  [[nodiscard]] Workload workload(const std::optional<QkvTensors>& tensors) const;
};

/// Numbers that an option takes: CLI11's own checks let NaN pass, and print the largest number there is with all of its
/// 309 digits.
CLI::Validator above_zero();
CLI::Validator zero_or_above();

/// What stands for the default of the first family that is made for a workload.
inline constexpr std::string_view kAutomatic = "auto";

/// The variant that a command names, "auto", a family or family:knob=value,..., legal on the device.
/// @throws Error(usage) for one that does not exist, Error(unsupported) for one that cannot run
Variant admitted(const std::string& text, const Workload& workload, const DeviceFacts& device);

/// --db
struct StoreOptions {
  std::string path;
  void add_to(CLI::App& app);
  /// The database: what --db names, else the default one. Where that was written by an older Heed it stays as it is,
  /// and heed.layoutN.db beside it is this one's.
  [[nodiscard]] std::filesystem::path file() const;
  /// " --db PATH" as a shell reads it, for commands that are told to users; empty where none is given.
  [[nodiscard]] std::string as_given() const;
  /// On stderr once, where a default database of an older Heed is left for a new one.
  [[nodiscard]] std::unique_ptr<store::Store> open(store::Access access) const;
};

/// A command adds itself to the application; its callback leaves the exit code in `exit_code`.
using Register = void (*)(CLI::App& app, int& exit_code);
void add_evolve(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_show(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_runs(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_champions(CLI::App& app, int& exit_code);
void add_evidence(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_judge(CLI::App& app, int& exit_code);
void add_adopt(CLI::App& app, int& exit_code);
void add_families(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_selftest(CLI::App& app, int& exit_code);
void add_ladder(CLI::App& app, int& exit_code);
void add_profile(CLI::App& app, int& exit_code);
void add_emit(CLI::App& app, int& exit_code);
void add_build(CLI::App& app, int& exit_code);
void add_programs(CLI::App& app, int& exit_code);
void add_book(CLI::App& app, int& exit_code);
void add_dispatch(CLI::App& app, int& exit_code);
void add_library(CLI::App& app, int& exit_code);
void add_prebuild(CLI::App& app, int& exit_code);
void add_calibrate(CLI::App& app, int& exit_code);
void add_insights(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_landscape(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_rules(CLI::App& app, int& exit_code);

/// The device of a CPU level or GPU architecture by its name, to build for without one at hand.
/// @throws Error(usage) naming all of them
DeviceFacts device_named(const std::string& arch);

/// The number of a run or trial; none where the text is no whole number above 0.
std::optional<std::int64_t> id_in(std::string_view text);

/// The device sources in this binary, for evidence.
report::Sources sources();

/// Writes and removes a file beside the evidence: what would fail after long work fails before it. @throws Error(store)
void check_evidence_can_be_written(const std::filesystem::path& path);

/// Prints to stdout and flushes, so that a reader at the other end of a pipe sees progress. What cannot be written is
/// told by check_stdout; a reader that has gone interrupts the command.
void print(const std::string& text);
/// Opens those of stdin, stdout and stderr that are closed as streams that nothing is written to: a database or a cache
/// that took their number would be printed into.
void open_standard_streams();
/// @throws Error(store) where stdout did not take all that was printed, as a full disk
void check_stdout();
/// Whether stdout has anything of this program: of --json a document, which no second one may follow.
bool has_printed();
/// Progress and remarks: stdout, or stderr when stdout carries JSON. A stderr that takes nothing is no failure.
void remark(bool json, const std::string& text);

}  // namespace heed::cli
