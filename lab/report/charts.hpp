/// The figures of a run's page. Each is a <figure> with its legend and a caption that says in words what it shows.
#pragma once

#include <string>
#include <vector>

#include "store/store.hpp"

namespace heed::report {

using Trials = std::vector<store::TrialRecord>;

/// Every trial's ratio by its number, the best so far, refused trials along the bottom.
/// @param champion its number, or -1
std::string progress_chart(const Trials& trials, int champion);

/// Per generation: its trials, and the span of the `population` best until then.
std::string population_chart(const Trials& trials, int population);

/// The champion's ancestors from the first to itself, with the second parents of crossovers beside them.
std::string lineage_chart(const Trials& trials, int champion);

/// Labelled bars. `style` colours a bar, `note` stands behind it.
struct Bar {
  std::string label;
  double value = 0;
  std::string note;
  std::string style = "bar";
};
std::string bar_chart(const std::string& id, const std::string& title, const std::vector<Bar>& bars,
                      const std::string& caption);

/// Labelled values with their 95% intervals, around a line at 1.
struct Interval {
  std::string label;
  double value = 0;
  double low = 0;
  double high = 0;
};
std::string interval_chart(const std::string& id, const std::string& title, const std::vector<Interval>& rows,
                           const std::string& caption);

/// Every value of each group as a dot, its median as a line.
struct Group {
  std::string label;
  std::vector<double> values;
  std::string style = "series-0";
};
std::string strip_chart(const std::string& id, const std::string& title, const std::vector<Group>& groups,
                        const std::string& unit, const std::string& caption);

}  // namespace heed::report
