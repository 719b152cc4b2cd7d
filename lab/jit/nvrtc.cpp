// NVRTC through dlopen: https://docs.nvidia.com/cuda/nvrtc/
//
// The few functions used have kept their signatures since CUDA 11.1, so no header of the toolkit is needed.
#include <dlfcn.h>

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/files.hpp"
#include "base/text.hpp"
#include "heed/heed.hpp"
#include "jit/build.hpp"
#include "jit/confined_build.hpp"
#include "jit/embedded.hpp"
#include "jit/toolchain.hpp"
#include "process/process.hpp"

#ifndef HEED_NVRTC_FOLDERS
#define HEED_NVRTC_FOLDERS ""  // found when the build was configured, separated by colons
#endif

namespace heed::jit {
namespace fs = std::filesystem;
namespace {

using Program = void*;

struct Nvrtc {
  int (*version)(int*, int*) = nullptr;
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*compile)(Program, int, const char* const*) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*ptx_size)(Program, std::size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;
  int (*cubin_size)(Program, std::size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  int major = 0;
  int minor = 0;
  std::string path;
};

std::vector<std::string> candidate_libraries() {
  std::vector<std::string> names;
  std::vector<std::string> folders = split(HEED_NVRTC_FOLDERS, ':');
  folders.insert(folders.end(), {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"});
  for (const std::string& folder : folders)
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"})
      if (!folder.empty() && fs::exists(fs::path(folder) / name)) names.push_back((fs::path(folder) / name).string());
  names.insert(names.end(), {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});  // the dynamic linker's own search
  return names;
}

// NVRTC finds its builtins through the linker's search path only; loading them first by their full name makes that
// unnecessary.
void load_builtins(const fs::path& library) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(library.parent_path(), error))
    if (const std::string name = entry.path().filename().string(); name.rfind("libnvrtc-builtins.so", 0) == 0)
      ::dlopen(entry.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
}

template <typename Function>
void bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    throw Error(ErrorCode::no_compiler, fmt::format("libnvrtc lacks {}; Heed needs NVRTC 12.4 or newer", name));
}

const Nvrtc& nvrtc() {
  static const Nvrtc loaded = [] {
    for (const std::string& name : candidate_libraries()) {
      void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      Nvrtc api;
      bind(library, "nvrtcVersion", api.version);
      bind(library, "nvrtcCreateProgram", api.create);
      bind(library, "nvrtcCompileProgram", api.compile);
      bind(library, "nvrtcGetProgramLogSize", api.log_size);
      bind(library, "nvrtcGetProgramLog", api.log);
      bind(library, "nvrtcGetPTXSize", api.ptx_size);
      bind(library, "nvrtcGetPTX", api.ptx);
      bind(library, "nvrtcGetCUBINSize", api.cubin_size);
      bind(library, "nvrtcGetCUBIN", api.cubin);
      bind(library, "nvrtcGetErrorString", api.error_text);
      api.version(&api.major, &api.minor);
      Dl_info where{};
      api.path = ::dladdr(reinterpret_cast<void*>(api.version), &where) != 0 ? where.dli_fname : name;
      if (api.major * 100 + api.minor < 1204)
        throw Error(ErrorCode::no_compiler, fmt::format("NVRTC {}.{} ({}) is too old; Heed needs 12.4 or newer",
                                                        api.major, api.minor, api.path));
      load_builtins(api.path);
      return api;
    }
    throw Error(ErrorCode::no_compiler,
                "libnvrtc was not found; install the CUDA toolkit, or run scripts/setup, which takes NVRTC from PyPI "
                "(nvidia-cuda-nvrtc)");
  }();
  return loaded;
}

std::vector<std::string> options_for(const std::string& arch) {
  return {"--gpu-architecture=" + arch, "--std=c++20", "--relocatable-device-code=false", "--ptxas-options=-v"};
}

class NvrtcToolchain final : public Toolchain {
 public:
  NvrtcToolchain() : version_(fmt::format("NVRTC {}.{}", nvrtc().major, nvrtc().minor)) {}

  std::string identity(const BuildRequest& request) const override {
    return fmt::format("{} | {}", version_, fmt::join(options_for(request.arch), " "));
  }
  std::string extension() const override { return "cubin"; }

  Result compile(const BuildRequest& request, const fs::path& output, double limit_s) const override {
    const BuildFolder folder(output);
    nlohmann::json headers = nlohmann::json::object();
    for (const std::string& path : files_of(request)) headers[path] = device_file(path);
    const nlohmann::json order = {{"source", request.source},    {"headers", std::move(headers)},
                                  {"arch", request.arch},        {"output", folder.file()},
                                  {"entry", request.entry},      {"dependent", request.dependent},
                                  {"counters", request.counters}};
    const std::string self = self_executable();
    const std::string library = fs::canonical(nvrtc().path).parent_path().string();
    Confinement confinement =
        confinement_of_build(self, {library, fs::path(nvrtc().path).parent_path().string()}, folder.path(), limit_s);
    // From CUDA 12.9 on NVRTC keeps a cache of its own (NVRTC manual, "Caching"): a hit is no fresh build and has no
    // ptxas report. Heed's cache is the only one.
    confinement.environment.push_back("CUDA_CACHE_DISABLE=1");
    const ProcessResult run = run_process({self, "nvrtc"}, order.dump(), limit_s, confinement);
    if (run.timed_out) return {.ok = false, .timed_out = true, .log = "the build did not end in time", .breach = {}};
    const auto answer = nlohmann::json::parse(run.output, nullptr, /*allow_exceptions=*/false);
    if (!run.ok() || !answer.is_object()) {
      const std::string limit = limit_met(run);
      return {.ok = false,
              .timed_out = false,
              .log = fmt::format("the build process failed: {}", limit.empty() ? trim(run.output) : limit),
              .breach = {}};
    }
    const bool ok = answer.value("ok", false);
    if (ok) folder.keep(output);
    return {.ok = ok,
            .timed_out = false,
            .log = without_foreign_files(answer.value("log", std::string()), {}),
            .breach = answer.value("breach", std::string())};
  }

 private:
  std::string version_;
};

}  // namespace

std::unique_ptr<Toolchain> make_nvrtc_toolchain() {
  return std::make_unique<NvrtcToolchain>();
}

std::string describe_nvrtc() {
  return fmt::format("{}.{} ({}){}", nvrtc().major, nvrtc().minor, nvrtc().path,
                     nvrtc_caveat(nvrtc().major, nvrtc().minor));
}

std::string_view nvrtc_caveat(int major, int minor) {
  // b1h8l512d64 on an H200: 3.32 us by 12.8 to 13.5, 5.37 by 12.6, 5.51 by 12.4.
  return major * 100 + minor < 1208 ? "; from 12.8 on kernels for Hopper are up to 1.7 times as fast" : "";
}

int run_nvrtc_child() {
  nlohmann::json answer;
  try {
    const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
    const auto order = nlohmann::json::parse(text);
    const Nvrtc& api = nvrtc();
    std::vector<std::string> names;
    std::vector<std::string> contents;
    for (const auto& [path, content] : order.at("headers").items()) {
      names.push_back(path);
      contents.push_back(content.get<std::string>());
    }
    std::vector<const char*> name_pointers;
    std::vector<const char*> content_pointers;
    for (std::size_t i = 0; i < names.size(); ++i) {
      name_pointers.push_back(names[i].c_str());
      content_pointers.push_back(contents[i].c_str());
    }
    Program program = nullptr;
    const std::string source = order.at("source").get<std::string>();
    api.create(&program, source.c_str(), "variant.cu", static_cast<int>(names.size()), content_pointers.data(),
               name_pointers.data());
    const std::vector<std::string> options = options_for(order.at("arch").get<std::string>());
    std::vector<const char*> option_pointers;
    for (const std::string& option : options) option_pointers.push_back(option.c_str());
    const int error = api.compile(program, static_cast<int>(option_pointers.size()), option_pointers.data());
    std::size_t size = 0;
    api.log_size(program, &size);
    std::string log(size, '\0');
    api.log(program, log.data());
    while (!log.empty() && log.back() == '\0') log.pop_back();
    std::string breach;
    if (error == 0) {
      api.ptx_size(program, &size);
      std::string ptx(size, '\0');
      api.ptx(program, ptx.data());
      if (!ptx.empty() && ptx.back() == '\0') ptx.pop_back();  // NVRTC counts the end of the text
      const std::string entry = order.at("entry").get<std::string>();
      breach = contract_breach_of_ptx(ptx, {.dependent = order.at("dependent").get<bool>(),
                                            .counters = order.at("counters").get<bool>(),
                                            .entry = entry});
      api.cubin_size(program, &size);
      std::string cubin(size, '\0');
      api.cubin(program, cubin.data());
      write_file_atomically(order.at("output").get<std::string>(), cubin, ErrorCode::cache);
    } else {
      log = fmt::format("{}: {}", api.error_text(error), log);
    }
    answer = {{"ok", error == 0}, {"log", log}, {"breach", breach}};
  } catch (const std::exception& failure) {
    answer = {{"ok", false}, {"log", failure.what()}};
  }
  std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::flush;
  return 0;
}

namespace {

/// The number that stands between `before` and `after` in the first place of `log` where one stands so;
/// 0 where there is none, or where the number does not fit an int: a log is text that a candidate can write into.
/// A plain scan, since std::regex recurses once a character and a long line overflows the stack.
int number_between(std::string_view log, std::string_view before, std::string_view after) {
  for (std::size_t at = log.find(after); at != std::string_view::npos; at = log.find(after, at + 1)) {
    std::size_t first = at;
    while (first > 0 && log[first - 1] >= '0' && log[first - 1] <= '9') --first;
    if (first == at || !log.substr(0, first).ends_with(before)) continue;
    int value = 0;
    const auto read = std::from_chars(log.data() + first, log.data() + at, value);
    return read.ec == std::errc{} ? value : 0;
  }
  return 0;
}

}  // namespace

Resources parse_ptxas_report(const std::string& log) {
  Resources resources;
  resources.registers = number_between(log, "Used ", " registers");
  resources.stack_bytes = number_between(log, "", " bytes stack frame");
  resources.spill_store_bytes = number_between(log, "", " bytes spill stores");
  resources.spill_load_bytes = number_between(log, "", " bytes spill loads");
  resources.static_shared_bytes = number_between(log, "", " bytes smem");
  return resources;
}

}  // namespace heed::jit
