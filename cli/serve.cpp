// heed serve: a coding agent drives trials, the referee outside its reach
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>

#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/command.hpp"
#include "cli/family_text.hpp"
#include "cli/judgement.hpp"
#include "evolve/model_task.hpp"
#include "insights/insight.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "prompts/template.hpp"
#include "serve/mcp_server.hpp"
#include "source/editable.hpp"
#include "source/stored.hpp"
#include "store/observations.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

struct ServeOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  StoreOptions store;
};

json schema(json properties, json required = json::array()) {
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

json property(const char* type, const char* description) {
  return {{"type", type}, {"description", description}};
}

json whole_number(const char* description, std::int64_t most) {
  json one = property("integer", description);
  one["minimum"] = 1;
  one["maximum"] = most;
  return one;
}

// What the tools of a server share. Bases are built when a family is first judged.
class Session {
 public:
  explicit Session(const ServeOptions& o)
      : trial_options_(o.machine.trial_options()),
        workload_(o.workload.workload(std::nullopt)),
        device_(o.machine.choose()),
        builder_(o.machine.builder()),
        store_(o.store.open(store::Access::read_write)),
        families_(searched_families(workload_, device_)) {}

  [[nodiscard]] json families() const {
    json all = json::array();
    for (const Family* family : families_) {
      if (family->refuses(workload_, device_)) continue;
      json one = family_json(*family, device_);
      one["default"] = describe(parse_variant(family->name(), workload_, device_));
      all.push_back(std::move(one));
    }
    return {{"workload", to_string(workload_)}, {"problem", evolve::problem_in_words(workload_)}, {"families", all}};
  }

  [[nodiscard]] json source(const json& arguments) {
    const Variant variant = parent_of(arguments);
    const auto files = source::editable(*variant.family);
    const auto text_of = [&](const std::string& path, const std::string& carried) -> const std::string& {
      const std::string* edited = variant.overlay ? variant.overlay->find(path) : nullptr;
      return edited == nullptr ? carried : *edited;
    };
    if (!arguments.contains("path")) {
      json list = json::array();
      for (const auto& [path, text] : files) {
        const std::string& now = text_of(path, text);
        list.push_back({{"path", path},
                        {"lines", std::count(now.begin(), now.end(), '\n')},
                        {"edited", variant.overlay && variant.overlay->find(path) != nullptr}});
      }
      return {{"config", describe(variant)}, {"files", list}};
    }
    const std::string path = arguments["path"];
    const auto at = files.find(path);
    if (at == files.end()) {
      std::vector<std::string_view> known;
      for (const auto& [one, text] : files) known.push_back(one);
      throw Error(ErrorCode::usage,
                  fmt::format("{} has no editable source {}; {}", variant.family->name(), path, one_of(path, known)),
                  path);
    }
    return text_of(path, at->second);
  }

  [[nodiscard]] json judge_source(const json& arguments) {
    const Variant parent = parent_of(arguments);
    evolve::SourceJudge& judge = judge_of(*parent.family);
    return judgement_json(judge, judge.judge(arguments["edits"].get<std::string>(), parent), workload_, device_);
  }

  [[nodiscard]] json judge_knobs(const json& arguments) {
    const Variant variant = admitted(arguments["config"].get<std::string>(), workload_, device_);
    evolve::SourceJudge& judge = judge_of(*variant.family);
    return judgement_json(judge, judge.judge_knobs(variant, arguments.value("why", std::string())), workload_, device_);
  }

  [[nodiscard]] json profile(const json& arguments) {
    const store::TrialRecord trial = trial_of(arguments["trial"].get<std::int64_t>());
    if (!trial.diagnosis.is_object())
      throw Error(ErrorCode::usage,
                  fmt::format("trial {} has no profile: it ended {}", trial.id, to_string(trial.verdict)),
                  std::to_string(trial.id));
    return {{"trial", trial.id},
            {"config", trial.config},
            {"us", trial.trial_us},
            {"diagnosis", trial.diagnosis},
            {"resources", trial.resources}};
  }

  [[nodiscard]] json insights(const json& arguments) {
    const std::string family = arguments.value("family", std::string(families_.front()->name()));
    const insights::Place place{.family = std::string(find_family(family).name()),
                                .workload = workload_,
                                .arch = device_.arch,
                                .bound = arguments.value("bound", std::string())};
    json all = json::array();
    const int most = arguments.value("most", 20);
    for (const insights::Insight& one : insights::insights_for(store::observations(*store_), place))
      if (static_cast<int>(all.size()) < most)
        all.push_back({{"change", one.change},
                       {"family", one.family},
                       {"sentence", one.sentence},
                       {"expected", one.expected},
                       {"in_favour", one.in_favour},
                       {"against", one.against}});
    return {{"insights", all}};
  }

  [[nodiscard]] json best(const json& arguments) {
    std::vector<const store::TrialRecord*> passed;
    for (const auto& [name, judge] : judges_)
      for (const store::TrialRecord& t : judge->trials())
        if (t.ok()) passed.push_back(&t);
    std::stable_sort(passed.begin(), passed.end(),
                     [](const auto* a, const auto* b) { return a->ratio_low > b->ratio_low; });
    const auto most = static_cast<std::size_t>(arguments.value("most", 5));
    if (passed.size() > most) passed.resize(most);
    json all = json::array();
    for (const store::TrialRecord* t : passed)
      all.push_back({{"trial", t->id},
                     {"config", t->config},
                     {"why", t->why},
                     {"ratio", {{"value", t->ratio}, {"low", t->ratio_low}, {"high", t->ratio_high}}},
                     {"us", t->trial_us},
                     {"diff", source::stored_diff(t->edits)}});
    return {{"best", all}};
  }

  [[nodiscard]] std::string evidence() const {
    json all = json::array();
    for (const auto& [name, judge] : judges_)
      for (const store::TrialRecord& t : judge->trials())
        all.push_back({{"trial", t.id},
                       {"family", name},
                       {"config", t.config},
                       {"verdict", to_string(t.verdict)},
                       {"finding", to_string(t.finding)},
                       {"reason", t.reason},
                       {"ratio", {{"value", t.ratio}, {"low", t.ratio_low}, {"high", t.ratio_high}}},
                       {"us", t.trial_us},
                       {"error", {{"max_abs", t.max_abs}, {"rel_rms", t.rel_rms}}},
                       {"finished", t.finished}});
    return json_text(all, 1);
  }

  [[nodiscard]] std::string workload_text() const {
    return fmt::format("{}: {}\non {} ({})\n", to_string(workload_), evolve::problem_in_words(workload_), device_.name,
                       device_.arch);
  }

 private:
  store::TrialRecord trial_of(std::int64_t id) const {
    const std::optional<store::TrialRecord> trial = store_->find_trial(id);
    if (!trial) throw Error(ErrorCode::usage, fmt::format("there is no trial {}", id), std::to_string(id));
    return *trial;
  }

  // A trial with its edits, else a config, else the default of the first family.
  Variant parent_of(const json& arguments) const {
    if (arguments.contains("trial") && arguments.contains("config"))
      throw Error(ErrorCode::usage, "a trial has its config; give one of trial and config");
    if (arguments.contains("trial")) {
      const store::TrialRecord trial = trial_of(arguments["trial"].get<std::int64_t>());
      return source::with_stored(admitted(trial.config, workload_, device_), trial.edits);
    }
    return admitted(arguments.value("config", std::string(kAutomatic)), workload_, device_);
  }

  evolve::SourceJudge& judge_of(const Family& family) {
    std::unique_ptr<evolve::SourceJudge>& judge = judges_[std::string(family.name())];
    if (!judge) {
      remark(true, fmt::format("building, verifying and timing the base of {}", family.name()));
      judge = std::make_unique<evolve::SourceJudge>(*store_, *builder_, device_, workload_,
                                                    parse_variant(family.name(), workload_, device_), trial_options_);
    }
    return *judge;
  }

  trial::Options trial_options_;
  Workload workload_;
  DeviceFacts device_;
  std::unique_ptr<jit::Builder> builder_;
  std::unique_ptr<store::Store> store_;
  std::vector<const Family*> families_;
  std::map<std::string, std::unique_ptr<evolve::SourceJudge>> judges_;  // by family
};

constexpr const char* kInstructions =
    "Heed judges variants of fused attention kernels: it builds them, compares all outputs with an oracle in double "
    "precision and measures them against a base in interleaved pairs. Read the resources heed://workload and "
    "heed://contract, list families and sources, then send knobs or edits; a trial that is ok and whose ratio's whole "
    "interval lies above 1 is faster. Every trial is stored.";

void serve(const ServeOptions& o) {
  auto session = std::make_shared<Session>(o);
  serve::McpServer server("heed", kVersion, kInstructions);
  const json config = property("string", "family or family:knob=value,...; left out: the default family");
  const json trial = whole_number("id of a judged trial, with its edits", std::numeric_limits<std::int64_t>::max());
  const json most = whole_number("how many", std::numeric_limits<int>::max());
  server.add(serve::Tool{"families", "Kernel families that run the workload: knobs, values, defaults",
                         schema(json::object()), [session](const json&) { return session->families(); }});
  server.add(serve::Tool{
      "source", "Editable device sources of a family, or of a judged trial: the list of files, or one file's text",
      schema({{"config", config}, {"trial", trial}, {"path", property("string", "one of the list")}}),
      [session](const json& a) { return session->source(a); }});
  server.add(serve::Tool{
      "judge_source",
      "Build, verify and measure edits of sources: blocks of search and replace, a unified diff or whole files",
      schema({{"edits", property("string", "the edits, in any text; a sentence in <insight> is stored with them")},
              {"config", config},
              {"trial", trial}},
             {"edits"}),
      [session](const json& a) { return session->judge_source(a); }});
  server.add(
      serve::Tool{"judge_knobs", "Build, verify and measure a config of a family",
                  schema({{"config", config}, {"why", property("string", "the idea in a sentence")}}, {"config"}),
                  [session](const json& a) { return session->judge_knobs(a); }});
  server.add(serve::Tool{"profile", "What bounds a trial that passed: diagnosis, occupancy, resources",
                         schema({{"trial", trial}}, {"trial"}),
                         [session](const json& a) { return session->profile(a); }});
  server.add(serve::Tool{"insights", "Effects of single changes on speed, the most relevant to the workload first",
                         schema({{"family", property("string", "kernel family")},
                                 {"bound", property("string", "what holds the kernel back")},
                                 {"most", most}}),
                         [session](const json& a) { return session->insights(a); }});
  server.add(serve::Tool{"best", "The fastest trials that passed so far, with their edits", schema({{"most", most}}),
                         [session](const json& a) { return session->best(a); }});
  server.add(serve::Resource{"heed://contract", "contract", "Rules that kernels keep to, and the form of edits",
                             "text/markdown", [] {
                               const prompts::Templates templates;
                               return templates.text("rules") + "\n" + templates.text("format");
                             }});
  server.add(serve::Resource{"heed://workload", "workload", "The problem and the device", "text/plain",
                             [session] { return session->workload_text(); }});
  server.add(serve::Resource{"heed://evidence", "evidence", "Every trial that this server judged or goes on with",
                             "application/json", [session] { return session->evidence(); }});
  remark(true, fmt::format("serving {} over stdin and stdout",
                           session->workload_text().substr(0, session->workload_text().find('\n'))));
  server.run(STDIN_FILENO, std::cout, {.output = STDOUT_FILENO, .on_gone = interrupt});
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto o = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand(
      "serve",
      "Let a coding agent propose and judge kernels of one workload: a Model Context Protocol server over stdio");
  o->workload.add_to(*command);
  o->machine.add_to(*command);
  o->store.add_to(*command);
  command->footer(
      "Examples, the second as the configuration of an agent:\n"
      "  heed serve --shape b1h8l512d64\n"
      "  {\"mcpServers\": {\"heed\": {\"command\": \"heed\", \"args\": [\"serve\", \"--shape\", \"b1h8l512d64\"]}}}");
  command->callback([o] {
    if (o->workload.has_tensors())
      throw Error(ErrorCode::usage,
                  "heed serve takes its inputs at random, as searches without tensors do; give --shape",
                  o->workload.qkv);
    serve(*o);
  });
}

}  // namespace heed::cli
