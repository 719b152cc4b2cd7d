/// Prompts for whatever proposes edits of kernel sources.
///
/// The layers are EvoEngineer's (arXiv 2510.03760): what a prompt tells, which is the task (I1), good solutions so far
/// (I2) and insights (I3), and how it tells it, which is the templates'. A prompt that would be too long tells less:
/// whole files, solutions and insights are left out, those first that matter least; nothing is cut in the middle.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.hpp"
#include "prompts/template.hpp"

namespace heed::prompts {

/// The paper's three combinations.
enum class Preset {
  free,     ///< the task alone
  insight,  ///< and insights
  full,     ///< and good solutions
};
std::string_view to_string(Preset preset);
Preset parse_preset(std::string_view text);  ///< @throws Error(usage)

/// A device source as the parent has it.
struct SourceFile {
  std::string path;
  std::string text;
  /// 0: edited by the parent; 1: of the family alone; 2: shared with other families; 3: for other values of its knobs
  int rank = 0;
};

/// A variant that was measured.
struct Solution {
  int trial = 0;
  std::string config;  ///< family:knob=value,...
  double ratio = 0;    ///< base time / time
  double low = 0;      ///< of the 95% interval
  double high = 0;
  double us = 0;
  std::string what;  ///< its change in words
  std::string diff;  ///< of its sources; empty where they are the carried ones
};

struct Task {
  std::string device;    ///< "NVIDIA H100 80GB HBM3 (sm_90a), 132 multiprocessors, ..."
  std::string workload;  ///< in the grammar of workloads
  std::string problem;   ///< the same in words
  std::string family;    ///< name, and what it is for
  double floor_us = 0;
  std::string floor_bound;  ///< what the floor comes from
  double base_us = 0;
  Solution parent;                    ///< what is to be made faster; trial -1: the base
  std::string profile;                ///< of the parent, in words; empty where nothing was read
  std::string resources;              ///< registers, spills, shared memory of the parent
  std::vector<SourceFile> sources;    ///< within a rank those first that matter most
  std::vector<Solution> solutions;    ///< the best first, the parent left out
  std::vector<std::string> failures;  ///< what was tried on this parent and why it failed, the last first
  std::vector<std::string> insights;  ///< the nearest first
  int request = 1;                    ///< which of the generation's prompts this is, from 1
  int requests = 1;                   ///< of the generation, sent at once
};

struct PromptLimits {
  std::int64_t window_tokens = 128'000;  ///< that the model reads and writes
  std::int64_t reply_tokens = 16'384;
};

/// Leaves room for the reply and for one prompt behind it, which tells the reply and what was wrong with it.
/// @throws Error(usage) where a prompt does not fit the window even with one file of the sources, or for a template
/// that names what is not known
models::Conversation first_prompt(const Templates& templates, Preset preset, const Task& task,
                                  const PromptLimits& limits);

/// After edits that could not be read or did not apply: once more, with the reason.
/// A prompt that follows others keeps to the window: where it would not fit, earlier tries are left out, and of what is
/// told of the last one the reply's end.
models::Conversation again_prompt(const Templates& templates, models::Conversation asked, const std::string& reply,
                                  const std::string& reason, const PromptLimits& limits = {});

/// After a build error or a failed gate.
/// @param outcome the verdict in a word or two, @param reason the compiler's lines, or where outputs were wrong
models::Conversation repair_prompt(const Templates& templates, models::Conversation asked, const std::string& reply,
                                   const std::string& outcome, const std::string& reason,
                                   const PromptLimits& limits = {});

}  // namespace heed::prompts
