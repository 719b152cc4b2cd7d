// Builds by NVRTC, each in a child process.
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
#include "compile/embedded.hpp"
#include "compile/nvrtc.hpp"
#include "heed/heed.hpp"
#include "jit/build.hpp"
#include "jit/confined_build.hpp"
#include "jit/toolchain.hpp"
#include "json/text.hpp"
#include "process/process.hpp"

namespace heed::jit {
namespace fs = std::filesystem;
namespace {

class NvrtcToolchain final : public Toolchain {
 public:
  NvrtcToolchain() : version_(fmt::format("NVRTC {}.{}", compile::nvrtc_facts().major, compile::nvrtc_facts().minor)) {}

  std::string identity(const BuildRequest& request) const override {
    return fmt::format("{} | {}", version_, fmt::join(compile::nvrtc_options(request.arch), " "));
  }
  std::string extension() const override { return "cubin"; }

  Result compile(const BuildRequest& request, const fs::path& output, double limit_s) const override {
    const BuildFolder folder(output);
    nlohmann::json headers = nlohmann::json::object();
    for (const std::string& path : files_of(request)) headers[path] = compile::device_file(path, request.overlay.get());
    const nlohmann::json order = {
        {"source", request.source},        {"headers", std::move(headers)}, {"arch", request.arch},
        {"output", folder.file()},         {"entry", request.entry},        {"supports_pdl", request.supports_pdl},
        {"semaphores", request.semaphores}};
    const std::string self = self_executable();
    const std::string library = fs::canonical(compile::nvrtc_facts().path).parent_path().string();
    Confinement confinement = confinement_of_build(
        self, {library, fs::path(compile::nvrtc_facts().path).parent_path().string()}, folder.path(), limit_s);
    // From CUDA 12.9 on NVRTC keeps a cache of its own (NVRTC manual, "Caching"): a hit is no fresh build and has no
    // ptxas report. Heed's cache is the only one.
    confinement.environment.push_back("CUDA_CACHE_DISABLE=1");
    const ProcessResult run = run_process({self, "nvrtc"}, order.dump(), limit_s, confinement);
    if (run.timed_out)
      return {.ok = false,
              .timed_out = true,
              .log = "the build did not end in time",
              .violation = {},
              .processor_s = run.processor_s,
              .killed = false};
    const auto answer = parse_json(run.output);
    if (!run.ok() || !answer.is_object()) {
      const std::string limit = limit_met(run);
      return {.ok = false,
              .timed_out = false,
              .log = fmt::format("the build process failed: {}", limit.empty() ? trim(run.output) : limit),
              .violation = {},
              .processor_s = run.processor_s,
              .killed = was_killed_from_outside(run)};
    }
    const bool ok = answer.value("ok", false);
    if (ok) folder.keep(output);
    return {.ok = ok,
            .timed_out = false,
            .log = without_foreign_files(answer.value("log", std::string()), {}),
            .violation = answer.value("violation", std::string()),
            .processor_s = run.processor_s,
            .killed = false};
  }

 private:
  std::string version_;
};

}  // namespace

std::unique_ptr<Toolchain> make_nvrtc_toolchain() {
  return std::make_unique<NvrtcToolchain>();
}

std::string describe_nvrtc() {
  return fmt::format("{}.{} ({}){}", compile::nvrtc_facts().major, compile::nvrtc_facts().minor,
                     compile::nvrtc_facts().path,
                     nvrtc_caveat(compile::nvrtc_facts().major, compile::nvrtc_facts().minor));
}

std::string_view nvrtc_caveat(int major, int minor) {
  // b1h8l512d64 on an H200: 3.32 us by 12.8 to 13.5, 5.37 by 12.6, 5.51 by 12.4.
  return major * 100 + minor < 1208 ? "; from 12.8 on kernels for Hopper are up to 1.7 times as fast" : "";
}

int run_nvrtc_child() {
  nlohmann::json answer;
  try {
    const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
    const auto order = parse_json(text);
    compile::GpuSource source{
        .source = order.at("source").get<std::string>(), .headers = {}, .arch = order.at("arch").get<std::string>()};
    for (const auto& [path, content] : order.at("headers").items())
      source.headers.emplace_back(path, content.get<std::string>());
    const compile::GpuBinary binary = compile::compile_gpu(source);
    std::string violation;
    if (binary.ok) {
      const std::string entry = order.at("entry").get<std::string>();
      violation = contract_violation_in_ptx(binary.ptx, {.supports_pdl = order.at("supports_pdl").get<bool>(),
                                                         .semaphores = order.at("semaphores").get<bool>(),
                                                         .entry = entry});
      write_file_atomically(order.at("output").get<std::string>(), binary.image, ErrorCode::cache);
    }
    answer = {{"ok", binary.ok}, {"log", binary.log}, {"violation", violation}};
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
