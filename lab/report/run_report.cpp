#include "report/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "json/fields.hpp"
#include "report/devices.hpp"
#include "report/outcome.hpp"
#include "report/table.hpp"
#include "report/values.hpp"

namespace heed::report {

using fields::member;
using fields::number;
using fields::text_of;

namespace {

using nlohmann::json;

std::string plain_ratio(const json& ratio) {
  return fmt::format("{:.4f}", number(ratio, "value"));
}
std::string interval_text(const json& ratio) {
  return fmt::format("[{:.4f}, {:.4f}]", number(ratio, "low"), number(ratio, "high"));
}
std::string error_text(double error) {
  return error < 0 ? "-" : fmt::format("{:.1e}", error);
}

std::string device_line(const store::RunRecord& run) {
  const json& d = run.device;
  const bool gpu = run.device_kind == "cuda";
  return fmt::format("{} ({}, {} {}, {} {})", text_of(d, "name"), text_of(d, "arch"),
                     static_cast<int>(number(d, "processors")), gpu ? "multiprocessors" : "processors",
                     gpu ? "driver" : "", text_of(d, "driver"));
}

// "run time  base 4.1 s, search 61.0 s, ...": seconds of the parts, phases and builds; empty for results without them.
std::string seconds_line(const json& time) {
  std::vector<std::string> parts;
  for (const json& one : member(time, "parts"))
    parts.push_back(fmt::format("{} {:.1f} s", text_of(one, "part"), number(one, "seconds")));
  if (parts.empty()) return {};
  const auto phase = [&](const char* name) { return number(member(member(time, "phases"), name), "wall_s"); };
  const json& builds = member(time, "builds");
  const double checks_s = number(time, "spot_checks_s");
  return fmt::format(
      "run time  {}; in them measuring {:.1f} s{}, gating {:.1f} s, screening {:.1f} s, waiting for builds {:.1f} s "
      "({} "
      "of "
      "{:.1f} s)\n",
      join(parts, ", "), phase("measure"), checks_s > 0 ? fmt::format(" (spot checks {:.1f} s)", checks_s) : "",
      phase("gate"), phase("screen"), number(builds, "waited_s"), static_cast<int>(number(builds, "made")),
      number(builds, "made_s"));
}

// "GPU time  measuring 41.0%, ..."; empty for results that do not say it.
std::string time_line(const json& result) {
  const json& time = member(result, "time");
  if (!time.is_object()) return {};
  const auto percent = [&](const char* key) { return fmt::format("{:.1f}%", 100 * number(time, key)); };
  if (text_of(time, "of") != "gpu")
    return seconds_line(time) +
           fmt::format("time      measuring {}, gating {}, screening {}, waiting for builds and models {}\n",
                       percent("measure"), percent("gate"), percent("screen"), percent("waiting"));
  return fmt::format(
      "{}GPU time  measuring {}, gating {}, screening {}, idle {} ({} of all time waiting for builds and models)\n{}",
      seconds_line(time), percent("measure"), percent("gate"), percent("screen"), percent("idle"), percent("waiting"),
      text_of(time, "no_records").empty()
          ? ""
          : fmt::format("          no activity records: {}\n", text_of(time, "no_records")));
}

}  // namespace

std::string result_text(const store::RunRecord& run) {
  const json& r = run.result;
  if (!r.is_object()) return "The run has no result yet.\n";
  if (!r.contains("final")) return fmt::format("No champion: {}.\n{}", text_of(r, "summary"), time_line(r));
  const json& final = r["final"];
  const json& base_times = r["base_times"];
  const json& champion_times = r["champion_times"];
  const json& peers = r["peers"];
  const double champion_us = number(final, "trial_us");
  const double flops = number(r, "tflops") * champion_us;  // 1e6 operations

  std::string text = fmt::format("workload  {}\ndevice    {}\n\n", run.workload, device_line(run));
  Table times(
      {"", "us", "cold us", "large us", "TFLOP/s", "of floor", "max|error|", "champion's ratio", "95% interval"});
  times.align_left(0);
  const auto rate = [&](double us) { return us > 0 ? fmt::format("{:.3g}", flops / us) : std::string("-"); };
  const double floor_us = number(r["floor"], "us");
  const auto share = [&](double us) {
    return us > 0 && floor_us > 0 ? fmt::format("{:.0f}%", 100 * floor_us / us) : std::string("-");
  };
  times.add({"champion", us_text(champion_us), us_text(number(champion_times, "cold_us")),
             us_text(number(champion_times, "large_us")), rate(champion_us), share(champion_us),
             error_text(number(final["error"], "max_abs")), "", ""});
  times.add({"base", us_text(number(final, "base_us")), us_text(number(base_times, "cold_us")),
             us_text(number(base_times, "large_us")), rate(number(final, "base_us")), share(number(final, "base_us")),
             "", plain_ratio(final["ratio"]), interval_text(final["ratio"])});
  for (const json& row : peers["rows"]) {
    if (row.contains("us"))
      times.add({text_of(row, "backend"), us_text(number(row, "us")), "", "", rate(number(row, "us")),
                 share(number(row, "us")), error_text(number(row, "max_abs")), plain_ratio(row["ratio"]),
                 interval_text(row["ratio"])});
  }
  text += times.str();
  text += fmt::format("\nbase      {}\nchampion  {}\n          {}\n", text_of(run.base, "variant"),
                      text_of(final, "variant"), text_of(final, "config"));
  text += fmt::format("          {:.1f}% of the peak of {}; floor {:.2f} us ({})\n", 100 * number(r, "peak_share"),
                      run.device_kind == "cuda" ? "the tensor cores" : "the measured FMA rate", floor_us,
                      text_of(r["floor"], "bound"));
  if (const double us = number(champion_times, "dependent_us"); us > 0) {
    const double base_us = number(base_times, "dependent_us");
    text += fmt::format("          dependent launch {} us{}; not part of any ratio\n", us_text(us),
                        base_us > 0 ? fmt::format(" (base {} us)", us_text(base_us)) : "");
  }
  if (const json& diagnosis = member(member(r, "profile"), "champion"); diagnosis.is_object())
    text += fmt::format("bound by  {}{}\n", text_of(diagnosis, "bound"),
                        diagnosis.value("with_counters", false) ? "" : " (without counters)");
  text += time_line(r);
  if (peers.contains("reason")) text += fmt::format("PyTorch   not compared: {}\n", text_of(peers, "reason"));
  if (peers.contains("torch"))
    text += fmt::format("PyTorch   {}{}\n", text_of(peers, "torch"),
                        text_of(peers, "cudnn").empty() ? "" : ", cuDNN " + text_of(peers, "cudnn"));

  if (const std::string slower = slower_in_company(r); !slower.empty()) text += fmt::format("          {}\n", slower);

  for (const json& row : peers["rows"])
    if (!row.contains("us"))
      text += fmt::format("          {} refuses this workload: {}\n", text_of(row, "backend"),
                          text_of(row, "refused").substr(0, 100));

  if (!r["ablation"].empty()) {
    Table changes({"what the champion's changes bought", "", "ratio", "95% interval"});
    changes.align_left(1);
    for (const json& row : r["ablation"]) {
      const std::string change =
          fmt::format("{} {} -> {}", text_of(row, "knob"), text_of(row, "default"), text_of(row, "champion"));
      if (row.contains("bought"))
        changes.add({change, "", plain_ratio(row["bought"]), interval_text(row["bought"])});
      else
        changes.add({change, fmt::format("cannot be taken back alone ({})", text_of(row, "verdict")), "", ""});
    }
    text += "\n" + changes.str();
  }
  const auto drafts = static_cast<int>(number(r, "drafts"));
  text += fmt::format("\n{}: the champion is {} (the base against itself: within {:.4f} of 1). {} trials{} in {}.\n",
                      has_champion(r)    ? "Faster"
                      : was_too_noisy(r) ? "Too noisy to say"
                                         : "Not faster",
                      has_champion(r) ? text_of(r, "summary") : "not measurably faster than the base",
                      number(r, "self_spread"), static_cast<int>(number(r, "trials")),
                      drafts > 0 ? fmt::format(" and {} drafts", drafts) : "", human_duration(number(r, "elapsed_s")));
  if (was_too_noisy(r)) text += text_of(r, "summary") + ".\n";
  return text;
}

std::vector<const store::TrialRecord*> lineage(const std::vector<store::TrialRecord>& trials, int number) {
  // The first parent is the one a trial was changed from; a crossover's second parent only donated knobs.
  std::vector<const store::TrialRecord*> chain;
  const store::TrialRecord* trial = trial_of(trials, number);
  while (trial != nullptr && chain.size() <= trials.size()) {
    chain.push_back(trial);
    trial = trial->parents.empty() ? nullptr : trial_of(trials, trial->parents.front());
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

namespace {

// A run of judged edits: a line for each, for they have no generations and no lineage.
std::string judged_text(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials) {
  std::string text = fmt::format("run {} of {}: {}, {} edits judged\nfamily {}; device {}\nsources {} (heed {})\n",
                                 run.id, run.created, run.workload, trials.size(), run.families, device_line(run),
                                 run.source_digest, run.heed);
  Table table({"trial", "verdict", "what changed", "us", "ratio", "95% interval"});
  table.align_left(1);
  table.align_left(2);
  for (const store::TrialRecord& t : trials)
    table.add({std::to_string(t.id), std::string(to_string(t.verdict)),
               t.ok() ? t.why : telling_line(t.reason).substr(0, 80), us_text(t.trial_us),
               fmt::format("{:.3f}", t.ratio), fmt::format("[{:.4f}, {:.4f}]", t.ratio_low, t.ratio_high)});
  return trials.empty() ? text : text + "\n" + table.str();
}

}  // namespace

std::string show_text(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials) {
  if (run.state == store::RunState::judged) return judged_text(run, trials);
  std::string text = fmt::format(
      "run {} of {}: {}, {}, {} of {} trials\nfamilies {}, strategy {}, population {}, drafts {}, seed {}; "
      "device {}\nsources {} (heed {})\n",
      run.id, run.created, run.workload, to_string(run.state), trials.size(),
      static_cast<int>(number(run.options, "trials")), run.families, text_of(run.options, "strategy"),
      static_cast<int>(number(run.options, "population")), std::max(1, static_cast<int>(number(run.options, "drafts"))),
      run.options.value("seed", std::uint64_t{0}), device_line(run), run.source_digest, run.heed);
  if (run.base.is_object())
    text += fmt::format("base {} at {} us, against itself {} {}\n", text_of(run.base, "variant"),
                        us_text(number(run.base, "us")), plain_ratio(run.base["self_ratio"]),
                        interval_text(run.base["self_ratio"]));

  Table generations({"generation", "drafts", "trials", "ok", "other verdicts", "best of it", "best so far"});
  generations.align_left(4);
  double best_so_far = 0;
  // Where devices share trials, those of a generation need not follow each other.
  std::vector<const store::TrialRecord*> ordered;
  for (const store::TrialRecord& t : trials) ordered.push_back(&t);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto* a, const auto* b) { return a->generation < b->generation; });
  for (std::size_t i = 0; i < ordered.size();) {
    const int generation = ordered[i]->generation;
    int count = 0;
    int ok = 0;
    std::size_t drafts = 0;
    double best = 0;
    std::map<std::string, int> others;
    for (; i < ordered.size() && ordered[i]->generation == generation; ++i) {
      ++count;
      drafts += ordered[i]->drafts.size();
      if (ordered[i]->ok()) {
        ++ok;
        best = std::max(best, ordered[i]->ratio_low);
      } else {
        ++others[std::string(to_string(ordered[i]->verdict))];
      }
    }
    best_so_far = std::max(best_so_far, best);
    std::vector<std::string> words;
    for (const auto& [verdict, times] : others) words.push_back(fmt::format("{} {}", times, verdict));
    generations.add({std::to_string(generation), drafts > 0 ? std::to_string(drafts) : "-", std::to_string(count),
                     std::to_string(ok), join(words, ", "), best > 0 ? fmt::format("{:.3f}", best) : "-",
                     best_so_far > 0 ? fmt::format("{:.3f}", best_so_far) : "-"});
  }
  if (!generations.empty()) text += "\n" + generations.str();

  // The champion of a finished run, else the best so far.
  const store::TrialRecord* champion = nullptr;
  if (run.result.is_object() && run.result.contains("final"))
    champion = trial_of(trials, run.result["final"]["trial"].get<int>());
  else
    for (const store::TrialRecord& t : trials)
      if (t.ok() && (champion == nullptr || t.ratio_low > champion->ratio_low)) champion = &t;
  if (champion != nullptr) {
    Table chain({fmt::format("lineage of trial {}", champion->number), "id", "how", "what changed", "us", "ratio",
                 "95% interval"});
    chain.align_left(2);
    chain.align_left(3);
    for (const store::TrialRecord* t : lineage(trials, champion->number))
      chain.add({fmt::format("trial {}", t->number), std::to_string(t->id), t->operation, t->why, us_text(t->trial_us),
                 fmt::format("{:.3f}", t->ratio), fmt::format("[{:.4f}, {:.4f}]", t->ratio_low, t->ratio_high)});
    text += "\n" + chain.str();
  }
  text += devices_text(run, trials);
  if (run.result.is_object()) text += "\n" + result_text(run);
  return text;
}

std::string runs_text(const std::vector<store::RunRecord>& runs, const std::vector<int>& trial_counts) {
  if (runs.empty()) return "no runs yet; heed evolve makes the first\n";
  Table table(
      {"run", "created", "state", "trials", "workload", "device", "base us", "champion us", "ratio", "95% interval"});
  for (const std::size_t column : {1, 2, 4, 5}) table.align_left(column);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const store::RunRecord& run = runs[i];
    std::vector<std::string> row = {
        std::to_string(run.id),
        run.created,
        std::string(to_string(run.state)),
        fmt::format("{}/{}", trial_counts[i], static_cast<int>(number(run.options, "trials"))),
        run.workload,
        text_of(run.device, "name"),
        run.base.is_object() ? us_text(number(run.base, "us")) : "-"};
    if (run.result.is_object() && run.result.contains("final")) {
      const json& final = run.result["final"];
      row.insert(row.end(),
                 {us_text(number(final, "trial_us")), plain_ratio(final["ratio"]), interval_text(final["ratio"])});
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    table.add(std::move(row));
  }
  return table.str();
}

namespace {

// Rows of the champion of a finished run, a mode of launching each.
json champion_rows(const store::RunRecord& run) {
  const json& r = run.result;
  const json& final = r["final"];
  const json& peers = r["peers"];
  json peers_us = json::object();
  json peer_ratios = json::object();
  json peer_kernels = json::object();
  json beside_us = json::object();
  for (const json& row : peers["rows"])
    if (row.contains("us")) {
      const auto name = row["backend"].get<std::string>();
      peers_us[name] = row["us"];
      peer_ratios[name] = row["ratio"];
      peer_kernels[name] = row["kernels"];
      if (row.contains("champion_us")) beside_us[name] = row["champion_us"];
    }
  const auto row_for = [&](const char* mode, double us) {
    json row = {{"workload", run.workload},
                {"causal", run.workload.find("causal") != std::string::npos},
                {"variant", final["variant"]},
                {"config", final["config"]},
                {"mode", mode},
                {"heed_us", us},
                {"tflops", number(r, "tflops") * number(final, "trial_us") / us},
                {"floor_us", r["floor"]["us"]},
                {"floor", r["floor"]},
                {"max_abs_err", final["error"]["max_abs"]},
                {"rel_rms_err", final["error"]["rel_rms"]}};
    return row;
  };
  json rows = json::array();
  json warm = row_for(run.device_kind == "cuda" ? "graph_warm" : "warm", number(final, "trial_us"));
  warm["base"] = run.base["variant"];
  warm["base_us"] = final["base_us"];
  warm["base_ratio"] = final["ratio"]["value"];
  warm["base_ratio_ci"] = {final["ratio"]["low"], final["ratio"]["high"]};
  warm["self_spread"] = r["self_spread"];
  warm["peers_us"] = peers_us;
  warm["peer_ratios"] = peer_ratios;
  warm["peer_kernels"] = peer_kernels;
  warm["heed_us_beside"] = beside_us;
  if (peers.contains("best")) {
    warm["best_peer"] = peers["best"];
    warm["ratio"] = peers["best_ratio"]["value"];
    warm["ratio_ci"] = {peers["best_ratio"]["low"], peers["best_ratio"]["high"]};
  }
  rows.push_back(warm);
  rows.push_back(row_for(run.device_kind == "cuda" ? "graph_cold" : "cold", number(r["champion_times"], "cold_us")));
  if (const double us = number(r["champion_times"], "dependent_us"); us > 0)
    rows.push_back(row_for("graph_dependent", us));
  if (number(r["champion_times"], "eager_us") > 0) {
    json eager = row_for("eager", number(r["champion_times"], "eager_us"));
    eager["synchronised_us"] = r["champion_times"]["eager_synchronised_us"];
    rows.push_back(eager);
  }
  return rows;
}

}  // namespace

json evidence(const store::RunRecord& run) {
  if (!run.result.is_object())
    throw Error(ErrorCode::usage,
                fmt::format("run {} has no result to write as evidence; finish it with heed evolve --resume {}", run.id,
                            run.id),
                std::to_string(run.id));
  const json& r = run.result;
  json evidence = {
      {"schema", 1},
      {"what", "evolve"},
      {"device", run.device["name"]},
      {"arch", run.device["arch"]},
      {"driver", run.device["driver"]},
      {"heed", run.heed},
      {"source_digest", run.source_digest},
      {"referee", referee_of(run)},
      {"date", run.created},
      {"rows", json::array()},
      {"run",
       {{"options", run.options},
        {"base", {{"variant", run.base["variant"]}, {"us", run.base["us"]}, {"self_ratio", run.base["self_ratio"]}}},
        {"trials", r["trials"]},
        {"drafts", member(r, "drafts")},
        {"elapsed_s", r["elapsed_s"]},
        {"time", member(r, "time")},
        {"outcome", outcome_of(r)}}},
      {"table", result_text(run)}};
  if (!r.contains("final")) {
    evidence["run"]["summary"] = member(r, "summary");
    return evidence;
  }
  const json& clocks = r["final"]["clocks"];
  evidence["clocks_mhz"] = {{"before", clocks["before"]["clock_mhz"]}, {"after", clocks["after"]["clock_mhz"]}};
  evidence["peer"] = {{"torch", text_of(r["peers"], "torch")}, {"cudnn", text_of(r["peers"], "cudnn")}};
  evidence["rows"] = champion_rows(run);
  evidence["run"]["profile"] = member(r, "profile");
  evidence["run"]["ablation"] = r["ablation"];
  return evidence;
}

}  // namespace heed::report
