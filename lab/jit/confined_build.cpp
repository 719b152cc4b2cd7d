#include "jit/confined_build.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <regex>

#include "base/files.hpp"
#include "base/text.hpp"
#include "heed/heed.hpp"

namespace heed::jit {
namespace fs = std::filesystem;
namespace {

// g++ takes 0.4 GiB for the largest CPU kernels, NVRTC with ptxas 1 GiB for the largest of fwd_sm90_persistent, each of
// address space about twice that.
constexpr std::int64_t kMemory = std::int64_t{8} << 30;
constexpr std::int64_t kFile = std::int64_t{64} << 20;  // the largest honest binary has 0.4 MiB

// The folder a program is installed under: what holds its "bin", unless that is somebody's home or all there is.
std::string installation_of(const std::string& program) {
  std::error_code error;
  const fs::path file = fs::canonical(program, error);
  if (error) return {};
  const fs::path folder = file.parent_path();
  const fs::path prefix = folder.parent_path();
  const char* home = std::getenv("HOME");
  const bool shared = prefix == "/" || prefix == "/home" || (home != nullptr && prefix == fs::path(home));
  return folder.filename() == "bin" && !shared ? prefix.string() : folder.string();
}

}  // namespace

BuildFolder::BuildFolder(const fs::path& output) {
  std::string pattern = (fs::absolute(output).parent_path() / ".build.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw Error(ErrorCode::cache, fmt::format("cannot create the folder {}: {}", pattern, last_system_error()),
                pattern);
  path_ = pattern;
}

BuildFolder::~BuildFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::string BuildFolder::unnamed_in(std::string log) const {
  const std::string prefix = path_ + "/";
  for (std::size_t at = log.find(prefix); at != std::string::npos; at = log.find(prefix, at))
    log.erase(at, prefix.size());
  return log;
}

void BuildFolder::keep(const fs::path& output) const {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(file(), error)))
    throw Error(ErrorCode::cache, fmt::format("the compiler left no file {}", file()), file());
  fs::rename(file(), output, error);
  if (error)
    throw Error(ErrorCode::cache, fmt::format("cannot move {} to {}: {}", file(), output.string(), error.message()),
                output.string());
}

Confinement confinement_of_build(const std::string& program, const std::vector<std::string>& readable,
                                 const std::string& folder, double limit_s) {
  Confinement confinement;
  confinement.readable = {"/usr",      "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives",
                          "/nix/store"};
  confinement.readable.insert(confinement.readable.end(), readable.begin(), readable.end());
  confinement.readable.push_back(installation_of(program));
  confinement.writable = {folder};
  // Compilers look for included files in the working directory first, and take one there that they may not read for an
  // error: a checkout of Heed has files of the names that kernels include.
  confinement.folder = folder;
  // What a compiler takes from its environment (CPATH, GCC_EXEC_PREFIX, CCACHE_*) would decide what is built.
  const char* path = std::getenv("PATH");
  confinement.environment = {fmt::format("PATH={}", path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path), "LANG=C",
                             "LC_ALL=C", "TMPDIR=" + folder, "CCACHE_DISABLE=1"};
  if (const char* libraries = std::getenv("LD_LIBRARY_PATH"); libraries != nullptr) {
    confinement.environment.push_back(fmt::format("LD_LIBRARY_PATH={}", libraries));
    for (const std::string& place : split(libraries, ':'))
      if (place.starts_with('/') && place.size() > 1) confinement.readable.push_back(place);
  }
  confinement.memory_bytes = kMemory;
  confinement.file_bytes = kFile;
  confinement.processor_s = static_cast<std::int64_t>(4 * limit_s) + 10;  // clang++ and ptxas have several threads
  return confinement;
}

std::string limit_met(const ProcessResult& run) {
  const auto says = [&](std::string_view words) { return run.output.find(words) != std::string::npos; };
  if (run.signal == SIGXFSZ || says("File size limit exceeded") || says("File too large"))
    return fmt::format("the build writes a file of more than {} MiB", kFile >> 20);
  if (run.signal == SIGXCPU || says("CPU time limit exceeded"))
    return "the build takes more processor time than it may";
  if (says("out of memory") || says("virtual memory exhausted") || says("bad_alloc") || says("memory exhausted"))
    return fmt::format("the build takes more than {} GiB of memory", kMemory >> 30);
  return {};
}

bool was_killed_from_outside(const ProcessResult& run) {
  if (run.ok() || run.timed_out || run.interrupted || !limit_met(run).empty()) return false;
  if (run.signal == SIGKILL || run.signal == SIGTERM || run.signal == SIGHUP || run.signal == SIGINT) return true;
  // g++ and clang++ of their assembler, linker and compiler proper. A source that prints as much is built again in
  // vain.
  const auto says = [&](std::string_view words) { return run.output.find(words) != std::string::npos; };
  return says("Killed signal terminated program") || says("Terminated signal terminated program") ||
         says("unable to execute command: Killed") || says("unable to execute command: Terminated");
}

std::string without_foreign_files(std::string_view log, std::string_view tree) {
  // "FILE:12:", "FILE(12):", "In file included from FILE:12", with what compilers put in front.
  static const std::regex place(
      R"(^(?:In file included from |\s+from |\S*ptxas )?(\{standard input\}|[^\s:()]+)(?::\d+|\(\d+\):))");
  std::string kept;
  bool foreign = false;
  for (const std::string& line : split(log, '\n')) {
    std::smatch match;
    // A header names its file within PATH_MAX; std::regex recurses once a character, so the rest stays unread.
    const std::string head = line.substr(0, 4096 + 64);
    const bool header = std::regex_search(head, match, place);
    if (header) {
      const std::string file = match[1];
      const bool before = foreign;
      foreign = file.front() == '/' && !(file.starts_with(tree) && !tree.empty());
      foreign = foreign || file.find("..") != std::string::npos;
      if (foreign && !before) kept += "(about a file that is not of the kernel's sources)\n";
    }
    if (!foreign) kept += line + "\n";
  }
  while (!kept.empty() && kept.back() == '\n') kept.pop_back();
  return kept;
}

}  // namespace heed::jit
