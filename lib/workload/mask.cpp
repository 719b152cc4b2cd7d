#include "workload/mask.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace heed {

MaskKind mask_kind(const Workload& w) {
  if (w.has_left_bound()) return MaskKind::window;
  return w.has_right_bound() ? MaskKind::causal : MaskKind::none;
}

MaskBounds mask_bounds(const Workload& w) {
  const std::int64_t own = w.own_key(0);
  const std::int64_t right = !w.has_right_bound() ? w.len_q + w.len_k : is_window(w.mask) ? w.window.right : 0;
  MaskBounds bounds{.left_offset = 0, .right_offset = 0, .len_k = static_cast<int>(w.len_k)};
  // No further to the left than lets the last row see the first key, nor to the right than lets the first see the last.
  if (w.has_left_bound()) bounds.left_offset = static_cast<int>(std::max(own - w.window.left, -w.len_q));
  if (w.is_masked()) bounds.right_offset = static_cast<int>(std::min(own + right, w.len_k));
  return bounds;
}

std::string mask_text(const Workload& w) {
  std::string text;
  if (w.mask != Mask::none && !is_window(w.mask)) text = fmt::format(":{}", to_string(w.mask));
  if (w.window == Window{} && !is_window(w.mask)) return text;
  text += fmt::format(":{}={}", is_window(w.mask) ? to_string(w.mask) : "window", w.window.left);
  return w.window.right == Window::kAll ? text : text + fmt::format("/{}", w.window.right);
}

}  // namespace heed
