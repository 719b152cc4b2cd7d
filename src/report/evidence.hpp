/// Evidence files: what they all begin with, and whether those in a folder are still about today's sources.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
};

/// Every .json file below a folder, by name. @throws Error(usage) when there is no such folder
std::vector<EvidenceFile> list_evidence(const std::filesystem::path& folder, const Sources& today);

std::string evidence_text(const std::vector<EvidenceFile>& files);
nlohmann::json evidence_json(const std::vector<EvidenceFile>& files);

}  // namespace heed::report
