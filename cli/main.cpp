// heed: evolves, proves and measures fused attention kernels.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "json/text.hpp"
#include "ladder/ladder.hpp"
#include "process/interrupt.hpp"
#include "worker/child.hpp"
#include "worker/worker.hpp"

namespace {

constexpr int kUsage = 2;
constexpr int kFailure = 1;
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells count

int exit_code_of(heed::ErrorCode code) {
  if (code == heed::ErrorCode::usage || code == heed::ErrorCode::invalid_workload) return kUsage;
  return code == heed::ErrorCode::interrupted ? kInterrupted : kFailure;
}

int report(const heed::Error& error, bool json) {
  if (json && !heed::cli::has_printed()) {
    const nlohmann::json object = {
        {"error", {{"code", heed::to_string(error.code())}, {"message", error.what()}, {"value", error.value()}}}};
    heed::cli::print(heed::json_text(object) + "\n");
  }
  heed::cli::remark(true, fmt::format("heed: {}", error.what()));
  return exit_code_of(error.code());
}

// CLI11 lists what was left over from the last to the first, and says of a misspelt option that is required that it is
// missing: the first word that no option is called helps more.
std::string sentence_of(const CLI::ParseError& error, const CLI::App& app) {
  constexpr std::string_view kConversion = "Could not convert: ";
  if (const std::string said = error.what(); said.starts_with(kConversion)) {
    const std::size_t equals = said.find(" = ");
    if (equals != std::string::npos)
      return fmt::format("{} cannot be \"{}\": a number is wanted, and not too large a one",
                         said.substr(kConversion.size(), equals - kConversion.size()), said.substr(equals + 3));
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr &&
      dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr)
    return error.what();
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  if (const auto below = command->get_subcommands([](const CLI::App*) { return true; }); !below.empty()) {
    std::vector<std::string> names;
    for (const CLI::App* one : below) names.push_back(one->get_name());
    if (app.remaining(true).empty())
      return fmt::format("a subcommand of {} is wanted: {}", command->get_name().empty() ? "heed" : command->get_name(),
                         heed::join(names, ", "));
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options()) known.push_back(option->get_name());
  for (const std::string& word : app.remaining(true)) {
    if (!word.starts_with("-")) continue;
    const std::string option = word.substr(0, word.find('='));
    const std::string_view near = heed::nearest(option, {known.begin(), known.end()});
    return near.empty() ? fmt::format("unknown option \"{}\"", option)
                        : fmt::format("unknown option \"{}\"; did you mean \"{}\"?", option, near);
  }
  return error.what();
}

// CLI11 hands a footer down when a subcommand is made: the program's own is set after all of them, and a subcommand
// without examples of its own has its command's.
void give_footers(CLI::App& app) {
  const auto all = [](const CLI::App*) { return true; };
  for (CLI::App* command : app.get_subcommands(all))
    for (CLI::App* subcommand : command->get_subcommands(all))
      if (subcommand->get_footer().empty()) subcommand->footer(command->get_footer());
  app.footer(
      "Words:\n"
      "  workload   sizes and features of an attention problem: b1h8l512d64:bf16:causal_bottom_right\n"
      "  family     a kernel with knobs; a variant is a family with values of its knobs: fwd_sm80:block_n=128\n"
      "  trial      a variant that was built, verified, and timed beside the base, the default of the first family\n"
      "  gate       all checks of correctness that a variant passes before it is timed\n"
      "  champion   the fastest verified variant of a run\n"
      "Examples:\n"
      "  heed evolve --shape b1h8l512d64              find a faster kernel for one workload\n"
      "  heed show 1                                  trials of run 1, and the gain of each change of its champion\n"
      "  heed report 1 -o run.html                    the same as a page with charts\n"
      "  heed replay 17                               does the stored result of trial 17 still hold?\n"
      "  heed run --qkv in.safetensors -o o.npy       a kernel on your own tensors\n"
      "  heed doctor                                  whether this machine can build, run and measure kernels\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
}

// A word in the place of a command, or of a command's own, that names none: CLI11 would only say that one is required.
std::optional<heed::Error> unknown_command(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  if (names.empty() || words.empty() || words.front().starts_with("-")) return std::nullopt;
  const std::string& first = words.front();
  if (std::find(names.begin(), names.end(), first) != names.end())
    return unknown_command(*app.get_subcommand(first), {words.begin() + 1, words.end()});
  const std::string of = app.get_parent() == nullptr ? "" : " of heed " + app.get_name();
  return heed::Error(
      heed::ErrorCode::usage,
      fmt::format("unknown command \"{}\"{}; {}", first, of, heed::one_of(first, {names.begin(), names.end()})), first);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = heed::worker::run_child_if_asked(argc, argv)) return *code;
  heed::cli::open_standard_streams();
  heed::install_interrupt_handler();
  // Beyond ulimit -f a write then fails, and a sentence says so. A handler, since programs that are started would go on
  // ignoring a signal that is ignored here.
  std::signal(SIGXFSZ, [](int) {});
  heed::ladder::register_family();

  CLI::App app(
      "Heed evolves fused attention kernels for your shape on your machine, proves each one correct, measures it "
      "against PyTorch and keeps the evidence.");
  app.set_version_flag("--version", fmt::format("heed {}, sources {}", heed::kVersion, heed::compile::source_digest()));
  app.require_subcommand(1);
  int exit_code = 0;
  for (const heed::cli::Register command :
       {heed::cli::add_evolve,    heed::cli::add_run,      heed::cli::add_verify,   heed::cli::add_bench,
        heed::cli::add_show,      heed::cli::add_runs,     heed::cli::add_replay,   heed::cli::add_report,
        heed::cli::add_champions, heed::cli::add_families, heed::cli::add_rules,    heed::cli::add_emit,
        heed::cli::add_build,     heed::cli::add_programs, heed::cli::add_book,     heed::cli::add_dispatch,
        heed::cli::add_library,   heed::cli::add_prebuild, heed::cli::add_doctor,   heed::cli::add_selftest,
        heed::cli::add_profile,   heed::cli::add_ladder,   heed::cli::add_evidence, heed::cli::add_judge,
        heed::cli::add_adopt,     heed::cli::add_insights, heed::cli::add_serve,    heed::cli::add_landscape,
        heed::cli::add_simulate,  heed::cli::add_calibrate})
    command(app, exit_code);
  give_footers(app);

  // As git and cargo have it: "heed help book add" is "heed book add --help".
  std::vector<char*> words(argv, argv + argc);
  static char help[] = "--help";
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    words.erase(words.begin() + 1);
    words.push_back(help);
    argv = words.data();
  }

  bool json = false;
  for (int i = 1; i < argc; ++i) json = json || std::string_view(argv[i]) == "--json";

  if (const auto unknown = unknown_command(app, {argv + 1, argv + argc})) return report(*unknown, json);

  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) throw;
      app.exit(error);  // prints --help and --version
    }
    heed::cli::check_stdout();
    return exit_code;
  } catch (const CLI::ParseError& error) {
    report(heed::Error(heed::ErrorCode::usage, sentence_of(error, app)), json);
    heed::cli::remark(true, "Run with --help for usage.");
    return kUsage;
  } catch (const heed::Error& error) {
    return report(error, json);
  } catch (const heed::worker::WorkerFailure& failure) {
    // Of a base or a champion, which has passed the gate: a fault of the machine rather than of the kernel.
    return report(heed::Error(heed::ErrorCode::worker,
                              fmt::format("a kernel that has passed the gate could not be timed: {}. Where other "
                                          "programs take the processors, stop them or raise --launch-limit",
                                          failure.what())),
                  json);
  } catch (const std::exception& error) {
    return report(heed::Error(heed::ErrorCode::internal, fmt::format("unexpected failure: {}", error.what())), json);
  }
}
