#include "cli/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/files.hpp"
#include "base/text.hpp"

namespace heed::cli {
namespace {

constexpr std::string_view kTensors = "qkv=";

// Rows with zeros behind them, up to another head dim: the same scores and outputs, for families that have no programs
// of the tensors' own. The softmax scale stays.
void pad_rows(QkvTensors& tensors, std::int64_t dim, const std::string& line) {
  Workload& w = tensors.workload;
  if (dim < w.dim || dim < w.dim_v)
    throw Error(ErrorCode::usage, fmt::format("\"{}\": the tensors have head dim {}; d pads rows to more", line, w.dim),
                line);
  if (!w.scale) w.scale = 1 / std::sqrt(static_cast<double>(w.dim));
  for (HostTensor* tensor : {&tensors.q, &tensors.k, &tensors.v}) {
    const std::size_t from = static_cast<std::size_t>(tensor->shape.back()) * size_of(tensor->dtype);
    const std::size_t to = static_cast<std::size_t>(dim) * size_of(tensor->dtype);
    std::string padded(tensor->bytes.size() / from * to, '\0');
    for (std::size_t row = 0; row < tensor->bytes.size() / from; ++row)
      tensor->bytes.copy(padded.data() + row * to, from, row * from);
    tensor->bytes = std::move(padded);
    tensor->shape.back() = dim;
  }
  w.dim = w.dim_v = dim;
}

// The head dim of an option "d64"; nothing for other options.
std::optional<std::int64_t> dim_of(const std::string& option) {
  if (option.size() < 2 || option.size() > 4 || option.front() != 'd') return std::nullopt;
  if (!std::all_of(option.begin() + 1, option.end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return std::stoll(option.substr(1));
}

// What follows the file of a line, as options of a workload of the file's shape.
Case case_of_tensors(const std::filesystem::path& folder, const std::string& line) {
  std::vector<std::string> parts = split(line.substr(kTensors.size()), ':');
  const auto has = [&](std::string_view option) {
    return std::find(parts.begin() + 1, parts.end(), option) != parts.end();
  };
  if (parts.front().empty())
    throw Error(ErrorCode::usage,
                fmt::format("\"{}\" names no file; write for example qkv=layer0.safetensors:bf16", line), line);
  const Layout layout = has(to_string(Layout::blhd)) ? Layout::blhd : Layout::bhld;
  auto tensors = std::make_shared<QkvTensors>(read_qkv_safetensors(folder / parts.front(), layout));
  for (std::size_t i = 1; i < parts.size(); ++i)
    if (const auto dim = dim_of(parts[i])) {
      pad_rows(*tensors, *dim, line);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i--));
    }
  const std::optional<double> scale = tensors->workload.scale;
  std::string text = to_string(tensors->workload);
  text.resize(text.find(':'));
  if (tensors->workload.ragged)
    for (const std::string_view option : {to_string(Layout::blhd), std::string_view("ragged")})
      if (!has(option)) text += fmt::format(":{}", option);
  if (!has("fp16") && !has("bf16") && !has("fp32")) text += fmt::format(":{}", to_string(tensors->workload.dtype));
  for (std::size_t i = 1; i < parts.size(); ++i) text += fmt::format(":{}", parts[i]);
  Workload workload = parse_workload(text);
  if (!workload.scale) workload.scale = scale;
  return {reduced(workload), parts.front(), std::move(tensors)};
}

}  // namespace

std::vector<Case> read_cases(const std::string& path) {
  std::vector<Case> cases;
  for (const std::string& line : split(read_file(path, ErrorCode::usage), '\n')) {
    const std::string text = trim(line.substr(0, line.find('#')));
    if (text.empty()) continue;
    if (text.starts_with(kTensors))
      cases.push_back(case_of_tensors(std::filesystem::path(path).parent_path(), text));
    else
      cases.push_back({parse_workload(text), "", nullptr});
  }
  if (cases.empty())
    throw Error(ErrorCode::usage, fmt::format("{} names no workload; a line is one, as b1h8l512d64:fp32", path), path);
  return cases;
}

std::vector<Workload> read_workloads(const std::string& path) {
  std::vector<Workload> workloads;
  for (const Case& one : read_cases(path)) {
    if (one.tensors)
      throw Error(ErrorCode::usage,
                  fmt::format("{} names the tensors of {}; this command draws its inputs: give workloads alone, or run "
                              "heed verify --cases {}",
                              path, one.file, path),
                  one.file);
    workloads.push_back(one.workload);
  }
  return workloads;
}

}  // namespace heed::cli
