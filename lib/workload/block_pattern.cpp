// The text of a pattern of blocks: blocks=SIZE/PARTS/DIMENSIONS.
#include <fmt/format.h>

#include "base/text.hpp"
#include "workload/blocks.hpp"
#include "workload/refusal.hpp"

namespace heed {
namespace {

constexpr std::int64_t kMostOfPart = std::int64_t{1} << 20;  // of a part's number
constexpr double kMostNumbers = 0x1p28;                      // of all lists: 1 GiB
constexpr std::string_view kParts =
    "windowN, dilatedNxM, globalN, randomN, strideN, wavefrontN and densityP, joined by +, or longformer or bigbird";

template <typename Number>
Number part_number(std::string_view whole, std::string_view part, std::string_view text) {
  Number value{};
  if (!is_whole_number(text, value))
    refuse_workload(whole,
                    fmt::format("\"{}\" of blocks has no number in \"{}\"; the parts are {}", part, text, kParts));
  return value;
}

bool is_size(std::int64_t rows) {
  return rows == 64 || rows == 128;
}

void parse_size(std::string_view whole, std::string_view text, BlockPattern& p) {
  const std::size_t by = text.find('x');
  const auto size = [&](std::string_view number) -> std::int64_t {
    for (const std::int64_t known : {64, 128})
      if (number == std::to_string(known)) return known;
    refuse_workload(whole,
                    fmt::format("\"{}\" is no size of blocks; write 64, 128, or rows x keys as in 64x128", text));
  };
  p.rows = p.keys = size(text.substr(0, by));
  if (by != std::string_view::npos) p.keys = size(text.substr(by + 1));
}

// "window3": what begins with a name.
struct Part {
  std::string_view name;
  std::int64_t BlockPattern::*member;
};
constexpr Part kNumbers[] = {{"global", &BlockPattern::globals},
                             {"random", &BlockPattern::random},
                             {"stride", &BlockPattern::stride},
                             {"wavefront", &BlockPattern::wavefront}};

void parse_part(std::string_view whole, std::string_view part, BlockPattern& p) {
  const auto once = [&](bool given) {
    if (given) refuse_workload(whole, fmt::format("\"{}\" says again what another part of blocks says", part));
  };
  if (part == "longformer") {
    parse_part(whole, "window4", p);
    parse_part(whole, "global1", p);
    return;
  }
  if (part == "bigbird") {
    parse_part(whole, "window1", p);
    parse_part(whole, "global2", p);
    parse_part(whole, "random3", p);
    return;
  }
  const auto number_after = [&](std::string_view name) {
    return part.substr(0, name.size()) == name ? std::optional(part.substr(name.size())) : std::nullopt;
  };
  if (const auto number = number_after("window")) {
    once(p.window.has_value());
    p.window = part_number<std::int64_t>(whole, part, *number);
    return;
  }
  if (const auto numbers = number_after("dilated")) {
    once(p.window.has_value());
    const std::size_t by = numbers->find('x');
    if (by == std::string_view::npos)
      refuse_workload(
          whole, fmt::format("\"{}\" is no dilated window of blocks; write dilatedNxM for N blocks on either side, "
                             "every M-th",
                             part));
    p.window = part_number<std::int64_t>(whole, part, numbers->substr(0, by));
    p.dilation = part_number<std::int64_t>(whole, part, numbers->substr(by + 1));
    if (p.dilation < 2) refuse_workload(whole, fmt::format("\"{}\" is no dilated window; M is 2 or more", part));
    return;
  }
  if (const auto number = number_after("density")) {
    once(p.density != 0);
    p.density = part_number<double>(whole, part, *number);
    if (!(p.density > 0))
      refuse_workload(whole, fmt::format("\"{}\" names no block; a density is above 0, at most 1", part));
    return;
  }
  for (const Part& known : kNumbers)
    if (const auto number = number_after(known.name)) {
      once(p.*known.member != 0);
      p.*known.member = part_number<std::int64_t>(whole, part, *number);
      if (p.*known.member < 1)
        refuse_workload(whole, fmt::format("\"{}\" names no block; its number is 1 or more", part));
      return;
    }
  refuse_workload(whole, fmt::format("\"{}\" is no part of blocks; the parts are {}", part, kParts));
}

void parse_dimensions(std::string_view whole, std::string_view letters, BlockPattern& p) {
  for (const char letter : letters) {
    bool* const by = letter == 'b' ? &p.by_batch : letter == 'h' ? &p.by_head : nullptr;
    if (by == nullptr || *by)
      refuse_workload(whole, fmt::format("\"{}\" are no dimensions of blocks; write b, h or bh", letters));
    *by = true;
  }
}

}  // namespace

std::string to_string(const BlockPattern& p) {
  std::string text = p.rows == p.keys ? fmt::format("{}", p.rows) : fmt::format("{}x{}", p.rows, p.keys);
  std::vector<std::string> parts;
  if (p.window && p.dilation == 1) parts.push_back(fmt::format("window{}", *p.window));
  if (p.window && p.dilation != 1) parts.push_back(fmt::format("dilated{}x{}", *p.window, p.dilation));
  for (const Part& part : kNumbers)
    if (p.*part.member != 0) parts.push_back(fmt::format("{}{}", part.name, p.*part.member));
  if (p.density != 0) parts.push_back(fmt::format("density{}", p.density));
  const std::string dimensions = fmt::format("{}{}", p.by_batch ? "b" : "", p.by_head ? "h" : "");
  if (!parts.empty() || !dimensions.empty()) text += "/" + join(parts, "+");
  if (p.seed != 0) text += fmt::format("@{}", p.seed);
  return dimensions.empty() ? text : text + "/" + dimensions;
}

BlockPattern parse_block_pattern(std::string_view whole, std::string_view text) {
  BlockPattern p;
  const std::size_t slash = text.find('/');
  parse_size(whole, text.substr(0, slash), p);
  if (slash == std::string_view::npos) return p;
  std::string_view parts = text.substr(slash + 1);
  if (const std::size_t last = parts.find('/'); last != std::string_view::npos) {
    parse_dimensions(whole, parts.substr(last + 1), p);
    parts = parts.substr(0, last);
  }
  if (const std::size_t at = parts.find('@'); at != std::string_view::npos) {
    p.seed = part_number<std::uint64_t>(whole, parts.substr(at), parts.substr(at + 1));
    parts = parts.substr(0, at);
    if (p.seed == 0) refuse_workload(whole, "the seed of blocks is 0 where none is given; leave it out");
  }
  if (parts.empty() && (p.by_batch || p.by_head) && p.seed == 0) return p;
  for (;;) {
    const std::size_t plus = parts.find('+');
    parse_part(whole, parts.substr(0, plus), p);
    if (plus == std::string_view::npos) return p;
    parts.remove_prefix(plus + 1);
  }
}

std::string wrong_blocks(const Workload& w) {
  const BlockPattern& p = *w.blocks;
  if (!is_size(p.rows) || !is_size(p.keys))
    return fmt::format("blocks of {} rows and {} keys; they have 64 or 128", p.rows, p.keys);
  for (const auto& [name, number] :
       {std::pair{"window", p.window.value_or(0)}, std::pair{"global", p.globals}, std::pair{"random", p.random},
        std::pair{"stride", p.stride}, std::pair{"wavefront", p.wavefront}, std::pair{"dilation", p.dilation}})
    if (number < 0 || number > kMostOfPart)
      return fmt::format("{}{} of blocks; a number is at most {}", name, number, kMostOfPart);
  if (p.dilation < 1 || (p.dilation > 1 && !p.window))
    return fmt::format("a dilation of {} blocks without a window; give one, or a dilation of 1", p.dilation);
  if (!(p.density >= 0 && p.density <= 1))
    return fmt::format("density{} of blocks; a probability is at most 1", p.density);
  if (p.seed != 0 && p.random == 0 && p.density == 0)
    return fmt::format("a seed of {} where no blocks are drawn; leave it out, or add randomN or densityP", p.seed);
  const auto blocks = [](std::int64_t length, std::int64_t size) {
    const std::int64_t whole = (length + size - 1) / size;
    return static_cast<double>(whole);
  };
  const double lists =
      blocks(w.len_q, p.rows) * static_cast<double>((p.by_batch ? w.batch : 1) * (p.by_head ? w.heads : 1));
  if (lists * blocks(w.len_k, p.keys) > kMostNumbers)
    return fmt::format("{:.3g} lists of up to {:.3g} blocks are too many; together they have at most 2^28 numbers",
                       lists, blocks(w.len_k, p.keys));
  return {};
}

}  // namespace heed
