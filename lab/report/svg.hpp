/// Small pieces of SVG and HTML: escaping, scales, marks. Colours are classes, so that the page's style sheet decides
/// them for light and dark. https://www.w3.org/TR/SVG2/
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heed::report {

/// Text as it may stand in HTML, SVG and their attributes. Bytes that are no UTF-8 become U+FFFD, control characters
/// spaces.
std::string escape(std::string_view text);

/// At most `most` characters, the last three dots when something was left out.
std::string shortened(const std::string& text, std::size_t most);

/// Round numbers that divide [low, high] into about `about` steps, all within it.
std::vector<double> ticks(double low, double high, int about);

/// A tick with as many digits as its step needs.
std::string tick_text(double value, double step);

/// Maps [low, high] to [from, to]; what lies outside ends at the edge.
struct Scale {
  double low = 0;
  double high = 1;
  double from = 0;
  double to = 1;
  [[nodiscard]] double operator()(double value) const;
};

/// Shapes tell series apart where colours do not.
enum class Mark { circle, square, diamond, triangle, pointing_down, cross, plus };

enum class Anchor { start, middle, end };

/// One figure. Coordinates are user units; the page scales the whole.
class Svg {
 public:
  /// @param id unique on the page; `title` and `description` are what a screen reader says
  Svg(double width, double height, const std::string& id, const std::string& title, const std::string& description);

  void line(double x1, double y1, double x2, double y2, std::string_view style);
  void rectangle(double x, double y, double width, double height, std::string_view style,
                 const std::string& tooltip = {});
  void text(double x, double y, const std::string& text, std::string_view style, Anchor anchor = Anchor::start);
  /// Points joined by lines.
  void polyline(const std::vector<std::pair<double, double>>& points, std::string_view style);
  void mark(Mark shape, double x, double y, double radius, std::string_view style, const std::string& tooltip = {});

  [[nodiscard]] std::string str() const { return body_ + "</svg>"; }

 private:
  std::string body_;
};

/// A mark by itself, for a legend.
std::string legend_mark(Mark shape, std::string_view style);

}  // namespace heed::report
