#include "report/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace heed::report {
namespace {

// Length of the UTF-8 sequence that begins at `at`, 0 when it is none (RFC 3629).
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t length = first < 0x80                     ? 1
                             : first >= 0xC2 && first <= 0xDF ? 2
                             : first >= 0xE0 && first <= 0xEF ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  return length;
}

std::string tooltip_element(const std::string& tooltip) {
  return tooltip.empty() ? std::string() : fmt::format("<title>{}</title>", escape(tooltip));
}

std::string shape_element(Mark shape, double x, double y, double r, std::string_view style,
                          const std::string& tooltip) {
  const std::string title = tooltip_element(tooltip);
  const auto polygon = [&](const std::vector<std::pair<double, double>>& corners) {
    std::string points;
    for (const auto& [dx, dy] : corners) points += fmt::format("{:.1f},{:.1f} ", x + r * dx, y + r * dy);
    points.pop_back();
    return fmt::format("<polygon points=\"{}\" class=\"{}\">{}</polygon>", points, style, title);
  };
  const auto strokes = [&](double dx1, double dy1, double dx2, double dy2) {
    return fmt::format(
        "<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}M{:.1f} {:.1f}L{:.1f} {:.1f}\" class=\"{} stroked\">{}</path>",
        x - r * dx1, y - r * dy1, x + r * dx1, y + r * dy1, x - r * dx2, y - r * dy2, x + r * dx2, y + r * dy2, style,
        title);
  };
  switch (shape) {
    case Mark::circle:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"{}\">{}</circle>", x, y, r, style,
                         title);
    case Mark::square:
      return polygon({{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}});
    case Mark::diamond:
      return polygon({{0, -1.25}, {1.25, 0}, {0, 1.25}, {-1.25, 0}});
    case Mark::triangle:
      return polygon({{0, -1.2}, {1.15, 0.85}, {-1.15, 0.85}});
    case Mark::pointing_down:
      return polygon({{0, 1.2}, {1.15, -0.85}, {-1.15, -0.85}});
    case Mark::cross:
      return strokes(0.9, 0.9, 0.9, -0.9);
    case Mark::plus:
      return strokes(1.1, 0, 0, 1.1);
  }
  return {};
}

}  // namespace

std::string escape(std::string_view text) {
  std::string escaped;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text, at);
    if (length != 1) {
      escaped += length == 0 ? "\xEF\xBF\xBD" : std::string(text.substr(at, length));
      at += std::max<std::size_t>(length, 1);
      continue;
    }
    const char c = text[at++];
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '"')
      escaped += "&quot;";
    else if (c == '\'')
      escaped += "&#39;";
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
      escaped += ' ';
    else
      escaped += c;
  }
  return escaped;
}

std::string shortened(const std::string& text, std::size_t most) {
  std::size_t characters = 0;
  std::size_t cut = 0;
  for (std::size_t at = 0; at < text.size(); ++characters) {
    if (characters + 3 == most) cut = at;
    at += std::max<std::size_t>(sequence_length(text, at), 1);
  }
  return characters <= most ? text : text.substr(0, cut) + "...";
}

std::vector<double> ticks(double low, double high, int about) {
  if (!(high > low) || about < 1) return {low};
  const double raw = (high - low) / about;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double multiple : {5.0, 2.0, 1.0})
    if (multiple * power >= raw * 0.999) step = multiple * power;
  std::vector<double> values;
  for (double index = std::ceil(low / step - 1e-9); index * step <= high + 1e-9 * step; ++index)
    values.push_back(index * step);
  return values;
}

std::string tick_text(double value, double step) {
  const int digits = step > 0 ? std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6) : 2;
  return fmt::format("{:.{}f}", value == 0 ? 0.0 : value, digits);
}

double Scale::operator()(double value) const {
  if (!(high > low) || !std::isfinite(value)) return from;
  return from + (std::clamp(value, low, high) - low) / (high - low) * (to - from);
}

Svg::Svg(double width, double height, const std::string& id, const std::string& title, const std::string& description) {
  body_ = fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-labelledby=\"{}-t {}-d\"><title "
      "id=\"{}-t\">{}</title><desc "
      "id=\"{}-d\">{}</desc>",
      width, height, id, id, id, escape(title), id, escape(description));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view style) {
  body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>", x1, y1, x2, y2,
                       style);
}

void Svg::rectangle(double x, double y, double width, double height, std::string_view style,
                    const std::string& tooltip) {
  body_ +=
      fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\" class=\"{}\">{}</rect>",
                  x, y, std::max(width, 0.0), std::max(height, 0.0), style, tooltip_element(tooltip));
}

void Svg::text(double x, double y, const std::string& text, std::string_view style, Anchor anchor) {
  const char* name = anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>", x, y, name, style,
                       escape(text));
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points, std::string_view style) {
  if (points.empty()) return;
  std::string list;
  for (const auto& [x, y] : points) list += fmt::format("{:.1f},{:.1f} ", x, y);
  list.pop_back();
  body_ += fmt::format("<polyline points=\"{}\" class=\"{}\"/>", list, style);
}

void Svg::mark(Mark shape, double x, double y, double radius, std::string_view style, const std::string& tooltip) {
  body_ += shape_element(shape, x, y, radius, style, tooltip);
}

std::string legend_mark(Mark shape, std::string_view style) {
  return fmt::format("<svg viewBox=\"0 0 14 14\" width=\"14\" height=\"14\" aria-hidden=\"true\">{}</svg>",
                     shape_element(shape, 7, 7, 5, style, {}));
}

}  // namespace heed::report
