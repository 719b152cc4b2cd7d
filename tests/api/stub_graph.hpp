/// Graphs of the stand-in for the driver: what a captured stream is given becomes nodes, which a test launches in any
/// order that their edges allow, so that an edge that is missing shows in what they did.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>

namespace heed::stub {

/// The stream that is being captured, always.
inline const auto kCapturing = reinterpret_cast<CUstream>(0x88);

/// Takes what a stream is given as a node. @return false: the stream is not captured, do it
bool is_taken(CUstream stream, std::function<void()> node);

/// Parameters of a launch, which its caller may change when it has returned.
template <typename T>
std::shared_ptr<T> copied(const void* argument) {
  return std::make_shared<T>(*static_cast<const T*>(argument));
}

}  // namespace heed::stub
