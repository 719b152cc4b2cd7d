#include <fmt/format.h>

#include "base/files.hpp"
#include "base/text.hpp"
#include "device/cpu_level.hpp"
#include "jit/build.hpp"
#include "jit/confined_build.hpp"
#include "jit/toolchain.hpp"
#include "process/process.hpp"

namespace heed::jit {
namespace fs = std::filesystem;
namespace {

// -O3 unrolls the register tiles (at -O2 the same kernel runs at 40% of the speed). No -ffast-math: it would fold away
// the rounding trick of exp2 and break the -inf that masks rely on.
//
// What comes out has nothing for a loader to do (contract_violation_in_shared_object): -fPIE and -Bsymbolic address
// every symbol from the code itself, with no table of addresses to fill in; segments share no page; the entry is the
// only name left, so that equal programs are equal files.
const std::vector<std::string> kOptions = {"-std=c++20",
                                           "-O3",
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
    // "x86_64-linux-gnu" of g++, "x86_64-pc-linux-gnu" of clang++
    target_ = trim(run_process({compiler_, "-dumpmachine"}, {}, 20).output);
  }

  std::string identity(const BuildRequest& request) const override {
    return fmt::format("{} | {} | {}", version_, fmt::join(options_of(request), " "), request.arch);
  }
  std::string extension() const override { return "so"; }

  Result compile(const BuildRequest& request, const fs::path& output, double limit_s) const override {
    const BuildFolder folder(output);
    std::vector<std::string> argv = {compiler_};
    const std::vector<std::string> options = options_of(request);
    argv.insert(argv.end(), options.begin(), options.end());
    // Edited sources lie in the build's own folder, which comes before the others.
    if (request.overlay) {
      for (const std::string& path : files_of(request))
        if (const std::string* edited = request.overlay->find(path)) {
          const fs::path file = fs::path(folder.path()) / path;
          make_folder(file.parent_path(), ErrorCode::cache);
          write_file_atomically(file, *edited, ErrorCode::cache);
        }
      argv.insert(argv.end(), {"-I", folder.path()});
    }
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
    return {.ok = run.ok(),
            .timed_out = run.timed_out,
            .log = std::move(log),
            .violation = {},
            .processor_s = run.processor_s,
            .killed = was_killed_from_outside(run)};
  }

 private:
  // A named level has its own flags; every other architecture of a CPU is this very processor.
  [[nodiscard]] std::vector<std::string> options_of(const BuildRequest& request) const {
    std::vector<std::string> options = kOptions;
    options.push_back(fmt::format("-DHEED_ARCH=\"{}\"", request.arch));
    const CpuLevel* const level = find_cpu_level(request.arch);
    if (level == nullptr) {
      options.emplace_back("-march=native");
      return options;
    }
    if (!target_.starts_with(fmt::format("{}-", level->machine)))
      throw Error(ErrorCode::no_compiler,
                  fmt::format("{} compiles for {}; programs of {} need a C++ compiler for {}, on such a machine",
                              compiler_, target_, level->name, level->machine),
                  std::string(level->name));
    options.insert(options.end(), level->flags.begin(), level->flags.end());
    return options;
  }

  std::string compiler_;
  fs::path include_root_;
  std::string version_;
  std::string target_;
};

}  // namespace

std::string find_host_compiler(const std::string& compiler) {
  if (!compiler.empty()) {
    std::string path = find_program(compiler);
    if (path.empty())
      throw Error(ErrorCode::no_compiler, fmt::format("the C++ compiler \"{}\" is not on the PATH", compiler),
                  compiler);
    return path;
  }
  for (const char* name : {"g++", "clang++", "c++"})
    if (std::string path = find_program(name); !path.empty()) return path;
  throw Error(ErrorCode::no_compiler,
              "no C++ compiler on the PATH; Heed builds CPU kernels and emulated ones with g++ 12 or newer, or clang++ "
              "(apt install g++)");
}

std::unique_ptr<Toolchain> make_host_toolchain(const std::string& compiler, const fs::path& include_root) {
  return std::make_unique<HostToolchain>(find_host_compiler(compiler), include_root);
}

}  // namespace heed::jit
