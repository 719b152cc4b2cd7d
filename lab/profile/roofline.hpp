/// A roofline: what a kernel reaches against what compute and bandwidth allow (Williams, Waterman, Patterson 2009).
#pragma once

#include <string>
#include <vector>

namespace heed::profile {

struct Roofline {
  std::string title;
  double peak_flops = 0;  ///< a second
  /// A bandwidth in bytes a second, and the kernel's operations a byte of it; 0 where that is not known.
  struct Roof {
    std::string name;  ///< "DRAM", "L2"
    double bandwidth = 0;
    double intensity = 0;
  };
  std::vector<Roof> roofs;
  double flops = 0;  ///< the kernel's, a second
};

/// A self-contained SVG of 720 by 480, both axes logarithmic.
std::string svg(const Roofline& roofline);

}  // namespace heed::profile
