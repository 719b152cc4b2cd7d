#include "report/charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "report/run_report.hpp"
#include "report/svg.hpp"
#include "report/values.hpp"

namespace heed::report {
namespace {

constexpr double kWide = 1060;   // user units of a figure over the whole page
constexpr double kNarrow = 520;  // of one beside another
constexpr std::size_t kMostAncestors = 24;

struct Series {
  std::string name;
  std::string style;
  Mark mark;
};

// Operations in the order in which they first come, so that a run always has the same colours.
class Legend {
 public:
  explicit Legend(const Trials& trials) {
    constexpr Mark kMarks[] = {Mark::square,        Mark::triangle, Mark::circle, Mark::diamond,
                               Mark::pointing_down, Mark::plus,     Mark::circle};
    for (const store::TrialRecord& t : trials)
      if (series_.count(t.operation) == 0) {
        const std::size_t index = series_.size() % std::size(kMarks);
        series_[t.operation] = {t.operation, fmt::format("series-{}", index), kMarks[index]};
        order_.push_back(t.operation);
      }
  }
  [[nodiscard]] const Series& of(const std::string& operation) const { return series_.at(operation); }
  [[nodiscard]] std::string html(const std::string& more) const {
    std::string text = "<p class=\"legend\">";
    for (const std::string& name : order_)
      text += fmt::format("<span>{} {}</span> ", legend_mark(of(name).mark, of(name).style), escape(name));
    return text + more + "</p>";
  }

 private:
  std::map<std::string, Series> series_;
  std::vector<std::string> order_;
};

std::string figure(const std::string& legend, const Svg& svg, const std::string& caption, const char* style) {
  return fmt::format("<figure class=\"{}\">{}<div class=\"scroll\">{}</div><figcaption>{}</figcaption></figure>\n",
                     style, legend, svg.str(), escape(caption));
}

bool passed(const store::TrialRecord& t) {
  return t.ok() && std::isfinite(t.ratio) && t.ratio > 0;
}

// Smallest and largest ratio of the trials that passed, 1 included, with a little room.
Scale ratio_scale(const Trials& trials, double from, double to) {
  double low = 1;
  double high = 1;
  for (const store::TrialRecord& t : trials)
    if (passed(t)) {
      low = std::min(low, t.ratio);
      high = std::max(high, t.ratio);
    }
  const double room = std::max(0.02, 0.05 * (high - low));
  return {std::max(0.0, low - room), high + room, from, to};
}

void horizontal_grid(Svg& svg, const Scale& y, double left, double right) {
  const std::vector<double> at = ticks(y.low, y.high, 6);
  const double step = at.size() > 1 ? at[1] - at[0] : 1;
  for (const double value : at) {
    svg.line(left, y(value), right, y(value), "grid");
    svg.text(left - 8, y(value) + 4, tick_text(value, step), "tick", Anchor::end);
  }
  if (y.low < 1 && y.high > 1) svg.line(left, y(1), right, y(1), "base-line");
}

void vertical_grid(Svg& svg, const Scale& x, double top, double bottom, int about) {
  const std::vector<double> at = ticks(x.low, x.high, about);
  const double step = at.size() > 1 ? at[1] - at[0] : 1;
  for (const double value : at) {
    svg.line(x(value), top, x(value), bottom, "grid");
    svg.text(x(value), bottom + 18, tick_text(value, step), "tick", Anchor::middle);
  }
}

std::string tooltip_of(const store::TrialRecord& t) {
  if (!passed(t))
    return fmt::format("trial {}: {} ({}) {}", t.number, to_string(t.verdict), t.operation, shortened(t.reason, 160));
  return fmt::format("trial {}: {:.4f} [{:.4f}, {:.4f}], {:.2f} us\n{}{}{}", t.number, t.ratio, t.ratio_low,
                     t.ratio_high, t.trial_us, t.operation, t.why.empty() ? "" : ": ", t.why);
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

std::string progress_chart(const Trials& trials, int champion) {
  constexpr double kLeft = 56, kRight = kWide - 16, kTop = 14, kBottom = 300, kRefused = 334, kHeight = 392;
  const Legend legend(trials);
  const Scale y = ratio_scale(trials, kBottom, kTop);
  const int last = trials.empty() ? 0 : trials.back().number;
  const Scale x{-0.5, std::max(last, 1) + 0.5, kLeft, kRight};
  const auto refused =
      static_cast<std::size_t>(std::count_if(trials.begin(), trials.end(), [](const auto& t) { return !passed(t); }));
  double best = 0;
  for (const store::TrialRecord& t : trials)
    if (passed(t)) best = std::max(best, t.ratio);
  Svg svg(kWide, kHeight, "progress", "Progress over trials",
          fmt::format("{} trials; {} were refused; the best ratio found in the search is {:.3f} times the base.",
                      trials.size(), refused, best));
  horizontal_grid(svg, y, kLeft, kRight);
  svg.text(kLeft - 44, kRefused + 4, "refused", "tick");
  svg.line(kLeft, kRefused, kRight, kRefused, "grid");
  for (const double value : ticks(0, last, 12))
    svg.text(x(value), kHeight - 34, tick_text(value, 1), "tick", Anchor::middle);
  svg.text((kLeft + kRight) / 2, kHeight - 8, "trial", "tick", Anchor::middle);

  std::vector<std::pair<double, double>> steps;
  double so_far = 0;
  for (const store::TrialRecord& t : trials) {
    if (!passed(t) || t.ratio <= so_far) continue;
    if (so_far > 0) steps.emplace_back(x(t.number), y(so_far));
    so_far = t.ratio;
    steps.emplace_back(x(t.number), y(so_far));
  }
  if (so_far > 0) steps.emplace_back(kRight, y(so_far));
  svg.polyline(steps, "best");
  const double radius = trials.size() > 200 ? 3 : 5;
  for (const store::TrialRecord& t : trials) {
    if (!passed(t)) {
      svg.mark(Mark::cross, x(t.number), kRefused, radius, "refused", tooltip_of(t));
      continue;
    }
    const Series& series = legend.of(t.operation);
    if (t.ratio_high > t.ratio_low) svg.line(x(t.number), y(t.ratio_low), x(t.number), y(t.ratio_high), "whisker");
    if (t.number == champion) svg.mark(Mark::circle, x(t.number), y(t.ratio), radius + 5, "ring");
    svg.mark(series.mark, x(t.number), y(t.ratio), radius, series.style, tooltip_of(t));
  }
  return figure(
      legend.html(fmt::format("<span>{} refused</span> <span><i class=\"key best-key\"></i> best so far</span> "
                              "<span><i class=\"key base-key\"></i> the base</span>{}",
                              legend_mark(Mark::cross, "refused"),
                              champion >= 0 ? " <span><i class=\"key ring-key\"></i> champion</span>" : "")),
      svg,
      "Base time / trial time of every trial: above 1 is faster than the base. Thin lines are 95% intervals; "
      "trials that the referee refused have no ratio and stand below.",
      "wide");
}

std::string population_chart(const Trials& trials, int population) {
  constexpr double kLeft = 56, kRight = kWide - 16, kTop = 14, kBottom = 270, kHeight = 326;
  if (trials.empty()) return {};
  const Legend legend(trials);
  const Scale y = ratio_scale(trials, kBottom, kTop);
  const int generations = trials.back().generation + 1;
  const double column = (kRight - kLeft) / generations;
  const auto best_few = static_cast<std::size_t>(std::max(population, 1));
  Svg svg(kWide, kHeight, "population", "Population by generation",
          fmt::format("{} generations; for each the ratios of its trials and the span of the {} best until then.",
                      generations, best_few));
  horizontal_grid(svg, y, kLeft, kRight);
  std::vector<double> ratios;
  std::size_t next = 0;
  const int label_every = std::max(1, generations / 24);
  for (int generation = 0; generation < generations; ++generation) {
    std::vector<const store::TrialRecord*> own;
    for (; next < trials.size() && trials[next].generation <= generation; ++next)
      if (passed(trials[next])) {
        own.push_back(&trials[next]);
        ratios.push_back(trials[next].ratio);
      }
    std::sort(ratios.begin(), ratios.end(), std::greater<>());
    if (ratios.size() > best_few) ratios.resize(best_few);
    const double middle = kLeft + (generation + 0.5) * column;
    const double half = std::min(0.32 * column, 22.0);
    if (!ratios.empty()) {
      const double top = y(ratios.front());
      svg.rectangle(middle - half, top, 2 * half, std::max(y(ratios.back()) - top, 2.0), "box",
                    fmt::format("generation {}: the {} best lie between {:.3f} and {:.3f}, median {:.3f}", generation,
                                ratios.size(), ratios.back(), ratios.front(), median_of(ratios)));
      svg.line(middle - half, y(median_of(ratios)), middle + half, y(median_of(ratios)), "median");
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      const Series& series = legend.of(own[i]->operation);
      const double shift =
          own.size() > 1 ? (static_cast<double>(i) / static_cast<double>(own.size() - 1) - 0.5) * half : 0;
      svg.mark(series.mark, middle + shift, y(own[i]->ratio), 4, series.style, tooltip_of(*own[i]));
    }
    if (generation % label_every == 0)
      svg.text(middle, kBottom + 24, std::to_string(generation), "tick", Anchor::middle);
  }
  svg.text((kLeft + kRight) / 2, kHeight - 8, "generation", "tick", Anchor::middle);
  return figure(
      legend.html("<span><i class=\"key box-key\"></i> the best until then, with their median</span>"), svg,
      fmt::format("Ratios by generation: the marks are a generation's own trials, the boxes span the {} best of "
                  "all until then.",
                  best_few),
      "wide");
}

std::string lineage_chart(const Trials& trials, int champion) {
  constexpr double kBoxWidth = 600, kBoxHeight = 58, kGap = 26, kSideLeft = 680, kSideWidth = kWide - kSideLeft - 4;
  std::vector<const store::TrialRecord*> chain = lineage(trials, champion);
  if (chain.empty()) return {};
  std::size_t left_out = 0;
  if (chain.size() > kMostAncestors) {
    left_out = chain.size() - kMostAncestors;
    chain.erase(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(left_out));
  }
  const double height = static_cast<double>(chain.size()) * (kBoxHeight + kGap) - kGap + 8;
  std::string words;
  for (const store::TrialRecord* t : chain)
    words += fmt::format("trial {} {} ({:.3f}); ", t->number, t->why.empty() ? t->operation : t->why, t->ratio);
  Svg svg(kWide, height, "lineage", fmt::format("Lineage of trial {}", champion), words);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const store::TrialRecord& t = *chain[i];
    const double top = 4 + static_cast<double>(i) * (kBoxHeight + kGap);
    const bool is_champion = t.number == champion;
    svg.rectangle(4, top, kBoxWidth, kBoxHeight, is_champion ? "node champion-node" : "node", tooltip_of(t));
    const store::TrialRecord* parent = t.parents.empty() ? nullptr : trial_of(trials, t.parents.front());
    std::string bought;
    if (parent != nullptr && passed(*parent) && passed(t))
      bought = fmt::format("{:+.1f}% against trial {}", 100 * (t.ratio / parent->ratio - 1), parent->number);
    svg.text(18, top + 23, fmt::format("trial {}{}", t.number, is_champion ? ", the champion" : ""), "strong");
    svg.text(kBoxWidth - 10, top + 23,
             passed(t) ? fmt::format("{:.3f}  [{:.3f}, {:.3f}]", t.ratio, t.ratio_low, t.ratio_high)
                       : std::string(to_string(t.verdict)),
             "strong", Anchor::end);
    svg.text(18, top + 44, shortened(t.why.empty() ? t.operation : t.operation + ": " + t.why, 62), "plain");
    svg.text(kBoxWidth - 10, top + 44, bought, "plain", Anchor::end);
    if (i + 1 < chain.size()) {
      svg.line(40, top + kBoxHeight, 40, top + kBoxHeight + kGap, "edge");
      svg.mark(Mark::pointing_down, 40, top + kBoxHeight + kGap - 5, 5, "arrow");
    }
    // Only the parents beside the chain: whole trees of crossovers would hide the way that was gone.
    if (t.parents.size() < 2) continue;
    const store::TrialRecord* other = trial_of(trials, t.parents[1]);
    if (other == nullptr) continue;
    svg.line(kBoxWidth + 4, top + kBoxHeight / 2, kSideLeft, top + kBoxHeight / 2, "edge donated");
    svg.rectangle(kSideLeft, top + 6, kSideWidth, kBoxHeight - 12, "node donated-node", tooltip_of(*other));
    svg.text(kSideLeft + 12, top + 26, fmt::format("with knobs of trial {}", other->number), "strong");
    svg.text(kSideLeft + kSideWidth - 10, top + 26,
             passed(*other) ? fmt::format("{:.3f}", other->ratio) : std::string(to_string(other->verdict)), "strong",
             Anchor::end);
    svg.text(kSideLeft + 12, top + 44, shortened(other->why.empty() ? other->operation : other->why, 44), "plain");
  }
  return figure("", svg,
                fmt::format("From the first ancestor to the champion{}; a crossover's second parent stands beside it. "
                            "Ratios and 95% intervals are those of the search, against the base.",
                            left_out > 0 ? fmt::format(" ({} earlier ones left out)", left_out) : ""),
                "wide");
}

std::string bar_chart(const std::string& id, const std::string& title, const std::vector<Bar>& bars,
                      const std::string& caption) {
  constexpr double kLabel = 186, kRight = kNarrow - 120, kRow = 30;
  double most = 0;
  std::string words;
  for (const Bar& bar : bars) {
    most = std::max(most, bar.value);
    words += fmt::format("{}: {}; ", bar.label, bar.note);
  }
  Svg svg(kNarrow, static_cast<double>(bars.size()) * kRow + 8, id, title, words);
  const Scale x{0, most, kLabel, kRight};
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double top = 4 + static_cast<double>(i) * kRow;
    svg.text(kLabel - 8, top + 18, shortened(bars[i].label, 28), "label", Anchor::end);
    svg.rectangle(kLabel, top + 4, std::max(x(bars[i].value) - kLabel, 1.0), kRow - 10, bars[i].style,
                  bars[i].label + ": " + bars[i].note);
    svg.text(x(bars[i].value) + 8, top + 18, bars[i].note, "label");
  }
  return figure("", svg, caption, "narrow");
}

std::string interval_chart(const std::string& id, const std::string& title, const std::vector<Interval>& rows,
                           const std::string& caption) {
  constexpr double kLabel = 250, kRight = kNarrow - 14, kRow = 36;
  double low = 1;
  double high = 1;
  std::string words;
  for (const Interval& row : rows) {
    low = std::min(low, row.low);
    high = std::max(high, row.high);
    words += fmt::format("{}: {:.4f} [{:.4f}, {:.4f}]; ", row.label, row.value, row.low, row.high);
  }
  const double room = std::max(0.005, 0.06 * (high - low));
  const Scale x{low - room, high + room, kLabel, kRight};
  const double bottom = static_cast<double>(rows.size()) * kRow + 6;
  Svg svg(kNarrow, bottom + 26, id, title, words);
  vertical_grid(svg, x, 4, bottom, 5);
  svg.line(x(1), 4, x(1), bottom, "base-line");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Interval& row = rows[i];
    const double middle = 6 + (static_cast<double>(i) + 0.5) * kRow;
    const std::string tooltip = fmt::format("{}: {:.4f} [{:.4f}, {:.4f}]", row.label, row.value, row.low, row.high);
    svg.text(kLabel - 10, middle - 2, shortened(row.label, 40), "small", Anchor::end);
    svg.text(kLabel - 10, middle + 13, fmt::format("{:.3f} [{:.3f}, {:.3f}]", row.value, row.low, row.high), "tick",
             Anchor::end);
    svg.line(x(row.low), middle, x(row.high), middle, "interval");
    svg.mark(Mark::circle, x(row.value), middle, 5, "series-2", tooltip);
  }
  return figure("", svg, caption, "narrow");
}

std::string strip_chart(const std::string& id, const std::string& title, const std::vector<Group>& groups,
                        const std::string& unit, const std::string& caption) {
  constexpr double kLabel = 110, kRight = kNarrow - 14, kRow = 52;
  double low = 0;
  double high = 0;
  bool first = true;
  std::string words;
  for (const Group& group : groups) {
    for (const double value : group.values) {
      low = first ? value : std::min(low, value);
      high = first ? value : std::max(high, value);
      first = false;
    }
    words += fmt::format("{}: {} readings, median {:.4g} {}; ", group.label, group.values.size(),
                         median_of(group.values), unit);
  }
  const double room = std::max(0.04 * (high - low), 1e-4 * std::abs(high));
  const Scale x{low - room, high + room, kLabel, kRight};
  const double bottom = static_cast<double>(groups.size()) * kRow + 4;
  Svg svg(kNarrow, bottom + 40, id, title, words);
  vertical_grid(svg, x, 4, bottom, 4);
  svg.text((kLabel + kRight) / 2, bottom + 36, unit, "tick", Anchor::middle);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    const double middle = 4 + (static_cast<double>(g) + 0.5) * kRow;
    svg.text(kLabel - 10, middle - 2, shortened(group.label, 16), "label", Anchor::end);
    svg.text(kLabel - 10, middle + 13, fmt::format("{:.4g}", median_of(group.values)), "tick", Anchor::end);
    for (std::size_t i = 0; i < group.values.size(); ++i) {
      // Spread over the row so that equal readings do not hide each other; the golden ratio fills it evenly.
      const double place = std::fmod(static_cast<double>(i) * 0.6180339887, 1.0) - 0.5;
      svg.mark(Mark::circle, x(group.values[i]), middle + place * 0.6 * kRow, 2.6, group.style + " dot");
    }
    svg.line(x(median_of(group.values)), middle - 0.42 * kRow, x(median_of(group.values)), middle + 0.42 * kRow,
             "median");
  }
  return figure("", svg, caption, "narrow");
}

}  // namespace heed::report
