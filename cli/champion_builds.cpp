#include "cli/champion_builds.hpp"

#include <fmt/format.h>

#include "base/files.hpp"
#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "dispatch/contract.hpp"
#include "dispatch/covering.hpp"
#include "variant/renames.hpp"

namespace heed::cli {

DeviceFacts device_of_arch(const std::string& arch) {
  if (arch.starts_with("sm_")) return dispatch::representative_gpu(arch);
  DeviceFacts cpu = cpu_facts();
  if (cpu.arch != arch)
    throw Error(ErrorCode::unsupported,
                fmt::format("programs for {} are built on such a processor; this one is {}", arch, cpu.arch), arch);
  return cpu;
}

ChampionBuild start_champion(const dispatch::TunedEntry& entry, jit::Builder& builder) {
  const DeviceFacts device = device_of_arch(entry.arch);
  const Workload workload = parse_workload(entry.workload);
  Variant variant = parse_variant(with_current_names(entry.variant), workload, device);
  for (const auto& why : {variant.family->refuses(workload, device), variant.is_illegal(workload, device)})
    if (why)
      throw Error(
          ErrorCode::unsupported,
          fmt::format("{} does not run {} on {} any more: {}", describe(variant), entry.workload, entry.arch, *why),
          describe(variant));
  auto build = builder.start(jit::request_for(variant, workload, device));
  return {entry, workload, std::move(variant), std::move(build)};
}

dispatch::BookEntry finish_champion(ChampionBuild& champion) {
  const jit::BuildOutcome outcome = champion.build.get();
  const std::string id = champion.variant.id();
  if (!outcome.artifact)
    throw Error(ErrorCode::build_failed,
                fmt::format("{} for {} does not build: {}", id, champion.entry.arch, outcome.log), id);
  if (!outcome.artifact->violation.empty())
    throw Error(ErrorCode::build_failed,
                fmt::format("{} breaks the kernel contract: {}", id, outcome.artifact->violation), id);
  champion.artifact = *outcome.artifact;
  dispatch::BookEntry built;
  built.record.arch = champion.entry.arch;
  built.record.workload = to_string(champion.workload);
  built.record.variant = describe(champion.variant);
  built.record.origin = "champion";
  built.record.machine_code = outcome.artifact->machine_code;
  built.record.contract = dispatch::kernel_contract(built.record.workload);
  built.record.source_digest = compile::source_digest();
  built.record.provenance = champion.entry.provenance;
  built.image = read_file(outcome.artifact->path, ErrorCode::cache);
  return built;
}

}  // namespace heed::cli
