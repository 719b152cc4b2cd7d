/// Where a thread and the processes that it starts work: one device of several, and the processors for that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heed {

struct Placement {
  /// Of the GPU, as this process counts them.
  int gpu = 0;
  /// CUDA_VISIBLE_DEVICES of workers, which see no other GPU and call it 0; empty: what this process has.
  /// https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
  std::string visible;
  std::vector<int> host;     ///< processors of the thread and all that it starts but workers; empty: as they are
  std::vector<int> workers;  ///< processors of workers; empty: those of the thread
};

/// From here to the end of the scope the calling thread is on its device, and so are threads and processes that it
/// starts: processors are inherited (sched_setaffinity(2)), the rest workers and device_state ask for.
class Placed {
 public:
  /// @throws Error(unsupported) where Linux refuses the processors
  explicit Placed(const Placement& placement);
  ~Placed();
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

 private:
  const Placement* before_;
  std::vector<int> processors_before_;
  Placement placement_;
};

/// Of the calling thread; one of no Placed is on GPU 0 and leaves its processes as they are.
const Placement& placement();

/// The processors of a list as the argument of a system call; nothing where it is empty. Without memory from the heap,
/// for the child of a fork. @return whether Linux took them
bool run_on(const std::vector<int>& processors);

/// The environment of a process of the placement: this one's, with its CUDA_VISIBLE_DEVICES.
std::vector<std::string> environment_of(const Placement& placement);

/// The item of CUDA_VISIBLE_DEVICES that names a GPU of this process for its children: the number itself where the
/// variable is not set, else the item of that number, a number or a UUID.
/// @param visible the variable of this process; null where it is not set
std::string visible_gpu(int gpu, const char* visible);

}  // namespace heed
