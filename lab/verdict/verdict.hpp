/// What became of a trial.
#pragma once

#include <optional>
#include <string_view>

namespace heed {

enum class Verdict {
  ok,
  illegal,            ///< its config cannot be built or launched for this workload on this device
  duplicate,          ///< the same machine code and launch as an earlier trial of the run
  build_failed,       ///< the compiler refused it, or did not end in time
  launch_failed,      ///< the device refused the launch or the memory
  timed_out,          ///< no answer within the wall-clock limit
  crashed,            ///< illegal address, signal, forbidden system call, garbage on the pipe
  wrong,              ///< outputs outside the tolerance, or not written
  nondeterministic,   ///< equal launches gave different bits although the config declares determinism
  cheating,           ///< it did what no honest kernel does: see Finding
  faster_than_floor,  ///< its time is below what the hardware allows: the referee was fooled
};

/// What exactly the gate saw, where a verdict has several causes.
enum class Finding {
  none,
  unwritten_output,  ///< elements of O or LSE still hold the poison
  not_finite,        ///< NaN or infinity in the output
  swallowed_nan,     ///< a row that sees NaN, infinity or scores beyond fp32 looks as if it did not
  inexact,           ///< error over the calibrated tolerance
  hard_limit,        ///< over max|error| 2e-3 on N(0,1) fp16 inputs
  wrong_lse,         ///< log-sum-exp outside its tolerance
  input_modified,    ///< Q, K or V changed
  wrote_outside,     ///< bytes beside the outputs changed
  stale_output,      ///< right once, wrong when the inputs changed under the same addresses
  masked_leak,       ///< NaN beyond the sequence ends reached the output
  neighbour,         ///< wrong at a neighbouring shape
  timed_output,      ///< the outputs of the timed launches are wrong
  breaks_contract,   ///< the binary keeps state, runs code while it is loaded, calls a library, or looks at the time
  forged_time,       ///< the time it reports and the time it took do not fit
  left_counters,     ///< counters that were zero are not zero after the launch: state for the next
  broken_chain,      ///< right when each launch is waited for, wrong when launches that feed each other follow at once
  left_state,        ///< it left the processor in another state than it found it, which skews whoever runs next
};

std::string_view to_string(Verdict verdict);
std::string_view to_string(Finding finding);
/// Whether a launch changed memory that is not its to change, whatever its outputs are.
bool is_forbidden_write(Finding finding);
/// What to_string wrote; none for any other text.
std::optional<Verdict> parse_verdict(std::string_view text);
std::optional<Finding> parse_finding(std::string_view text);

}  // namespace heed
