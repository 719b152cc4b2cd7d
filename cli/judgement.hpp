/// Judged edits and knobs as JSON, for heed judge and heed serve.
#pragma once

#include <nlohmann/json.hpp>

#include "device/device.hpp"
#include "evolve/source_judge.hpp"

namespace heed::cli {

nlohmann::json judgement_json(const evolve::SourceJudge& judge, const evolve::Judgement& judgement,
                              const Workload& workload, const DeviceFacts& device);

}  // namespace heed::cli
