// heed build: a variant as a file that another program loads and launches
#include <fmt/format.h>

#include <cstddef>
#include <map>

#include "base/files.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "device/cpu_level.hpp"
#include "json/text.hpp"
#include "measure/floor.hpp"
#include "record/json.hpp"
#include "variant/params_fields.hpp"
#include "worker/protocol.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

struct BuildOptions {
  WorkloadOptions workload;
  MachineOptions machine;
  std::string variant;
  std::string arch;
  std::string output;
  std::string list;
  std::string into;
  bool is_dry = false;
};

/// One line of a list: what is to be built for what.
struct Order {
  Workload workload;
  std::string variant;
};

/// ForwardParams as the binary reads it, so that a caller in another language can check its own declaration.
json contract_json() {
  json offsets;
  for_each_params_field([&](std::string_view name, std::size_t offset) { offsets[std::string(name)] = offset; });
  return {{"size", sizeof(ForwardParams)}, {"offsets", offsets}};
}

/// Adds what the workload asks of this device: operations, bytes, and the floor without a launch (the launch is
/// measured by whoever launches). No floor where only an architecture is known.
void add_workload(json& entry, const Workload& workload, const DeviceFacts& device) {
  entry["workload"] = to_string(workload);
  entry["flops"] = workload.flops();
  entry["bytes"] = workload.bytes();
  if (device.kind == DeviceKind::cuda && device.clock_mhz <= 0) return;
  if (device.kind == DeviceKind::cpu && device.driver.empty()) return;
  measure::Peak peak;
  if (device.kind == DeviceKind::cpu) {
    static const measure::Peak measured = measure::peak_of(device, workload, device.processors);
    peak = measured;
  } else {
    peak = measure::peak_of(device, workload, device.processors);
  }
  entry["peak_flops"] = peak.flops;
  entry["floor"] = record::to_json(measure::floor_of(peak, workload, 0));
}

/// @throws Error(build_failed) when there is no binary, or one that breaks the kernel contract
jit::Artifact finished(std::future<jit::BuildOutcome>& build, const Variant& variant) {
  jit::BuildOutcome outcome = build.get();
  if (outcome.timed_out) throw Error(ErrorCode::build_failed, fmt::format("building {} timed out", variant.id()));
  if (!outcome.artifact)
    throw Error(ErrorCode::build_failed, fmt::format("{} does not build: {}", variant.id(), outcome.log));
  if (!outcome.artifact->violation.empty())
    throw Error(ErrorCode::build_failed,
                fmt::format("{} breaks the kernel contract: {}", variant.id(), outcome.artifact->violation));
  return std::move(*outcome.artifact);
}

void add_variant(json& entry, const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  const LaunchPlan plan = variant.plan(workload, device);
  entry["variant"] = variant.id();
  entry["family"] = variant.family->name();
  if (const std::string_view why = variant.family->made_for(workload, device); !why.empty()) entry["made_for"] = why;
  entry["config"] = describe(variant);
  entry.update(worker::plan_to_json(plan));
  if (device.kind == DeviceKind::cuda) entry["max_shared_bytes"] = device.shared_bytes_per_block;
}

void deliver(json& entry, const jit::Artifact& artifact, const std::filesystem::path& file) {
  if (file.has_parent_path()) make_folder(file.parent_path(), ErrorCode::store);
  write_file_atomically(file, read_file(artifact.path, ErrorCode::cache), ErrorCode::store);
  entry["file"] = std::filesystem::absolute(file).string();
  entry["resources"] = record::to_json(artifact.resources);
  entry["machine_code"] = artifact.machine_code;
  entry["audit"] = artifact.audit;
}

/// What holds for every binary of this call.
json header(const DeviceFacts& device) {
  return {{"heed", kVersion},
          {"source_digest", compile::source_digest()},
          {"referee", kReferee},
          {"family_digests", compile::family_digests()},
          {"device", record::to_json(device)},
          {"contract", contract_json()}};
}

/// Lines "WORKLOAD VARIANT", as in tuned/variants.txt. @throws Error(usage) naming the line that is none
std::vector<Order> read_list(const std::string& path) {
  std::vector<Order> orders;
  int number = 0;
  for (const std::string& raw : split(read_file(path, ErrorCode::invalid_input), '\n')) {
    ++number;
    const std::string line = trim(raw.substr(0, raw.find('#')));
    if (line.empty()) continue;
    const std::size_t space = line.find_first_of(" \t");
    if (space == std::string::npos)
      throw Error(
          ErrorCode::usage,
          fmt::format("{}:{}: a line is a workload and a variant, for example \"b1h8l512d64 auto\"", path, number),
          line);
    orders.push_back({parse_workload(line.substr(0, space)), trim(line.substr(space))});
  }
  if (orders.empty())
    throw Error(
        ErrorCode::usage,
        fmt::format("{} names no variant; a line is a workload and a variant, for example \"b1h8l512d64 auto\"", path),
        path);
  return orders;
}

/// All lines of a list at once: builds run side by side, lines that share a binary share a build, and a line that
/// cannot be had says why instead of ending the others.
json build_list(const BuildOptions& o, const DeviceFacts& device) {
  if (!o.is_dry) make_folder(o.into, ErrorCode::store);
  const auto builder = o.machine.builder();
  struct Pending {
    Variant variant;
    std::future<jit::BuildOutcome> build;
    std::string file;
    std::string refused;
    jit::Artifact artifact;
  };
  std::map<std::string, Pending> pending;  // by variant id: equal problems share a binary
  const std::vector<Order> orders = read_list(o.list);
  json entries = json::array();
  std::vector<std::string> ids;
  for (const Order& order : orders) {
    json entry = {{"asked", order.variant}};
    add_workload(entry, order.workload, device);
    std::string id;
    try {
      const Variant variant = admitted(order.variant, order.workload, device);
      id = variant.id();
      add_variant(entry, variant, order.workload, device);
      jit::BuildRequest request = jit::request_for(variant, order.workload, device);
      entry["key"] = builder->key_of(request);
      if (o.is_dry)
        id.clear();
      else if (pending.count(id) == 0)
        pending[id] = {variant, builder->start(std::move(request)), {}, {}, {}};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      entry["refused"] = error.what();
    }
    entries.push_back(std::move(entry));
    ids.push_back(std::move(id));
  }
  const char* extension = device.kind == DeviceKind::cpu ? "so" : "cubin";
  for (auto& [id, one] : pending) {
    try {
      one.artifact = finished(one.build, one.variant);
      one.file = (std::filesystem::path(o.into) / fmt::format("{}.{}", id, extension)).string();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::build_failed) throw;
      one.refused = error.what();
    }
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (ids[i].empty()) continue;
    Pending& one = pending.at(ids[i]);
    if (!one.refused.empty())
      entries[i]["refused"] = one.refused;
    else
      deliver(entries[i], one.artifact, one.file);
  }
  json all = header(device);
  all["builds"] = std::move(entries);
  return all;
}

json build_one(const BuildOptions& o, const DeviceFacts& device) {
  const Workload workload = o.workload.workload(std::nullopt);
  json entry = header(device);
  entry["asked"] = o.variant;
  add_workload(entry, workload, device);
  const Variant variant = admitted(o.variant, workload, device);
  add_variant(entry, variant, workload, device);
  const auto builder = o.machine.builder();
  std::future<jit::BuildOutcome> build = builder->start(jit::request_for(variant, workload, device));
  deliver(entry, finished(build, variant), o.output);
  return entry;
}

DeviceFacts device_for(const BuildOptions& o) {
  if (!o.arch.empty()) {
    if (o.machine.device == "cpu" && find_cpu_level(o.arch) == nullptr)
      throw Error(
          ErrorCode::usage,
          "--arch names a GPU architecture; leave it out with --device cpu, or name a CPU level such as x86-64-v3",
          o.arch);
    return device_named(o.arch);
  }
  // A CPU family named by itself is built for the CPU, also where there is a GPU.
  const std::string family = o.variant.substr(0, o.variant.find(':'));
  if (o.machine.device == "auto" && o.list.empty() && family != kAutomatic)
    return choose_device(find_family(family).device() == DeviceKind::cpu ? DeviceChoice::cpu : DeviceChoice::cuda,
                         "--arch sm_90a builds for a GPU of another machine");
  return o.machine.choose();
}

void build(const BuildOptions& o) {
  const bool one = !o.variant.empty() && !o.output.empty() && o.list.empty() && o.into.empty();
  const bool many = o.variant.empty() && o.output.empty() && !o.list.empty() && o.into.empty() == o.is_dry;
  if (!one && !many)
    throw Error(ErrorCode::usage,
                "give a variant with --shape and -o FILE, or --list FILE with --into FOLDER or --dry-run");
  const DeviceFacts device = device_for(o);
  const json result = one ? build_one(o, device) : build_list(o, device);
  if (o.machine.json) return print(json_text(result, 1) + "\n");
  if (one)
    return print(fmt::format("{} for {} in {}\n", result["variant"].get<std::string>(), device.arch,
                             result["file"].get<std::string>()));
  for (const json& entry : result["builds"]) {
    const char* const what = entry.contains("refused") ? "refused" : o.is_dry ? "key" : "file";
    print(fmt::format("{}  {}{}\n", entry["workload"].get<std::string>(), entry.contains("refused") ? "-  " : "",
                      entry[what].get<std::string>()));
  }
}

}  // namespace

void add_build(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto o = std::make_shared<BuildOptions>();
  CLI::App* command = app.add_subcommand(
      "build", "Build a variant into a file, and print its launch: entry, grid, threads, shared memory, parameters");
  command->add_option("variant", o->variant, "auto, family or family:knob=value,...");
  o->workload.add_shape_to(*command);
  o->machine.add_to(*command);
  command->add_option(
      "--arch", o->arch,
      "Build for this GPU architecture, e.g. sm_90a, with no GPU, or for this CPU level, e.g. x86-64-v3");
  command->add_option("-o,--output", o->output, "The binary: a cubin for a GPU, a shared object for a CPU");
  command->add_option("--list", o->list, "A file with a workload and a variant a line, as tuned/variants.txt");
  command->add_option("--into", o->into, "Folder for the binaries of --list");
  command->add_flag(
      "--dry-run", o->is_dry,
      "With --list: build nothing, print for each line a digest of the sources, options and compiler that "
      "decide the binary");
  command->footer(
      "Examples:\n"
      "  heed build auto --shape b1h8l512d64 -o v.cubin --json\n"
      "  heed build fwd_sm80 --shape b1h8l512d64:bf16 --arch sm_80 -o v.cubin\n"
      "  heed build --list tuned/variants.txt --into kernels --arch sm_90a --json");
  command->callback([o] { build(*o); });
}

}  // namespace heed::cli
