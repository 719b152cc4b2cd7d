// heed run: a kernel on one's own tensors.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"
#include "tensors/npy.hpp"
#include "tensors/safetensors.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

HostTensor wave(std::vector<std::int64_t> shape, float phase) {
  HostTensor t{.dtype = Dtype::fp32, .shape = std::move(shape), .bytes = {}};
  std::int64_t count = 1;
  for (const std::int64_t extent : t.shape) count *= extent;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = std::sin(phase + 1.7F * static_cast<float>(i));
    t.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return t;
}

HostTensor numbers(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  HostTensor t{.dtype = Dtype::fp32, .shape = std::move(shape), .bytes = {}};
  t.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return t;
}

TEST_F(Cli, RunWritesTheOutputOfOnesOwnTensors) {
  const Workload w = parse_workload("b2h4hkv2l33k40d16:fp32");
  const HostTensor q = wave({2, 33, 4, 16}, 0.1F);
  const HostTensor k = wave({2, 40, 2, 16}, 0.2F);
  const HostTensor v = wave({2, 40, 2, 16}, 0.3F);
  const std::string in = folder_.file("in.safetensors");
  const std::string out = folder_.file("out.safetensors");
  write_safetensors(in, {{"q", q}, {"k", k}, {"v", v}});
  const std::string options = " --layout blhd --causal bottom-right --scale 0.3 --device cpu --measure-limit 0.02 ";
  const Printed run = heed_command("run --qkv " + in + " -o " + out + options + "--json " + cache());
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json printed = nlohmann::json::parse(run.out);
  EXPECT_EQ(printed["workload"], "b2h4hkv2l33k40d16:fp32:causal_bottom_right:blhd:scale=0.3");
  EXPECT_GT(printed["us"].get<double>(), 0);
  EXPECT_LT(printed["error"]["max_abs"].get<double>(), 1e-4);
  EXPECT_EQ(printed["rows_checked"], 2 * 4 * 33);

  Workload causal = w;
  causal.mask = Mask::causal_bottom_right;
  causal.scale = 0.3;
  causal.layout = Layout::blhd;
  const HostTensors tensors = {
      q.bytes.data(),           k.bytes.data(), v.bytes.data(), {33 * 4 * 16, 16, 4 * 16}, {40 * 2 * 16, 16, 2 * 16},
      {40 * 2 * 16, 16, 2 * 16}};
  const std::vector<RowIndex> rows = all_rows(causal);
  const ReferenceRows expected = reference_attention(causal, tensors, rows);
  const SafetensorsFile file(out);
  EXPECT_EQ(file.describe("o").shape, (std::vector<std::int64_t>{2, 33, 4, 16}));
  EXPECT_EQ(file.describe("lse").shape, (std::vector<std::int64_t>{2, 4, 33}));
  const std::string o = file.bytes_of("o");
  const std::string lse = file.bytes_of("lse");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowIndex& r = rows[i];
    const auto place = static_cast<std::size_t>(((r.batch * 33 + r.row) * 4 + r.head) * 16);
    for (std::size_t d = 0; d < 16; ++d)
      ASSERT_NEAR(load_element(Dtype::fp32, o.data(), place + d), expected.out[i * 16 + d], 1e-4);
    ASSERT_NEAR(load_element(Dtype::fp32, lse.data(), static_cast<std::size_t>((r.batch * 4 + r.head) * 33 + r.row)),
                expected.lse[i], 1e-4);
  }

  for (const auto& [name, t] : {std::pair{"q.npy", q}, {"k.npy", k}, {"v.npy", v}}) write_npy(folder_.file(name), t);
  const std::string npy = "run fwd_cpu --q " + folder_.file("q.npy") + " --k " + folder_.file("k.npy") + " --v " +
                          folder_.file("v.npy") + " -o " + folder_.file("o.npy") + options + cache();
  const Printed plain = heed_command(npy + " --no-check");
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, ::testing::HasSubstr("not checked"));
  EXPECT_EQ(NpyFile(folder_.file("o.npy"), "o").bytes(), o);
}

// Columns of zeros stand behind V, or behind Q and K, and none of them is written.
TEST_F(Cli, RunTakesHeadDimsThatDiffer) {
  const std::string in = folder_.file("dims.safetensors");
  const std::string out = folder_.file("dims_out.safetensors");
  for (const auto& [dim, dim_v] : {std::pair<std::int64_t, std::int64_t>{16, 8}, {8, 24}}) {
    Workload w = parse_workload("b1h2l9k11d16:fp32");
    w.dim = dim;
    w.dim_v = dim_v;
    const HostTensor q = wave({1, 2, 9, dim}, 0.1F);
    const HostTensor k = wave({1, 2, 11, dim}, 0.2F);
    const HostTensor v = wave({1, 2, 11, dim_v}, 0.3F);
    write_safetensors(in, {{"q", q}, {"k", k}, {"v", v}});
    const Printed run =
        heed_command("run --qkv " + in + " -o " + out + " --device cpu --measure-limit 0.02 --json " + cache());
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(nlohmann::json::parse(run.out)["workload"], to_string(w));
    const std::vector<RowIndex> rows = all_rows(w);
    const HostTensors tensors = {q.bytes.data(),
                                 k.bytes.data(),
                                 v.bytes.data(),
                                 {2 * 9 * dim, 9 * dim, dim},
                                 {2 * 11 * dim, 11 * dim, dim},
                                 {2 * 11 * dim_v, 11 * dim_v, dim_v}};
    const ReferenceRows expected = reference_attention(w, tensors, rows);
    const SafetensorsFile file(out);
    EXPECT_EQ(file.describe("o").shape, (std::vector<std::int64_t>{1, 2, 9, dim_v}));
    const std::string o = file.bytes_of("o");
    for (std::size_t i = 0; i < expected.out.size(); ++i)
      ASSERT_NEAR(load_element(Dtype::fp32, o.data(), i), expected.out[i], 1e-4) << dim << " " << dim_v << " " << i;
  }
  // A norm of O over columns that V does not have.
  write_safetensors(in, {{"q", wave({1, 1, 2, 16}, 0)},
                         {"k", wave({1, 1, 2, 16}, 1)},
                         {"v", wave({1, 1, 2, 8}, 2)},
                         {"out_norm_weight", wave({8}, 3)}});
  const Printed norm =
      heed_command("run --qkv " + in + " -o " + out + " --features out_norm=1e-5 --device cpu " + cache());
  EXPECT_EQ(norm.code, 1);
  EXPECT_THAT(norm.err, ::testing::HasSubstr("give V of 16 columns"));
}

TEST_F(Cli, RunTakesFeaturesFromTheFile) {
  // Two keys with equal scores: V's mean without a sink, half of it with a sink of log(2) above the scores of 0.
  const std::vector<float> zeros(2 * 16, 0.0F);
  std::vector<float> v(2 * 16, 1.0F);
  std::fill(v.begin() + 16, v.end(), 3.0F);
  const std::string in = folder_.file("features.safetensors");
  const std::string out = folder_.file("features_out.safetensors");
  std::map<std::string, HostTensor> file = {{"q", numbers({1, 1, 1, 16}, std::vector<float>(16, 0.0F))},
                                            {"k", numbers({1, 1, 2, 16}, zeros)},
                                            {"v", numbers({1, 1, 2, 16}, v)},
                                            {"sinks", numbers({1}, {std::log(2.0F)})},
                                            {"key_lengths", numbers({1}, {1})}};
  write_safetensors(in, file);
  const auto run = [&](const std::string& features) {
    return heed_command("run --qkv " + in + " -o " + out + features + " --device cpu --measure-limit 0.02 " + cache());
  };
  const auto first_of = [&] { return load_element(Dtype::fp32, SafetensorsFile(out).bytes_of("o").data(), 0); };
  const Printed plain = run("");
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_NEAR(first_of(), 2.0, 1e-6);
  EXPECT_THAT(plain.out + plain.err, ::testing::HasSubstr("holds key_lengths, sinks, which --features does not name"));
  ASSERT_EQ(run(" --features sinks").code, 0);
  EXPECT_NEAR(first_of(), 1.0, 1e-6) << "two of four parts of the softmax";
  ASSERT_EQ(run(" --features key_lengths").code, 0);
  EXPECT_NEAR(first_of(), 1.0, 1e-6) << "the first key alone";
  EXPECT_THAT(run(" --features alibi").err, ::testing::HasSubstr("no tensor alibi_slopes of numbers"));
  EXPECT_THAT(run(" --features nothing").err, ::testing::HasSubstr("nothing"));
  EXPECT_THAT(run(" --features ragged").err, ::testing::HasSubstr("q, k and v of three dimensions"));
  EXPECT_EQ(heed_command("verify fwd_cpu --qkv " + in + " --features sinks:key_lengths --device cpu " + cache()).code,
            0);
  EXPECT_EQ(heed_command("calibrate --qkv " + in + " --features sinks --modes int8").code, 0);
  file["key_lengths"] = numbers({1}, {3});
  write_safetensors(in, file);
  EXPECT_THAT(run(" --features key_lengths").err, ::testing::HasSubstr("lengths are whole numbers of 0 to 2"));
  file["sinks"] = numbers({2}, {0, 0});
  write_safetensors(in, file);
  EXPECT_THAT(run(" --features sinks").err, ::testing::HasSubstr("has shape [2]; the workload's is [1]"));
  // Infinities make rows of NaN; in a bias, -inf hides a key.
  for (const float sink : {INFINITY, -INFINITY}) {
    file["sinks"] = numbers({1}, {sink});
    write_safetensors(in, file);
    EXPECT_THAT(run(" --features sinks").err, ::testing::HasSubstr("\"sinks\" holds"));
  }
  file["bias"] = numbers({1, 1, 1, 2}, {0, -INFINITY});
  write_safetensors(in, file);
  EXPECT_EQ(run(" --features bias=fp32/k").code, 0);
  EXPECT_NEAR(first_of(), 1.0, 1e-6) << "the first key alone";
  file["bias"] = numbers({1, 1, 1, 2}, {0, INFINITY});
  write_safetensors(in, file);
  EXPECT_THAT(run(" --features bias=fp32/k").err, ::testing::HasSubstr("\"bias\" holds inf at element 1"));
  // What is dropped can be made again.
  const Printed dropped = run(" --features dropout=0.5 --json");
  ASSERT_EQ(dropped.code, 0) << dropped.err;
  const nlohmann::json printed = nlohmann::json::parse(dropped.out);
  EXPECT_TRUE(printed["dropout_seed"].is_number_unsigned());
  EXPECT_THAT(run(" --features dropout=0.5").out, ::testing::HasSubstr("dropout   seed "));
}

// Each entry is what it is alone, also one without keys, and one without queries.
TEST_F(Cli, RunTakesRaggedBatches) {
  const std::vector<std::int64_t> q_begins = {0, 5, 5, 12, 14}, k_begins = {0, 9, 11, 14, 14};
  const HostTensor q = wave({14, 4, 16}, 0.1F), k = wave({14, 2, 16}, 0.2F), v = wave({14, 2, 8}, 0.3F);
  const HostTensor gate = wave({14, 4, 1}, 0.4F);
  const auto floats = [](const std::vector<std::int64_t>& from) {
    return std::vector<float>(from.begin(), from.end());
  };
  const std::string in = folder_.file("ragged.safetensors");
  const std::string out = folder_.file("ragged_out.safetensors");
  std::map<std::string, HostTensor> file = {{"q", q},
                                            {"k", k},
                                            {"v", v},
                                            {"cu_seqlens_q", numbers({5}, floats(q_begins))},
                                            {"cu_seqlens_k", numbers({5}, floats(k_begins))}};
  write_safetensors(in, file);
  const std::string command = "run --qkv " + in + " -o " + out + " --device cpu --measure-limit 0.02 " + cache();
  const Printed run = heed_command(command + " --causal bottom-right --json");
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json printed = nlohmann::json::parse(run.out);
  EXPECT_EQ(printed["workload"], "b4h4hkv2l7k9d16dv8:fp32:causal_bottom_right:blhd:ragged");
  EXPECT_EQ(printed["rows_checked"], 14 * 4);
  const SafetensorsFile written(out);
  EXPECT_EQ(written.describe("o").shape, (std::vector<std::int64_t>{14, 4, 8}));
  EXPECT_EQ(written.describe("lse").shape, (std::vector<std::int64_t>{4, 14}));
  const std::string o = written.bytes_of("o"), lse = written.bytes_of("lse");
  double flops = 0;
  for (std::size_t b = 0; b < 4; ++b) {
    Workload entry = parse_workload("b1h4hkv2l1d16dv8:fp32:causal_bottom_right:blhd");
    entry.len_q = q_begins[b + 1] - q_begins[b];
    entry.len_k = k_begins[b + 1] - k_begins[b];
    if (entry.len_q == 0) continue;
    flops += entry.len_k > 0 ? entry.flops() : 0;
    const auto row_of = [](const HostTensor& t, std::int64_t row) {
      return t.bytes.data() + row * t.shape[1] * t.shape[2] * static_cast<std::int64_t>(sizeof(float));
    };
    const HostTensors tensors = {row_of(q, q_begins[b]), row_of(k, k_begins[b]), row_of(v, k_begins[b]),
                                 {0, 16, 4 * 16},        {0, 16, 2 * 16},        {0, 8, 2 * 8}};
    const std::vector<RowIndex> rows = all_rows(entry);
    ReferenceRows expected;
    if (entry.len_k > 0) {
      expected = reference_attention(entry, tensors, rows);
    } else {
      expected.out.assign(rows.size() * 8, 0);
      expected.lse.assign(rows.size(), -INFINITY);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t row = q_begins[b] + rows[i].row;
      const auto at = static_cast<std::size_t>(row * 4 + rows[i].head) * 8;
      for (std::size_t d = 0; d < 8; ++d)
        ASSERT_NEAR(load_element(Dtype::fp32, o.data(), at + d), expected.out[i * 8 + d], 1e-4) << b << " " << row;
      const float got = load_element(Dtype::fp32, lse.data(), static_cast<std::size_t>(rows[i].head * 14 + row));
      if (std::isinf(expected.lse[i]))
        ASSERT_EQ(got, expected.lse[i]);
      else
        ASSERT_NEAR(got, expected.lse[i], 1e-4);
    }
  }
  EXPECT_NEAR(printed["tflops"].get<double>() * printed["us"].get<double>() * 1e6, flops, 1e-3 * flops);

  file["v"] = wave({14, 2, 16}, 0.3F);
  file["out_gate"] = gate;
  write_safetensors(in, file);
  EXPECT_EQ(heed_command("verify fwd_cpu --qkv " + in + " --device cpu " + cache()).code, 0);
  ASSERT_EQ(heed_command(command).code, 0);
  const std::string wide = SafetensorsFile(out).bytes_of("o");
  const Printed gated = heed_command(command + " --features out_gate=head");
  ASSERT_EQ(gated.code, 0) << gated.err;
  const std::string narrow = SafetensorsFile(out).bytes_of("o");
  for (std::size_t i = 0; i < 14 * 4 * 16; ++i) {
    const double open = 1 / (1 + std::exp(-load_element(Dtype::fp32, gate.bytes.data(), i / 16)));
    ASSERT_NEAR(load_element(Dtype::fp32, narrow.data(), i), open * load_element(Dtype::fp32, wide.data(), i), 1e-5);
  }
  expect_refusal(command + " --layout bhld", 2, "leave --layout out");
  write_npy(folder_.file("q.npy"), q);
  expect_refusal("run --q " + folder_.file("q.npy") + " --k " + folder_.file("q.npy") + " --v " +
                     folder_.file("q.npy") + " -o " + out + " --device cpu " + cache(),
                 1, ".safetensors file of a ragged batch");
  // Of four dimensions the offsets say nothing.
  for (const auto& [name, t] :
       {std::pair{"q", wave({1, 14, 4, 16}, 0)}, {"k", wave({1, 14, 2, 16}, 1)}, {"v", wave({1, 14, 2, 16}, 2)}})
    file[name] = t;
  write_safetensors(in, file);
  const Printed dense = heed_command(command + " --layout blhd");
  EXPECT_THAT(dense.out + dense.err, ::testing::HasSubstr("also holds cu_seqlens_k, cu_seqlens_q"));
}

TEST_F(Cli, RunRefusesBeforeItWorks) {
  const auto tensor = [](Dtype dtype) {
    return HostTensor{.dtype = dtype, .shape = {1, 1, 4, 8}, .bytes = std::string(32 * size_of(dtype), '\0')};
  };
  const std::string in = folder_.file("in.safetensors");
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    write_safetensors(in, {{"q", tensor(dtype)}, {"k", tensor(dtype)}, {"v", tensor(dtype)}});
    expect_refusal("run --qkv " + in + " -o " + in + " --device cpu " + cache(), 2, "is the file of the tensors");
    expect_refusal("run --qkv " + in + " -o " + folder_.path().string() + "/./in.safetensors --device cpu " + cache(),
                   2, "is the file of the tensors");
    expect_refusal("run --qkv " + in + " -o out.bin --device cpu " + cache(), 2, "must end in .safetensors");
    expect_refusal("run --qkv " + in + " -o /dev/null/x.npy --device cpu " + cache(), dtype == Dtype::bf16 ? 2 : 1,
                   dtype == Dtype::bf16 ? "not bf16" : "cannot create the folder");
  }
  expect_refusal("run -o out.npy --shape b1h1l8d16 --device cpu " + cache(), 2, "no tensors: give --qkv");
  expect_refusal("run --qkv " + in + " --device cpu " + cache(), 2, "--output");
  expect_refusal("run fwd_none --qkv " + in + " -o " + folder_.file("o.safetensors") + " --device cpu " + cache(), 2,
                 "unknown family");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("o.safetensors")));
}

}  // namespace
}  // namespace heed
