#include "cli/cases.hpp"

#include "base/files.hpp"
#include "base/text.hpp"

namespace heed::cli {

std::vector<Workload> read_cases(const std::string& path) {
  std::vector<Workload> cases;
  for (const std::string& line : split(read_file(path, ErrorCode::usage), '\n'))
    if (const std::string text = trim(line.substr(0, line.find('#'))); !text.empty())
      cases.push_back(parse_workload(text));
  return cases;
}

}  // namespace heed::cli
