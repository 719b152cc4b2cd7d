#include "prompts/prompt.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "heed/heed.hpp"

namespace heed::prompts {
namespace {

using models::Conversation;
using models::estimated_tokens;
using models::Role;

constexpr std::size_t kMostReason = 6000;  // bytes: the compiler's first errors

constexpr std::string_view kPresets[] = {"free", "insight", "full"};

std::string text_of(const SourceFile& file) {
  return fmt::format("<file path=\"{}\">\n{}{}</file>\n", file.path, file.text, file.text.ends_with('\n') ? "" : "\n");
}

std::string interval_of(const Solution& s) {
  return fmt::format("{:.3f} [{:.3f}, {:.3f}] times as fast as the base, {:.3g} us", s.ratio, s.low, s.high, s.us);
}

std::string text_of(const Solution& s) {
  std::string text = fmt::format("- trial {}, `{}`: {}. {}\n", s.trial, s.config, interval_of(s), s.what);
  if (!s.diff.empty()) text += fmt::format("```diff\n{}{}```\n", s.diff, s.diff.ends_with('\n') ? "" : "\n");
  return text;
}

// As many parts as fit, in order; one that is too long is passed over, a shorter one behind it may fit.
std::string that_fit(const std::vector<std::string>& parts, std::int64_t& left, std::size_t* count = nullptr) {
  std::string text;
  for (const std::string& part : parts) {
    const std::int64_t tokens = estimated_tokens(part);
    if (tokens > left) continue;
    left -= tokens;
    text += part;
    if (count != nullptr) ++*count;
  }
  return text;
}

std::string section(std::string_view title, const std::string& text) {
  return text.empty() ? std::string() : fmt::format("## {}\n\n{}", title, text);
}

Values values_of(const Task& task) {
  Values values;
  values["device"] = task.device;
  values["workload"] = task.workload;
  values["problem"] = task.problem;
  values["family"] = task.family;
  values["floor"] = fmt::format("{:.3g} us ({})", task.floor_us, task.floor_bound);
  values["base_us"] = fmt::format("{:.3g} us", task.base_us);
  values["parent"] =
      task.parent.trial < 0
          ? fmt::format("the base, `{}`, {:.3g} us", task.parent.config, task.parent.us)
          : fmt::format("trial {}, `{}`, {}", task.parent.trial, task.parent.config, interval_of(task.parent));
  values["parent_change"] =
      task.parent.what.empty() ? std::string() : fmt::format("How it came to be: {}", task.parent.what);
  values["profile"] = section("What bounds it", task.profile);
  values["resources"] = task.resources.empty() ? std::string() : fmt::format("Resources: {}", task.resources);
  // Last in a prompt: what comes before is equal for equal parents, and services that keep beginnings read it once.
  values["request"] = task.requests < 2
                          ? std::string()
                          : fmt::format(
                                "This is request {} of {} that are sent at once, most of them for the same "
                                "kernel. Take an idea that the others are unlikely to take.",
                                task.request, task.requests);
  return values;
}

// Not within a character of UTF-8.
std::string cut(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return fmt::format("{}\n...", text.substr(0, most));
}

// Of a prompt behind the first one: the reply that it is about, and the longer one of the texts that go on from there.
std::int64_t room_for_another(const Templates& templates, const PromptLimits& limits) {
  const std::string reason(kMostReason + 64, 'x');  // and the outcome
  const auto around = [&](const char* name) {
    return estimated_tokens(Conversation{{Role::assistant, ""}, {Role::user, templates.text(name) + reason}});
  };
  return limits.reply_tokens + std::max(around("again"), around("repair"));
}

Conversation gone_on(Conversation asked, const std::string& reply, std::string text, const PromptLimits& limits) {
  const std::int64_t room = limits.window_tokens - limits.reply_tokens;
  asked.push_back({Role::assistant, reply});
  asked.push_back({Role::user, std::move(text)});
  if (estimated_tokens(asked) <= room) return asked;
  // Edits are of the sources of the first prompt: none need the tries between it and the last one.
  constexpr std::ptrdiff_t kFirst = 2;  // system and user
  if (std::ssize(asked) > 2 + kFirst) asked.erase(asked.begin() + kFirst, asked.end() - 2);
  const std::int64_t over = estimated_tokens(asked) - room;
  if (over <= 0) return asked;
  constexpr std::int64_t kBytesAToken = 3;  // of estimated_tokens
  constexpr std::int64_t kMark = 6;         // "\n..." and what rounding adds
  std::string& last = (asked.end() - 2)->text;
  last = cut(last, static_cast<std::size_t>(std::max<std::int64_t>(0, std::ssize(last) - kBytesAToken * over - kMark)));
  return asked;
}

}  // namespace

std::string_view to_string(Preset preset) {
  return kPresets[static_cast<std::size_t>(preset)];
}

Preset parse_preset(std::string_view text) {
  for (std::size_t i = 0; i < std::size(kPresets); ++i)
    if (text == kPresets[i]) return static_cast<Preset>(i);
  throw Error(
      ErrorCode::usage,
      fmt::format("{} is no preset of prompts; {}", text, one_of(text, {std::begin(kPresets), std::end(kPresets)})),
      std::string(text));
}

Conversation first_prompt(const Templates& templates, Preset preset, const Task& task, const PromptLimits& limits) {
  Values values = values_of(task);
  values["rules"] = templates.text("rules");
  values["format"] = templates.text("format");
  for (const char* name : {"sources", "files_left_out", "solutions", "failures", "insights"}) values[name] = "";
  const std::string body = templates.text(to_string(preset));
  const std::string system = filled(templates.text("system"), values, "system");
  const auto conversation = [&] {
    return Conversation{{Role::system, system}, {Role::user, filled(body, values, to_string(preset))}};
  };

  std::vector<SourceFile> sources = task.sources;
  std::stable_sort(sources.begin(), sources.end(),
                   [](const SourceFile& a, const SourceFile& b) { return a.rank < b.rank; });
  std::int64_t left = limits.window_tokens - limits.reply_tokens - room_for_another(templates, limits) -
                      estimated_tokens(conversation());
  // A list of what is left out is short, but not nothing.
  for (const SourceFile& file : sources) left -= estimated_tokens(file.path) + 4;

  // What was learned is a small share of a prompt; the sources come first for all the rest of it.
  constexpr std::int64_t kShareOfRest = 4;
  std::int64_t learned = std::max<std::int64_t>(0, left / kShareOfRest);
  const std::int64_t learned_before = learned;
  std::vector<std::string> failures;
  for (const std::string& failure : task.failures) failures.push_back(fmt::format("- {}\n", failure));
  values["failures"] = section("What failed on this kernel", that_fit(failures, learned));
  if (preset != Preset::free) {
    std::vector<std::string> insights;
    for (const std::string& insight : task.insights) insights.push_back(fmt::format("- {}\n", insight));
    values["insights"] = section("Insights", that_fit(insights, learned));
  }
  if (preset == Preset::full) {
    std::vector<std::string> solutions;
    for (const Solution& solution : task.solutions) solutions.push_back(text_of(solution));
    values["solutions"] = section("Good solutions so far", that_fit(solutions, learned));
  }
  left -= learned_before - learned;

  std::vector<std::string> files;
  std::string left_out;
  for (const SourceFile& file : sources) {
    const std::string text = text_of(file);
    const std::int64_t tokens = estimated_tokens(text);
    if (tokens <= left) {
      left -= tokens;
      files.push_back(text);
    } else {
      left_out += fmt::format("{}{} ({} lines)", left_out.empty() ? "" : ", ", file.path,
                              std::count(file.text.begin(), file.text.end(), '\n'));
    }
  }
  if (files.empty())
    throw Error(
        ErrorCode::usage,
        fmt::format("the model's window of {} tokens, {} of them for the reply, has no room for a source file of {} "
                    "beside a second try of {} tokens; name a larger one with --window-tokens, or fewer with "
                    "--reply-tokens",
                    limits.window_tokens, limits.reply_tokens, task.family, room_for_another(templates, limits)),
        std::to_string(limits.window_tokens));
  values["sources"] = join(files, "\n");
  values["files_left_out"] = left_out.empty()
                                 ? std::string()
                                 : fmt::format("Not shown, for want of room, and not to be edited: {}.", left_out);
  return conversation();
}

Conversation again_prompt(const Templates& templates, Conversation asked, const std::string& reply,
                          const std::string& reason, const PromptLimits& limits) {
  return gone_on(std::move(asked), reply,
                 filled(templates.text("again"), {{"reason", cut(reason, kMostReason)}}, "again"), limits);
}

Conversation repair_prompt(const Templates& templates, Conversation asked, const std::string& reply,
                           const std::string& outcome, const std::string& reason, const PromptLimits& limits) {
  const Values values = {{"outcome", outcome}, {"reason", cut(reason, kMostReason)}};
  return gone_on(std::move(asked), reply, filled(templates.text("repair"), values, "repair"), limits);
}

}  // namespace heed::prompts
