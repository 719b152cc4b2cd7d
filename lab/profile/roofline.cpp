#include "profile/roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace heed::profile {
namespace {

constexpr double kLeft = 90, kRight = 700, kTop = 50, kBottom = 420;
constexpr std::array kColours = {"#0b6e99", "#b35900", "#5b7f00"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string with_prefix(double value) {
  constexpr std::array kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t i = 0;
  while (value >= 999.5 && i + 1 < kPrefixes.size()) {
    value /= 1000;
    ++i;
  }
  return fmt::format("{:.3g} {}", value, kPrefixes[i]);
}

// A logarithmic axis over whole decades.
struct Axis {
  int low = 0;
  int high = 1;
  double begin = 0;
  double end = 1;
  void take(double value) {
    if (!(value > 0) || !std::isfinite(value)) return;
    if (empty) low = high = static_cast<int>(std::floor(std::log10(value)));
    empty = false;
    low = std::min(low, static_cast<int>(std::floor(std::log10(value))));
    high = std::max(high, static_cast<int>(std::ceil(std::log10(value))));
  }
  [[nodiscard]] double at(double value) const {
    return begin + (end - begin) * (std::log10(value) - low) / std::max(1, high - low);
  }
  bool empty = true;
};

std::string label(double x, double y, const char* anchor, const std::string& colour, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y, anchor, colour,
                     escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, const std::string& style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

}  // namespace

std::string svg(const Roofline& r) {
  Axis x{.begin = kLeft, .end = kRight};
  Axis y{.begin = kBottom, .end = kTop};
  y.take(r.peak_flops);
  y.take(r.flops);
  y.take(r.peak_flops / 1000);
  x.take(1);
  x.take(1000);
  for (const Roofline::Roof& roof : r.roofs) {
    if (roof.bandwidth > 0) x.take(2 * r.peak_flops / roof.bandwidth);
    x.take(roof.intensity);
  }
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 480\" width=\"720\" height=\"480\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"720\" height=\"480\" fill=\"white\"/>\n";
  out += label(kLeft, 28, "start", "black", r.title);
  for (int decade = x.low; decade <= x.high; ++decade) {
    const double at = x.at(std::pow(10.0, decade));
    out += line(at, kTop, at, kBottom, "stroke=\"#dddddd\"");
    out += label(at, kBottom + 18, "middle", "#444444", fmt::format("{:g}", std::pow(10.0, decade)));
  }
  for (int decade = y.low; decade <= y.high; ++decade) {
    const double at = y.at(std::pow(10.0, decade));
    out += line(kLeft, at, kRight, at, "stroke=\"#dddddd\"");
    out += label(kLeft - 8, at + 4, "end", "#444444", with_prefix(std::pow(10.0, decade)));
  }
  out += label((kLeft + kRight) / 2, kBottom + 42, "middle", "black", "operations a byte");
  out += label(14, kTop - 10, "start", "black", "FLOP/s");

  const double least_x = std::pow(10.0, x.low);
  const double most_x = std::pow(10.0, x.high);
  const double least_y = std::pow(10.0, y.low);
  double peak_from = most_x;
  int index = 0;
  for (const Roofline::Roof& roof : r.roofs) {
    const std::string colour = kColours[static_cast<std::size_t>(index) % kColours.size()];
    if (roof.bandwidth > 0 && r.peak_flops > 0) {
      const double ridge = r.peak_flops / roof.bandwidth;
      peak_from = std::min(peak_from, ridge);
      const double from = std::max(least_x, least_y / roof.bandwidth);  // where it enters the picture
      out += line(x.at(from), y.at(from * roof.bandwidth), x.at(ridge), y.at(r.peak_flops),
                  fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour));
      out += label(kLeft + 8, kBottom - 10 - 16 * index, "start", colour,
                   fmt::format("{} {}B/s", roof.name, with_prefix(roof.bandwidth)));
    }
    if (roof.intensity > 0 && r.flops > 0) {
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", x.at(roof.intensity),
                         y.at(r.flops), colour);
      out += label(x.at(roof.intensity), y.at(r.flops) + 20 + 14 * index, "middle", colour,
                   fmt::format("{:.3g} a byte of {}", roof.intensity, roof.name));
    }
    ++index;
  }
  if (r.peak_flops > 0) {
    out += line(x.at(std::max(least_x, std::min(peak_from, most_x))), y.at(r.peak_flops), kRight, y.at(r.peak_flops),
                "stroke=\"black\" stroke-width=\"2\"");
    out += label(kRight, y.at(r.peak_flops) - 6, "end", "black", with_prefix(r.peak_flops) + "FLOP/s");
  }
  if (r.flops > 0)
    out += label(kRight, kTop - 22, "end", "black",
                 fmt::format("reached {}FLOP/s, {:.1f}% of the peak", with_prefix(r.flops),
                             r.peak_flops > 0 ? 100 * r.flops / r.peak_flops : 0.0));
  return out + "</svg>\n";
}

}  // namespace heed::profile
