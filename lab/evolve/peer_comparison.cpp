#include "evolve/peer_comparison.hpp"

#include <fmt/format.h>

#include "base/random.hpp"
#include "measure/peer.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {
namespace {

constexpr double kPeers_s = 30;  // PyTorch takes 5 to 10 s to start, then as long as a finalist for each backend

}  // namespace

record::PeerComparison compare_with_peers(RunContext& run, const trial::Built& champion) {
  record::PeerComparison peers;
  if (!run.options.peers) {
    peers.reason = "not asked for";
    return peers;
  }
  if (!run.has_time_for(kPeers_s)) {
    peers.reason = "the budget was used up";
    run.observer.message("no comparison with PyTorch: the budget is used up");
    return peers;
  }
  run.observer.message("looking for PyTorch");
  const Elsewhere elsewhere(run);
  const measure::TimingPlan timing = run.trial_runner.timing();
  measure::SdpaPeer sdpa(run.options.python, run.options.workload, run.device, timing, fresh_seed());
  if (!sdpa.available()) {
    peers.reason = sdpa.reason();
    run.observer.message(fmt::format("no comparison with PyTorch: {}", sdpa.reason()));
    return peers;
  }
  peers.torch = sdpa.torch_version();
  peers.cudnn = sdpa.cudnn_version();
  const measure::Block ours = run.trial_runner.standalone_block(champion);
  for (const measure::PeerBackend& backend : sdpa.backends()) {
    check_interrupt();
    record::PeerRow& row = peers.rows.emplace_back();
    row.backend = backend.name;
    row.kernels = backend.kernels;
    row.refused = backend.refused;
    if (row.refused.empty()) {
      try {
        run.observer.message(fmt::format("measuring against {}", backend.name));
        const measure::Block theirs = sdpa.block(backend.name);
        (void)theirs();  // captures its graph
        measure::PairResult pair = measure::measure_pair(theirs, ours, run.trial_runner.options().final_pair);
        row.max_abs = sdpa.max_abs_error(backend.name);
        row.pair = std::move(pair);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::interrupted) throw;
        row.refused = error.what();
      }
    }
    run.store.add_comparison({0, run.run, "peer", champion.variant.id(), backend.name, record::to_json(row)});
  }
  return peers;
}

}  // namespace heed::evolve
