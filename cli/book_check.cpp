#include "cli/book_check.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "base/files.hpp"
#include "base/random.hpp"
#include "cli/champion_builds.hpp"
#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "dispatch/champions.hpp"
#include "dispatch/contract.hpp"
#include "trial/trial_runner.hpp"

namespace heed::cli {
namespace {

constexpr std::uint16_t kElfOfCuda = 190;  // EM_CUDA, which not every elf.h has

// What a binary says that it is for: "sm_90" of a cubin, else the name of a processor. Empty where it is no ELF file.
std::string machine_of(std::string_view image, int compute_capability) {
  Elf64_Ehdr header{};
  if (image.size() < sizeof header) return "";
  std::memcpy(&header, image.data(), sizeof header);
  if (std::memcmp(static_cast<const void*>(header.e_ident), ELFMAG, SELFMAG) != 0) return "";
  if (header.e_machine == EM_X86_64) return "x86-64";
  if (header.e_machine == EM_AARCH64) return "aarch64";
  if (header.e_machine != kElfOfCuda) return fmt::format("machine {}", header.e_machine);
  // The first byte of the flags until CUDA 12, the second since.
  const unsigned first = header.e_flags & 0xff;
  const unsigned second = header.e_flags >> 8 & 0xff;
  const auto wanted = static_cast<unsigned>(compute_capability);
  return fmt::format("sm_{}", first == wanted || second == wanted ? wanted : second != 0 ? second : first);
}

// Of a record; throws what keeps it from being run.
void check(const dispatch::BookEntry& entry, BookFinding& finding) {
  const dispatch::ProgramRecord& r = entry.record;
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::programs, why); };
  if (const std::string lacks = lacks_evidence(*r.provenance); !lacks.empty()) refuse("it " + lacks);
  if (r.contract != dispatch::kernel_contract(r.workload))
    refuse(fmt::format("it was built for the kernel contract {}, this heed's is {}", r.contract,
                       dispatch::kernel_contract(r.workload)));
  if (r.source_digest != compile::source_digest())
    finding.warnings.push_back(
        fmt::format("older sources: built from {}, this heed's are {}", r.source_digest, compile::source_digest()));
  if (r.source_digest != r.provenance->source_digest)
    finding.warnings.push_back(
        fmt::format("measured with sources {}, built from {}", r.provenance->source_digest, r.source_digest));
  const bool is_gpu = r.arch.starts_with("sm_");
  const bool is_of_another_cpu = !is_gpu && r.arch != cpu_facts().arch;
  if (is_of_another_cpu) {
    finding.warnings.push_back(fmt::format("of another processor, {}: its variant was not looked at", r.arch));
    return;
  }
  const DeviceFacts device = device_of_arch(r.arch);
  const Workload workload = parse_workload(r.workload);
  const Variant variant = dispatch::built_variant(r.variant, workload, device);
  if (const auto why = dispatch::cannot_run(variant, {workload, std::nullopt}, device))
    refuse(fmt::format("{} is not legal for {}: {}", r.variant, r.workload, *why));
  const std::string is_for = machine_of(entry.image, device.compute_capability);
  const std::string wanted = is_gpu ? fmt::format("sm_{}", device.compute_capability)
#if defined(__aarch64__)
                                    : "aarch64";
#else
                                    : "x86-64";
#endif
  if (is_for != wanted)
    refuse(fmt::format("its binary is for {}, not for {}", is_for.empty() ? "no machine" : is_for, r.arch));
  const jit::Artifact audit = jit::audited(jit::request_for(variant, workload, device), entry.image);
  if (!audit.violation.empty()) refuse("its binary breaks the kernel contract: " + audit.violation);
  if (audit.machine_code != r.machine_code)
    refuse(
        fmt::format("its binary holds the machine code {}, its record names {}", audit.machine_code, r.machine_code));
}

// A file that is gone when the gate is through.
class ImageFile {
 public:
  ImageFile(const std::filesystem::path& folder, std::string_view image)
      : path_(folder / fmt::format("book.{}.bin", ::getpid())) {
    make_folder(folder, ErrorCode::cache);
    write_file_atomically(path_, image, ErrorCode::cache);
  }
  ~ImageFile() { ::unlink(path_.c_str()); }
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

BookFinding check_entry(const dispatch::BookEntry& entry) {
  BookFinding finding;
  try {
    check(entry, finding);
  } catch (const Error& error) {
    finding.refused = error.what();
  }
  return finding;
}

std::string_view to_string(GateFinding::State state) {
  switch (state) {
    case GateFinding::State::passed:
      return "passed";
    case GateFinding::State::failed:
      return "failed";
    case GateFinding::State::skipped:
      return "skipped";
  }
  return "";
}

GateFinding gate_entry(const dispatch::BookEntry& entry, const MachineOptions& machine) {
  using State = GateFinding::State;
  const dispatch::ProgramRecord& r = entry.record;
  DeviceFacts device;
  try {
    device = choose_device(r.arch.starts_with("sm_") ? DeviceChoice::cuda : DeviceChoice::cpu,
                           "heed book verify without --on-device needs none");
  } catch (const Error& error) {
    return {State::skipped, fmt::format("its program is for {}: {}", r.arch, error.what())};
  }
  if (device.arch != r.arch)
    return {State::skipped,
            fmt::format("its program is for {}, and {} of this machine is {}", r.arch, device.name, device.arch)};
  const Workload workload = parse_workload(r.workload);
  const Variant variant = dispatch::built_variant(r.variant, workload, device);
  const auto builder = machine.builder();
  trial::TrialRunner trial_runner(workload, device, *builder, nullptr, machine.trial_options());
  if (auto why = trial_runner.refuses(variant)) return {State::failed, *why};
  jit::Artifact artifact = jit::audited(trial_runner.request_for(variant), entry.image);
  const ImageFile file(machine.cache.empty() ? default_cache_folder() : std::filesystem::path(machine.cache),
                       entry.image);
  artifact.path = file.path();
  const verify::GateReport report = trial_runner.verify({variant, artifact}, fresh_seed());
  if (report.passed()) return {};
  return {State::failed, fmt::format("{} at {}: {}", to_string(report.verdict), report.check, report.reason)};
}

}  // namespace heed::cli
