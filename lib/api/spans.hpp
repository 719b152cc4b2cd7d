/// Where tensors lie in memory, and whether two of them have a byte in common.
#pragma once

#include <array>
#include <cstdint>

#include "api/problem.hpp"

namespace heed::api {

/// A tensor in bytes. Without an address it lies nowhere.
struct Span {
  const char* name = "";
  const void* at = nullptr;
  std::uint64_t element = 1;               ///< bytes of one
  std::array<std::int64_t, 4> counts{};    ///< of entries, heads, rows, elements of a row
  std::array<std::uint64_t, 4> strides{};  ///< from one of them to the next
  std::uint64_t bytes = 0;                 ///< from its first element to behind its last one
};

/// @param layout of strides that are not negative and do not reach beyond 2^60 bytes (expect_extent)
Span span_of(const char* name, const void* at, const TensorSizes& sizes, const TensorLayout& layout,
             std::size_t element_bytes);
/// Of numbers that follow each other.
Span span_of_numbers(const char* name, const void* at, std::int64_t count, std::size_t element_bytes);

/// Whether the first and the last byte of one lie around a byte of the other.
bool reach_each_other(const Span& a, const Span& b);
/// Whether they may have a byte in common. Tensors that reach each other may lie apart still, as K and V in one pool
/// do: (pages, 2, page_size, heads_kv, dim), or K and V in one row. Where strides do not tell, they have.
bool overlap(const Span& a, const Span& b);

}  // namespace heed::api
