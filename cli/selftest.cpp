// heed selftest
#include <fmt/format.h>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "trial/zoo.hpp"

namespace heed::cli {
namespace {

int selftest(const MachineOptions& machine) {
  const DeviceFacts device = machine.choose();
  const auto builder = machine.builder();
  remark(machine.json, fmt::format("running the exploit zoo on {}\n", device.name));
  const std::vector<trial::SelftestRow> rows =
      trial::run_selftest(device, *builder, [&](const trial::SelftestRow& row) {
        const bool honest = row.name == "honest";
        remark(machine.json, fmt::format("{:<7} {:<20} {:<52} {}",
                                         row.caught ? (honest ? "passed" : "caught") : (honest ? "REFUSED" : "MISSED"),
                                         row.name, row.description, row.found));
        if (!row.caught)
          remark(machine.json, fmt::format("        expected {}; {}", row.expected, split(row.reason, '\n').front()));
      });
  int failures = 0;
  nlohmann::json all = nlohmann::json::array();
  for (const trial::SelftestRow& row : rows) {
    if (!row.caught) ++failures;
    all.push_back({{"name", row.name},
                   {"description", row.description},
                   {"expected", row.expected},
                   {"found", row.found},
                   {"reason", row.reason},
                   {"caught", row.caught}});
  }
  const std::size_t exploits = rows.size() - 1;
  if (machine.json)
    print(nlohmann::json{{"device", device.name}, {"rows", all}, {"failures", failures}}.dump(1) + "\n");
  else
    print(failures == 0
              ? fmt::format(
                    "\nAll {} exploits were caught and the honest kernel passed: results on this machine count.\n",
                    exploits)
              : fmt::format("\n{} of {} rows are not as they must be: do not trust results on this machine.\n",
                            failures, rows.size()));
  return failures == 0 ? 0 : 1;
}

}  // namespace

void add_selftest(CLI::App& app, int& exit_code) {
  auto machine = std::make_shared<MachineOptions>();
  CLI::App* command =
      app.add_subcommand("selftest", "Let kernels that cheat loose on the referee: every one must be caught");
  machine->add_to(*command);
  command->footer("Exit code 0 when every exploit is caught and the honest kernel passes, 1 otherwise.");
  command->callback([machine, &exit_code] { exit_code = selftest(*machine); });
}

}  // namespace heed::cli
