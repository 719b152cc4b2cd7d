#include "models/event_stream.hpp"

namespace heed::models {

std::vector<std::string> event_data(std::string_view stream) {
  std::vector<std::string> events;
  std::string data;
  bool has_data = false;
  const auto end_event = [&] {
    if (has_data) events.push_back(data);
    data.clear();
    has_data = false;
  };
  while (!stream.empty()) {
    const std::size_t end = stream.find_first_of("\r\n");
    const std::string_view line = stream.substr(0, end);
    if (end == std::string_view::npos) {
      stream = {};
    } else {
      const bool is_both = stream[end] == '\r' && end + 1 < stream.size() && stream[end + 1] == '\n';
      stream.remove_prefix(end + (is_both ? 2 : 1));
    }
    if (line.empty()) {
      end_event();
    } else if (line.substr(0, 5) == "data:") {
      std::string_view value = line.substr(5);
      if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
      if (has_data) data += '\n';
      data += value;
      has_data = true;
    }
  }
  end_event();
  return events;
}

}  // namespace heed::models
