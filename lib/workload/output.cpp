#include "workload/output.hpp"

#include <fmt/format.h>

#include "workload/refusal.hpp"

namespace heed {

std::string_view to_string(OutGate gate) {
  switch (gate) {
    case OutGate::none:
      return "none";
    case OutGate::element:
      return "element";
    case OutGate::head:
      return "head";
  }
  return "";
}

std::string output_text(const Workload& w) {
  std::string text;
  if (w.out_norm) text += fmt::format(":out_norm={}{}", w.out_norm->eps, w.out_norm->by_head ? "/h" : "");
  if (w.out_gate != OutGate::none) text += fmt::format(":out_gate={}", to_string(w.out_gate));
  return text;
}

bool parse_output(std::string_view whole, std::string_view name, std::string_view value, Workload& w) {
  const auto once = [&](bool given) {
    if (given) refuse_workload(whole, fmt::format("\"{}\" is given twice", name));
  };
  if (name == "out_norm") {
    once(w.out_norm.has_value());
    const std::size_t slash = value.find('/');
    if (slash != std::string_view::npos && value.substr(slash + 1) != "h")
      refuse_workload(whole,
                      fmt::format("\"{}\" is no dimension in which weights of a norm differ; write out_norm=EPS/h "
                                  "for weights of each head, or out_norm=EPS",
                                  value.substr(slash + 1)));
    w.out_norm = OutNorm{.eps = number_of<double>(whole, "out_norm", value.substr(0, slash)),
                         .by_head = slash != std::string_view::npos};
    return true;
  }
  if (name != "out_gate") return false;
  once(w.out_gate != OutGate::none);
  for (const OutGate gate : {OutGate::element, OutGate::head})
    if (value == to_string(gate)) w.out_gate = gate;
  if (w.out_gate == OutGate::none)
    refuse_workload(whole, fmt::format("\"{}\" is no gate of outputs; it is element or head", value));
  return true;
}

std::string wrong_eps(double eps) {
  // In fp32 kernels add it to a mean of squares; a row of zeros is then divided by no zero.
  if (eps >= 1e-30 && eps <= 1e30) return {};
  return fmt::format("the eps of a norm of output rows is {}; it must be positive, from 1e-30 to 1e30", eps);
}

std::string wrong_output(const Workload& w) {
  return w.out_norm ? wrong_eps(w.out_norm->eps) : std::string();
}

}  // namespace heed
