#include <fmt/format.h>

#include "base/files.hpp"
#include "base/text.hpp"
#include "jit/confined_build.hpp"
#include "jit/toolchain.hpp"
#include "process/process.hpp"

namespace heed::jit {
namespace fs = std::filesystem;
namespace {

// -O3 unrolls the register tiles (at -O2 the same kernel runs at 40% of the speed). No -ffast-math: it would fold away
// the rounding trick of exp2 and break the -inf that masks rely on.
//
// What comes out has nothing for a loader to do (contract_breach_of_shared_object): -fPIE and -Bsymbolic address every
// symbol from the code itself, with no table of addresses to fill in; segments share no page; the entry is the only
// name left, so that equal programs are equal files.
const std::vector<std::string> kOptions = {"-std=c++20",
                                           "-O3",
                                           "-march=native",
                                           "-fno-math-errno",
                                           "-fno-trapping-math",
                                           "-ffp-contract=fast",
                                           "-fPIE",
                                           "-fno-exceptions",
                                           "-fno-rtti",
                                           "-fno-stack-protector",
                                           "-fno-asynchronous-unwind-tables",
                                           "-ffunction-sections",
                                           "-shared",
                                           "-nostdlib",
                                           "-Wl,--build-id=none",
                                           "-Wl,--hash-style=sysv",
                                           "-Wl,--gc-sections",
                                           "-Wl,-Bsymbolic",
                                           "-Wl,-z,noexecstack",
                                           "-Wl,-z,relro",
                                           "-Wl,-z,now",
                                           "-Wl,-z,separate-code",
                                           "-Wl,-s"};

class HostToolchain final : public Toolchain {
 public:
  HostToolchain(const std::string& compiler, const fs::path& include_root)
      : compiler_(fs::absolute(compiler).string()), include_root_(fs::absolute(include_root)) {
    const ProcessResult version = run_process({compiler_, "--version"}, {}, 20);
    if (!version.ok())
      throw Error(ErrorCode::no_compiler,
                  fmt::format("the C++ compiler {} does not run: {}", compiler_, trim(version.output)), compiler_);
    version_ = split(version.output, '\n').front();
  }

  std::string identity(const BuildRequest& request) const override {
    return fmt::format("{} | {} | {}", version_, fmt::join(kOptions, " "), request.arch);
  }
  std::string extension() const override { return "so"; }

  Result compile(const BuildRequest& request, const fs::path& output, double limit_s) const override {
    const BuildFolder folder(output);
    std::vector<std::string> argv = {compiler_};
    argv.insert(argv.end(), kOptions.begin(), kOptions.end());
    argv.insert(argv.end(),
                {"-I", include_root_.string(), "-include", (include_root_ / "cpu/freestanding.hpp").string(),
                 "-Wl,--version-script=" + (include_root_ / "cpu/exports.map").string(), "-x", "c++", "-", "-o",
                 folder.file()});
    const ProcessResult run =
        run_process(argv, request.source, limit_s,
                    confinement_of_build(compiler_, {include_root_.string()}, folder.path(), limit_s));
    if (run.ok()) folder.keep(output);
    std::string log = without_foreign_files(folder.unnamed_in(run.output), include_root_.string());
    if (const std::string limit = run.ok() ? "" : limit_met(run); !limit.empty()) log = limit + "\n" + log;
    return {.ok = run.ok(), .timed_out = run.timed_out, .log = std::move(log), .breach = {}};
  }

 private:
  std::string compiler_;
  fs::path include_root_;
  std::string version_;
};

}  // namespace

std::unique_ptr<Toolchain> make_host_toolchain(const std::string& compiler, const fs::path& include_root) {
  if (!compiler.empty()) {
    const std::string path = find_program(compiler);
    if (path.empty())
      throw Error(ErrorCode::no_compiler, fmt::format("the C++ compiler \"{}\" is not on the PATH", compiler),
                  compiler);
    return std::make_unique<HostToolchain>(path, include_root);
  }
  for (const char* name : {"g++", "clang++", "c++"})
    if (const std::string path = find_program(name); !path.empty())
      return std::make_unique<HostToolchain>(path, include_root);
  throw Error(
      ErrorCode::no_compiler,
      "no C++ compiler on the PATH; Heed builds CPU kernels with g++ 12 or newer, or clang++ (apt install g++)");
}

}  // namespace heed::jit
