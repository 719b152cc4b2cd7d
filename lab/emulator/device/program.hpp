/// The other half of an emulated program: the entry of a variant, called once for every thread of a launch.
#pragma once

#include <cstring>
#include <functional>

#include "emulator/device/request.hpp"
#include "emulator/device/simt.hpp"

namespace heed::emulator {

/// The dynamic shared memory of the running thread's block: what `extern __shared__` declares.
inline char* shared_memory() {
  return reinterpret_cast<char*>(self().block->shared);
}

/// Calls an entry with the parameters of a request. Types of parameters of entries without features are bases of
/// FeatureParams.
template <class Params>
void call(void (*entry)(Params), const Request& request) {
  entry(request.params);
}
template <class Params>
void call(void (*entry)(Params, TensorMaps), const Request& request) {
  entry(request.params, request.maps);
}

/// Serves one request: reads it from stdin, runs `thread` for every thread of its launch without access to files,
/// network or other processes, and writes the image to stdout. Returns the exit code.
int serve(const std::function<void(const Request&)>& thread);

}  // namespace heed::emulator
