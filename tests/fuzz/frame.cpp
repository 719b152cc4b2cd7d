// Frames on the socket between a run and its worker, as they come from a worker that a candidate has taken over, and
// what the parent reads out of them.
#include <sys/socket.h>

#include <array>

#include "fuzz.hpp"
#include "worker/protocol.hpp"

namespace {

// A message is of one kind; another kind's reader refuses it.
template <typename Read>
void reads(const Read& read) {
  try {
    read();
  } catch (const nlohmann::json::exception&) {
  } catch (const heed::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<int, 2> sockets{};
  heed::fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0, "a socket pair");
  // Inputs are shorter than a socket's buffer.
  heed::fuzz::require(::write(sockets[1], data, size) == static_cast<ssize_t>(size), "a whole write");
  ::close(sockets[1]);
  nlohmann::json message;
  while (heed::worker::receive_frame(sockets[0], -1, false, message) == heed::worker::Received::frame) {
    heed::fuzz::require(message.is_object(), "a frame is an object");
    reads([&] { (void)message.get<heed::worker::Launch>(); });
    reads([&] { (void)message.get<heed::worker::Range>(); });
    reads([&] { (void)heed::worker::reading_from_json(message); });
  }
  ::close(sockets[0]);
  return 0;
}
