/// Places judged on several devices at once: threads for each device, and one that decides.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evolve/planner.hpp"
#include "record/run_devices.hpp"
#include "store/records.hpp"

namespace heed::evolve {

/// What a device says of itself before its first trial.
struct PreparedDevice {
  record::DeviceReading reading;
  bool can_draft = true;
};

/// Judges places on one device.
class DeviceJudge {
 public:
  virtual ~DeviceJudge() = default;
  /// "GPU 1", "processors 2-3"
  [[nodiscard]] virtual std::string name() const = 0;
  /// How many places it works on at once: one may wait for its builds while another one has the device.
  [[nodiscard]] virtual int lanes() const = 0;
  /// What each of its threads holds as long as it works: the thread is on the device.
  [[nodiscard]] virtual std::shared_ptr<void> bind_thread() = 0;
  /// Once, before the first place. Whatever it throws says that the device cannot be used.
  virtual PreparedDevice prepare() = 0;
  /// Makes a trial of a place, by one of `lanes` threads. What a candidate does is a verdict; whatever this throws but
  /// Error(interrupted) says that the device is lost.
  virtual store::TrialRecord judge(Job& job) = 0;
};

/// Decides, in one thread, what is judged.
class PoolOwner {
 public:
  virtual ~PoolOwner() = default;
  virtual void prepared(std::size_t device, const PreparedDevice& about) = 0;
  /// Every device is prepared or lost.
  virtual void all_prepared() = 0;
  /// The next place for a device; none where there is none now. It is asked again after each trial and tick, and with
  /// none under way and nothing awaited the search is over.
  virtual std::optional<Job> next(std::size_t device) = 0;
  virtual void finished(std::size_t device, const Job& job, store::TrialRecord trial) = 0;
  /// The device gets no other place. @param job what it was at; Job::devices_lost counts it
  virtual void lost(std::size_t device, std::optional<Job> job, const std::string& why) = 0;
  /// A place that a device which is lost by now said nothing of that counts.
  virtual void put_back(std::size_t device, Job job) = 0;
  /// Several times a second.
  virtual void tick() = 0;
  /// Whether places may come that are none yet, though no device judges anything: somebody is writing them.
  [[nodiscard]] virtual bool is_awaiting() const { return false; }
};

/// Judges what the owner hands out until it has nothing left. All calls of the owner come from the calling thread.
/// @throws Error(interrupted) after all trials that were finished by then were handed over; Error(no_device)
///     where all are lost; whatever the owner throws
void judge_on(const std::vector<std::unique_ptr<DeviceJudge>>& devices, PoolOwner& owner);

}  // namespace heed::evolve
