#include "cli/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/files.hpp"
#include "base/text.hpp"

namespace heed::cli {
namespace {

constexpr std::string_view kTensors = "qkv=";

// What follows the file of a line, as options of a workload of the file's shape.
Case case_of_tensors(const std::filesystem::path& folder, const std::string& line) {
  const std::vector<std::string> parts = split(line.substr(kTensors.size()), ':');
  const auto has = [&](std::string_view option) {
    return std::find(parts.begin() + 1, parts.end(), option) != parts.end();
  };
  if (parts.front().empty())
    throw Error(ErrorCode::usage,
                fmt::format("\"{}\" names no file; write for example qkv=layer0.safetensors:bf16", line), line);
  const Layout layout = has(to_string(Layout::blhd)) ? Layout::blhd : Layout::bhld;
  auto tensors = std::make_shared<QkvTensors>(read_qkv_safetensors(folder / parts.front(), layout));
  std::string text = to_string(tensors->workload);
  text.resize(text.find(':'));
  if (!has("fp16") && !has("bf16") && !has("fp32")) text += fmt::format(":{}", to_string(tensors->workload.dtype));
  for (std::size_t i = 1; i < parts.size(); ++i) text += fmt::format(":{}", parts[i]);
  return {reduced(parse_workload(text)), parts.front(), std::move(tensors)};
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
