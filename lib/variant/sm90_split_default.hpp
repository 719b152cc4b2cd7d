/// The default of fwd_sm90_split: a rule over rows, keys, multiprocessors and head dim, most of it by tables that
/// `heed rules` prints and measures.
#pragma once

#include <string>
#include <vector>

#include "device/device_facts.hpp"
#include "heed/heed.hpp"
#include "kernels/sm90/split/config.hpp"
#include "variant/rule_table.hpp"

namespace heed {

/// Not brought into its canonical form.
/// @param trace null, or told which rows decide; it may force another
sm90_split::Config sm90_split_default(const Workload& workload, const DeviceFacts& device, RuleTrace* trace);

/// Its tables. @param text_of the named knobs of a config, as parse_variant reads them
std::vector<DefaultRule> sm90_split_rules(std::string (*text_of)(const sm90_split::Config&,
                                                                 std::initializer_list<std::string_view>));

}  // namespace heed
