/// Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heed::models {

/// The data of every event of a whole stream, in order. Lines end with CR, LF or both; other fields and comments are
/// left out. The last event counts without its empty line, too, since some servers leave that out.
std::vector<std::string> event_data(std::string_view stream);

}  // namespace heed::models
