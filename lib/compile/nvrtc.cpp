#include "compile/nvrtc.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/text.hpp"
#include "heed/heed.hpp"

#ifndef HEED_NVRTC_FOLDERS
#define HEED_NVRTC_FOLDERS ""  // found when the build was configured, separated by colons
#endif

namespace heed::compile {
namespace fs = std::filesystem;
namespace {

using Program = void*;

struct Nvrtc {
  int (*version)(int*, int*) = nullptr;
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int, const char* const*) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*ptx_size)(Program, std::size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;
  int (*cubin_size)(Program, std::size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  NvrtcFacts facts;
};

std::vector<std::string> candidate_libraries() {
  const char* const named = std::getenv("HEED_NVRTC");
  if (named != nullptr && named[0] != '\0') return {named};
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
      bind(library, "nvrtcDestroyProgram", api.destroy);
      bind(library, "nvrtcCompileProgram", api.compile);
      bind(library, "nvrtcGetProgramLogSize", api.log_size);
      bind(library, "nvrtcGetProgramLog", api.log);
      bind(library, "nvrtcGetPTXSize", api.ptx_size);
      bind(library, "nvrtcGetPTX", api.ptx);
      bind(library, "nvrtcGetCUBINSize", api.cubin_size);
      bind(library, "nvrtcGetCUBIN", api.cubin);
      bind(library, "nvrtcGetErrorString", api.error_text);
      api.version(&api.facts.major, &api.facts.minor);
      Dl_info where{};
      api.facts.path = ::dladdr(reinterpret_cast<void*>(api.version), &where) != 0 ? where.dli_fname : name;
      if (api.facts.major * 100 + api.facts.minor < 1204)
        throw Error(ErrorCode::no_compiler, fmt::format("NVRTC {}.{} ({}) is too old; Heed needs 12.4 or newer",
                                                        api.facts.major, api.facts.minor, api.facts.path));
      load_builtins(api.facts.path);
      return api;
    }
    throw Error(ErrorCode::no_compiler,
                "libnvrtc was not found; install the CUDA toolkit, or run scripts/setup, which takes NVRTC from PyPI "
                "(nvidia-cuda-nvrtc); HEED_NVRTC names another file");
  }();
  return loaded;
}

std::string text_of(Program program, int (*size_of)(Program, std::size_t*), int (*get)(Program, char*)) {
  std::size_t size = 0;
  size_of(program, &size);
  std::string text(size, '\0');
  get(program, text.data());
  return text;
}

// NVRTC counts the end of a text.
std::string without_end(std::string text) {
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

}  // namespace

const NvrtcFacts& nvrtc_facts() {
  return nvrtc().facts;
}

bool is_virtual_arch(std::string_view arch) {
  return arch.starts_with("compute_");
}

std::vector<std::string> nvrtc_options(std::string_view arch) {
  std::vector<std::string> options = {fmt::format("--gpu-architecture={}", arch), "--std=c++20",
                                      "--relocatable-device-code=false"};
  if (!is_virtual_arch(arch)) options.emplace_back("--ptxas-options=-v");
  return options;
}

GpuBinary compile_gpu(const GpuSource& source) {
  const Nvrtc& api = nvrtc();
  std::vector<const char*> names;
  std::vector<const char*> contents;
  for (const auto& [path, text] : source.headers) {
    names.push_back(path.c_str());
    contents.push_back(text.c_str());
  }
  Program program = nullptr;
  if (const int error = api.create(&program, source.source.c_str(), "variant.cu", static_cast<int>(names.size()),
                                   contents.data(), names.data());
      error != 0)
    return {.ok = false, .log = api.error_text(error), .ptx = {}, .image = {}};
  std::vector<std::string> options = nvrtc_options(source.arch);
  // NVRTC's own cache: a hit is no fresh build and has no report of ptxas (NVRTC manual, "Caching").
  if (api.facts.major * 100 + api.facts.minor >= 1209) options.emplace_back("--no-cache");
  std::vector<const char*> option_pointers;
  for (const std::string& option : options) option_pointers.push_back(option.c_str());
  const int error = api.compile(program, static_cast<int>(option_pointers.size()), option_pointers.data());
  GpuBinary binary;
  binary.log = without_end(text_of(program, api.log_size, api.log));
  binary.ok = error == 0;
  if (binary.ok) {
    binary.ptx = without_end(text_of(program, api.ptx_size, api.ptx));
    binary.image = is_virtual_arch(source.arch) ? binary.ptx : text_of(program, api.cubin_size, api.cubin);
  } else {
    binary.log = fmt::format("{}: {}", api.error_text(error), binary.log);
  }
  api.destroy(&program);
  return binary;
}

}  // namespace heed::compile
