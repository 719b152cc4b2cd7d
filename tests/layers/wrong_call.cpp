// A room that calls another without naming it: must not link (CMakeLists.txt of this folder).
#include <string>
#include <string_view>

namespace heed {

std::string find_program(std::string_view name);  // of the room process
std::string calls_what_it_does_not_name();
std::string calls_what_it_does_not_name() {
  return find_program("sh");
}

}  // namespace heed
