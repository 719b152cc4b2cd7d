/// Random numbers that are the same on every machine: std:: distributions are not specified bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace heed {

/// splitmix64 (Steele, Lea, Flood 2014): one round, used to spread seeds.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A new seed from a seed and a stream number; streams of one seed are independent.
constexpr std::uint64_t substream(std::uint64_t seed, std::uint64_t stream) {
  return mix64(mix64(seed) ^ mix64(~stream));
}

/// xoshiro256++ 1.0 (Blackman and Vigna 2019, https://prng.di.unimi.it).
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (auto& word : state_) word = seed = mix64(seed);
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, bound); bound > 0 (Lemire 2019, without the rejection step: bias below bound / 2^64).
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  bool chance(double probability) { return uniform() < probability; }

  /// N(0, 1) by the polar method (Marsaglia and Bray 1964).
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    double x = 0, y = 0, square = 0;
    do {
      x = uniform(-1, 1);
      y = uniform(-1, 1);
      square = x * x + y * y;
    } while (square >= 1 || square == 0);
    const double factor = std::sqrt(-2 * std::log(square) / square);
    spare_ = y * factor;
    has_spare_ = true;
    return x * factor;
  }

 private:
  std::uint64_t state_[4];
  double spare_ = 0;
  bool has_spare_ = false;
};

/// A seed nobody can predict, for inputs a candidate must not have seen.
std::uint64_t fresh_seed();

}  // namespace heed
