/// A call of attention over a pool, as launches of paged attention over parts of the keys, which a merge makes one.
///
/// Keys that every row sees may come in any order, so a part is any pages of a sequence, counted from 0: a table of
/// them and a number of keys say it all. Keys that some rows do not see keep their distance to the rows: a part of them
/// is pages that follow each other, under a window whose right side is as many keys as lie behind the part.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/pages.hpp"

namespace heed::offload {

enum class Place {
  device,    ///< pages that the device holds: numbers are slots
  streamed,  ///< brought through the ring of device buffers: numbers are host pages
  host,      ///< attended to by the processors: numbers are host pages
};

/// Which keys the rows of a piece see of it, by bounds around row i's own key, i + (keys - rows).
struct PieceMask {
  std::int64_t left = -1;   ///< keys before it, -1: all
  std::int64_t right = -1;  ///< keys after it, -1: all
  bool operator==(const PieceMask&) const = default;
};

/// One launch.
struct Piece {
  Place place = Place::device;
  std::vector<std::vector<std::int32_t>> pages;  ///< of each entry
  std::vector<std::int32_t> keys;                ///< of each entry
  PieceMask mask;
  std::int64_t first_row = 0;  ///< of the call's rows
  std::int64_t rows = 0;
  bool has_new = false;  ///< keys of this very call, which may still be on the way to host memory

  [[nodiscard]] std::int64_t longest() const;  ///< pages of the entry that has most
  [[nodiscard]] std::int64_t count() const;    ///< pages of all entries
};

/// Rows of a piece that share a launch, where one takes fewer than the piece has: keys behind those that the last of
/// them sees are left out, so that their bounds count from the end of the keys again.
struct RowGroup {
  std::int64_t first_row = 0;  ///< of the piece's
  std::int64_t rows = 0;
  std::int64_t hidden = 0;  ///< keys at the end of each entry that none of them sees
  PieceMask mask;
};
/// @param most rows of a launch
std::vector<RowGroup> row_groups(const PieceMask& mask, std::int64_t rows, std::int64_t most);

/// The sequences of a call, and its rows.
struct Wanted {
  std::vector<const Sequence*> entries;
  int layer = 0;
  std::int64_t rows = 0;
  std::int64_t page_size = 0;
  bool causal = false;            ///< row i's own key is i + (keys - rows), and it sees none behind it
  std::int64_t window_left = -1;  ///< keys before its own one that it sees; -1: all
  std::int64_t new_keys = 0;      ///< last keys that this very call brought
};

/// Whether all entries can share launches in which pages are counted anew (else each is a call of its own): all rows
/// see all keys but those of pages at the end of the sequence that lie on the device together.
bool can_be_counted_anew(const Wanted& wanted);

/// Of decoding: resident pages, then the remote ones: `streamed` of them in chunks of `chunk_pages` over the link, the
/// others on the host. For calls that can_be_counted_anew.
std::vector<Piece> decode_pieces(const Wanted& wanted, double streamed, std::int64_t chunk_pages);

/// Of a prefill of one entry, in the order of the work: what the device holds first, so that the link has time, then
/// chunks in the order of keys.
std::vector<Piece> prefill_pieces(const Wanted& wanted, std::int64_t chunk_pages);

}  // namespace heed::offload
