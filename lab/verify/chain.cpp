#include "verify/chain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.hpp"
#include "variant/element.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

// Chains of dependents are repeated often; most of the time of one on a GPU goes into copying its image, on a CPU into
// computing.
constexpr std::uint64_t kMostBytes = 16U << 20;
constexpr double kMostFlops_gpu = 2e11;
constexpr double kMostFlops_cpu = 0.6e9;
constexpr std::int64_t kMostRows = 512;
constexpr std::int64_t kMostHeads = 8;

std::uint64_t output_stride(const Workload& w) {
  const auto bytes = static_cast<std::uint64_t>(w.batch * w.heads * w.len_q * w.dim_v) * size_of(w.dtype);
  return aligned(bytes) + kGuardBytes;
}

// Whether an output can be the next launch's K or V.
bool is_square(const Workload& w) {
  return w.heads == w.heads_kv && w.len_q == w.len_k && !w.has_lengths() && w.page_size == 0;
}

}  // namespace

Chain::Chain(const Workload& w, const LaunchPlan& plan, std::uint64_t seed)
    : scene_(w, make_inputs(w, InputClass::normal, seed), plan, seed) {
  const std::uint64_t scene_bytes = aligned(scene_.image().size());
  const std::uint64_t stride = output_stride(w);
  image_.resize(scene_bytes + (kChainLaunches - 1) * stride);
  Random guard(substream(seed, 300));
  for (std::uint64_t i = 0; i < image_.size(); i += 8) {
    const std::uint64_t word = guard.next();
    std::memcpy(image_.data() + i, &word, std::min<std::uint64_t>(8, image_.size() - i));
  }
  std::copy(scene_.image().begin(), scene_.image().end(), image_.begin());
  outputs_.push_back(scene_.o().offset);
  for (int n = 1; n < kChainLaunches; ++n) {
    outputs_.push_back(scene_bytes + static_cast<std::uint64_t>(n - 1) * stride);
    std::memset(image_.data() + outputs_.back(), 0xff, scene_.o().bytes);
  }
  // What an output can be for the next launch; of quantised inputs maybe nothing.
  std::vector<std::uint64_t worker::Launch::*> fed;
  if (w.dtype_q() == w.dtype) fed.push_back(&worker::Launch::q);
  if (is_square(w) && w.dtype_k() == w.dtype) fed.push_back(&worker::Launch::k);
  if (is_square(w) && w.dtype_v() == w.dtype) fed.push_back(&worker::Launch::v);
  for (int n = 0; n < kChainLaunches; ++n) {
    worker::Launch launch = scene_.launch();
    launch.o = outputs_[static_cast<std::size_t>(n)];
    if (n > 0 && !fed.empty())
      launch.*fed[static_cast<std::size_t>(n - 1) % fed.size()] = outputs_[static_cast<std::size_t>(n - 1)];
    launches_.push_back(launch);
  }
}

Chain::Difference Chain::compare(const std::byte* waited, const std::byte* after, bool exact) const {
  const Workload& w = scene_.workload();
  const std::size_t size = size_of(w.dtype);
  const std::size_t elements = scene_.o().bytes / size;
  // An element is a mean of values; each launch of the chain rounds anew, and other sums may round otherwise.
  const double roundoff = facts_of(w.dtype).roundoff;
  for (std::size_t n = 0; n < outputs_.size(); ++n) {
    const std::byte* expected = waited + outputs_[n];
    const std::byte* got = after + outputs_[n];
    if (std::memcmp(expected, got, scene_.o().bytes) == 0) continue;
    double largest = 0;
    for (std::size_t i = 0; i < elements; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(load_element(w.dtype, expected, i))));
    const double allowed = exact ? 0 : 16 * roundoff * largest;
    for (std::size_t i = 0; i < elements; ++i) {
      if (std::memcmp(expected + i * size, got + i * size, size) == 0) continue;
      const double want = load_element(w.dtype, expected, i);
      const double value = load_element(w.dtype, got, i);
      if (!exact && std::abs(value - want) <= allowed) continue;
      return {Finding::broken_chain,
              fmt::format("launch {} of {} that feed each other: element {} of O is {:.6g} where the launches follow "
                          "each other at once, {:.6g} where each is waited for",
                          n + 1, outputs_.size(), i, value, want)};
    }
  }
  if (const Scene::ForbiddenWrite forbidden_write = scene_.forbidden_write(after);
      forbidden_write.finding != Finding::none)
    return {forbidden_write.finding, "in a chain of launches " + forbidden_write.text};
  for (std::size_t n = 1; n < outputs_.size(); ++n) {
    const std::uint64_t begin = outputs_[n] + scene_.o().bytes;
    const std::uint64_t end = n + 1 < outputs_.size() ? outputs_[n + 1] : image_.size();
    if (std::memcmp(image_.data() + begin, after + begin, end - begin) != 0)
      return {Finding::wrote_outside,
              fmt::format("launch {} of a chain wrote outside its outputs, past the end of O", n + 1)};
  }
  return {};
}

std::vector<Workload> chain_workloads(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  const auto runs = [&](const Workload& w) {
    return w.dim == w.dim_v && variant.runs(w) && !variant.family->refuses(w, device) && !variant.is_illegal(w, device);
  };
  const double most_flops = device.kind == DeviceKind::cuda ? kMostFlops_gpu : kMostFlops_cpu;
  const auto fits = [&](const Workload& w) {
    return w.flops() <= most_flops && chain_bytes(w, variant.plan(w, device)) <= kMostBytes;
  };
  std::vector<Workload> found;
  Workload own = workload;
  if (runs(own) && !fits(own)) {
    Workload less = own;
    const std::int64_t group = own.heads / own.heads_kv;
    less.batch = 1;
    less.heads_kv = std::clamp<std::int64_t>(kMostHeads / group, 1, own.heads_kv);
    less.heads = less.heads_kv * group;
    less.len_q = std::min(own.len_q, kMostRows);
    less.len_k = std::min(own.len_k, kMostRows);
    if (variant.runs(less)) own = less;
  }
  if (runs(own)) found.push_back(own);
  if (is_square(own) || own.has_lengths() || own.page_size > 0) return found;
  Workload square = own;
  square.batch = 1;
  square.heads = square.heads_kv = std::min(own.heads, kMostHeads);
  square.len_q = square.len_k = std::min(std::min(own.len_q, own.len_k), kMostRows);
  if (runs(square)) found.push_back(square);
  return found;
}

std::uint64_t chain_bytes(const Workload& w, const LaunchPlan& plan) {
  return image_bytes(w, LaunchMemory::of(plan), 0) + kAlignment + (kChainLaunches - 1) * output_stride(w);
}

}  // namespace heed::verify
