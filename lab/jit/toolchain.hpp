/// The compilers candidates are built with.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jit/artifact.hpp"
#include "jit/ptx_rules.hpp"

namespace heed::jit {

/// Compiles a translation unit into a file. Thread-safe; every build runs in a process of its own.
class Toolchain {
 public:
  virtual ~Toolchain() = default;
  Toolchain(const Toolchain&) = delete;
  Toolchain& operator=(const Toolchain&) = delete;

  /// Compiler, version and options: everything besides source and headers that decides what comes out.
  [[nodiscard]] virtual std::string identity(const BuildRequest& request) const = 0;
  [[nodiscard]] virtual std::string extension() const = 0;

  struct Result {
    bool ok = false;
    bool timed_out = false;
    std::string log;
    std::string violation;   ///< of the kernel contract, where only the compiler's output shows it
    double processor_s = 0;  ///< user and system time of the compiler and of what it runs
    bool killed = false;     ///< by a signal from outside, as where memory runs out: no fault of the source
  };
  virtual Result compile(const BuildRequest& request, const std::filesystem::path& output, double limit_s) const = 0;

 protected:
  Toolchain() = default;
};

/// Absolute path of the host's C++ compiler. @param compiler a program name or path; empty: g++, then clang++, then c++
/// @throws Error(no_compiler)
std::string find_host_compiler(const std::string& compiler);

/// The host's C++ compiler, building freestanding shared objects (no library, no start-up code).
/// @param compiler a program name or path; empty: g++, then clang++, then c++
/// @param include_root folder that holds the device sources
/// @throws Error(no_compiler)
std::unique_ptr<Toolchain> make_host_toolchain(const std::string& compiler, const std::filesystem::path& include_root);

/// NVRTC, loaded at run time. Each build runs in a child process of this program (`heed nvrtc`).
/// @throws Error(no_compiler) when libnvrtc is not found or older than 12.4
std::unique_ptr<Toolchain> make_nvrtc_toolchain();

/// The child's side: reads a request from stdin, writes the cubin, prints the log as JSON. Returns the exit code.
int run_nvrtc_child();

/// Version and place of NVRTC, e.g. "13.0 (/usr/local/cuda/lib64/libnvrtc.so.13)". @throws Error(no_compiler)
std::string describe_nvrtc();

/// What whoever uses this version should know, to be put behind its name; empty where there is nothing.
std::string_view nvrtc_caveat(int major, int minor);

/// Why a kernel's PTX breaks the contract; empty when it keeps to it: one kernel, made of known instructions, no memory
/// of its own that code refers to, no call, no look at a clock, nothing that outlives the launch. (NVRTC also emits
/// constexpr variables as global memory, but no instruction names those.)
std::string contract_violation_in_ptx(std::string_view ptx, const PtxRules& rules = {});

/// Numbers out of ptxas -v.
Resources parse_ptxas_report(const std::string& log);

}  // namespace heed::jit
