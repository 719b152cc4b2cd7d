#include "cli/bench_evidence.hpp"

#include <fmt/format.h>

#include "base/files.hpp"
#include "cli/command.hpp"
#include "heed/heed.hpp"
#include "json/text.hpp"
#include "report/table.hpp"

namespace heed::cli {
namespace {

constexpr const char* kWhat = "comparisons";

std::string table_of(const nlohmann::json& rows) {
  report::Table table({"workload", "base", "us", "variant", "us", "ratio", "95% interval"});
  for (const nlohmann::json& row : rows) {
    const nlohmann::json& ratio = row["ratio"];
    const bool is_timed = ratio.is_object();
    table.add(
        {row["workload"].get<std::string>(), row["base"].get<std::string>(),
         fmt::format("{:.2f}", row["base_us"].get<double>()), row["variant"].get<std::string>(),
         is_timed ? fmt::format("{:.2f}", row["warm_us"].get<double>()) : row["verdict"].get<std::string>(),
         is_timed ? fmt::format("{:.3f}", ratio["value"].get<double>()) : "-",
         is_timed ? fmt::format("[{:.4f}, {:.4f}]", ratio["low"].get<double>(), ratio["high"].get<double>()) : "-"});
  }
  return table.str();
}

}  // namespace

nlohmann::json comparisons_in(const std::filesystem::path& file, const nlohmann::json& device,
                              const report::Sources& sources) {
  check_evidence_can_be_written(file);
  nlohmann::json all = report::evidence_header(kWhat, device, sources);
  all["rows"] = nlohmann::json::array();
  if (!std::filesystem::is_regular_file(file)) return all;
  const nlohmann::json before = parse_json(read_file(file, ErrorCode::usage));
  const bool is_same = before.is_object() && before.value("what", nlohmann::json()) == kWhat &&
                       before.value("device", nlohmann::json()) == all["device"] &&
                       before.value("source_digest", nlohmann::json()) == all["source_digest"] &&
                       before.value("rows", nlohmann::json()).is_array();
  if (!is_same)
    throw Error(ErrorCode::usage,
                fmt::format("{} holds no comparisons of {} by sources {}, which these rows would stand beside; give "
                            "--evidence another name",
                            file.string(), all["device"].get<std::string>(), all["source_digest"].get<std::string>()),
                file.string());
  all["rows"] = before["rows"];
  return all;
}

void write_comparison(const std::filesystem::path& file, nlohmann::json comparisons, const nlohmann::json& comparison) {
  for (nlohmann::json row : comparison["rows"]) {
    row.erase("samples");
    if (!row.contains("ratio")) row["ratio"] = nullptr;
    for (const char* of_all : {"workload", "base", "base_us", "self_ratio"}) row[of_all] = comparison[of_all];
    comparisons["rows"].push_back(std::move(row));
  }
  comparisons["table"] = table_of(comparisons["rows"]);
  write_file_atomically(file, json_text(comparisons, 1) + "\n", ErrorCode::store);
}

}  // namespace heed::cli
