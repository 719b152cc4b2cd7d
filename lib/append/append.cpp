#include "append/append.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <span>

#include "compile/embedded.hpp"
#include "kernels/element.hpp"
#include "quantise/quantise.hpp"
#include "workload/elements.hpp"

namespace heed::append {

std::span<const compile::EmbeddedFile> device_sources();

namespace {

void copy_row(const Tensor& t, long long from, long long to) {
  const int bytes = bytes_of(static_cast<Element>(t.rows.element));
  const char* const read = static_cast<const char*>(t.rows.from) + from * bytes;
  unsigned char* const written = t.rows.to + to * bytes;
  if (t.rows.from_step == 1 && t.to_step == 1) {
    std::memcpy(written, read, static_cast<std::size_t>(t.rows.dim) * static_cast<std::size_t>(bytes));
    return;
  }
  for (int d = 0; d < t.rows.dim; ++d)
    std::memcpy(written + d * t.to_step * bytes, read + d * t.rows.from_step * bytes, static_cast<std::size_t>(bytes));
}

void quantise_row(const Tensor& t, long long from, long long to, long long index) {
  std::array<float, quantise::kMostDim> x;
  const int element = t.rows.to_element;
  unsigned most = 0;
  for (int d = 0; d < t.rows.dim; ++d) {
    float& value = x[static_cast<std::size_t>(d)];
    value = load_element(static_cast<Dtype>(t.rows.element), t.rows.from,
                         static_cast<std::size_t>(from + d * t.rows.from_step));
    most = std::max(most, quantise::magnitude_of(value, element));
  }
  float factor = 0;
  if (t.finds_factor != 0)
    t.rows.factors[index] = factor = quantise::factor_of(most, element);
  else
    factor = t.rows.factors[index];
  for (int d = 0; d < t.rows.dim; ++d) {
    if (t.rows.scales.channel != 0) factor = t.rows.factors[index + d];
    t.rows.to[to + d * t.to_step] = quantise::element_of(x[static_cast<std::size_t>(d)], factor, element);
  }
}

bool are_begins(const Append& a) {
  if (a.cu_seqlens == nullptr) return true;
  for (int b = 0; b <= a.batch; ++b)
    if (a.cu_seqlens[b] < (b == 0 ? 0 : a.cu_seqlens[b - 1]) || a.cu_seqlens[b] > a.total_new) return false;
  return true;
}

std::string wrong_begins(const Append& a) {
  for (int b = 0; b <= a.batch; ++b) {
    const int before = b == 0 ? 0 : a.cu_seqlens[b - 1];
    if (a.cu_seqlens[b] < before)
      return fmt::format("cu_seqlens[{}] is {}; it must be {} or more, for rows of entries follow each other", b,
                         a.cu_seqlens[b], before);
    if (a.cu_seqlens[b] > a.total_new)
      return fmt::format("cu_seqlens[{}] is {}, and there are {} new rows", b, a.cu_seqlens[b], a.total_new);
    if (b > 0 && a.cu_seqlens[b] - before > a.len_new)
      return fmt::format("entry {} gets {} rows by cu_seqlens; len_new says that it gets {} at most", b - 1,
                         a.cu_seqlens[b] - before, a.len_new);
  }
  return {};
}

std::string wrong_factor(const Append& a, const Tensor& t, const char* name, const Place& at) {
  if (is_copied(t) || t.finds_factor != 0) return {};
  for (int h = 0; h < a.heads; ++h) {
    const long long first = factor_index(t, at, h);
    for (long long i = first; i < first + (t.rows.scales.channel != 0 ? t.rows.dim : 1); ++i)
      if (!(t.rows.factors[i] > 0 && std::isfinite(t.rows.factors[i])))
        return fmt::format("{}[{}] is {}; a scale factor must be positive and finite", name, i, t.rows.factors[i]);
  }
  return {};
}

}  // namespace

const std::string& append_source() {
  static const std::string source = [] {
    compile::add_device_files(device_sources());
    return fmt::format(
        "#include \"lib/append/append_rows.cuh\"\n\n"
        "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ heed::append::Append append) "
        "{{\n"
        "  __shared__ int shared[heed::append::kStaged + 1];\n"
        "  heed::append::append_rows(append, shared);\n"
        "}}\n",
        kAppendThreads, kAppendEntry);
  }();
  return source;
}

bool can_be_dependent(std::string_view arch) {
  const std::size_t at = arch.find('_');
  int number = 0;
  if (at != std::string_view::npos) std::from_chars(arch.data() + at + 1, arch.data() + arch.size(), number);
  return number >= 90;
}

std::string wrong_numbers(const Append& a) {
  if (a.cu_seqlens != nullptr)
    if (std::string wrong = wrong_begins(a); !wrong.empty()) return wrong;
  for (int b = 0; b < a.batch; ++b) {
    const int rows = rows_of_entry(a, b);
    if (a.lengths[b] < 0) return fmt::format("the length of entry {} is {}; it must be 0 or more", b, a.lengths[b]);
    const long long before = first_key(a, b);
    if (before < 0)
      return fmt::format("entry {} has {} keys after {} new ones; it must have as many at least", b, a.lengths[b],
                         rows);
    if (before + rows > a.len_cache)
      return fmt::format("entry {} has {} keys, and {} new ones; its cache has room for {}", b, before, rows,
                         a.len_cache);
    for (int i = 0; i < rows; ++i) {
      const Place at = place_of(a, b, i);
      if (at.row < 0) {
        const long long key = before + i;
        return fmt::format("page_table[{}, {}] is {}, and key {} lies there; the pool has the pages 0 to {}", b,
                           key / a.page_size, a.page_table[b * a.table_stride + key / a.page_size], key, a.pages - 1);
      }
      for (const auto& [t, name] : {std::pair{&a.k, "k_scale"}, std::pair{&a.v, "v_scale"}})
        if (std::string wrong = wrong_factor(a, *t, name, at); !wrong.empty()) return wrong;
    }
  }
  return {};
}

void append_on_host(const Append& a) {
  const bool is_appended = are_begins(a);
  for (int b = 0; b < a.batch; ++b) {
    const int rows = is_appended ? rows_of_entry(a, b) : 0;
    const int begin = a.cu_seqlens == nullptr ? 0 : a.cu_seqlens[b];
    for (int i = 0; i < rows; ++i) {
      const Place at = place_of(a, b, i);
      if (at.row < 0) continue;
      for (int h = 0; h < a.heads; ++h)
        for (const Tensor* t : {&a.k, &a.v}) {
          const long long from = new_offset(a, *t, b, i, begin, h);
          const long long to = cache_offset(*t, at, h);
          if (is_copied(*t))
            copy_row(*t, from, to);
          else
            quantise_row(*t, from, to, factor_index(*t, at, h));
        }
    }
    if (a.lengths_after != nullptr) a.lengths_after[b] = length_after(a, b, is_appended);
  }
}

Append with_width(Append a) {
  const bool has_parts = a.page_table != nullptr ? a.pages > 1 : a.batch > 1;
  const bool has_entries = a.cu_seqlens == nullptr && a.batch > 1;
  for (Tensor* t : {&a.k, &a.v}) {
    quantise::TensorPass& r = t->rows;
    const int bytes = bytes_of(static_cast<Element>(r.element));
    const auto lies = [](const void* address, int unit) {
      return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(unit) == 0;
    };
    const auto fits = [&](const TensorStrides& s, bool counts_batch, int unit) {
      return (!counts_batch || s.batch * bytes % unit == 0) && (a.heads == 1 || s.head * bytes % unit == 0) &&
             s.row * bytes % unit == 0;
    };
    t->is_copied_wide = is_copied(*t) && r.from_step == 1 && t->to_step == 1 && r.dim * bytes % 16 == 0 &&
                                lies(r.from, 16) && lies(r.to, 16) && fits(r.from_strides, has_entries, 16) &&
                                fits(r.to_strides, has_parts, 16)
                            ? 1
                            : 0;
    // What a lane of a warp reads at a time (quantise::load_lane).
    const int each = quantise::elements_of_lane(r.dim);
    const int unit = std::min(16, each * bytes);
    r.is_wide =
        r.from_step == 1 && r.dim % each == 0 && lies(r.from, unit) && fits(r.from_strides, has_entries, unit) ? 1 : 0;
  }
  return a;
}

}  // namespace heed::append
