#include "tensors/tensor_file.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>

#include "process/process.hpp"
#include "tensors/npy.hpp"
#include "tensors/safetensors.hpp"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

std::string number_bytes(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

std::string safetensors(const std::string& header, const std::string& data) {
  return number_bytes(header.size(), 8) + header + data;
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& order = "False") {
  const std::string header = "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  return std::string("\x93NUMPY\x01\x00", 8) + number_bytes(header.size(), 2) + header + data;
}

std::string halves(int count, float first = 0) {
  std::string data;
  for (int i = 0; i < count; ++i) data += number_bytes(float_to_fp16(first + static_cast<float>(i)), 2);
  return data;
}

// q (1, 2, 3, 4), k and v (1, 1, 5, 4), fp16
std::string good_file() {
  return safetensors(
      R"({"q":{"dtype":"F16","shape":[1,2,3,4],"data_offsets":[0,48]},"k":{"dtype":"F16","shape":[1,1,5,4],"data_offsets":[48,88]},)"
      R"("v":{"dtype":"F16","shape":[1,1,5,4],"data_offsets":[88,128]}})",
      halves(64));
}

void write(const std::string& path, const std::string& bytes) {
  write_file_atomically(path, bytes, ErrorCode::invalid_input);
}

TEST(TensorFile, ReadsSafetensors) {
  const TemporaryFolder folder;
  write(folder.file("a.safetensors"), good_file());
  const QkvTensors tensors = read_qkv_safetensors(folder.file("a.safetensors"), Layout::bhld);
  EXPECT_EQ(to_string(tensors.workload), "b1h2hkv1l3k5d4:fp16");
  EXPECT_EQ(load_element(Dtype::fp16, tensors.k.bytes.data(), 0), 24.0F);
  EXPECT_EQ(to_string(read_qkv_safetensors(folder.file("a.safetensors"), Layout::bhld).workload),
            to_string(tensors.workload));
}

TEST(TensorFile, NumbersOfFeaturesHaveTheirOwnDtypes) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& features, const std::string& data) {
    write(
        folder.file("a.safetensors"),
        safetensors(
            R"({"q":{"dtype":"F16","shape":[1,2,3,4],"data_offsets":[0,48]},"k":{"dtype":"F16","shape":[1,1,5,4],"data_offsets":[48,88]},)"
            R"("v":{"dtype":"F16","shape":[1,1,5,4],"data_offsets":[88,128]},)" +
                features + "}",
            halves(64) + data));
    return read_qkv_safetensors(folder.file("a.safetensors"), Layout::bhld);
  };
  const QkvTensors of_32 = file(R"("key_lengths":{"dtype":"I32","shape":[1],"data_offsets":[128,132]},)"
                                R"("bias":{"dtype":"BOOL","shape":[1,1,1,5],"data_offsets":[132,137]})",
                                number_bytes(4, 4) + number_bytes(1, 1) + std::string(4, '\0'));
  EXPECT_EQ(of_32.features.at("key_lengths").values, std::vector<float>{4});
  EXPECT_EQ(of_32.features.at("bias").values, (std::vector<float>{1, 0, 0, 0, 0}));
  EXPECT_EQ(of_32.features.at("bias").shape, (std::vector<std::int64_t>{1, 1, 1, 5}));
  const QkvTensors of_64 =
      file(R"("key_lengths":{"dtype":"I64","shape":[1],"data_offsets":[128,136]})", number_bytes(~std::uint64_t{0}, 8));
  EXPECT_EQ(of_64.features.at("key_lengths").values, std::vector<float>{-1});
  EXPECT_NE(of_32.digest, of_64.digest);
  EXPECT_TRUE(
      file(R"("bias":{"dtype":"F64","shape":[1],"data_offsets":[128,136]})", std::string(8, '\0')).features.empty())
      << "of another model's layer, as it may be";
  EXPECT_THROW(file(R"("key_lengths":{"dtype":"I64","shape":[2],"data_offsets":[128,136]})", std::string(8, '\0')),
               Error);
}

TEST(TensorFile, ThreeDimensionsAreARaggedBatch) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  // q of 3 rows, k and v of 5; int32 offsets of as many numbers as are given.
  const auto file = [&](const std::vector<int>& of_q, const std::vector<int>& of_k, const std::string& v = "[5,1,4]") {
    std::string offsets;
    for (const std::vector<int>* numbers : {&of_q, &of_k})
      for (const int number : *numbers) offsets += number_bytes(static_cast<std::uint32_t>(number), 4);
    const std::size_t end = 128 + 4 * of_q.size();
    const auto entry = [](const std::vector<int>& numbers, std::size_t begin) {
      return R"({"dtype":"I32","shape":[)" + std::to_string(numbers.size()) + R"(],"data_offsets":[)" +
             std::to_string(begin) + "," + std::to_string(begin + 4 * numbers.size()) + "]}";
    };
    write(
        path,
        safetensors(
            R"({"q":{"dtype":"F16","shape":[3,2,4],"data_offsets":[0,48]},"k":{"dtype":"F16","shape":[5,1,4],"data_offsets":[48,88]},)"
            R"("v":{"dtype":"F16","shape":)" +
                v + R"(,"data_offsets":[88,128]})" + (of_q.empty() ? "" : ",\"cu_seqlens_q\":" + entry(of_q, 128)) +
                (of_k.empty() ? "" : ",\"cu_seqlens_k\":" + entry(of_k, end)) + "}",
            halves(64) + offsets));
    return read_qkv_safetensors(path, Layout::bhld);
  };
  const QkvTensors ragged = file({0, 1, 1, 3}, {0, 0, 2, 5});
  EXPECT_EQ(to_string(ragged.workload), "b3h2hkv1l2k3d4:fp16:blhd:ragged");
  EXPECT_EQ(ragged.lengths, (std::vector<EntryLengths>{{1, 0}, {0, 2}, {2, 3}}));
  EXPECT_NE(file({0, 1, 1, 3}, {0, 2, 2, 5}).digest, ragged.digest);
  const auto refuses = [&](const std::vector<int>& of_q, const std::vector<int>& of_k, const std::string& words,
                           const std::string& v = "[5,1,4]") {
    expect_error(ErrorCode::invalid_input, words, [&] { file(of_q, of_k, v); });
  };
  refuses({}, {0, 5}, "no tensor cu_seqlens_q of numbers; four dimensions are needed");
  refuses({0, 3}, {}, "no tensor cu_seqlens_k");
  refuses({0, 3}, {0, 2, 5}, "cu_seqlens_q has 2 numbers and cu_seqlens_k has 3");
  refuses({0}, {0}, "has shape [1]; it is (batch + 1)");
  refuses({0, 2, 1, 3}, {0, 1, 2, 5}, "holds 1 at element 2; its numbers are whole, from 0 to 3, and never decrease");
  refuses({0, 4}, {0, 5}, "holds 4 at element 1");
  refuses({0, -1, 3}, {0, 1, 5}, "holds -1 at element 1");
  refuses({1, 3}, {0, 5}, "\"cu_seqlens_q\" goes from 1 to 3");
  refuses({0, 3}, {0, 4}, "the last ends with the 5 rows");
  refuses({0, 3}, {0, 5}, "tensor \"v\" has shape [1, 5, 1, 4]; three dimensions are needed, as q has them",
          "[1,5,1,4]");
}

TEST(TensorFile, LayoutDecidesWhichAxisIsTheHead) {
  const TemporaryFolder folder;
  write(
      folder.file("a.safetensors"),
      safetensors(
          R"({"q":{"dtype":"BF16","shape":[1,3,2,4],"data_offsets":[0,48]},"k":{"dtype":"BF16","shape":[1,5,2,4],"data_offsets":[48,128]},)"
          R"("v":{"dtype":"BF16","shape":[1,5,2,4],"data_offsets":[128,208]}})",
          std::string(208, '\0')));
  EXPECT_EQ(to_string(read_qkv_safetensors(folder.file("a.safetensors"), Layout::blhd).workload),
            "b1h2l3k5d4:bf16:blhd");
}

TEST(TensorFile, RefusesBrokenSafetensors) {
  const TemporaryFolder folder;
  const std::string path = folder.file("bad.safetensors");
  const auto refuses = [&](const std::string& bytes, const std::string& words) {
    SCOPED_TRACE(words);
    write(path, bytes);
    expect_error(ErrorCode::invalid_input, words, [&] { read_qkv_safetensors(path, Layout::bhld); });
  };
  refuses("", "truncated");
  refuses("1234", "truncated");
  refuses(number_bytes(1000, 8) + "{}", "header is incomplete");
  refuses(number_bytes(~0ULL, 8) + "{}", "over 100 MB");
  refuses(safetensors("not json", ""), "no JSON object");
  refuses(safetensors("{}", ""), "no tensor \"q\"");
  refuses(safetensors(R"({"query":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", "ab"), "it has: query");
  refuses(good_file().substr(0, good_file().size() - 10), "it is truncated: tensor \"v\"");
  refuses(safetensors(R"({"q":{"dtype":"F64","shape":[1,1,1,1],"data_offsets":[0,8]}})", "12345678"), "dtype F64");
  refuses(safetensors(R"({"q":{"dtype":"F16","shape":[1,0,3,4],"data_offsets":[0,0]}})", ""),
          "every extent must be at least 1");
  refuses(safetensors(R"({"q":{"dtype":"F16","shape":[4611686018427387904,4,4,4],"data_offsets":[0,2]}})", "ab"),
          "too large");
  refuses(safetensors(R"({"q":{"dtype":"F16","shape":[1,2,3,4],"data_offsets":[0,40]}})", halves(20)),
          "which needs 48");
  refuses(safetensors(R"({"q":{"dtype":"F16","shape":"x"}})", ""), "malformed");
  const auto three = [](const std::string& q, const std::string& k, const std::string& v) {
    return safetensors("{\"q\":" + q + ",\"k\":" + k + ",\"v\":" + v + "}", halves(64));
  };
  const std::string q = R"({"dtype":"F16","shape":[1,2,3,4],"data_offsets":[0,48]})";
  const std::string k = R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[48,88]})";
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1,4,4],"data_offsets":[88,120]})"), "the lengths of k and v differ");
  const std::string v = R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[88,128]})";
  refuses(three(q, R"({"dtype":"F16","shape":[1,1,5,2],"data_offsets":[48,68]})", v), "head dims of q and k differ");
  refuses(three(q, R"({"dtype":"F16","shape":[2,1,5,2],"data_offsets":[48,88]})", v), "batch sizes differ");
  refuses(three(q, R"({"dtype":"BF16","shape":[1,1,5,4],"data_offsets":[48,88]})", v), "dtypes differ");
  refuses(three(R"({"dtype":"F16","shape":[6,4],"data_offsets":[0,48]})", k, v), "four dimensions are needed");
  // What a header may not say, whatever else it says well.
  refuses(three(q, k, k), "\"k\" and \"v\" overlap");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[87,127]})"), "overlap");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1.0,1,5,4],"data_offsets":[88,128]})"),
          "hold 1.0; they must be whole");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,2.5,5,4],"data_offsets":[88,128]})"),
          "hold 2.5; they must be whole");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1e0,5,4],"data_offsets":[88,128]})"), "they must be whole");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,-1,-5,4],"data_offsets":[88,128]})"), "hold -1; they must be whole");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,true,5,4],"data_offsets":[88,128]})"), "malformed");
  refuses(three(q, k, R"({"dtype":"F16","shape":[[1,1],5,4],"data_offsets":[88,128]})"), "malformed");
  refuses(three(q, k, R"({"dtype":"F16","shape":[18446744073709551615,1,5,4],"data_offsets":[88,128]})"), "whole");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[-40,0]})"), "data_offsets of tensor \"v\"");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[128,88]})"), "before it begins");
  refuses(
      three(q, k, R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[18446744073709551600,18446744073709551615]})"),
      "it is truncated: tensor \"v\"");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[88,99999999999999999999]})"), "whole");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[88,128,130]})"), "malformed");
  refuses(three(q, k, R"({"dtype":"F16","shape":[1,1,5,4],"data_offsets":[88]})"), "malformed");
  refuses(three(q, k, R"({"dtype":"F16","dtype":"F16","shape":[1,1,5,4],"data_offsets":[88,128]})"), "malformed");
  refuses(three(q, k, R"({"shape":[1,1,5,4],"data_offsets":[88,128]})"), "malformed");
  refuses(three(q, k, v + ",\"q\":" + q), "names \"q\" twice");
  refuses(three(q, k, v + ",\"w\":" + R"({"dtype":"F64","shape":[9],"data_offsets":[128,200]})"),
          "truncated: tensor \"w\"");
  refuses(three(q, k, "7"), "malformed");
  refuses(safetensors("[" + std::string(100000, '[') + "]", ""), "no safetensors file");
  refuses(safetensors("{\"q\":" + std::string(100000, '['), ""), "malformed");
  refuses(safetensors("{\"\\u001b[31m\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}", "ab"),
          "it has: ?[31m");
  std::string with_nan = good_file();
  with_nan[with_nan.size() - 1] = 0x7f;
  refuses(with_nan, "holds NaN at element 19");
  expect_error(ErrorCode::invalid_input, "No such file",
               [&] { read_qkv_safetensors(folder.file("none"), Layout::bhld); });
}

// A model of 30 GB in which q, k and v are 128 bytes: their ranges are read, nothing else is.
TEST(TensorFile, ReadsThreeRangesOfALargeFile) {
  const TemporaryFolder folder;
  constexpr std::uint64_t kSize = 30'000'000'000;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"q":{"dtype":"F16","shape":[1,2,3,4],"data_offsets":[29999000000,29999000048]},)"
      R"("weights":{"dtype":"F8_E4M3","shape":[29999000000],"data_offsets":[0,29999000000]},)"
      R"("k":{"dtype":"F16","shape":[1,1,5,4],"data_offsets":[29999000048,29999000088]},)"
      R"("v":{"dtype":"F16","shape":[1,1,5,4],"data_offsets":[29999000088,29999000128]}})";
  write(folder.file("a.safetensors"), safetensors(header, ""));
  std::filesystem::resize_file(folder.file("a.safetensors"), kSize);
  {
    std::fstream file(folder.file("a.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(8 + header.size() + 29999000000));
    file << halves(64);
  }
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  const QkvTensors tensors = read_qkv_safetensors(folder.file("a.safetensors"), Layout::bhld);
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(load_element(Dtype::fp16, tensors.v.bytes.data(), 19), 63.0F);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024);  // KiB

  std::string large = npy("<f2", "(1, 2, 3, 4)", halves(24));
  write(folder.file("q.npy"), large);
  std::filesystem::resize_file(folder.file("q.npy"), kSize);
  EXPECT_EQ(
      to_string(read_qkv_npy(folder.file("q.npy"), folder.file("q.npy"), folder.file("q.npy"), Layout::bhld).workload),
      "b1h2l3d4:fp16");
}

TEST(TensorFile, RefusesWhatHasNoRangesOrDoesNotFit) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder.file("pipe"), std::string("/dev/null")})
    expect_error(ErrorCode::invalid_input, "a pipe or a device", [&] { read_qkv_safetensors(path, Layout::bhld); });
  expect_error(ErrorCode::invalid_input, "it is a folder",
               [&] { read_qkv_npy(folder.path(), folder.path(), folder.path(), Layout::bhld); });
  // 2 TB of zeros that take no room on the disk.
  write(folder.file("large.npy"), npy("<f4", "(1024, 32, 131072, 128)", ""));
  std::filesystem::resize_file(folder.file("large.npy"), std::uintmax_t{1} << 42);
  expect_error(ErrorCode::unsupported, "of host memory", [&] {
    read_qkv_npy(folder.file("large.npy"), folder.file("large.npy"), folder.file("large.npy"), Layout::bhld);
  });
}

TEST(TensorFile, WritesWhatItReads) {
  const TemporaryFolder folder;
  write(folder.file("a.safetensors"), good_file());
  const QkvTensors tensors = read_qkv_safetensors(folder.file("a.safetensors"), Layout::bhld);
  write_safetensors(folder.file("b.safetensors"), {{"v", tensors.v}, {"q", tensors.q}, {"k", tensors.k}});
  EXPECT_EQ(read_qkv_safetensors(folder.file("b.safetensors"), Layout::bhld).digest, tensors.digest);
  write_npy(folder.file("q.npy"), tensors.q);
  write_npy(folder.file("k.npy"), tensors.k);
  write_npy(folder.file("v.npy"), tensors.v);
  EXPECT_EQ(read_qkv_npy(folder.file("q.npy"), folder.file("k.npy"), folder.file("v.npy"), Layout::bhld).digest,
            tensors.digest);
  EXPECT_EQ(read_file(folder.file("q.npy"), ErrorCode::internal).size() % 64, tensors.q.bytes.size() % 64);
  HostTensor other = tensors.q;
  for (const Dtype dtype : {Dtype::bf16, Dtype::e4m3, Dtype::e5m2, Dtype::int8}) {
    other.dtype = dtype;
    expect_error(ErrorCode::invalid_input, fmt::format("not {}", to_string(dtype)),
                 [&] { write_npy(folder.file("q.npy"), other); });
  }
}

TEST(TensorFile, ReadsNpyHeadersOfOtherWriters) {
  const TemporaryFolder folder;
  const std::string path = folder.file("q.npy");
  const auto reads = [&](const std::string& header, int version = 1) {
    SCOPED_TRACE(header);
    write(path, std::string("\x93NUMPY", 6) + number_bytes(static_cast<std::uint64_t>(version), 2) +
                    number_bytes(header.size(), version == 1 ? 2 : 4) + header + halves(24));
    EXPECT_EQ(to_string(read_qkv_npy(path, path, path, Layout::bhld).workload), "b1h2l3d4:fp16");
  };
  reads(R"({"descr": "<f2", "fortran_order": False, "shape": (1, 2, 3, 4)})");
  reads(R"({"shape":(1,2,3,4,),"fortran_order":False,'descr':"<f2",})");
  reads("{'descr': '<f2', 'fortran_order': False, 'shape': (1L, 2L, 3L, 4L), }   \n");
  reads("{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4), }\n", 2);
  reads("{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4), }\n", 3);
}

TEST(TensorFile, ReadsNpy) {
  const TemporaryFolder folder;
  write(folder.file("q.npy"), npy("<f2", "(1, 2, 3, 4)", halves(24)));
  write(folder.file("k.npy"), npy("<f2", "(1, 2, 5, 4)", halves(40)));
  write(folder.file("v.npy"), npy("<f2", "(1, 2, 5, 4)", halves(40, 100)));
  const QkvTensors tensors =
      read_qkv_npy(folder.file("q.npy"), folder.file("k.npy"), folder.file("v.npy"), Layout::bhld);
  EXPECT_EQ(to_string(tensors.workload), "b1h2l3k5d4:fp16");
  EXPECT_EQ(load_element(Dtype::fp16, tensors.v.bytes.data(), 1), 101.0F);
}

TEST(TensorFile, RefusesBrokenNpy) {
  const TemporaryFolder folder;
  const std::string path = folder.file("q.npy");
  const auto refuses = [&](const std::string& bytes, const std::string& words) {
    SCOPED_TRACE(words);
    write(path, bytes);
    expect_error(ErrorCode::invalid_input, words, [&] { read_qkv_npy(path, path, path, Layout::bhld); });
  };
  refuses("hello world", "no .npy file");
  refuses(std::string("\x93NUMPY\x01", 7), "header is incomplete");
  refuses(std::string("\x93NUMPY\x09\x00\x01\x00", 10), "versions 1 to 3");
  refuses(npy("<f2", "(1, 2, 3, 4)", halves(10)), "it is truncated");
  refuses(npy("<f8", "(1, 2, 3, 4)", halves(96)), "dtype is '<f8'");
  refuses(npy("<f2", "(1, 2, 3, 4)", halves(24), "True"), "Fortran order");
  refuses(npy("<f2", "(24,)", halves(24)), "four dimensions are needed");
  refuses(npy("<f2", "x", halves(24)), "malformed");
  refuses(npy("<f2", "(1, 2, 3, 99999999999999999999)", halves(24)), "too large");
  const auto header_is = [&](const std::string& header, const std::string& words) {
    refuses(std::string("\x93NUMPY\x01\x00", 8) + number_bytes(header.size(), 2) + header + halves(24), words);
  };
  header_is("{'descr': '<f2', 'fortran_order': False}", "has no 'shape'");
  header_is("{'descr': '<f2', 'shape': (1, 2, 3, 4)}", "has no 'fortran_order'");
  header_is("{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4)", "',' is missing");
  header_is("{'descr': '<f2', 'fortran_order': 0, 'shape': (1, 2, 3, 4)}", "neither True nor False");
  header_is("{'descr': '<f2', 'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4)}", "two keys \"descr\"");
  header_is("{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4), 'x': 1}", "an unknown key \"x\"");
  header_is("{'descr': [('a', '<f2')], 'fortran_order': False, 'shape': (24,)}", "dtype is [('a'");
  header_is("{'descr': '<f2', 'fortran_order': False, 'shape': (1, -2, 3, 4)}", "malformed");
  header_is("{'descr': '<f2', 'fortran_order': False, 'shape': (1.0, 2, 3, 4)}", "malformed");
  header_is("", "'{' is missing");
  refuses(npy(">f2", "(1, 2, 3, 4)", halves(24)), "dtype is '>f2'");
  std::string infinite = halves(24);
  infinite[1] = 0x7c;
  infinite[0] = 0;
  refuses(npy("<f2", "(1, 2, 3, 4)", infinite), "holds infinity at element 0");
}

// Files written by the libraries users have.
TEST(TensorFile, ReadsWhatNumpyAndSafetensorsWrite) {
  const TemporaryFolder folder;
  const ProcessResult run = run_process({"python3", "-c",
                                         "import sys, numpy as np\n"
                                         "from safetensors.numpy import save_file\n"
                                         "r = np.random.default_rng(0)\n"
                                         "t = {n: r.standard_normal(s).astype(np.float32) for n, s in (('q', (2, 4, 7, "
                                         "16)), ('k', (2, 2, 9, 16)), ('v', (2, 2, 9, 16)))}\n"
                                         "save_file(t, sys.argv[1] + '/t.safetensors')\n"
                                         "for n, x in t.items(): np.save(sys.argv[1] + '/' + n + '.npy', x)\n",
                                         folder.path().string()},
                                        {}, 60);
  if (!run.ok()) GTEST_SKIP() << "NumPy or safetensors is not installed for python3";
  const QkvTensors a = read_qkv_safetensors(folder.file("t.safetensors"), Layout::bhld);
  const QkvTensors b = read_qkv_npy(folder.file("q.npy"), folder.file("k.npy"), folder.file("v.npy"), Layout::bhld);
  EXPECT_EQ(to_string(a.workload), "b2h4hkv2l7k9d16:fp32");
  EXPECT_EQ(a.digest, b.digest);
}

}  // namespace
}  // namespace heed
