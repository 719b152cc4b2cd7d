// heed library host: what a run through libheed costs its caller
#include <fmt/format.h>

#include <chrono>

#include "api/problem.hpp"
#include "base/files.hpp"
#include "cli/library.hpp"
#include "json/fields.hpp"
#include "json/text.hpp"
#include "measure/statistics.hpp"
#include "process/interrupt.hpp"
#include "report/table.hpp"
#ifdef HEED_WITH_CUDA
#include "device/cuda_driver.hpp"
#include "launch/gpu_program.hpp"
#include "launch/tensor_map.hpp"
#include "worker/cuda_memory.hpp"
#endif

namespace heed::cli {
namespace {

struct LibraryHostOptions {
  MachineOptions machine;
  std::vector<std::string> shapes;
  std::string evidence;
  std::string show;
  int readings = 200;
};

#ifdef HEED_WITH_CUDA

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

constexpr int kCalls = 20;  // of a reading: few enough that the driver's queue never fills

/// Median host time of a call, in us: readings of kCalls calls each, the stream empty before every reading.
template <typename Call>
double host_us(const CudaDriver& cuda, CUstream stream, int readings, const Call& call) {
  std::vector<double> each;
  for (int i = 0; i < readings + 5; ++i) {
    worker::check_cuda(cuda.stream_synchronize(stream), "waiting for the stream");
    const auto begin = Clock::now();
    for (int n = 0; n < kCalls; ++n) call();
    if (i >= 5) each.push_back(us_since(begin) / kCalls);
  }
  worker::check_cuda(cuda.stream_synchronize(stream), "waiting for the stream");
  return measure::median(each);
}

nlohmann::json host_times(const std::string& shape, const LibraryHostOptions& o, jit::Builder& builder,
                          const DeviceFacts& device) {
  const Workload w = parse_workload(shape);
  if (w.has_features())
    throw Error(ErrorCode::unsupported,
                fmt::format("{} has features, whose tensors this command does not make; name a shape without", shape),
                shape);
  const Variant variant = admitted(std::string(kAutomatic), w, device);
  const jit::BuildOutcome outcome = builder.build(jit::request_for(variant, w, device));
  if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log, variant.id());
  const std::string cubin = read_file(outcome.artifact->path, ErrorCode::cache);
  const std::string text = describe(variant);
  const heed_problem p = api::problem_of(w, DeviceKind::cuda);
  heed_options options;
  heed_options_init(&options);
  options.variant = text.c_str();
  options.image = cubin.data();
  options.image_bytes = cubin.size();
  heed_plan* plan = nullptr;
  const auto begin = Clock::now();
  if (heed_plan_create(&p, &options, &plan) != HEED_OK) throw Error(ErrorCode::internal, heed_last_error(), shape);
  const double create_us = us_since(begin);

  const CudaDriver& cuda = cuda_driver();
  CUdevice ordinal = 0;
  CUcontext context = nullptr;
  worker::check_cuda(cuda.device_get(&ordinal, 0), "opening the GPU");
  worker::check_cuda(cuda.device_primary_ctx_retain(&context, ordinal), "taking the GPU's context");
  worker::check_cuda(cuda.ctx_set_current(context), "choosing the context");
  CUstream stream = nullptr;
  worker::check_cuda(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), "creating a stream");
  const std::uint64_t bytes =
      4 * static_cast<std::uint64_t>(w.batch * w.heads * std::max(w.len_q, w.len_k) * w.dim) * size_of(w.dtype);
  worker::DeviceBuffer memory;
  const CUdeviceptr base = memory.at_least(bytes);
  worker::check_cuda(cuda.memset_d8_async(base, 0, bytes, stream), "clearing the tensors");
  heed_plan_info info;
  heed_plan_info_init(&info);
  (void)heed_plan_get_info(plan, &info);
  worker::DeviceBuffer room;
  void* const workspace =
      info.workspace_bytes == 0 ? nullptr : reinterpret_cast<void*>(room.at_least(info.workspace_bytes));
  if (heed_plan_prepare(plan, workspace, stream) != HEED_OK) throw Error(ErrorCode::internal, heed_last_error(), shape);
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = reinterpret_cast<void*>(base);
  t.k = reinterpret_cast<void*>(base + bytes / 4);
  t.v = reinterpret_cast<void*>(base + bytes / 2);
  t.o = reinterpret_cast<void*>(base + bytes / 4 * 3);

  // The driver's own launch: the same kernel, its parameters and maps ready.
  const LaunchPlan launch = variant.plan(w, device);
  GpuProgram program;
  const char* step = "";
  const CUresult loaded = program.load(cubin.data(), launch, step);
  worker::check_cuda(loaded, step);
  FeatureParams params{};
  const long long d = w.dim;
  params.q_strides = params.o_strides = {w.heads * w.len_q * d, w.len_q * d, d};
  params.k_strides = params.v_strides = {w.heads_kv * w.len_k * d, w.len_k * d, d};
  static_cast<ForwardParams&>(params) = with_sizes(params, whole_sizes_of(w));
  params.q = t.q;
  params.k = t.k;
  params.v = t.v;
  params.o = t.o;
  params.semaphores = static_cast<unsigned*>(workspace);
  params.workspace = workspace;
  params.scale = static_cast<float>(w.softmax_scale());
  const TensorMaps maps = launch.tensor_maps ? encode_tensor_maps(params, *launch.tensor_maps) : TensorMaps{};
  const auto raw = [&] {
    worker::check_cuda(program.launch(launch.grid, params, maps, stream, false), "launching the kernel");
  };
  const auto run = [&] {
    if (heed_plan_run(plan, &t, workspace, stream) != HEED_OK)
      throw Error(ErrorCode::internal, heed_last_error(), shape);
  };
  // In turn, so that a clock that changes changes both.
  std::vector<double> of_driver;
  std::vector<double> of_library;
  for (int turn = 0; turn < 5; ++turn) {
    of_driver.push_back(host_us(cuda, stream, o.readings / 5, raw));
    of_library.push_back(host_us(cuda, stream, o.readings / 5, run));
  }
  heed_plan_destroy(plan);
  return {{"workload", to_string(w)},
          {"variant", text},
          {"plan_create_us", create_us},
          {"driver_launch_us", measure::median(of_driver)},
          {"plan_run_us", measure::median(of_library)},
          {"beyond_driver_us", measure::median(of_library) - measure::median(of_driver)}};
}

// Of what is quoted, a call may cost so much beside the driver's own launch.
constexpr double kMostBeyond_us = 2;

#endif

std::string host_text(const nlohmann::json& rows) {
  report::Table table({"workload", "driver's launch, us", "heed_plan_run, us", "beyond, us"});
  for (const nlohmann::json& row : rows)
    table.add({row.at("workload").get<std::string>(), fmt::format("{:.2f}", row.at("driver_launch_us").get<double>()),
               fmt::format("{:.2f}", row.at("plan_run_us").get<double>()),
               fmt::format("{:.2f}", row.at("beyond_driver_us").get<double>())});
  return table.str();
}

// The table of what was measured before, as today's program draws it; into a file where one is named.
int show(const LibraryHostOptions& o) {
  nlohmann::json evidence = parse_json(read_file(o.show, ErrorCode::usage));
  const std::string table = [&] {
    try {
      if (fields::text_of(evidence, "what") == "library") return host_text(evidence.at("rows"));
    } catch (const nlohmann::json::exception&) {
    }
    throw Error(ErrorCode::usage, fmt::format("{} is not what heed library host --evidence writes", o.show), o.show);
  }();
  evidence["table"] = table;
  if (!o.evidence.empty()) write_file_atomically(o.evidence, json_text(evidence, 1) + "\n", ErrorCode::store);
  print(table);
  return 0;
}

int host(const LibraryHostOptions& o) {
  if (!o.show.empty()) return show(o);
  if (o.shapes.empty()) throw Error(ErrorCode::usage, "no workloads: give --shapes, or --show a file of times");
#ifdef HEED_WITH_CUDA
  const DeviceFacts device = choose_device(DeviceChoice::cuda, "these are times of a driver's launches");
  const auto builder = o.machine.builder();
  GrowingEvidence evidence(o.evidence, "library", device);
  for (const std::string& shape : o.shapes) {
    check_interrupt();
    evidence.add(host_times(shape, o, *builder, device));
    remark(o.machine.json, fmt::format("{}/{} {}", evidence.rows().size(), o.shapes.size(), shape));
  }
  const std::string table = host_text(evidence.rows());
  evidence.finish(table);
  print(o.machine.json ? json_text(evidence.document(), 1) + "\n" : "\n" + table);
  for (const nlohmann::json& row : evidence.rows())
    if (row.at("beyond_driver_us").get<double>() > kMostBeyond_us) return 1;
  return 0;
#else
  (void)o;
  throw Error(ErrorCode::no_device, "this build has no CUDA support", "cuda");
#endif
}

}  // namespace

void add_library_host(CLI::App& library, int& exit_code) {
  auto o = std::make_shared<LibraryHostOptions>();
  CLI::App* command =
      library.add_subcommand("host", "Host time of heed_plan_run beside the driver's own launch, on a GPU");
  o->machine.add_to(*command);
  command->add_option("--shapes", o->shapes, "Workloads")->delimiter(',');
  command->add_option("--readings", o->readings, "Readings of each, of 20 calls")
      ->capture_default_str()
      ->check(above_zero());
  command->add_option("--evidence", o->evidence, "Write the readings to this JSON file");
  command->add_option("--show", o->show, "Measure nothing: print the table of this file, and write it with --evidence");
  command->footer(
      "Exit code 1 where a call takes more than 2 us beyond the driver's launch.\n"
      "Example:\n  heed library host --shapes b1h8l512d64,b1h32hkv8l1k4096d128:bf16");
  command->callback([o, &exit_code] { exit_code = host(*o); });
}

}  // namespace heed::cli
