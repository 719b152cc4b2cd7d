/// Arguments and results of operators: tensors that delete themselves, and numbers in and out of a StableValue.
#pragma once

#include <cstring>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "libtorch.hpp"

namespace heed::torch {

/// Throws what LibTorch says of its last failure, where it says that (2.13 and newer).
inline void check(Status status, const char* step) {
  if (status == 0) return;
  const char* const text = libtorch().last_exception != nullptr ? libtorch().last_exception() : nullptr;
  throw std::runtime_error(text != nullptr && text[0] != '\0' ? text : std::string(step) + " failed");
}

/// An at::Tensor held by one owner; empty for an optional argument that was not given.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) libtorch().delete_tensor(handle_);
  }

  [[nodiscard]] TensorHandle get() const { return handle_; }
  [[nodiscard]] explicit operator bool() const { return handle_ != nullptr; }
  [[nodiscard]] TensorHandle release() { return std::exchange(handle_, nullptr); }
  /// Another owner of the same tensor.
  [[nodiscard]] Tensor shared() const {
    TensorHandle other = nullptr;
    if (handle_ != nullptr) check(libtorch().new_handle(handle_, &other), "sharing a tensor");
    return Tensor(other);
  }
  /// Dense, with other addresses.
  [[nodiscard]] Tensor cloned() const {
    TensorHandle other = nullptr;
    check(libtorch().clone(handle_, &other), "copying a tensor");
    return Tensor(other);
  }

 private:
  TensorHandle handle_ = nullptr;
};

template <typename Number>
StableValue stable(Number number) {
  static_assert(std::is_trivially_copyable_v<Number> && sizeof(Number) <= sizeof(StableValue));
  StableValue value = 0;
  std::memcpy(&value, &number, sizeof(number));
  return value;
}
inline StableValue stable(Tensor tensor) {
  return stable(tensor.release());
}
template <typename Number>
Number number_of(StableValue value) {
  Number number;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}
inline Tensor tensor_of(StableValue value) {
  return Tensor(number_of<TensorHandle>(value));
}

/// The value of an optional argument on the heap, whose ownership goes to the operator that it is given to.
inline StableValue stable_optional(StableValue value) {
  StableValue* on_heap = nullptr;
  if (libtorch().new_stable_value != nullptr)
    check(libtorch().new_stable_value(&on_heap), "making an optional argument");
  else
    on_heap = new StableValue;
  *on_heap = value;
  return stable(on_heap);
}
inline StableValue stable_optional(Tensor tensor) {
  return tensor ? stable_optional(stable(std::move(tensor))) : 0;
}
inline StableValue stable_optional(std::optional<double> number) {
  return number ? stable_optional(stable(*number)) : 0;
}

/// Takes an optional argument, freeing its place on the heap.
inline std::optional<StableValue> taken_optional(StableValue value) {
  auto* const on_heap = number_of<StableValue*>(value);
  if (on_heap == nullptr) return std::nullopt;
  const StableValue taken = *on_heap;
  if (libtorch().delete_stable_value != nullptr)
    check(libtorch().delete_stable_value(on_heap), "freeing an optional argument");
  else
    delete on_heap;
  return taken;
}
inline Tensor optional_tensor_of(StableValue value) {
  const std::optional<StableValue> taken = taken_optional(value);
  return taken ? tensor_of(*taken) : Tensor();
}
inline std::optional<double> optional_number_of(StableValue value) {
  const std::optional<StableValue> taken = taken_optional(value);
  return taken ? std::optional(number_of<double>(*taken)) : std::nullopt;
}

}  // namespace heed::torch
