/// What the programs of a file cost: processor time of compilers, and bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "dispatch/program_file.hpp"
#include "jit/artifact.hpp"

namespace heed::cli {

/// By architecture. Variants that are one program, launched in other ways, are built once and counted so. A program out
/// of the cache counts with the time of its build, so that a build that was broken off and taken up again gives the
/// same sums as one in one go.
class BuildCosts {
 public:
  void add(const std::string& arch, const jit::Artifact& artifact);
  /// Deflated bytes of the file's images; one that several programs share counts once, with the first of them.
  void add_bytes(const dispatch::ProgramFile& file);

  /// "compilers": {"processor_s", "longest_s", "from_cache", "unknown"} and "archs", an array of the same with
  /// "arch", "programs" and "bytes". `unknown` counts programs whose build an older Heed timed, not its compiler.
  [[nodiscard]] nlohmann::json to_json() const;
  /// A line for each architecture, and one on what the sums leave out.
  [[nodiscard]] std::string text() const;

 private:
  struct Costs {
    int programs = 0;
    int from_cache = 0;
    int unknown = 0;
    double processor_s = 0;
    double longest_s = 0;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] Costs sum() const;
  std::map<std::string, Costs> by_arch_;
  std::set<std::filesystem::path> counted_;  ///< binaries
};

}  // namespace heed::cli
