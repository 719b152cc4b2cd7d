/// Evidence files: what they all begin with, and whether those in a folder are still about today's sources.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "store/store.hpp"

namespace heed::report {

/// Of the JSON in the evidence folder.
inline constexpr int kEvidenceSchema = 1;

/// Of which device sources something is.
struct Sources {
  std::string digest;                           ///< of all
  std::map<std::string, std::string> families;  ///< of those of each family
};

/// The fields every evidence file has; the caller adds "rows" and "table". @param device facts as stored with a run
nlohmann::json evidence_header(const std::string& what, const nlohmann::json& device, const Sources& sources);

/// Adds the families' digests to evidence that has the digest of all: where it is today's, for others are not known.
void add_family_digests(nlohmann::json& evidence, const Sources& today);

/// Adds to a run's evidence the digests of the machine code of the variants it names, from the run's trials.
void add_programs(nlohmann::json& evidence, const std::vector<store::TrialRecord>& trials);

/// A variant that evidence names, and what it was measured for.
struct Program {
  std::string config;  ///< family:knob=value,...
  std::string workload;
  std::string arch;
};
/// The digest of each variant's machine code as today's sources build it; none where they do not.
using ProgramsOf = std::function<std::vector<std::optional<std::string>>(const std::vector<Program>&)>;

/// One file of the folder.
struct EvidenceFile {
  std::string path;     ///< relative to the folder
  std::string problem;  ///< why it cannot be read as evidence; empty when it can
  std::string what;
  std::string device;
  std::string date;
  std::string heed;
  std::string source_digest;
  int referee = 0;  ///< kReferee where it was measured; 0 where the file names none
  std::size_t rows = 0;
  bool current = false;  ///< its sources are today's, or those of every family it names
  // Of a file that is not current, where variants were built:
  std::size_t programs = 0;       ///< variants it names
  std::size_t same_programs = 0;  ///< those that are built into the machine code that was measured

  [[nodiscard]] bool has_same_programs() const { return programs > 0 && same_programs == programs; }
};

/// Every .json file below a folder, by name. @param programs_of asked for the variants of files that are not current
/// @throws Error(usage) when there is no such folder
std::vector<EvidenceFile> list_evidence(const std::filesystem::path& folder, const Sources& today,
                                        const ProgramsOf& programs_of = {});

std::string evidence_text(const std::vector<EvidenceFile>& files);
nlohmann::json evidence_json(const std::vector<EvidenceFile>& files);

}  // namespace heed::report
