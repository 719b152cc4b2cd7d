#include "offload/pieces.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace heed::offload {
namespace {

std::int64_t keys_of(const Wanted& w, const Sequence& s) {
  return s.keys[static_cast<std::size_t>(w.layer)];
}
// Pages that hold keys of the layer: another layer may be ahead.
std::int64_t pages_of(const Wanted& w, const Sequence& s) {
  return (keys_of(w, s) + w.page_size - 1) / w.page_size;
}
std::int64_t keys_of_page(const Wanted& w, const Sequence& s, std::int64_t page) {
  return std::min(w.page_size, keys_of(w, s) - page * w.page_size);
}
bool is_resident(const Sequence& s, std::int64_t page) {
  return s.device[static_cast<std::size_t>(page)] != kNoSlot;
}
std::int32_t number_of(const Sequence& s, std::int64_t page, Place place) {
  return (place == Place::device ? s.device : s.host)[static_cast<std::size_t>(page)];
}
bool is_new(const Wanted& w, const Sequence& s, std::int64_t page) {
  return (page + 1) * w.page_size > keys_of(w, s) - w.new_keys;
}

Piece empty(const Wanted& w, Place place) {
  Piece piece;
  piece.place = place;
  piece.pages.resize(w.entries.size());
  piece.keys.assign(w.entries.size(), 0);
  piece.rows = w.rows;
  return piece;
}
void add_page(Piece& piece, const Wanted& w, std::size_t entry, std::int64_t page) {
  const Sequence& s = *w.entries[entry];
  piece.pages[entry].push_back(number_of(s, page, piece.place));
  piece.keys[entry] += static_cast<std::int32_t>(keys_of_page(w, s, page));
  piece.has_new = piece.has_new || is_new(w, s, page);
}

struct Page {
  std::size_t entry;
  std::int64_t page;
};

}  // namespace

std::int64_t Piece::longest() const {
  std::size_t most = 0;
  for (const auto& of_entry : pages) most = std::max(most, of_entry.size());
  return static_cast<std::int64_t>(most);
}
std::int64_t Piece::count() const {
  std::size_t all = 0;
  for (const auto& of_entry : pages) all += of_entry.size();
  return static_cast<std::int64_t>(all);
}

std::vector<RowGroup> row_groups(const PieceMask& mask, std::int64_t rows, std::int64_t most) {
  std::vector<RowGroup> groups;
  for (std::int64_t first = 0; first < rows; first += most) {
    RowGroup group{first, std::min(most, rows - first), 0, mask};
    // Own keys lie as many before those that a launch of these rows alone counts as rows come behind them.
    const std::int64_t behind = rows - first - group.rows;
    if (mask.right >= 0) {
      group.hidden = std::max<std::int64_t>(0, behind - mask.right);
      group.mask.right = std::max<std::int64_t>(0, mask.right - behind);
    }
    if (mask.left >= 0) group.mask.left = mask.left + behind - group.hidden;
    // Where all of them see the last key it is a launch without a mask, whose plan serves others.
    if (group.mask.left < 0 && group.mask.right >= group.rows - 1) group.mask.right = -1;
    groups.push_back(group);
  }
  return groups;
}

bool can_be_counted_anew(const Wanted& w) {
  if (w.window_left >= 0) return false;
  if (!w.causal || w.rows <= 1) return true;
  return std::all_of(w.entries.begin(), w.entries.end(), [&](const Sequence* s) {
    // A row of an entry with fewer keys than rows sees none of them: bounds count from the entry's own end as well.
    const std::int64_t hidden_from_some = std::min(keys_of(w, *s), w.rows - 1);
    std::int64_t together = 0;
    for (std::int64_t page = pages_of(w, *s) - 1; page >= 0 && together < hidden_from_some; --page) {
      if (!is_resident(*s, page)) return false;
      together += keys_of_page(w, *s, page);
    }
    return true;
  });
}

std::vector<Piece> decode_pieces(const Wanted& w, double streamed, std::int64_t chunk_pages) {
  HEED_CHECK(can_be_counted_anew(w) && chunk_pages > 0);
  Piece device = empty(w, Place::device);
  if (w.causal && w.rows > 1) device.mask.right = 0;
  std::vector<Page> remote;
  for (std::size_t entry = 0; entry < w.entries.size(); ++entry) {
    const Sequence& s = *w.entries[entry];
    for (std::int64_t page = 0; page < pages_of(w, s); ++page)
      if (is_resident(s, page))
        add_page(device, w, entry, page);
      else
        remote.push_back({entry, page});
  }
  // Pages are in the order of keys, so that the one that may not be full, the last of a sequence, ends its entry.
  const auto over_link = static_cast<std::size_t>(std::clamp(
      std::llround(streamed * static_cast<double>(remote.size())), 0LL, static_cast<long long>(remote.size())));
  std::vector<Piece> pieces;
  if (device.count() > 0) pieces.push_back(std::move(device));
  for (std::size_t begin = 0; begin < over_link; begin += static_cast<std::size_t>(chunk_pages)) {
    Piece chunk = empty(w, Place::streamed);
    for (std::size_t i = begin; i < std::min(over_link, begin + static_cast<std::size_t>(chunk_pages)); ++i)
      add_page(chunk, w, remote[i].entry, remote[i].page);
    pieces.push_back(std::move(chunk));
  }
  if (over_link < remote.size()) {
    Piece host = empty(w, Place::host);
    for (std::size_t i = over_link; i < remote.size(); ++i) add_page(host, w, remote[i].entry, remote[i].page);
    pieces.push_back(std::move(host));
  }
  return pieces;
}

std::vector<Piece> prefill_pieces(const Wanted& w, std::int64_t chunk_pages) {
  HEED_CHECK(w.entries.size() == 1 && chunk_pages > 0);
  const Sequence& s = *w.entries[0];
  const std::int64_t keys = keys_of(w, s);
  const std::int64_t pages = pages_of(w, s);
  const std::int64_t own_of_first = keys - w.rows;  // the key that is row 0's own; below 0, where there are fewer
  const std::int64_t first_seen =
      w.window_left < 0 ? 0 : std::max<std::int64_t>(0, own_of_first - w.window_left);  // by row 0
  const bool is_masked = w.causal || w.window_left >= 0;
  const auto seen_by_all = [&](std::int64_t page) {
    const std::int64_t end = page * w.page_size + keys_of_page(w, s, page);
    const bool is_behind = !w.causal || end - 1 <= own_of_first;
    const bool is_within = w.window_left < 0 || page * w.page_size >= keys - 1 - w.window_left;
    return !is_masked || (is_behind && is_within);
  };
  std::vector<Piece> resident;
  std::vector<Piece> chunks;
  Piece open = empty(w, Place::device);  // resident pages that all rows see, in one launch
  for (std::int64_t page = first_seen / w.page_size; page < pages;) {
    const Place place = is_resident(s, page) ? Place::device : Place::streamed;
    if (seen_by_all(page)) {
      if (place == Place::device) {
        add_page(open, w, 0, page);
      } else {
        if (chunks.empty() || chunks.back().mask != PieceMask{} || chunks.back().count() >= chunk_pages)
          chunks.push_back(empty(w, Place::streamed));
        add_page(chunks.back(), w, 0, page);
      }
      ++page;
      continue;
    }
    // Pages that follow each other in one place.
    Piece piece = empty(w, place);
    const std::int64_t begin = page * w.page_size;
    std::int64_t end = begin;
    for (; page < pages && !seen_by_all(page) && (is_resident(s, page) ? Place::device : Place::streamed) == place &&
           (place == Place::device || piece.count() < chunk_pages);
         ++page) {
      add_page(piece, w, 0, page);
      end = page * w.page_size + keys_of_page(w, s, page);
    }
    // Rows that see a key of it. The last one sees its last key, so that neither bound is below 0.
    const std::int64_t first = w.causal ? std::max<std::int64_t>(0, begin - own_of_first) : 0;
    const std::int64_t behind_last =
        w.window_left < 0 ? w.rows : std::min(w.rows, end - 1 + w.window_left - own_of_first + 1);
    if (first >= behind_last) continue;
    piece.first_row = first;
    piece.rows = behind_last - first;
    const std::int64_t own_of_last = own_of_first + behind_last - 1;
    const std::int64_t shift = own_of_last - (end - 1);  // of its own key, as the piece counts them, to the true one
    piece.mask.right = w.causal ? shift : -1;
    piece.mask.left = w.window_left < 0 ? -1 : w.window_left - shift;
    HEED_CHECK((!w.causal || shift >= 0) && (w.window_left < 0 || piece.mask.left >= 0));
    (place == Place::device ? resident : chunks).push_back(std::move(piece));
  }
  if (open.count() > 0) resident.insert(resident.begin(), std::move(open));
  resident.insert(resident.end(), std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()));
  return resident;
}

}  // namespace heed::offload
