#include "report/evidence.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.hpp"
#include "base/version.hpp"
#include "json/fields.hpp"
#include "json/text.hpp"
#include "quantise/modes.hpp"
#include "report/table.hpp"

namespace heed::report {

using fields::number;
using fields::text_of;

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Whether a text names a variant of a family: by its id ("fwd_sm90_split_fp16_d64..") or its config
// ("fwd_sm90_split:cluster=..").
bool names_variant(const std::string& text, const std::string& family) {
  for (const char* end : {"_fp16_", "_bf16_", "_fp32_", ":"})
    if (text.find('"' + family + end) != std::string::npos) return true;
  return false;
}

// Whether the kernels a file names are of today's sources, though others have changed.
bool names_only_unchanged(const json& content, const std::string& bytes, const Sources& today) {
  const json digests = content.value("family_digests", json::object());
  if (!digests.is_object()) return false;
  bool names_any = false;
  for (const auto& [family, digest] : today.families) {
    if (!names_variant(bytes, family)) continue;
    if (text_of(digests, family.c_str()) != digest) return false;
    names_any = true;
  }
  return names_any;
}

// A row's config with its family, which some rows name in the variant's id alone: "fwd_sm90_split_fp16_d64..". Rows
// without any config are of the family's default.
std::string config_of(const json& row) {
  std::string config = text_of(row, "config");
  if (config.find(':') != std::string::npos) return config;
  const std::string id = text_of(row, "variant");
  for (const char* end : {"_fp16_", "_bf16_", "_fp32_"})
    if (const std::size_t at = id.find(end); at != std::string::npos)
      return config.empty() ? id.substr(0, at) : id.substr(0, at) + ":" + config;
  return config;
}

// A row's workload as the command line spells it. Rows name it so in "text"; those of older files in "workload", with
// words behind it: a mode that quantises, or how lengths and lists were drawn, which no program depends on.
std::string workload_of(const json& row) {
  if (std::string text = text_of(row, "text"); !text.empty()) return text;
  const std::string name = text_of(row, "workload");
  const std::size_t at = name.find(" (");
  if (at == std::string::npos || name.back() != ')') return name;
  const std::string words = name.substr(at + 2, name.size() - at - 3);
  for (const quantise::Mode& mode : quantise::modes())
    if (mode.name == words) return fmt::format("{}:quantised={}", name.substr(0, at), mode.tensors);
  return name.substr(0, at);
}

// Counts the variants of a file's rows, or the one that a file without rows is of, that are built into the machine code
// that was measured.
void compare_programs(const json& content, const ProgramsOf& programs_of, EvidenceFile& file) {
  const json measured = content.value("programs", json::object());
  const json rows = content.value("rows", json::array({content}));
  if (!measured.is_object() || measured.empty() || !rows.is_array()) return;
  std::map<std::string, Program> wanted;
  for (const json& row : rows) {
    const std::string id = text_of(row, "variant");
    if (!id.empty()) wanted[id] = {config_of(row), workload_of(row), text_of(content, "arch")};
  }
  std::vector<Program> programs;
  for (const auto& [id, program] : wanted) programs.push_back(program);
  const std::vector<std::optional<std::string>> built = programs_of(programs);
  std::size_t i = 0;
  for (const auto& [id, program] : wanted) {
    const std::optional<std::string>& digest = built.at(i++);
    if (digest && *digest == text_of(measured, id.c_str())) ++file.same_programs;
  }
  file.programs = wanted.size();
}

std::string state_of(const EvidenceFile& file) {
  if (file.current) return "current";
  if (file.has_same_programs()) return "same programs";
  if (file.programs == 0) return "stale";
  return fmt::format("stale: {} of {} programs are the same", file.same_programs, file.programs);
}

void read_evidence(const fs::path& path, const Sources& today, const ProgramsOf& programs_of, EvidenceFile& file) {
  std::string bytes;
  try {
    bytes = read_file(path, ErrorCode::invalid_input);
  } catch (const Error& error) {
    file.problem = error.what();
    return;
  }
  const json content = parse_json(bytes);
  if (!content.is_object()) {
    file.problem = "no JSON object";
    return;
  }
  const json schema = content.value("schema", json());
  if (schema != kEvidenceSchema) {
    file.problem = schema.is_null() ? std::string("it names no schema")
                                    : fmt::format("schema {}; this Heed reads {}", schema.dump(), kEvidenceSchema);
    return;
  }
  for (const char* key : {"device", "source_digest"})
    if (text_of(content, key).empty()) {
      file.problem = fmt::format("it lacks \"{}\"", key);
      return;
    }
  file.what = text_of(content, "what");
  file.device = text_of(content, "device");
  file.date = text_of(content, "date");
  file.heed = text_of(content, "heed");
  file.source_digest = text_of(content, "source_digest");
  file.referee = static_cast<int>(number(content, "referee"));
  file.rows = content.contains("rows") && content["rows"].is_array() ? content["rows"].size() : 0;
  file.current = file.source_digest == today.digest || names_only_unchanged(content, bytes, today);
  if (!file.current && programs_of) compare_programs(content, programs_of, file);
}

}  // namespace

json evidence_header(const std::string& what, const json& device, const Sources& sources) {
  return {{"schema", kEvidenceSchema},
          {"what", what},
          {"device", device.value("name", std::string())},
          {"arch", device.value("arch", std::string())},
          {"driver", device.value("driver", std::string())},
          {"heed", kVersion},
          {"source_digest", sources.digest},
          {"referee", kReferee},
          {"family_digests", sources.families},
          {"date", store::utc_now()}};
}

void add_family_digests(json& evidence, const Sources& today) {
  if (text_of(evidence, "source_digest") == today.digest) evidence["family_digests"] = today.families;
}

void add_programs(json& evidence, const std::vector<store::TrialRecord>& trials) {
  if (!evidence.contains("rows")) return;
  for (const json& row : evidence["rows"])
    for (const store::TrialRecord& trial : trials)
      if (trial.variant == text_of(row, "variant") && !trial.machine_code.empty())
        evidence["programs"][trial.variant] = trial.machine_code;
}

std::vector<EvidenceFile> list_evidence(const fs::path& folder, const Sources& today, const ProgramsOf& programs_of) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw Error(ErrorCode::usage,
                fmt::format("there is no folder {}; name the one that holds the evidence", folder.string()),
                folder.string());
  std::vector<EvidenceFile> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    if (!entry.is_regular_file(error) || entry.path().extension() != ".json") continue;
    EvidenceFile file;
    file.path = entry.path().lexically_relative(folder).string();
    read_evidence(entry.path(), today, programs_of, file);
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

std::string evidence_text(const std::vector<EvidenceFile>& files) {
  if (files.empty()) return "the folder holds no evidence\n";
  Table table({"file", "what", "device", "date", "sources", "referee", "rows", "state"});
  for (const std::size_t column : {1, 2, 3, 4, 7}) table.align_left(column);
  for (const EvidenceFile& f : files) {
    if (!f.problem.empty())
      table.add({f.path, "-", "-", "-", "-", "-", "-", "unreadable: " + f.problem});
    else
      table.add({f.path, f.what, f.device, f.date, f.source_digest, f.referee > 0 ? std::to_string(f.referee) : "-",
                 std::to_string(f.rows), state_of(f)});
  }
  return table.str();
}

json evidence_json(const std::vector<EvidenceFile>& files) {
  json all = json::array();
  for (const EvidenceFile& f : files) {
    json file = {
        {"path", f.path}, {"current", f.current}, {"programs", f.programs}, {"same_programs", f.same_programs}};
    if (!f.problem.empty()) {
      file["problem"] = f.problem;
    } else {
      file.update({{"what", f.what},
                   {"device", f.device},
                   {"date", f.date},
                   {"heed", f.heed},
                   {"source_digest", f.source_digest},
                   {"referee", f.referee},
                   {"rows", f.rows}});
    }
    all.push_back(std::move(file));
  }
  return all;
}

}  // namespace heed::report
