/// The defaults of fwd_sm80, best first: what 16-bit workloads are given is a rule that `heed rules` prints and
/// measures.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/device_facts.hpp"
#include "heed/heed.hpp"
#include "kernels/sm80/forward/config.hpp"
#include "variant/rule_table.hpp"

namespace heed {

/// Configs for the workload, best first; the last one is legal everywhere.
/// @param trace null, or told which row decides; it may force another
std::vector<sm80::Config> sm80_defaults(const Workload& workload, const DeviceFacts& device, RuleTrace* trace);

/// The rule for tiles in fp16 and bf16. @param text_of what a row chooses, as parse_variant reads it
DefaultRule sm80_tiles_rule(std::string (*text_of)(const sm80::Config&));

}  // namespace heed
