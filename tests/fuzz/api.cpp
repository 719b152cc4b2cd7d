// The C interface: any bytes as a problem, options and tensors. Every call ends with a status; a call that says no says
// why.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "device/device.hpp"
#include "dispatch/program_file.hpp"
#include "fuzz.hpp"
#include "heed/heed.h"
#include "variant/family.hpp"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s; the last error: %s\n", what, heed_last_error());
  std::abort();
}

// A file whose programs are found and cannot be loaded: choosing is what is tried, not other people's code.
std::string programs() {
  using namespace heed;
  const DeviceFacts device = cpu_facts();
  dispatch::ProgramFileWriter writer("0123");
  for (const char* shape :
       {"b1h2l64d64:fp16", "b1h2l64d64:fp32:causal_top_left", "b1h2l64d16:bf16:window=9",
        "b1h2l64d64:fp16:softcap=30:bias=fp32:alibi:sinks:key_lengths:page=16", "b1h2l64d64:fp16:dropout=0.5",
        "b1h2l64d64:fp16:relative=32/128", "b1h2l64d64:fp16:out_norm=1e-5:out_gate=element",
        "b1h2l64d64:fp16:quantised=qkv/e4m3/head"}) {
    const Workload w = parse_workload(shape);
    const Family& family = find_family("fwd_cpu");
    dispatch::ProgramRecord record;
    record.arch = device.arch;
    record.workload = shape;
    record.variant = describe(make_variant(family, family.default_config(w, device), w));
    record.origin = "rule";
    writer.add(record, "no shared object");
  }
  const std::string path = "/tmp/heed-fuzz-" + std::to_string(::getpid()) + ".programs";
  write_file_atomically(path, writer.bytes(), ErrorCode::store);
  return path;
}

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  // As many as there are; the rest stays as it was.
  void over(void* to, std::size_t bytes) {
    const std::size_t count = std::min(bytes, size_);
    std::memcpy(to, data_, count);
    data_ += count;
    size_ -= count;
  }
  std::uint8_t one() {
    std::uint8_t value = 0;
    over(&value, 1);
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// Sizes that a host of tests has memory for.
bool is_small(const heed_problem& p) {
  std::int64_t elements = 1;
  const std::int64_t ragged = (p.flags & HEED_RAGGED) != 0 ? p.total_q : 0;
  for (const std::int64_t size : {p.batch, p.heads, std::max({p.len_q, p.len_k, ragged}), std::max(p.dim, p.dim_v)}) {
    if (size < 0 || size > 4096 || elements > 65536) return false;
    elements *= std::max<std::int64_t>(size, 1);
  }
  return elements <= 65536;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string path = programs();
  Bytes bytes(data, size);
  const std::uint8_t choices = bytes.one();
  heed_problem problem;
  heed_problem_init(&problem);
  const heed_problem fresh = problem;
  bytes.over(&problem, sizeof problem);
  if ((choices & 1) != 0) {  // past the first checks
    problem.struct_size = fresh.struct_size;
    problem.abi_version = fresh.abi_version;
    problem.reserved_flags = 0;
    std::memset(problem.reserved, 0, sizeof problem.reserved);
    problem.device_type = problem.device = 0;
  }
  if ((choices & 2) != 0) {
    problem.q_strides = problem.k_strides = problem.v_strides = problem.o_strides = {};
    problem.block_count_strides = {};
    problem.block_index_strides = {0, 0, 0, 1};
    problem.out_gate_strides = {0, 0, 0, problem.out_gate_strides.dim & 1};  // one row for all
  }
  if ((choices & 4) != 0) {
    problem.flags &= HEED_WANTS_LSE;
    problem.out_gate_strides = {};
    problem.out_norm_eps = 0;
  }
  heed_options options;
  heed_options_init(&options);
  std::string variant;
  if ((choices & 8) != 0) {
    variant.resize(bytes.one());
    bytes.over(variant.data(), variant.size());
    options.variant = variant.c_str();
  }
  options.programs = path.c_str();
  options.threads = static_cast<std::int8_t>(bytes.one());
  options.build = static_cast<std::int8_t>(bytes.one());
  options.l2 = static_cast<std::int8_t>(bytes.one() % 4);
  options.precision = heed_precision_name(bytes.one() % 32);  // null for most numbers

  heed_plan* plan = nullptr;
  const heed_status status = heed_plan_create(&problem, &options, &plan);
  require((status == HEED_OK) == (plan != nullptr), "a plan without HEED_OK, or HEED_OK without a plan");
  require(status == HEED_OK || std::strlen(heed_last_error()) > 0, "a refusal without a sentence");
  require(status != HEED_INTERNAL, "an invariant does not hold");
  std::vector<char> text(300);
  require(heed_explain(&problem, &options, text.data(), text.size()) > 0, "no explanation");
  if (plan == nullptr) return 0;
  heed_plan_info info;
  heed_plan_info_init(&info);
  require(heed_plan_get_info(plan, &info) == HEED_OK, "a plan without facts");
  const bool dense = problem.q_strides.dim == 0 && problem.k_strides.dim == 0 && problem.v_strides.dim == 0 &&
                     problem.o_strides.dim == 0;
  if (dense && is_small(problem) && info.workspace_bytes < (1 << 20)) {
    std::vector<unsigned char> room(info.workspace_bytes + 256);
    void* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
    std::vector<float> memory(6 * 65536);
    heed_tensors t;
    heed_tensors_init(&t);
    bytes.over(&t.reserved_flags, sizeof t.reserved_flags);
    t.q = memory.data();
    t.k = memory.data() + 65536;
    t.v = memory.data() + 2 * 65536;
    t.o = memory.data() + (bytes.one() % 4) * 65536;
    t.lse = memory.data() + 4 * 65536;
    // Those of features, each if the problem has it, or if a byte says so.
    const float* const numbers = memory.data() + 5 * 65536;
    const std::uint32_t given = problem.flags ^ bytes.one();
    if ((given & HEED_HAS_BIAS) != 0) t.bias = numbers;
    if ((given & HEED_HAS_SINKS) != 0) t.sinks = numbers;
    if ((given & HEED_HAS_ALIBI) != 0) t.alibi_slopes = numbers;
    if ((given & HEED_HAS_RELATIVE_BIAS) != 0 &&
        problem.relative_buckets <= 65536 / std::max<std::int64_t>(problem.heads, 1))
      t.relative_bias = numbers;
    if ((given & HEED_HAS_OUT_GATE) != 0 && (choices & 2) != 0) t.out_gate = numbers;
    if ((given & HEED_HAS_OUT_NORM) != 0) t.out_norm_weight = numbers;
    const auto* const whole = reinterpret_cast<const std::int32_t*>(numbers);
    if ((given & HEED_RAGGED) != 0) t.cu_seqlens_q = whole;
    if ((given & HEED_RAGGED) != 0 && (given & HEED_PAGED) == 0) t.cu_seqlens_k = whole;
    if ((given & HEED_KEY_LENGTHS) != 0) t.seqused_k = whole;
    if ((given & HEED_PAGED) != 0) t.page_table = whole;
    if ((given & HEED_HAS_PREFIX) != 0) t.prefix_lengths = whole;
    // One list, shared by all, that lies in the memory.
    if ((given & HEED_HAS_BLOCKS) != 0 && (choices & 2) != 0 && problem.block_most <= 65536)
      t.block_counts = t.block_indices = whole;
    (void)heed_plan_prepare(plan, workspace, nullptr);
    (void)heed_plan_run(plan, &t, (choices & 16) != 0 ? workspace : nullptr, nullptr);
  }
  heed_plan_destroy(plan);
  require(heed_plan_get_info(plan, &info) == HEED_INVALID_ARGUMENT, "a destroyed plan answers");
  return 0;
}
