/// What heed evolve does for one workload, and for each of several.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/model_options.hpp"
#include "device/placement.hpp"
#include "evolve/devices.hpp"
#include "record/run_options.hpp"

namespace heed::cli {

struct EvolveOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  StoreOptions store;
  std::string devices;  ///< a list; empty: one device
  std::string family;
  std::string hold;
  std::string strategy = "elite";
  int trials = 45;
  int population = 5;
  int drafts = 0;
  int islands = 3;
  std::uint64_t seed = 1;
  double budget_s = 0;
  bool no_peers = false;
  bool no_profile = false;
  bool activity_records = false;
  std::string python = "python3";
  std::int64_t resume = 0;
  std::string evidence;
  std::string from;
  std::string workloads;  ///< a file of calls; empty: one workload
  bool again = false;     ///< of workloads that a finished run has, too
  bool into_book = false;
  std::string book;  ///< empty: the default one
  ModelArguments model_arguments;
  record::ModelOptions models;  ///< out of them
};

/// What the runs of a command share.
struct Workshop {
  explicit Workshop(const EvolveOptions& o);
  std::vector<evolve::DeviceOfRun> devices;  ///< those of --devices
  std::unique_ptr<Placed> place;             ///< this thread is on the first of them
  DeviceFacts device;                        ///< each of them
  std::unique_ptr<jit::Builder> builder;
  std::unique_ptr<store::Store> store;
};

/// What the command line asks of a new run on a workload.
record::RunOptions new_run(const EvolveOptions& o, const Workload& workload, const DeviceFacts& device);

/// The options of this command line that are not the usual ones and that go on with a run as it was, for a shell.
std::string shared_options(const EvolveOptions& o);

/// Evolves from start to result, with progress. @param resume a stored run to go on with
/// @throws whatever Evolution does; Error(interrupted) of a run that has begun names the command that goes on with it
store::RunRecord evolve_one(const EvolveOptions& o, const Workshop& shop, const record::RunOptions& options,
                            const QkvTensors* tensors, std::optional<std::int64_t> resume);

/// A search that ends without a champion leaves the book as it is. The run is stored whatever becomes of the book, so
/// that its result is printed all the same. @return the exit code
int add_to_book(const EvolveOptions& o, const store::RunRecord& run, const Workshop& shop);

/// heed evolve --workloads. @return the exit code
int evolve_workloads(const EvolveOptions& o);

}  // namespace heed::cli
