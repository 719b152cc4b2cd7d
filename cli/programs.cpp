// heed programs: files of programs for libheed
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "append/append.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/build_costs.hpp"
#include "cli/champion_builds.hpp"
#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "device/cpu_level.hpp"
#include "dispatch/contract.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/program_file.hpp"
#include "json/text.hpp"
#include "listing/listing.hpp"
#include "merge/merge.hpp"
#include "padding/padding.hpp"
#include "process/interrupt.hpp"
#include "quantise/modes.hpp"
#include "quantise/quantise.hpp"
#include "variant/element.hpp"
#include "workload/mask.hpp"

namespace heed::cli {

std::span<const compile::EmbeddedFile> tuned_files();  // tuned/champions.json

namespace {

using nlohmann::json;

struct BuildOptions {
  MachineOptions machine;
  std::vector<std::string> archs;
  std::vector<std::string> dtypes;
  std::vector<std::int64_t> dims;
  std::vector<std::string> masks;
  std::vector<std::string> precision;
  std::vector<std::string> pages;
  int samples = 150;
  int most = 40;
  std::uint64_t seed = 1;
  bool dry_run = false;
  bool no_champions = false;
  std::string champions;
  std::string output;
};

struct FileOptions {
  std::string path;
  bool json = false;
};

Dtype page_dtype(const std::string& name) {
  std::vector<std::string_view> choices;
  for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8}) {
    if (name == to_string(dtype)) return dtype;
    choices.push_back(to_string(dtype));
  }
  throw Error(ErrorCode::usage, fmt::format("unknown element type of pages \"{}\"; {}", name, one_of(name, choices)),
              name);
}

std::vector<dispatch::CoveringProgram> wanted(const BuildOptions& o, const DeviceFacts& device) {
  dispatch::CoveringOptions options;
  options.samples = o.samples;
  options.most = o.most;
  options.seed = o.seed;
  const bool cpu = device.kind == DeviceKind::cpu;
  for (const std::string& dtype : o.dtypes) options.dtypes.push_back(parse_dtype(dtype));
  if (options.dtypes.empty()) options.dtypes = {Dtype::fp16, Dtype::bf16, Dtype::fp32};
  options.dims = o.dims;
  if (options.dims.empty())
    options.dims = cpu ? std::vector<std::int64_t>{32, 64, 128, 256, 512} : std::vector<std::int64_t>{64, 128, 256};
  if (!o.masks.empty()) options.masks.clear();
  for (const std::string& mask : o.masks) options.masks.push_back(parse_mask_kind(mask));
  std::vector<dispatch::CoveringProgram> all = dispatch::covering_programs(device, options);
  // Modes and pages of 8 bits have no programs of head dims that few models have.
  options.dims.erase(std::remove_if(options.dims.begin(), options.dims.end(),
                                    [&](std::int64_t dim) { return o.dims.empty() && dim > 256; }),
                     options.dims.end());
  std::vector<std::string> modes = o.precision;
  if (modes.empty()) modes = dispatch::precision_names();
  const auto add = [&](std::vector<dispatch::CoveringProgram> programs) {
    for (dispatch::CoveringProgram& program : programs)  // programs of caches are those of pages, too
      if (std::none_of(all.begin(), all.end(), [id = program.variant.id()](const dispatch::CoveringProgram& c) {
            return c.variant.id() == id;
          }))
        all.push_back(std::move(program));
  };
  if (modes != std::vector<std::string>{"none"}) add(dispatch::precision_programs(device, options, modes));
  std::vector<Dtype> pages;
  for (const std::string& name : o.pages) pages.push_back(page_dtype(name));
  add(dispatch::page_programs(device, options, pages));
  return all;
}

// Those of this call's architectures, and where it names dtypes, head dims or masks, of these.
std::vector<dispatch::TunedEntry> tuned_entries(const BuildOptions& o, const std::vector<DeviceFacts>& devices) {
  if (o.no_champions) return {};
  const auto table = o.champions.empty()
                         ? dispatch::TunedTable::parse(tuned_files().front().content, tuned_files().front().path)
                         : dispatch::TunedTable::parse(read_file(o.champions, ErrorCode::usage), o.champions);
  const auto is_among = [](const auto& all, const auto& one) {
    return all.empty() || std::find(all.begin(), all.end(), one) != all.end();
  };
  std::vector<dispatch::TunedEntry> entries;
  for (const dispatch::TunedEntry& entry : table.entries()) {
    if (std::none_of(devices.begin(), devices.end(), [&](const DeviceFacts& d) { return d.arch == entry.arch; }))
      continue;
    const Workload w = parse_workload(entry.workload);
    if (is_among(o.dtypes, to_string(w.dtype)) && is_among(o.dims, w.dim) && is_among(o.masks, to_string(mask_kind(w))))
      entries.push_back(entry);
  }
  return entries;
}

// Champions are a gain and no need: one that today's families do not know is left out, and told.
std::vector<ChampionBuild> start_champions(const std::vector<dispatch::TunedEntry>& entries, jit::Builder& builder) {
  std::vector<ChampionBuild> builds;
  for (const dispatch::TunedEntry& entry : entries) {
    if (entry.variant.empty()) continue;
    try {
      if (const std::string lacks = lacks_evidence(entry.provenance); !lacks.empty())
        throw Error(ErrorCode::unsupported, "it " + lacks);
      builds.push_back(start_champion(entry, builder));
    } catch (const Error& error) {
      remark(true, fmt::format("the champion of {} on {} is left out: {}", entry.workload, entry.arch, error.what()));
    }
  }
  return builds;
}

/// What one word of --arch stands for. @throws Error(usage) naming the words there are
std::vector<DeviceFacts> devices_of(const std::string& arch) {
  if (arch == "native") return {choose_device(DeviceChoice::cpu)};
  if (const CpuLevel* level = find_cpu_level(arch)) return {representative_cpu(*level)};
  if (arch.starts_with("sm_") || arch.starts_with("compute_")) return {dispatch::representative_gpu(arch)};
  std::vector<std::string_view> choices = {"cpu", "native"};
  std::vector<DeviceFacts> devices;
  for (const CpuLevel& level : cpu_levels()) {
    if (arch == "cpu" && level.machine == own_machine()) devices.push_back(representative_cpu(level));
    choices.push_back(level.name);
  }
  if (!devices.empty()) return devices;
  choices.insert(choices.end(), kGpuArchitectures.begin(), kGpuArchitectures.end());
  throw Error(ErrorCode::usage, fmt::format("unknown architecture \"{}\"; {}", arch, one_of(arch, choices)), arch);
}

int build(const BuildOptions& o) {
  if (o.output.empty() && !o.dry_run)
    throw Error(ErrorCode::usage, "say with --output where the file of programs goes, or ask for a --dry-run");
  if (!o.dry_run) expect_writable(o.output, ErrorCode::store);
  (void)padding::copy_source();  // device sources are known before any build begins
  (void)merge::merge_source();
  (void)quantise::quantise_source();
  (void)listing::list_source();
  (void)append::append_source();
  std::vector<DeviceFacts> devices;
  for (const std::string& arch : o.archs)
    for (DeviceFacts& device : devices_of(arch))
      if (std::none_of(devices.begin(), devices.end(), [&](const DeviceFacts& d) { return d.arch == device.arch; }))
        devices.push_back(std::move(device));
  struct Pending {
    dispatch::ProgramRecord record;
    std::string id;
    int count = 0;  ///< problems of those drawn that it is the default of
    std::future<jit::BuildOutcome> build{};
  };
  const auto builder = o.machine.builder();
  std::vector<Pending> pending;
  for (const DeviceFacts& device : devices) {
    if (device.kind == DeviceKind::cuda) {
      const auto add = [&](std::string_view name, const std::string& source, const char* entry, bool counts,
                           bool waits = false) {
        Pending one{.record = {}, .id = std::string(name)};
        one.record.arch = device.arch;
        one.record.variant = name;
        one.record.origin = "library";
        if (!o.dry_run)
          one.build = builder->start({.device = device.kind,
                                      .arch = device.arch,
                                      .source = source,
                                      .entry = entry,
                                      .supports_pdl = waits,
                                      .semaphores = counts});
        pending.push_back(std::move(one));
      };
      add(padding::kCopyProgram, padding::copy_source(), padding::kCopyEntry, false);
      add(merge::kMergeProgram, merge::merge_source(), merge::kMergeEntry, false);
      add(quantise::kQuantiseProgram, quantise::quantise_source(), quantise::kQuantiseEntry,
          true);  // largest magnitudes
      add(listing::kListProgram, listing::list_source(), listing::kListEntry, false);
      add(quantise::kLostProgram, quantise::lost_source(), quantise::kLostEntry, true);
      add(append::kAppendProgram, append::append_source(), append::kAppendEntry, false,
          append::can_be_dependent(device.arch));
    }
    for (const dispatch::CoveringProgram& program : wanted(o, device)) {
      Pending one{.record = {}, .id = program.variant.id(), .count = program.count};
      one.record.arch = device.arch;
      one.record.workload = to_string(program.workload);
      one.record.variant = describe(program.variant);
      one.record.origin = "rule";
      if (!o.dry_run) one.build = builder->start(jit::request_for(program.variant, program.workload, device));
      pending.push_back(std::move(one));
    }
  }
  const std::vector<dispatch::TunedEntry> tuned = tuned_entries(o, devices);
  if (o.dry_run && o.machine.json) {
    json programs = json::array();
    for (const Pending& one : pending)
      programs.push_back({{"arch", one.record.arch},
                          {"workload", one.record.workload},
                          {"variant", one.record.variant},
                          {"origin", one.record.origin},
                          {"problems", one.count}});
    for (const dispatch::TunedEntry& entry : tuned)
      if (!entry.variant.empty())
        programs.push_back({{"arch", entry.arch},
                            {"workload", entry.workload},
                            {"variant", entry.variant},
                            {"origin", "champion"},
                            {"problems", 1}});
    print(json_text(json{{"programs", std::move(programs)}}, 1) + "\n");
    return 0;
  }
  if (o.dry_run) {
    for (const Pending& one : pending) print(fmt::format("{}  {}  {}\n", one.record.arch, one.record.workload, one.id));
    const auto champions = std::count_if(tuned.begin(), tuned.end(), [](const auto& e) { return !e.variant.empty(); });
    for (const dispatch::TunedEntry& entry : tuned)
      if (!entry.variant.empty())
        print(fmt::format("{}  {}  champion {}\n", entry.arch, entry.workload, entry.variant));
    print(fmt::format("{} programs\n", pending.size() + static_cast<std::size_t>(champions)));
    return 0;
  }
  std::vector<ChampionBuild> champions = start_champions(tuned, *builder);
  dispatch::ProgramFileWriter writer(compile::source_digest());
  BuildCosts costs;
  const auto begin = std::chrono::steady_clock::now();
  std::size_t done = 0;
  for (Pending& one : pending) {
    const jit::BuildOutcome outcome = one.build.get();
    check_interrupt();
    if (!outcome.artifact)
      throw Error(ErrorCode::build_failed,
                  fmt::format("{} for {} does not build: {}", one.id, one.record.arch, outcome.log), one.id);
    if (!outcome.artifact->violation.empty())
      throw Error(ErrorCode::build_failed,
                  fmt::format("{} breaks the kernel contract: {}", one.id, outcome.artifact->violation), one.id);
    costs.add(one.record.arch, *outcome.artifact);
    one.record.machine_code = outcome.artifact->machine_code;
    writer.add(one.record, read_file(outcome.artifact->path, ErrorCode::cache));
    if (++done % 20 == 0 || done == pending.size())
      remark(true, fmt::format("{} of {} programs, {:.0f} s", done, pending.size(),
                               std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
  }
  for (ChampionBuild& champion : champions) {
    check_interrupt();
    const dispatch::BookEntry entry = finish_champion(champion);
    costs.add(entry.record.arch, champion.artifact);
    writer.add(entry.record, entry.image);
  }
  for (const dispatch::TunedEntry& entry : tuned)
    if (entry.variant.empty()) writer.add_unbeaten({entry.arch, entry.workload, entry.provenance.device});
  const std::string bytes = writer.bytes();
  write_file_atomically(o.output, bytes, ErrorCode::store);
  costs.add_bytes(*dispatch::ProgramFile::parse(bytes, o.output));
  if (o.machine.json) {
    json printed = costs.to_json();
    printed.update({{"file", o.output}, {"programs", writer.count()}, {"bytes", bytes.size()}});
    print(json_text(printed, 1) + "\n");
    return 0;
  }
  print(costs.text());
  print(fmt::format("{}: {} programs, {:.1f} MB\n", o.output, writer.count(), static_cast<double>(bytes.size()) / 1e6));
  return 0;
}

void list(const FileOptions& o) {
  const auto file = dispatch::ProgramFile::open(o.path);
  if (o.json) {
    json programs = json::array();
    for (const dispatch::ProgramRecord& r : file->records())
      programs.push_back({{"arch", r.arch},
                          {"workload", r.workload},
                          {"variant", r.variant},
                          {"origin", r.origin},
                          {"machine_code", r.machine_code},
                          {"bytes", r.bytes}});
    print(
        json_text(
            json{{"heed", file->heed_version()}, {"source_digest", file->source_digest()}, {"programs", programs}}, 1) +
        "\n");
    return;
  }
  for (const dispatch::ProgramRecord& r : file->records())
    print(fmt::format("{:13} {:8} {:40} {}\n", r.arch, r.origin, r.workload, r.variant));
}

void verify(const FileOptions& o) {
  const auto file = dispatch::ProgramFile::open(o.path);
  for (const dispatch::ProgramRecord& r : file->records()) {
    check_interrupt();
    (void)file->image(r);
  }
  for (const dispatch::ProgramRecord& r : file->records())
    if (const std::string& contract = dispatch::kernel_contract(r.workload); r.contract != contract)
      throw Error(ErrorCode::programs,
                  fmt::format("{} is whole, but holds programs for the kernel contract {}, and this Heed's is {}: its "
                              "libheed refuses the file; make it anew with heed programs build",
                              o.path, r.contract, contract),
                  r.variant);
  if (o.json)
    print(json_text(json{{"file", o.path}, {"programs", file->records().size()}, {"whole", true}}, 1) + "\n");
  else
    print(fmt::format("{}: {} programs, all as their digests say; made by heed {} from sources {}\n", o.path,
                      file->records().size(), file->heed_version(), file->source_digest()));
}

void add_file_command(CLI::App& programs, const char* name, const char* description, void (*run)(const FileOptions&)) {
  auto o = std::make_shared<FileOptions>();
  CLI::App* command = programs.add_subcommand(name, description);
  command->footer(fmt::format("Example:\n  heed programs {} heed.programs", name));
  command->add_option("file", o->path, "A file of programs")->required();
  command->add_flag("--json", o->json, "Print JSON");
  command->callback([o, run] { run(*o); });
}

}  // namespace

void add_programs(CLI::App& app, int& exit_code) {
  CLI::App* programs = app.add_subcommand("programs", "Files of ready programs, which libheed runs without a compiler");
  programs->require_subcommand(1);
  auto o = std::make_shared<BuildOptions>();
  CLI::App* command = programs->add_subcommand(
      "build", "Build the default programs of problems drawn at random from dtypes, head dims and masks; needs no GPU");
  o->machine.add_to(*command);
  command
      ->add_option("--arch", o->archs,
                   "sm_80, sm_86, sm_89, sm_90a, compute_80 (PTX for newer GPUs); x86-64-v3, x86-64-v4, x86-64-v4-amx, "
                   "aarch64-neon; cpu (every level of this instruction set), native (this processor alone); more than "
                   "one may be "
                   "given")
      ->delimiter(',')
      ->required();
  command->add_option("--dtypes", o->dtypes, "fp16, bf16, fp32 [all]")->delimiter(',');
  command->add_option("--dims", o->dims, "Head dims [64,128,256, on a CPU also 32 and 512; others are padded to these]")
      ->delimiter(',');
  command->add_option("--masks", o->masks, "none, causal, window [all]")->delimiter(',');
  command
      ->add_option(
          "--precision", o->precision,
          "Precision modes (heed calibrate --help) and caches (cache_e4m3, cache_int8: K and V in 8 bits) whose "
          "programs are added, or none [all]")
      ->delimiter(',');
  command
      ->add_option("--page-dtypes", o->pages,
                   "e4m3, e5m2, int8: element types of page pools' K and V whose programs are added [none]")
      ->delimiter(',');
  command->add_option("--samples", o->samples, "Problems drawn for each dtype, head dim and mask")
      ->capture_default_str();
  command
      ->add_option("--most", o->most,
                   "Programs at most for each dtype, head dim and mask, those of most problems first")
      ->capture_default_str();
  command->add_option("--seed", o->seed, "Seed of the problems")->capture_default_str();
  command->add_option(
      "--champions", o->champions,
      "A file of champions whose programs are added [tuned/champions.json, as it was when heed was built]");
  command->add_flag("--no-champions", o->no_champions, "Add none");
  command->add_flag("--dry-run", o->dry_run, "Print what would be built");
  command->add_option("-o,--output", o->output, "The file of programs");
  command->footer(
      "Examples:\n"
      "  heed programs build --arch sm_90a,sm_80,cpu -o heed.programs\n"
      "  heed programs build --arch native --dims 64 --masks none,causal -o my.programs\n"
      "HEED_PROGRAMS names the file that libheed reads; without it, heed.programs in the library's own folder.");
  command->callback([o, &exit_code] { exit_code = build(*o); });
  add_file_command(*programs, "list", "Print the programs of a file", list);
  add_file_command(*programs, "verify",
                   "Check every program of a file against its digest, and that this libheed takes it", verify);
  programs->footer(
      "Examples:\n"
      "  heed programs build --arch sm_90a,sm_80,cpu -o heed.programs\n"
      "  heed programs list heed.programs\n"
      "HEED_PROGRAMS names the file that libheed reads; without it, heed.programs in the library's own folder.\n"
      "HEED_CPU_LEVEL names the highest CPU level whose programs it takes.");
}

}  // namespace heed::cli
