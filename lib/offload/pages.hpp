/// Which pages of a pool hold which keys: sequences of pages in host memory, and which of them a device has, too.
///
/// Every page has its keys in host memory, and some have them on the device besides, so that a page leaves the device
/// without a copy. Sequences, pages and slots of the device count for all layers alike; keys are counted layer by
/// layer, for the layers of a model take their keys one after another.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace heed::offload {

inline constexpr int kNoSlot = -1;

/// What a pool has room for.
struct PagesSizes {
  int layers = 1;
  std::int64_t page_size = 0;  ///< keys
  std::int64_t host_pages = 0;
  std::int64_t device_pages = 0;  ///< at most as many of them are on the device
  std::int64_t sink_pages = 0;    ///< first pages of a sequence, which stay on the device
};

/// The pages of one sequence, in order.
struct Sequence {
  std::vector<std::int32_t> host;    ///< numbers of pages
  std::vector<std::int32_t> device;  ///< slots of the device, kNoSlot: the page is in host memory alone
  std::vector<std::int64_t> keys;    ///< of each layer
  int holds = 0;                     ///< graphs whose nodes read the pages: where they are, they stay

  [[nodiscard]] std::int64_t resident() const;
};

/// Rows of one page that new keys lie in.
struct PageRows {
  std::int32_t host;
  std::int32_t device;     ///< or kNoSlot
  std::int64_t first_row;  ///< of the page
  std::int64_t rows;
  std::int64_t first_key;  ///< of the new keys
};

class Pages {
 public:
  explicit Pages(const PagesSizes& sizes);

  [[nodiscard]] std::int64_t add();
  /// Its pages are free. @throws Error(usage) for a sequence that there is not, or is held
  void remove(std::int64_t id);
  /// It has no new keys, and its pages do not leave the device, until it was let go as often.
  void hold(std::int64_t id);
  void let_go(std::int64_t id);
  [[nodiscard]] bool is_held(std::int64_t id) const;
  [[nodiscard]] const Sequence& of(std::int64_t id) const;  ///< @throws Error(usage)

  /// `count` more keys of a layer in each sequence. Pages that are new go to the device, in the place of the oldest
  /// page that is no sink of the sequence that has most there. Nothing is changed where it throws.
  /// @throws OutOfRoom where the pool is full, Error(usage) for a sequence that there is not, is named twice, or is
  /// held
  void append(const std::vector<std::int64_t>& ids, int layer, std::int64_t count);
  /// The last `count` keys of a layer are none: what append did, where they could not be written. Pages past the keys
  /// of all layers are free; those that left the device for them come back as any others do (promote).
  void take_back(const std::vector<std::int64_t>& ids, int layer, std::int64_t count);
  /// Where keys [first, first + count) of a sequence lie.
  [[nodiscard]] std::vector<PageRows> rows_of(std::int64_t id, std::int64_t first, std::int64_t count) const;

  /// Full pages in host memory alone that free slots could hold: the newest first. They are on the device from now on;
  /// the caller copies them there.
  /// @param written keys that are in host memory already: a page that a call fills has rows that are on their way
  struct Moved {
    std::int32_t host;
    std::int32_t device;
  };
  [[nodiscard]] std::vector<Moved> promote(std::int64_t id, std::int64_t most, std::int64_t written);

  [[nodiscard]] const PagesSizes& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t free_host() const { return static_cast<std::int64_t>(free_host_.size()); }
  [[nodiscard]] std::int64_t free_device() const { return static_cast<std::int64_t>(free_device_.size()); }
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(sequences_.size()); }
  /// Pages that are used, on the device or in host memory alone.
  [[nodiscard]] std::int64_t resident() const;
  [[nodiscard]] std::int64_t remote() const;

 private:
  [[nodiscard]] std::int32_t slot_for(std::int64_t id);
  [[nodiscard]] std::int64_t pages_of(std::int64_t keys) const {
    return (keys + sizes_.page_size - 1) / sizes_.page_size;
  }

  PagesSizes sizes_;
  std::int64_t next_ = 1;
  std::map<std::int64_t, Sequence> sequences_;
  std::vector<std::int32_t> free_host_;  // the last is taken first: the lowest number
  std::vector<std::int32_t> free_device_;
};

}  // namespace heed::offload
