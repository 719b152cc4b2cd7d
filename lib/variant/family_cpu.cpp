#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.hpp"
#include "cpu/config.hpp"
#include "cpu/decode_plan.hpp"
#include "variant/family.hpp"
#include "variant/registry.hpp"
#include "variant/rule_table.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

const KnobTable<cpu::Config>& table() {
  static const KnobTable<cpu::Config> knobs = [] {
    using enum Bound;
    KnobTable<cpu::Config> t;
    t.add("unit", &cpu::Config::unit,
          "what computes the products: fp32 multiply-adds, or tiles of bf16 (AMX; fp16 and fp32 as sums of bf16)")
        .acts_on({fma, issue});
    t.add("block_m", &cpu::Config::block_m, {16, 32, 48, 64, 96, 128, 192, 256, 512},
          "query rows a block of work holds; K and V are read once a block")
        .acts_on({tail, l2, dram})
        .shares_work();
    t.add("block_n", &cpu::Config::block_n, {16, 32, 64, 96, 128, 192, 256, 512}, "keys a tile").acts_on({l2, latency});
    t.add("tile_rows", &cpu::Config::tile_rows, {2, 3, 4, 5, 6, 8, 10, 12}, "register tile: keys or value columns")
        .acts_on({fma, issue, latency});
    t.add("tile_vectors", &cpu::Config::tile_vectors, {1, 2, 3, 4}, "register tile: vectors of queries")
        .acts_on({fma, issue, latency});
    t.add("unroll", &cpu::Config::unroll, {1, 2, 4}, "steps of the innermost loop written out")
        .acts_on({issue, latency});
    t.add("exp2", &cpu::Config::exp2, "polynomial of 2^x").acts_on({exponentials});
    t.add("rescale", &cpu::Config::rescale, "when partial sums are rescaled").acts_on({fma, issue});
    t.add("loop_order", &cpu::Config::loop_order, "order in which blocks are handed to threads").acts_on({l2, dram});
    t.add("pack_gqa", &cpu::Config::pack_gqa,
          "whether a block holds rows of all query heads that read one key head (matrix unit)")
        .acts_on({dram, l2})
        .shares_work();
    t.add("lanes", &cpu::Config::lanes,
          "what lies in the lanes of the vector unit: queries, or for few of them columns of the head dim")
        .acts_on({fma, issue, dram})
        .shares_work();
    t.add("split_keys", &cpu::Config::split_keys, {0, 256, 512, 1024, 2048, 4096},
          "keys of a part at least, where lanes=columns divides the keys of a head over threads; 0: never")
        .acts_on({tail})
        .shares_work();
    t.add("prefetch", &cpu::Config::prefetch, {0, 4, 8, 16, 32}, "key rows fetched ahead of their use")
        .acts_on({dram, l2});
    t.add("threads", &cpu::Config::threads, {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128},
          "threads that share the blocks")
        .acts_on({tail})
        .shares_work();
    return t;
  }();
  return knobs;
}

constexpr int kBlocksPerThread = 4;  // so that the last ones to finish wait for little

// The largest value of a knob that fits.
int largest(std::string_view name, const std::function<bool(int)>& fits) {
  int found = 0;
  for (const Knob& knob : table().knobs())
    if (knob.name == name)
      for (const int value : knob.values)
        if (fits(value)) found = std::max(found, value);
  return found;
}

// Packed rows, and the blocks before and after keys are divided, of a launch with columns in the lanes.
struct DecodeBlocks {
  std::int64_t rows;
  std::int64_t units;
  std::int64_t splits;
};
DecodeBlocks decode_blocks(const cpu::Config& c, const Workload& w) {
  const std::int64_t rows = cpu::packed_rows(static_cast<int>(w.len_q), static_cast<int>(w.heads / w.heads_kv));
  const std::int64_t units = cpu::decode_units(c, w.batch, w.heads_kv, rows);
  return {rows, units, cpu::decode_splits(c, units, w.len_k)};
}

// Blocks of rows of a launch.
std::int64_t blocks(const cpu::Config& c, const Workload& w) {
  if (c.lanes == cpu::Lanes::columns) {
    const DecodeBlocks d = decode_blocks(c, w);
    return d.units * d.splits;
  }
  const std::int64_t rows = c.pack_gqa ? w.len_q * (w.heads / w.heads_kv) : w.len_q;
  return w.batch * (c.pack_gqa ? w.heads_kv : w.heads) * ((rows + c.block_m - 1) / c.block_m);
}

// block_m: the largest multiple of `rows_each` up to `most` that leaves every thread several blocks.
void choose_block_m(cpu::Config& c, const Workload& workload, int rows_each, int most) {
  int least = most;
  for (const Knob& knob : table().knobs())
    if (knob.name == "block_m")
      for (const int rows : knob.values)
        if (rows % rows_each == 0) least = std::min(least, rows);
  cpu::Config tried = c;
  c.block_m = largest("block_m", [&](int rows) {
    if (rows % rows_each != 0 || rows > most || (workload.blocks && kLeastBlock % rows != 0)) return false;
    tried.block_m = rows;
    return rows == least || (rows < 2 * workload.len_q && blocks(tried, workload) >= kBlocksPerThread * c.threads);
  });
}

// Rows of a block at most: those that walk one list of blocks of keys.
int most_rows(const Workload& workload, int most) {
  return workload.blocks ? kLeastBlock : most;
}

void choose_for_matrix_unit(cpu::Config& c, const Workload& workload) {
  c.unit = cpu::Unit::matrix;
  c.block_n = 256;
  // A polynomial whose error the rounding of the weights hides.
  if (workload.dtype == Dtype::bf16) c.exp2 = cpu::Exp2::degree3;
  if (workload.dtype == Dtype::fp16) c.exp2 = cpu::Exp2::degree4;
  // Where a head's rows do not fill a group, those of heads that share its keys go beside them.
  if (workload.heads != workload.heads_kv && workload.len_q < cpu::MatrixShape::kGroupRows && !workload.blocks)
    c.pack_gqa = true;
  choose_block_m(c, workload, cpu::MatrixShape::kGroupRows,
                 most_rows(workload, 512));  // K and V are packed once a block
}

// Of up to so many queries columns lie in the lanes. Where there is a matrix unit, of so many rows of a key head: it
// packs K and V into tiles, which rows that fill half of one group of 32 use once. 16 processors with AMX read 11.3
// GB/s so; the vector unit was not measured there.
constexpr std::int64_t kFewQueries = 16;

bool has_few_queries(const Workload& w, bool has_matrix_unit) {
  return w.len_q * (has_matrix_unit ? w.heads / w.heads_kv : 1) <= kFewQueries;
}

// What the rules below decide by.
struct LoopFacts {
  bool few_queries = false;
  bool is_causal = false;
  bool many_registers = false;  // 32 vectors
  std::int64_t vectors = 0;     // of queries that a head has
};
template <class Choice>
using Row = RuleRow<LoopFacts, Choice>;

constexpr bool always(const LoopFacts&) {
  return true;
}

struct InLanes {
  cpu::Lanes lanes;
  int split_keys;
  int prefetch;
};
constexpr std::string_view kLanes = "lanes";
constexpr Row<InLanes> kLanesRows[] = {
    {[](const LoopFacts& f) { return f.few_queries; },
     {cpu::Lanes::columns, 512, 32},
     "share of the time of queries in the lanes, two cores with AVX-512: one query b1h32l1k1024d128:bf16 0.23, "
     "b1h32l1k1024d64:fp32 0.36; 8 b1h32l8k1024d128:bf16 0.57; 16 b1h32l16k1024d64:fp32 0.88. Of 8 and 16 rows that "
     "see "
     "as many keys at most queries in the lanes are 1.35 and 1.52 times as fast"},
    {always,
     {cpu::Lanes::queries, 0, 0},
     "queries fill the lanes; not measured beside columns: b1h8l512d64:fp32, b1h8l64k1024d64:fp32"},
};

struct RegisterTile {
  int vectors;
  int rows;
  int unroll = 1;
};
constexpr std::string_view kTile = "register_tile";
constexpr Row<RegisterTile> kTileRows[] = {
    {[](const LoopFacts& f) { return f.many_registers && f.vectors > 2 && !f.is_causal; },
     {4, 4, 2},
     "two cores with AVX-512 (Zen 5), time with six rows and unroll=1, and with six and unroll=2, over that with this: "
     "b1h8l512d64:fp32 1.26 and 1.02, b1h8l512d64:bf16 1.15 and 1.01, b1h8l512d64:fp16 1.14 and 1.03, "
     "b8h12l128d64:fp32 1.23 and 1.01, b1h8l512d128:fp32 1.42 and 1.07, "
     "b1h8l2048d64:fp16 1.12 and 1.00, b1h4l512d256:bf16 1.20 and 1.00"},
    {[](const LoopFacts& f) { return f.many_registers && f.vectors > 1; },
     {2, 8, 2},
     "fewer queries than four vectors hold, or a causal mask, of whose edge a small tile multiplies less. Two cores "
     "with AVX-512 (Zen 5), us: b1h8l32k512d64:fp32 79, with six rows or ten 85; time with 4 by 4 over that with "
     "this, causal: b1h8l512d64:bf16 1.16, b1h8l512d64:fp16 1.19, b1h8l2048d64:fp16 1.05, b1h4l512d256:bf16 1.07"},
    {[](const LoopFacts& f) { return f.vectors > 1; },
     {2, 6, 4},
     "what 16 vector registers hold. Two cores with AVX2, time with unroll=1 over that with 4 and with 2: "
     "b1h8l512d64:fp32 1.25 and 1.17, with a causal mask 1.13 and 1.14, b1h8l512d128:fp32 1.08 and 1.09, "
     "b1h4l512d256:bf16 1.08 and 1.04, b1h8l2048d64:fp16 1.06 and 1.04, b8h12l128d64:bf16 1.05 and 1.05"},
    {always, {1, 12}, "fewer queries than two vectors hold; not measured"},
};

cpu::Config with_lanes(const InLanes& in_lanes, cpu::Config c = {}) {
  c.lanes = in_lanes.lanes;
  c.split_keys = in_lanes.split_keys;
  c.prefetch = in_lanes.prefetch;
  return c;
}

cpu::Config with_tile(const RegisterTile& tile, cpu::Config c = {}) {
  c.tile_vectors = tile.vectors;
  c.tile_rows = tile.rows;
  c.unroll = tile.unroll;
  return c;
}

cpu::Machine machine_of(const DeviceFacts& device) {
  return {device.lanes, device.registers, device.processors, device.matrix_unit};
}

class CpuFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_cpu"; }
  std::string_view folder() const override { return "cpu"; }
  std::string_view description() const override {
    return "one-pass online softmax on the CPU's vector or matrix unit; few queries: columns in the lanes, split-KV";
  }
  DeviceKind device() const override { return DeviceKind::cpu; }
  std::string_view requirements() const override {
    return "a C++20 compiler (g++ 12 or newer, or clang++) on the PATH";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp32, Dtype::fp16, Dtype::bf16}; }
  HeadDims head_dims() const override { return {.listed = {}, .step = 1, .most = 512}; }
  std::vector<MaskKind> masks() const override { return {MaskKind::none, MaskKind::causal, MaskKind::window}; }
  Features features() const override { return kAllFeatures; }
  std::string_view quantised() const override { return "Q, K and V, each in e4m3, e5m2 or int8"; }
  bool reads(const Quantised&) const override { return true; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override {
    if (device.kind != DeviceKind::cpu) return "it runs on the CPU";
    return std::nullopt;
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization&, const Workload& workload,
                                            const DeviceFacts& device) const override {
    const cpu::Config c = table().aggregate_of(config);
    switch (cpu::is_legal(c, problem_of(workload), machine_of(device))) {
      case cpu::Illegal::no:
        return std::nullopt;
      case cpu::Illegal::registers:
        return fmt::format("a register tile of {} x {} vectors does not fit {} vector registers", c.tile_rows,
                           c.tile_vectors, device.registers);
      case cpu::Illegal::row_block:
        return fmt::format("block_m {} is no multiple of the {} queries a register tile holds", c.block_m,
                           c.tile_vectors * device.lanes);
      case cpu::Illegal::key_block:
        return fmt::format("block_n {} is below tile_rows {}", c.block_n, c.tile_rows);
      case cpu::Illegal::unit:
        return "this CPU has no matrix unit with tiles of bf16 (AMX), or keeps it from this process; use unit=vector";
      case cpu::Illegal::quantised:
        return "quantised inputs are read by the vector unit alone; use unit=vector";
      case cpu::Illegal::lanes:
        return "columns of the head dim lie in lanes of the vector unit; lanes=columns needs unit=vector";
      case cpu::Illegal::split_keys:
        return fmt::format("keys are divided with columns in the lanes alone; split_keys={} needs lanes=columns",
                           c.split_keys);
      case cpu::Illegal::pack_gqa:
        return "pack_gqa=on is for the matrix unit; use unit=matrix";
      case cpu::Illegal::group_block:
        return fmt::format("on the matrix unit block_m {} and block_n {} must be multiples of 32", c.block_m,
                           c.block_n);
      case cpu::Illegal::listed_blocks:
        return fmt::format(
            "with lists of blocks of keys the {} rows of a block walk one list; block_m must divide {}, "
            "with pack_gqa=off",
            c.block_m, kLeastBlock);
      case cpu::Illegal::threads:
        return fmt::format("{} threads exceed the {} processors this process may run on", c.threads, device.processors);
      case cpu::Illegal::head_dim:
        return fmt::format("head dim {} is outside 1 to 512", workload.dim);
    }
    return "unknown reason";
  }

  Config canonical(const Config& config, const Specialization&, const Workload& workload) const override {
    cpu::Config c = table().aggregate_of(config);
    if (c.unit == cpu::Unit::vector || workload.heads == workload.heads_kv) c.pack_gqa = false;
    if (c.unit == cpu::Unit::vector && c.lanes == cpu::Lanes::columns) {  // what only lanes of queries have
      const cpu::Config plain;
      c.tile_rows = plain.tile_rows;
      c.tile_vectors = plain.tile_vectors;
      c.unroll = plain.unroll;
      c.rescale = plain.rescale;
      c.loop_order = plain.loop_order;
    }
    if (c.lanes == cpu::Lanes::queries) c.split_keys = 0;
    if (c.unit == cpu::Unit::matrix) {  // what only the vector unit's loops have
      const cpu::Config plain;
      c.tile_rows = plain.tile_rows;
      c.tile_vectors = plain.tile_vectors;
      c.unroll = plain.unroll;
      c.rescale = plain.rescale;
      c.prefetch = plain.prefetch;
    }
    return table().config_of(c);
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    Config config = table().config_of(chosen(workload, device, nullptr));
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::vector<DefaultRule> rules() const override {
    return {
        rule_of(kLanes, kLanesRows,
                [](const InLanes& l) { return table().text_of(with_lanes(l), {"lanes", "split_keys", "prefetch"}); }),
        rule_of(kTile, kTileRows, [](const RegisterTile& t) {
          return table().text_of(with_tile(t), {"tile_rows", "tile_vectors", "unroll"});
        })};
  }
  Config default_by(const Workload& workload, const DeviceFacts& device, RuleTrace& trace) const override {
    return table().config_of(chosen(workload, device, &trace));
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return fmt::format(
        "#include \"cpu/forward.hpp\"\n\n"
        "constexpr heed::cpu::Config kConfig{};\n"
        "constexpr heed::Problem kProblem{};\n\n",
        table().render(config), literal(problem));
  }

  std::string entry() const override {
    return "extern \"C\" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {\n"
           "  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();\n"
           "}\n";
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const cpu::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = {static_cast<std::uint32_t>(blocks(c, workload)), 1, 1};
    plan.threads = static_cast<std::uint32_t>(c.threads);
    if (c.lanes == cpu::Lanes::columns) {
      const DecodeBlocks d = decode_blocks(c, workload);
      if (d.splits > 1) {
        plan.workspace_bytes = 4 * d.units * d.splits * cpu::partial_floats(c, static_cast<int>(workload.dim), d.rows);
        plan.semaphores = static_cast<int>(d.units);
      }
      plan.shared_bytes = cpu::decode_scratch(c, problem_of(workload), device.lanes).total * 4;
      return plan;
    }
    plan.shared_bytes = c.unit == cpu::Unit::matrix
                            ? cpu::matrix_scratch(c, problem_of(workload)).total
                            : cpu::scratch_plan(c, problem_of(workload), device.lanes).total * 4;
    return plan;
  }

 private:
  static cpu::Config chosen(const Workload& workload, const DeviceFacts& device, RuleTrace* trace) {
    cpu::Config c;
    // Every processor: the knob's values are sparse, so the largest that fits.
    c.threads = largest("threads", [&](int threads) { return threads <= device.processors; });
    const bool has_matrix_unit = device.matrix_unit && !workload.quantised;
    const LoopFacts facts{.few_queries = has_few_queries(workload, has_matrix_unit),
                          .is_causal = workload.is_causal(),
                          .many_registers = device.registers >= 32,
                          .vectors = (workload.len_q - 1) / std::max(1, device.lanes) + 1};
    if (has_matrix_unit && !facts.few_queries) {
      choose_for_matrix_unit(c, workload);
      return c;
    }
    c = with_lanes(choose(kLanes, kLanesRows, facts, trace), c);
    if (c.lanes == cpu::Lanes::columns) {
      c.block_m = 64;  // packed rows: K and V are read once for them
      return c;
    }
    c = with_tile(choose(kTile, kTileRows, facts, trace), c);
    // The rows of a block walk one list, of a power of two of rows.
    if (workload.blocks && kLeastBlock % (c.tile_vectors * device.lanes) != 0) c.tile_vectors = 1;
    choose_block_m(c, workload, c.tile_vectors * device.lanes, most_rows(workload, 256));
    return c;
  }
};

}  // namespace

const Family& cpu_family() {
  static const CpuFamily family;
  return family;
}

}  // namespace heed
