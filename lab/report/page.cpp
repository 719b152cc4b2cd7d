#include "report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.hpp"
#include "json/fields.hpp"
#include "report/charts.hpp"
#include "report/html_table.hpp"
#include "report/outcome.hpp"
#include "report/run_report.hpp"
#include "report/style.hpp"
#include "report/svg.hpp"
#include "report/values.hpp"

namespace heed::report {

using fields::member;
using fields::number;
using fields::numbers;
using fields::text_of;

namespace {

using nlohmann::json;

std::string ratio_text(const json& ratio) {
  return fmt::format("{:.4f} [{:.4f}, {:.4f}]", number(ratio, "value"), number(ratio, "low"), number(ratio, "high"));
}

// Times of 0 were not measured.
json measured(json times) {
  if (!times.is_object()) return times;
  for (auto it = times.begin(); it != times.end();) it = *it == 0 ? times.erase(it) : std::next(it);
  return times;
}

// The knobs of "family:knob=value,..." as an object.
json knobs_of(const std::string& text) {
  json knobs = json::object();
  const std::size_t colon = text.find(':');
  for (const std::string& part : split(colon == std::string::npos ? text : text.substr(colon + 1), ','))
    if (const std::size_t equals = part.find('='); equals != std::string::npos)
      knobs[part.substr(0, equals)] = part.substr(equals + 1);
  return knobs;
}

class Page {
 public:
  Page(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials,
       const std::vector<store::ComparisonRecord>& comparisons)
      : run_(run), trials_(trials), comparisons_(comparisons), final_(member(run.result, "final")) {
    champion_ = best_of_search();
    if (final_.is_object() && member(final_, "trial").is_number_integer()) champion_ = final_["trial"].get<int>();
  }

  std::string str() {
    html_ = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
        "content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
        "<title>Heed run {}: {}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
        run_.id, escape(run_.workload), kStyle);
    head();
    search();
    champion();
    comparison();
    resources();
    profile();
    facts();
    every_trial();
    return html_ + "</main>\n</body>\n</html>\n";
  }

 private:
  [[nodiscard]] int best_of_search() const {
    const store::TrialRecord* best = nullptr;
    for (const store::TrialRecord& t : trials_)
      if (t.ok() && (best == nullptr || t.ratio_low > best->ratio_low)) best = &t;
    return best == nullptr ? -1 : best->number;
  }
  [[nodiscard]] const store::TrialRecord* champion_trial() const {
    for (const store::TrialRecord& t : trials_)
      if (t.number == champion_) return &t;
    return nullptr;
  }

  void add(const std::string& html) { html_ += html; }
  void section(const std::string& title) { add("<h2>" + escape(title) + "</h2>\n"); }
  void tile(const std::string& value, const std::string& what) {
    add(fmt::format("<li><b>{}</b><span>{}</span></li>\n", escape(value), escape(what)));
  }

  void head() {
    const json& d = run_.device;
    add(fmt::format("<h1>{}</h1>\n<p class=\"soft\">Heed run {} of {} on {} ({}): {} evolves {}.</p>\n",
                    escape(run_.workload), run_.id, escape(run_.created), escape(text_of(d, "name")),
                    escape(text_of(d, "arch")), escape("heed " + run_.heed), escape(run_.families)));
    if (!is_finished(run_))
      add(
          fmt::format("<p class=\"notice\" role=\"note\">This run is not finished ({}): {} of {} trials are stored and "
                      "there is no final comparison yet. <code>heed evolve --resume {}</code> goes on with it.</p>\n",
                      escape(std::string(to_string(run_.state))), trials_.size(),
                      static_cast<int>(number(run_.options, "trials")), run_.id));
    else if (!final_.is_object())
      add(fmt::format("<p class=\"notice\" role=\"note\">No champion: {}.</p>\n",
                      escape(text_of(run_.result, "summary"))));
    add("<ul class=\"tiles\">\n");
    const auto ok = std::count_if(trials_.begin(), trials_.end(), [](const auto& t) { return t.ok(); });
    if (final_.is_object()) {
      const json& ratio = member(final_, "ratio");
      tile(fmt::format("{:.3f} times", number(ratio, "value")),
           fmt::format("as fast as the base, 95% interval [{:.4f}, {:.4f}]", number(ratio, "low"),
                       number(ratio, "high")));
      tile(us_text(number(final_, "trial_us")) + " us",
           fmt::format("base {} us, floor {} us", us_text(number(final_, "base_us")),
                       us_text(number(member(run_.result, "floor"), "us"))));
      const json& peers = member(run_.result, "peers");
      if (member(peers, "best").is_string())
        tile(fmt::format("{:.3f} times", number(member(peers, "best_ratio"), "value")),
             fmt::format("as fast as the best of PyTorch, {} ({} us)", text_of(peers, "best"),
                         us_text(number(peers, "best_us"))));
    } else if (const store::TrialRecord* best = champion_trial()) {
      tile(fmt::format("{:.3f} times", best->ratio), "the base, best of the search so far, not yet confirmed");
      tile(us_text(best->trial_us) + " us", fmt::format("base {} us", us_text(best->base_us)));
    }
    tile(fmt::format("{} of {}", ok, trials_.size()), "trials passed the gate");
    add("</ul>\n");
    if (final_.is_object()) {
      add(fmt::format(
          "<p>{} The base against itself lies within {:.4f} of 1; the search took {}.</p>\n",
          has_champion(run_.result) ? "The champion is faster than the base beyond what the base shows against itself."
          : was_too_noisy(run_.result)
              ? "This machine was <strong>too noisy</strong> to say whether anything is faster than the base."
              : "The champion is <strong>not</strong> measurably faster than the base.",
          number(run_.result, "self_spread"), human_duration(number(run_.result, "elapsed_s"))));
    }
  }

  void search() {
    section("The search");
    if (trials_.empty()) {
      add("<p>No trial is stored yet.</p>\n");
      return;
    }
    add("<h3>Progress over trials</h3>\n" + progress_chart(trials_, champion_));
    add("<h3>Population by generation</h3>\n" +
        population_chart(trials_, static_cast<int>(number(run_.options, "population"))));
    std::map<std::string, int> counts;
    for (const store::TrialRecord& t : trials_)
      ++counts[t.finding == Finding::none ? std::string(to_string(t.verdict))
                                          : fmt::format("{} ({})", to_string(t.verdict), to_string(t.finding))];
    std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::vector<Bar> bars;
    for (const auto& [verdict, count] : sorted)
      bars.push_back({verdict, static_cast<double>(count), std::to_string(count),
                      verdict == to_string(Verdict::ok) ? "bar-ok" : "bar-refused"});
    add("<h3>Verdicts</h3>\n" + bar_chart("verdicts", "Verdicts", bars, "How the trials ended."));
  }

  void champion() {
    if (champion_ < 0) return;
    section(final_.is_object() ? "The champion" : "The best so far");
    add("<h3>Lineage</h3>\n" + lineage_chart(trials_, champion_));
    std::vector<Interval> rows;
    std::string rest;
    for (const json& row : member(run_.result, "ablation")) {
      const std::string change =
          fmt::format("{} {} -> {}", text_of(row, "knob"), text_of(row, "default"), text_of(row, "champion"));
      const json& bought = member(row, "bought");
      if (bought.is_object())
        rows.push_back({change, number(bought, "value"), number(bought, "low"), number(bought, "high")});
      else
        rest += fmt::format("<li>{}: cannot be taken back alone ({})</li>", escape(change),
                            escape(text_of(row, "verdict")));
    }
    add("<div class=\"pair\">\n");
    if (!rows.empty() || !rest.empty()) {
      add("<div><h3>What each change bought</h3>\n");
      if (!rows.empty())
        add(interval_chart("ablation", "What each change bought", rows,
                           "The champion against itself with one change taken back: above 1 the change made it faster. "
                           "Lines are 95% intervals."));
      if (!rest.empty()) add("<ul class=\"soft\">" + rest + "</ul>\n");
      add("</div>\n");
    }
    if (const store::TrialRecord* t = champion_trial())
      add("<div><h3>Knobs</h3>\n" +
          comparison_table("", knobs_of(text_of(run_.base, "describe")), knobs_of(t->config)) + "</div>\n");
    add("</div>\n");
  }

  void comparison() {
    if (!final_.is_object()) return;
    section("The final comparison");
    std::vector<Group> ratios, base, champion;
    const auto add_process = [&](const std::string& name, const json& samples) {
      ratios.push_back({name, numbers(samples, "ratios"), "series-3"});
      base.push_back({name, numbers(samples, "base_us"), "series-0"});
      champion.push_back({name, numbers(samples, "trial_us"), "series-2"});
    };
    for (const store::ComparisonRecord& c : comparisons_)
      if (c.kind == "final" && member(c.data, "trial") == member(final_, "trial"))
        add_process(fmt::format("process {}", ratios.size() + 1), member(c.data, "samples"));
    if (ratios.empty()) add_process("all", member(final_, "samples"));  // a database that holds no comparisons
    add(fmt::format("<p>{} processes; ratio {}.</p>\n", ratios.size(), ratio_text(member(final_, "ratio"))));
    add("<div class=\"pair\">\n");
    add(strip_chart("ratios", "Ratios of the final comparison", ratios, "base time / champion time",
                    "Every reading: the ratio of one quad (base, champion, champion, base). The line is the median."));
    add(strip_chart("champion-times", "Times of the champion", champion, "champion, us per launch",
                    "Every block of the champion."));
    add(strip_chart("base-times", "Times of the base", base, "base, us per launch", "Every block of the base."));
    add("</div>\n");
    peers();
  }

  void peers() {
    const json& peers = member(run_.result, "peers");
    std::vector<Bar> bars = {
        {"champion", number(final_, "trial_us"), us_text(number(final_, "trial_us")) + " us", "bar-champion"},
        {"base", number(final_, "base_us"), us_text(number(final_, "base_us")) + " us"}};
    std::string refusals;
    HtmlTable table("", {"", "us", "champion's ratio, 95% interval", "max|error|", "kernels"}, 1, 4);
    for (const json& row : member(peers, "rows")) {
      const std::string name = text_of(row, "backend");
      if (!member(row, "us").is_number()) {
        refusals += fmt::format("<li>{} refuses this workload: {}</li>", escape(name),
                                escape(shortened(text_of(row, "refused"), 200)));
        continue;
      }
      bars.push_back(
          {name, number(row, "us"),
           fmt::format("{} us ({:.2f})", us_text(number(row, "us")), number(member(row, "ratio"), "value"))});
      std::vector<std::string> kernels;
      for (const json& kernel : member(row, "kernels"))
        if (kernel.is_string()) kernels.push_back(shortened(kernel.get<std::string>(), 60));
      table.add({name, us_text(number(row, "us")), ratio_text(member(row, "ratio")),
                 fmt::format("{:.1e}", number(row, "max_abs")), join(kernels, ", ")});
    }
    std::stable_sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) { return a.value < b.value; });
    add("<h3>Against PyTorch</h3>\n");
    if (!text_of(peers, "reason").empty())
      add("<p>Not compared: " + escape(text_of(peers, "reason")) + ".</p>\n");
    else if (!text_of(peers, "torch").empty())
      add(fmt::format("<p class=\"soft\">PyTorch {}{}</p>\n", escape(text_of(peers, "torch")),
                      text_of(peers, "cudnn").empty() ? "" : ", cuDNN " + escape(text_of(peers, "cudnn"))));
    if (const std::string slower = slower_in_company(run_.result); !slower.empty())
      add("<p><strong>Note:</strong> " + escape(slower) + ".</p>\n");
    add(bar_chart("peers", "Time of champion, base and PyTorch's backends", bars,
                  "Time per launch with warm caches; in brackets how many times as long as the champion."));
    if (!table.empty()) add(table.str());
    if (!refusals.empty()) add("<ul class=\"soft\">" + refusals + "</ul>\n");
    add(comparison_table("Times by themselves, in us", measured(member(run_.result, "base_times")),
                         measured(member(run_.result, "champion_times"))));
  }

  void resources() {
    json champion = member(final_, "resources");
    if (!champion.is_object())
      if (const store::TrialRecord* t = champion_trial()) champion = t->resources;
    const std::string table = comparison_table("", member(run_.base, "resources"), champion);
    if (table.empty()) return;
    section("Resources");
    add(table);
  }

  // The diagnoses of base and champion in words, then what they rest on.
  void profile() {
    const json& profile = member(run_.result, "profile");
    if (!profile.is_object()) return;
    section("Profile");
    for (const char* side : {"base", "champion"})
      if (const std::string text = text_of(member(profile, side), "text"); !text.empty())
        add(fmt::format("<p><b>{}</b>: {}</p>\n", side, escape(text)));
    const auto compared = [&](const std::string& caption, const char* part) {
      add(comparison_table(caption, member(member(profile, "base"), part), member(member(profile, "champion"), part)));
    };
    add("<div class=\"pair\">\n<div>");
    compared("Share of each limit that was used", "shares");
    add("</div>\n<div>");
    compared("How the launch fills the device", "occupancy");
    add("</div>\n</div>\n");
    compared("Hardware counters", "counters");
  }

  void facts() {
    section("The machine and the run");
    add("<div class=\"pair\">\n<div><h3>Machine</h3>\n" + fields_table("", run_.device) +
        "</div>\n<div><h3>Options</h3>\n" + fields_table("", run_.options) + "</div>\n</div>\n");
    add("<h3>How to replay</h3>\n");
    add(fmt::format(
        "<p>Device sources <code>{}</code>, heed {}. Inputs are fresh each time; the search is decided by the "
        "seed and the measurements.</p>\n",
        escape(run_.source_digest), escape(run_.heed)));
    std::string commands;
    if (const store::TrialRecord* t = champion_trial())
      commands += fmt::format("heed replay {}            # rebuild, verify and measure the champion again\n", t->id);
    commands += fmt::format("heed show {}              # the same as text; --json for programs\n", run_.id);
    commands += fmt::format(
        "heed evolve --shape {} --family {} --strategy {} --population {} --drafts {} --trials {} --seed {}\n",
        run_.workload, run_.families, text_of(run_.options, "strategy"),
        static_cast<int>(number(run_.options, "population")),
        std::max(1, static_cast<int>(number(run_.options, "drafts"))), static_cast<int>(number(run_.options, "trials")),
        scalar_text(member(run_.options, "seed")));
    add("<pre>" + escape(commands) + "</pre>\n");
  }

  void every_trial() {
    if (trials_.empty()) return;
    section("Every trial");
    HtmlTable table("",
                    {"trial", "id", "generation", "drafts", "operation", "what changed", "verdict", "why refused",
                     "ratio", "95% interval", "us", "registers"},
                    8);
    for (const store::TrialRecord& t : trials_) {
      const bool ok = t.ok();
      table.add({std::to_string(t.number), std::to_string(t.id), std::to_string(t.generation),
                 t.drafts.empty() ? "-" : std::to_string(t.drafts.size()), t.operation, t.why,
                 std::string(to_string(t.verdict)),
                 ok ? "" : shortened(t.check.empty() ? t.reason : t.check + ": " + t.reason, 160),
                 ok ? fmt::format("{:.4f}", t.ratio) : "-",
                 ok ? fmt::format("[{:.4f}, {:.4f}]", t.ratio_low, t.ratio_high) : "-", us_text(t.trial_us),
                 number(t.resources, "registers") > 0 ? fmt::format("{:.0f}", number(t.resources, "registers")) : "-"},
                t.number == champion_ ? "champion" : "");
    }
    add("<details><summary>" + std::to_string(trials_.size()) + " trials as a table</summary>\n" + table.str() +
        "</details>\n");
  }

  const store::RunRecord& run_;
  const std::vector<store::TrialRecord>& trials_;
  const std::vector<store::ComparisonRecord>& comparisons_;
  const json& final_;
  int champion_ = -1;
  std::string html_;
};

}  // namespace

bool is_finished(const store::RunRecord& run) {
  return run.state == store::RunState::finished && run.result.is_object();
}

std::string run_page(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials,
                     const std::vector<store::ComparisonRecord>& comparisons) {
  return Page(run, trials, comparisons).str();
}

}  // namespace heed::report
