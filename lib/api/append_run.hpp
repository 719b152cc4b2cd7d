/// New keys and values written into a cache (heed/append.h): what a caller describes, checked, and one launch of it.
#pragma once

#include <memory>

#include "api/plan.hpp"
#include "api/spans.hpp"
#include "append/append_rows.hpp"
#include "heed/append.h"

namespace heed::api {

/// The append of a problem's cache, ready to be launched.
class AppendRun {
 public:
  virtual ~AppendRun() = default;
  AppendRun(const AppendRun&) = delete;
  AppendRun& operator=(const AppendRun&) = delete;

  /// @throws Error(usage) for addresses that cannot be, and on a CPU for what does not fit
  void run(const heed_append_tensors& tensors, void* stream, std::uint32_t flags) const;
  [[nodiscard]] virtual bool can_be_dependent() const { return false; }

 protected:
  explicit AppendRun(const append::Append& parameters);

 private:
  virtual void launch(const append::Append& append, void* stream, bool dependent) const = 0;
  [[nodiscard]] append::Append bound(const heed_append_tensors& tensors) const;
  void expect_apart_from_all(const heed_append_tensors& tensors) const;

  static constexpr std::size_t kTensors = 10;
  append::Append parameters_;           ///< without addresses; a page_size of 0: no pages
  std::array<Span, kTensors> spans_{};  ///< of heed_append_tensors, without addresses; of no bytes: not looked at
};

/// @throws Error(usage), Error(invalid_workload), Error(unsupported), Error(no_device), Error(driver), Error(programs)
std::unique_ptr<AppendRun> make_append(const heed_problem* problem, const heed_append_rows* rows,
                                       const Options& options);
/// @param program of choose_append
std::unique_ptr<AppendRun> make_gpu_append(const Problem& problem, const append::Append& parameters,
                                           const Choice& program);
/// The append's program for a device. @throws Error(unsupported), Error(programs)
Choice choose_append(const Options& options, const DeviceFacts& device);

}  // namespace heed::api
