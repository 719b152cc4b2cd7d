#include "report/models.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "json/fields.hpp"
#include "json/integer.hpp"

namespace heed::report {

using fields::member;
using fields::number;

double ModelStatistics::validity() const {
  const int judged = edits - duplicates;
  return judged > 0 ? static_cast<double>(valid) / judged : 0;
}

ModelStatistics model_statistics(const std::vector<store::TrialRecord>& trials,
                                 const std::vector<store::ExchangeRecord>& exchanges) {
  ModelStatistics s;
  for (const store::TrialRecord& t : trials) {
    const bool is_edit = t.operation == "edit";
    if (!is_edit && t.operation != "repair") continue;
    (is_edit ? s.edits : s.repairs) += 1;
    if (t.ok()) (is_edit ? s.valid : s.repaired) += 1;
    if (is_edit && t.verdict == Verdict::duplicate) ++s.duplicates;
    if (is_edit && t.verdict == Verdict::illegal && t.check == "edits") ++s.unusable;
    if (t.ok() && t.ratio_low > s.best_low) {
      s.best_low = t.ratio_low;
      s.best = t.variant;
    }
  }
  for (const store::ExchangeRecord& e : exchanges) {
    if (e.is_awaited()) continue;
    ++s.prompts;
    if (!e.failure.empty()) {
      ++s.failures;
      if (!e.reply.is_object()) continue;
      ++s.charged;
    } else if (const nlohmann::json& cut_off = member(e.reply, "is_cut_off");
               cut_off.is_boolean() && cut_off.get<bool>()) {
      ++s.cut_off;
    }
    const int lost = integer_at<std::uint16_t>(e.reply, "lost_attempts").value_or(0);
    s.charged += lost;
    s.uncounted += lost;
    s.unknown_costs += lost;
    const nlohmann::json& prompt = member(e.reply, "prompt_tokens");
    const nlohmann::json& completion = member(e.reply, "completion_tokens");
    if (prompt.is_number_integer() && completion.is_number_integer())
      s.tokens += prompt.get<std::int64_t>() + completion.get<std::int64_t>();
    else
      ++s.uncounted;
    if (const nlohmann::json& cost = member(e.reply, "cost"); cost.is_number())
      s.cost += cost.get<double>();
    else
      ++s.unknown_costs;
    s.waited_s += number(e.reply, "latency_s");
  }
  return s;
}

nlohmann::json to_json(const ModelStatistics& s) {
  const int replies = s.prompts - s.failures + s.charged;
  return {{"edits", s.edits},
          {"valid", s.valid},
          {"validity", s.edits > s.duplicates ? nlohmann::json(s.validity()) : nlohmann::json()},
          {"duplicates", s.duplicates},
          {"unusable", s.unusable},
          {"repairs", s.repairs},
          {"repaired", s.repaired},
          {"prompts", s.prompts},
          {"failures", s.failures},
          {"cut_off", s.cut_off},
          {"tokens", s.uncounted == replies ? nlohmann::json() : nlohmann::json(s.tokens)},
          {"uncounted_replies", s.uncounted},
          {"cost", s.unknown_costs == replies ? nlohmann::json() : nlohmann::json(s.cost)},
          {"replies_of_unknown_cost", s.unknown_costs},
          {"waited_s", s.waited_s},
          {"best", s.best.empty() ? nlohmann::json() : nlohmann::json(s.best)}};
}

void add_models(nlohmann::json& evidence, const ModelStatistics& s) {
  if (!s.any()) return;
  evidence["models"] = to_json(s);
  evidence["table"] = evidence.at("table").get<std::string>() + text_of(s);
}

std::string text_of(const ModelStatistics& s) {
  if (!s.any()) return {};
  const int replies = s.prompts - s.failures;
  std::string text = fmt::format("models    {} prompts, {} replies in {}; {} trials of edits, {} of them valid",
                                 s.prompts, replies, human_duration(s.waited_s), s.edits, s.valid);
  if (s.edits > s.duplicates) text += fmt::format(" ({:.1f}% of those that are no duplicates)", 100 * s.validity());
  text += fmt::format("; {} repairs, {} valid\n", s.repairs, s.repaired);
  const int charged = replies + s.charged;
  std::string taken = s.uncounted == charged ? std::string("tokens not counted") : fmt::format("{} tokens", s.tokens);
  taken += s.unknown_costs == charged ? std::string(", cost unknown")
                                      : fmt::format(", cost {}{:.4f}", s.unknown_costs > 0 ? "at least " : "", s.cost);
  if (s.cut_off > 0) taken += fmt::format("; {} replies cut off, more with --reply-tokens", s.cut_off);
  text += fmt::format("          {}\n", taken);
  if (!s.best.empty()) text += fmt::format("          best edits: {}, certainly {:.3f}\n", s.best, s.best_low);
  return text;
}

}  // namespace heed::report
