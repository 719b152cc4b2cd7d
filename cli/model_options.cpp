#include "cli/model_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "json/text.hpp"
#include "prompts/prompt.hpp"
#include "propose/panel.hpp"

namespace heed::cli {
namespace {

constexpr const char* kGroup = "Models that write kernel sources";
constexpr const char* kNames[] = {
    "--endpoint",     "--model",       "--command",        "--mailbox",      "--replay",        "--record",
    "--key-variable", "--key-file",    "--prompt",         "--prompts",      "--window-tokens", "--reply-tokens",
    "--reply-limit",  "--temperature", "--request-fields", "--token-budget", "--money-budget",  "--prices",
    "--no-repair",    "--model-share", "--bandit"};

constexpr const char* kOfResume[] = {"--key-variable", "--key-file", "--token-budget", "--money-budget"};

// Names of the options that were given, but for `others`, with commas between; empty: none.
std::string given(const CLI::App& app, std::span<const char* const> others = {}) {
  std::vector<std::string> names;
  for (const std::string_view name : kNames)
    if (app.count(std::string(name)) > 0 && std::ranges::find(others, name) == others.end()) names.emplace_back(name);
  return join(names, ", ");
}

// A missing key, file or price is told before anything is built.
void expect_usable(const record::ModelOptions& o) {
  (void)prompts::parse_preset(o.preset);
  const prompts::Templates templates(o.templates);
  const propose::Panel panel(o, 1, nullptr);
}

}  // namespace

void ModelArguments::add_to(CLI::App& app) {
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->group(kGroup);
  };
  option("--endpoint", options.endpoint,
         "Address of a language model that speaks OpenAI's chat completions, e.g. http://localhost:8000/v1");
  option("--model", options.models, "A model of the endpoint, NAME or NAME=WEIGHT; give it again for several");
  option("--command", options.command, "A shell command that reads a prompt from stdin and writes a reply to stdout");
  option("--mailbox", options.mailbox,
         "A folder where prompts are written as N-DIGEST.prompt.md and replies awaited as N-DIGEST.reply.md");
  option("--replay", options.replay,
         "A file that --record wrote: the run takes replies from it, by equal prompts or their places in the run, "
         "without a network");
  option("--record", options.recording, "Append prompts and replies to this file, one JSON object a line");
  option("--key-variable", options.key_variable, "Environment variable that holds the endpoint's key");
  option("--key-file", options.key_file, "File whose first line is the endpoint's key");
  option("--prompt", options.preset,
         "What a prompt tells, after EvoEngineer: free (the task), insight (and insights), full (and good solutions)")
      ->capture_default_str();
  option("--prompts", options.templates, "Folder of templates that replace those carried (system.md, full.md, ...)");
  option("--window-tokens", options.window_tokens, "Tokens that the model reads and writes at most")
      ->capture_default_str();
  option("--reply-tokens", options.reply_tokens, "Tokens that a reply may have")->capture_default_str();
  option("--reply-limit", options.reply_limit_s, "Seconds to wait for a reply; 0, for a mailbox: without end")
      ->capture_default_str();
  option("--temperature", temperature, "Temperature of sampling [the model's own]")->check(zero_or_above());
  option("--request-fields", request_fields, "Further fields of a request as a JSON object, e.g. {\"top_p\": 0.9}");
  option("--token-budget", tokens, "Tokens of prompts and replies for the run; then knobs go on alone [no limit]");
  option("--money-budget", money, "The same in the currency of --prices [no limit]");
  option("--prices", options.prices,
         "File of prices for a million tokens: {\"currency\": \"USD\", \"models\": {\"NAME\": {\"prompt\": 1, "
         "\"completion\": 2}}}");
  app.add_flag("--no-repair", no_repair, "Do not send build errors and failed gates back once")->group(kGroup);
  option("--model-share", options.share, "Share of a generation's trials that models write; the rest are knobs")
      ->capture_default_str();
  app.add_flag("--bandit", options.is_bandit,
               "Divide trials between models and knobs by what each has gained a second, in place of a fixed share")
      ->group(kGroup);
}

record::ModelOptions ModelArguments::chosen(const CLI::App& app) const {
  record::ModelOptions o = options;
  if (!o.any()) {
    if (const std::string names = given(app); !names.empty())
      throw Error(
          ErrorCode::usage,
          fmt::format("{}: nobody writes sources; --endpoint, --command, --mailbox or --replay says who does", names),
          names);
    return o;
  }
  if (temperature >= 0) o.temperature = temperature;
  if (app.count("--token-budget") > 0) o.most_tokens = tokens;
  if (app.count("--money-budget") > 0) o.most_money = money;
  o.repairs = !no_repair;
  // A mailbox is answered by people: without end where nothing is said.
  if (!o.mailbox.empty() && app.count("--reply-limit") == 0) o.reply_limit_s = 0;
  if (!request_fields.empty()) {
    o.request_fields = parse_json(request_fields);
    if (!o.request_fields.is_object())
      throw Error(ErrorCode::usage, fmt::format("--request-fields takes a JSON object; {} is none", request_fields),
                  request_fields);
    for (const char* field : {"model", "messages", "stream"})
      if (o.request_fields.contains(field))
        throw Error(ErrorCode::usage,
                    fmt::format("--request-fields has \"{}\", which every request says itself; leave it out", field),
                    request_fields);
  }
  for (std::string* const path : {&o.mailbox, &o.replay, &o.recording, &o.key_file, &o.templates, &o.prices})
    if (!path->empty()) *path = std::filesystem::weakly_canonical(*path).string();
  expect_usable(o);
  return o;
}

record::ModelOptions ModelArguments::resumed(const CLI::App& app, record::ModelOptions stored) const {
  const std::string names = stored.any() ? given(app, kOfResume) : given(app);
  if (!names.empty())
    throw Error(ErrorCode::usage,
                fmt::format("--resume goes on with {} as the stored run began; leave out {}",
                            stored.any() ? "models" : "knobs alone", names),
                names);
  if (!stored.any()) return stored;
  if (app.count("--key-variable") + app.count("--key-file") > 0) {
    stored.key_variable = options.key_variable;
    stored.key_file = options.key_file.empty() ? "" : std::filesystem::weakly_canonical(options.key_file).string();
  }
  if (app.count("--token-budget") > 0) stored.most_tokens = tokens;
  if (app.count("--money-budget") > 0) stored.most_money = money;
  expect_usable(stored);
  return stored;
}

}  // namespace heed::cli
