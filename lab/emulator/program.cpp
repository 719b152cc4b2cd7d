#include "emulator/program.hpp"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <set>
#include <span>

#include "base/digest.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "compile/embedded.hpp"
#include "emulator/device/emulated_map.hpp"
#include "emulator/device/request.hpp"
#include "jit/toolchain.hpp"
#include "launch/tensor_map.hpp"
#include "process/interrupt.hpp"
#include "process/process.hpp"
#include "source/tokens.hpp"

namespace heed::emulator {

std::span<const compile::EmbeddedFile> device_sources();

namespace {

namespace fs = std::filesystem;

// A cluster of 8 blocks of 384 threads, each with a stack of 512 KiB of addresses (device/fiber.cpp), takes 1.5 GiB.
constexpr std::int64_t kMemory = std::int64_t{4} << 30;

// The runtime: one unit, whose parts know each other's names.
constexpr const char* kRuntime =
    "#include \"emulator/device/simt.cpp\"\n#include \"emulator/device/elements.cpp\"\n"
    "#include \"emulator/device/products.cpp\"\n"
    "#include \"emulator/device/fiber.cpp\"\n"
    "#include \"emulator/device/program.cpp\"\n";

// Kernels unrolled for a GPU gain nothing from more optimisation and take minutes to get it; unoptimised they take
// three times as long to run.
const std::vector<std::string> kOptions = {"-std=c++20", "-O1", "-w", "-fno-strict-aliasing"};

// Below which folder of the tree a source lies, as its #include does not say.
std::string included_as(std::string_view path) {
  for (const std::string_view root : {"lab/", "lib/", "include/"})
    if (path.starts_with(root)) return std::string(path.substr(root.size()));
  return std::string(path);
}

constexpr std::string_view kStandIns = "lab/emulator/device/kernels/";

// The sources of kernels/ in whose place the emulator has its own.
const std::set<std::string>& stand_ins() {
  static const std::set<std::string> paths = [] {
    std::set<std::string> all;
    for (const compile::EmbeddedFile& file : device_sources())
      if (file.path.starts_with(kStandIns)) all.insert("kernels/" + std::string(file.path.substr(kStandIns.size())));
    return all;
  }();
  return paths;
}

std::string host_compiler(const jit::Builder& builder) {
  return jit::find_host_compiler(builder.options().host_compiler);
}

// The emulator's sources as files below the cache, written where they are missing.
fs::path write_sources(const fs::path& cache) {
  const fs::path root = cache / fmt::format("emulator-{}", emulator_digest());
  for (const compile::EmbeddedFile& file : device_sources()) {
    const fs::path path = root / included_as(file.path);
    std::error_code error;
    if (fs::exists(path, error) && read_file(path, ErrorCode::cache) == file.content) continue;
    make_folder(path.parent_path(), ErrorCode::cache);
    write_file_atomically(path, file.content, ErrorCode::cache);
  }
  return root;
}

struct Compilation {
  std::string compiler;
  std::vector<std::string> folders;  ///< of #includes, in order
  double limit_s = 0;
};

// Compiles a unit, with objects beside it, to the build folder's file. @throws Error(build_failed)
void compile_unit(const Compilation& c, const std::string& unit, const std::vector<std::string>& more,
                  const jit::BuildFolder& folder) {
  std::vector<std::string> argv = {c.compiler};
  argv.insert(argv.end(), kOptions.begin(), kOptions.end());
  for (const std::string& path : c.folders) argv.insert(argv.end(), {"-I", path});
  argv.insert(argv.end(), more.begin(), more.end());
  argv.insert(argv.end(), {"-o", folder.file(), "-x", "c++", "-"});
  const ProcessResult run =
      run_process(argv, unit, c.limit_s, jit::confinement_of_build(c.compiler, c.folders, folder.path(), c.limit_s));
  check_interrupt();
  if (run.ok()) return;
  std::string why = jit::limit_met(run);
  if (run.timed_out) why = fmt::format("the compiler did not end within {}", human_duration(c.limit_s));
  const std::string log = folder.unnamed_in(run.output);
  for (const std::string& line : split(log, '\n'))
    if (why.empty() && line.find("error") != std::string::npos) why = trim(line);
  if (why.empty()) why = trim(split(log, '\n').front());
  throw Error(ErrorCode::build_failed, why);
}

// The compiled runtime, made where it is missing.
fs::path runtime_object(Compilation c, const fs::path& root) {
  const ProcessResult version = run_process({c.compiler, "--version"}, {}, 20);
  Digester digester;
  digester.add(c.compiler).add(version.output);
  for (const std::string& option : kOptions) digester.add(option);
  fs::path object = root / fmt::format("runtime-{}.o", digester.hex().substr(0, 16));
  std::error_code error;
  if (fs::exists(object, error)) return object;
  const jit::BuildFolder folder(object);
  c.folders.push_back(folder.path());
  // What every emulated thread passes through is worth its time; of two options for optimisation the last counts.
  compile_unit(c, kRuntime, {"-O3", "-c"}, folder);
  folder.keep(object);
  return object;
}

Confinement confinement_of_run(const std::string& folder, double limit_s) {
  Confinement confinement;
  confinement.readable = {"/usr", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/nix/store", folder};
  confinement.environment = {"LANG=C"};
  if (const char* libraries = std::getenv("LD_LIBRARY_PATH"); libraries != nullptr) {
    confinement.environment.push_back(fmt::format("LD_LIBRARY_PATH={}", libraries));
    for (const std::string& place : split(libraries, ':'))
      if (place.starts_with('/') && place.size() > 1) confinement.readable.push_back(place);
  }
  confinement.memory_bytes = kMemory;
  confinement.file_bytes = 1;
  confinement.processor_s = static_cast<std::int64_t>(limit_s) + 1;
  return confinement;
}

TensorMap emulated_map(const FeatureParams& params, const TensorMapSpec& spec, MappedTensor tensor, int rows) {
  TensorMap map{};
  if (rows == 0) return map;
  const TensorMapShape shape = tensor_map_shape(params, spec, tensor);
  EmulatedMap m{};
  m.element_bytes = facts_of(shape.element).bytes;
  m.base = static_cast<const std::byte*>(shape.address);
  m.strides[0] = 1;
  for (std::size_t i = 0; i < 4; ++i) {
    m.sizes[i] = static_cast<long long>(shape.extents[i]);
    if (i > 0) m.strides[i] = static_cast<long long>(shape.strides_bytes[i - 1]) / m.element_bytes;
  }
  m.box_columns = static_cast<int>(shape.box[0]);
  m.box_rows = static_cast<int>(shape.box[1]);
  static_assert(sizeof m <= sizeof map.opaque);
  std::memcpy(map.opaque, &m, sizeof m);
  return map;
}

Request request_of(const verify::Scene& scene, const LaunchPlan& plan, const Schedule& schedule) {
  Request request{};
  request.magic = kRequest;
  request.image_bytes = scene.image().size();
  request.shared_bytes = static_cast<std::uint64_t>(plan.shared_bytes);
  request.seed = schedule.seed;
  for (std::size_t i = 0; i < 3; ++i) request.grid[i] = plan.grid[i];
  request.threads = plan.threads;
  request.cluster = plan.cluster;
  request.resident = schedule.resident;
  request.early = schedule.early ? 1 : 0;
  const auto add_readable = [&](const verify::Place& place) {
    if (place.bytes > 0) request.readable[request.readable_parts++] = {place.offset, place.bytes};
  };
  for (const verify::Place* place : {&scene.q(), &scene.k(), &scene.v(), &scene.workspace()}) add_readable(*place);
  for (int i = 0; i < verify::Scene::feature_inputs; ++i)
    add_readable(scene.feature(static_cast<verify::Scene::FeatureInput>(i)));
  static_assert(4 + verify::Scene::feature_inputs <= kMostReadable);
  request.params = worker::resolve(scene.launch(), kImageAddress);
  if (plan.tensor_maps) {
    const TensorMapSpec& spec = *plan.tensor_maps;
    request.maps.q = emulated_map(request.params, spec, MappedTensor::q, spec.q_rows);
    request.maps.k = emulated_map(request.params, spec, MappedTensor::k, spec.k_rows);
    request.maps.v = emulated_map(request.params, spec, MappedTensor::v, spec.v_rows);
    request.maps.o = emulated_map(request.params, spec, MappedTensor::o, spec.o_rows);
  }
  return request;
}

// What stands in a source that the emulator cannot run; empty where nothing does.
std::string unfit(std::string_view path, std::string_view text) {
  const source::Tokens read = source::tokens_of(text);
  for (const source::Token& token : read.tokens) {
    if (token.kind != source::Kind::word) continue;
    if (token.is("asm") || token.is("__asm") || token.is("__asm__"))
      return fmt::format("line {} of {} holds PTX, which the emulator does not run", token.line, path);
    if (token.is("__shared__") && path != Overlay::kEntry)
      return fmt::format("line {} of {} has static shared memory, which the emulator does not have", token.line, path);
  }
  return {};
}

}  // namespace

const std::string& emulator_digest() {
  static const std::string value = [] {
    Digester digester;
    for (const compile::EmbeddedFile& file : device_sources()) digester.add(file.path).add(file.content);
    return digester.hex().substr(0, 16);
  }();
  return value;
}

std::optional<std::string> refusal_of(const Variant& variant) {
  if (variant.family->device() != DeviceKind::cuda)
    return fmt::format("{} runs on a processor itself; the emulator is for kernels of GPUs", variant.family->name());
  const Overlay* const overlay = variant.overlay.get();
  for (const std::string& path : compile::included_by(variant.unit(), overlay)) {
    if (stand_ins().contains(path)) {
      if (overlay != nullptr && overlay->find(path) != nullptr)
        return fmt::format("it edits {}, in whose place the emulator has a source of its own", path);
      continue;
    }
    if (std::string why = unfit(path, compile::device_file(path, overlay)); !why.empty()) return why;
  }
  const std::string* const entry = overlay == nullptr ? nullptr : overlay->find(Overlay::kEntry);
  if (entry != nullptr)
    if (std::string why = unfit(Overlay::kEntry, *entry); !why.empty()) return why;
  if (!variant.source.empty()) return "it brings a unit of its own, which the emulator does not read";
  return std::nullopt;
}

std::string unit_of(const Variant& variant) {
  // Dynamic shared memory is one array a block: here a pointer to it.
  static const std::regex declared(
      R"(extern\s+__shared__\s+(?:__align__\(\s*\d+\s*\)\s+)?((?:unsigned\s+)?\w+)\s+(\w+)\s*\[\s*\]\s*;)");
  const std::string unit = std::regex_replace(
      variant.unit(), declared, "$1* const $2 = reinterpret_cast<$1*>(::heed::emulator::shared_memory());");
  if (unit.find("__shared__") != std::string::npos)
    throw Error(ErrorCode::unsupported,
                "the emulator finds no declaration of shared memory in the entry; write it as extern __shared__ "
                "__align__(1024) char shared[];");
  return fmt::format(
      "#include \"emulator/device/device.hpp\"\n#include \"emulator/device/program.hpp\"\n{}\n"
      "int main() {{\n  return heed::emulator::serve([](const heed::emulator::Request& request) {{\n"
      "    heed::emulator::call(heed_forward, request);\n  }});\n}}\n",
      unit);
}

Program::Program(const Variant& variant, jit::Builder& builder, double limit_s)
    : folder_(builder.cache().folder() / "emulated") {
  const auto start = std::chrono::steady_clock::now();
  builder.cache().expect_loadable();
  const std::string unit = unit_of(variant);
  Compilation c{.compiler = host_compiler(builder), .folders = {}, .limit_s = limit_s};
  const fs::path root = write_sources(builder.cache().folder());
  const std::string kernels = builder.cache().include_root().string();
  // The stand-ins of kernels/ptx come before kernels/.
  c.folders = {(root / "emulator/device").string(), root.string(), kernels};
  const std::string runtime = runtime_object(c, root).string();
  if (variant.overlay) {
    for (const std::string& path : compile::included_by(variant.unit(), variant.overlay.get()))
      if (const std::string* edited = variant.overlay->find(path)) {
        const fs::path file = fs::path(folder_.path()) / path;
        make_folder(file.parent_path(), ErrorCode::cache);
        write_file_atomically(file, *edited, ErrorCode::cache);
      }
    c.folders.insert(c.folders.begin() + 2, folder_.path());
  }
  compile_unit(c, unit, {runtime}, folder_);
  build_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Launched Program::launch(const verify::Scene& scene, const LaunchPlan& plan, const Schedule& schedule,
                         double limit_s) const {
  using End = Launched::End;
  const Request request = request_of(scene, plan, schedule);
  std::string input(reinterpret_cast<const char*>(&request), sizeof request);
  input.append(reinterpret_cast<const char*>(scene.image().data()), scene.image().size());
  if (scene.image().size() > kMostApart)
    return {End::failed, {}, "the scene takes more memory than an emulated program has"};
  const ProcessResult run =
      run_process({folder_.file()}, input, limit_s, confinement_of_run(folder_.path(), limit_s), Errors::apart);
  check_interrupt();
  if (!run.started) return {End::failed, {}, run.output};
  if (run.timed_out || run.signal == SIGXCPU)
    return {End::timed_out, {}, fmt::format("the emulated launch did not end within {}", human_duration(limit_s))};
  if (run.signal == SIGSYS) return {End::crashed, {}, "the emulated kernel calls the operating system"};
  if (run.signal == SIGKILL) return {End::failed, {}, "something outside killed the emulated program"};
  if (run.signal != 0)
    return {End::crashed,
            {},
            fmt::format("the emulated kernel ended with signal {} ({})", run.signal, strsignal(run.signal))};
  const std::string said = trim(run.errors);
  if (run.exit_code == kObjection) return {End::objection, {}, said};
  if (run.exit_code != kDone || run.output.size() != scene.image().size())
    return {End::failed,
            {},
            said.empty() ? fmt::format("the emulated program ended with exit code {}", run.exit_code) : said};
  const auto* const bytes = reinterpret_cast<const std::byte*>(run.output.data());
  return {End::done, {bytes, bytes + run.output.size()}, {}};
}

}  // namespace heed::emulator
