/// A tensor of an emulated launch: numbers of the problem's element type, poison, and how far a result may be off.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/element.hpp"
#include "simt.hpp"

namespace heed::emulator {

class Elements {
 public:
  Elements() = default;
  /// All of them NaN.
  Elements(Element element, std::size_t count) : element_(element), bytes_(count * width()) {
    for (std::size_t i = 0; i < count; ++i) set_nan(i);
  }
  /// All of them as nobody writes them.
  static Elements untouched(Element element, std::size_t count) {
    Elements all(element, count);
    std::memset(all.bytes_.data(), 0xff, all.bytes_.size());
    return all;
  }

  [[nodiscard]] std::size_t size() const { return bytes_.size() / width(); }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] Range range() const { return {bytes_.data(), bytes_.size()}; }

  [[nodiscard]] double get(std::size_t i) const {
    if (element_ != Element::fp32) return load_16(element_ == Element::bf16, bytes_.data() + 2 * i);
    float x = 0;
    std::memcpy(&x, bytes_.data() + 4 * i, 4);
    return x;
  }
  /// All of them: whoever reads one many times saves half of a test's time.
  [[nodiscard]] std::vector<double> all() const {
    std::vector<double> values(size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = get(i);
    return values;
  }
  void set(std::size_t i, float x) {
    if (element_ == Element::fp32) {
      std::memcpy(bytes_.data() + 4 * i, &x, 4);
    } else {
      const std::uint16_t rounded = round_16(element_ == Element::bf16, x);
      std::memcpy(bytes_.data() + 2 * i, &rounded, 2);
    }
  }
  void set_nan(std::size_t i) {
    std::memset(bytes_.data() + i * width(), 0xff, width());
    bytes_[(i + 1) * width() - 1] = std::byte{0x7f};
  }
  [[nodiscard]] bool is_untouched(std::size_t i) const {
    for (std::size_t k = i * width(); k < (i + 1) * width(); ++k)
      if (bytes_[k] != std::byte{0xff}) return false;
    return true;
  }

 private:
  [[nodiscard]] std::size_t width() const { return static_cast<std::size_t>(bytes_of(element_)); }

  Element element_ = Element::fp16;
  std::vector<std::byte> bytes_;
};

/// What an output may be off by: the type's rounding of values around 1, and in fp32 what the error of a score makes of
/// its probability.
/// @param score_scale by how much scores are larger than those of N(0, 1)
inline double largest_error(Element element, double expected, double score_scale) {
  const double size = std::fabs(expected);
  if (element == Element::fp32) return 1e-5 * std::fmax(1, score_scale) * (1 + size);
  return element == Element::bf16 ? 0.03 + 0.01 * size : 0.006 + 0.001 * size;
}
/// The same of a log-sum-exp. Row sums may be of rounded probabilities (attention::Rowsum): where one outweighs all
/// others they are off by the unit roundoff of its type, which is 2^-11 in fp16 and 2^-8 in bf16.
inline double largest_lse_error(Element element, double expected, double score_scale) {
  if (element == Element::fp32) return 1e-5 * std::fmax(1, score_scale) + 1e-6 * std::fabs(expected);
  return (element == Element::bf16 ? 0x1p-8 : 2e-3) + 1e-4 * std::fabs(expected);
}

}  // namespace heed::emulator
