// What a launch changed that is not its to change.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/parallel.hpp"
#include "verify/scene.hpp"

namespace heed::verify {

std::uint64_t Scene::first_change_between_rows(const std::byte* after) const {
  const Strides& s = o_.strides;
  const std::uint64_t size = size_of(workload_.dtype);
  const bool heads_outside = s.head >= s.row;
  const std::int64_t rows = places_.query_rows(), heads = workload_.heads;
  const std::uint64_t end = o_.offset + o_.bytes;
  std::uint64_t begin = o_.offset;  // of the gap behind the row before
  const auto change_until = [&](std::uint64_t next) {
    const std::byte* const before = image_.data();
    return static_cast<std::uint64_t>(std::mismatch(before + begin, before + next, after + begin).first - before);
  };
  for (std::int64_t block = 0; block < places_.query_blocks(); ++block)
    for (std::int64_t i = 0; i < heads * rows; ++i) {
      const std::int64_t head = heads_outside ? i / rows : i % heads;
      const std::int64_t row = heads_outside ? i % rows : i / heads;
      const std::uint64_t at = o_.offset + static_cast<std::uint64_t>(element_index(s, {block, row}, head)) * size;
      if (const std::uint64_t changed = change_until(at); changed < at) return changed;
      begin = at + static_cast<std::uint64_t>(workload_.dim_v) * size;
    }
  return change_until(end);
}

std::string Scene::describe_offset(std::uint64_t offset) const {
  std::string text = "before the first tensor";
  for (const auto& [place, name] :
       {std::pair{&q_, "Q"}, std::pair{&k_, "K"}, std::pair{&v_, "V"}, std::pair{&o_, "O"}, std::pair{&lse_, "LSE"},
        std::pair{&workspace_, "the workspace"}, std::pair{&semaphores_, "the semaphores"}})
    if (place->bytes > 0 && offset >= place->offset + place->bytes)
      text = fmt::format("{} bytes past the end of {}", offset - place->offset - place->bytes + 1, name);
  return text;
}

Scene::ForbiddenWrite Scene::forbidden_write(const std::byte* after, Skipped skipped) const {
  const std::byte* before = image_.data();
  // First difference in [begin, end), or end.
  const auto first_difference = [&](std::uint64_t begin, std::uint64_t end) {
    constexpr std::uint64_t kPiece = 1 << 20;  // nearly all pieces are equal: memcmp them before looking at bytes
    std::atomic<std::uint64_t> first{end};
    parallel_for(static_cast<std::int64_t>((end - begin + kPiece - 1) / kPiece), 0, [&](std::int64_t piece) {
      const std::uint64_t at = begin + static_cast<std::uint64_t>(piece) * kPiece;
      const std::uint64_t piece_end = std::min(end, at + kPiece);
      if (at > first || std::memcmp(before + at, after + at, piece_end - at) == 0) return;
      const std::uint64_t found =
          static_cast<std::uint64_t>(std::mismatch(before + at, before + piece_end, after + at).first - before);
      for (std::uint64_t known = first; found < known && !first.compare_exchange_weak(known, found);) {
      }
    });
    return first.load();
  };
  std::vector<std::pair<const Place*, const char*>> inputs = {{&q_, "Q"}, {&k_, "K"}, {&v_, "V"}};
  constexpr const char* kNames[feature_inputs] = {"bias",
                                                  "ALiBi slopes",
                                                  "sinks",
                                                  "cu_seqlens_q",
                                                  "cu_seqlens_k",
                                                  "seqused_k",
                                                  "page table",
                                                  "block counts",
                                                  "block indices",
                                                  "prefix lengths",
                                                  "relative bias",
                                                  "scale factors of Q",
                                                  "scale factors of K",
                                                  "scale factors of V",
                                                  "output gates",
                                                  "weights of the output norm"};
  for (std::size_t i = 0; i < feature_inputs; ++i)
    if (features_[i].bytes > 0) inputs.emplace_back(&features_[i], kNames[i]);
  if (skipped.inputs) inputs.clear();
  for (const auto& [place, name] : inputs)
    if (skipped.keys && place == &k_)
      continue;
    else if (const std::uint64_t at = first_difference(place->offset, place->offset + place->bytes);
             at < place->offset + place->bytes)
      return {Finding::input_modified, fmt::format("it changed its input {} at byte {}", name, at - place->offset)};
  // Everything else but the places it may write to, in the order of the image.
  std::uint64_t begin = 0;
  std::vector<const Place*> passed = {&q_, &k_, &v_};
  for (const Place& feature : features_)
    if (feature.bytes > 0) passed.push_back(&feature);
  passed.insert(passed.end(), {&o_, &lse_, &workspace_, &semaphores_});
  std::stable_sort(passed.begin(), passed.end(), [](const Place* a, const Place* b) { return a->offset < b->offset; });
  for (const Place* place : passed) {
    if (const std::uint64_t at = first_difference(begin, place->offset); at < place->offset)
      return {Finding::wrote_outside, fmt::format("it wrote outside its outputs, {}", describe_offset(at))};
    begin = place->offset + place->bytes;
  }
  if (const std::uint64_t at = first_difference(begin, image_.size()); at < image_.size())
    return {Finding::wrote_outside, fmt::format("it wrote outside its outputs, {}", describe_offset(at))};
  if (has_gaps_)
    if (const std::uint64_t at = first_change_between_rows(after); at < o_.offset + o_.bytes)
      return {Finding::wrote_outside,
              fmt::format("it wrote into the padding between rows of O, at byte {}", at - o_.offset)};
  if (const std::uint64_t at = skipped.semaphores
                                   ? semaphores_.offset + semaphores_.bytes
                                   : first_difference(semaphores_.offset, semaphores_.offset + semaphores_.bytes);
      at < semaphores_.offset + semaphores_.bytes) {
    const std::uint64_t index = (at - semaphores_.offset) / sizeof(unsigned);
    unsigned left = 0;
    std::memcpy(&left, after + semaphores_.offset + index * sizeof left, sizeof left);
    return {Finding::left_counters, fmt::format("it left counter {} at {}, not at zero", index, left)};
  }
  return {};
}

}  // namespace heed::verify
