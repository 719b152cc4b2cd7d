// An HTTP/1.1 server on this machine that answers the n-th request with the n-th of its replies, byte for byte.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "testing.hpp"

namespace heed::models {

struct ScriptedReply {
  std::vector<std::string> pieces;  // sent one after the other
  double between_s = 0;             // the pieces
  double before_s = 0;              // the first
};

inline std::string http(int status, const std::string& headers, const std::string& body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status, body.size(),
                     headers, body);
}

inline ScriptedReply json_reply(int status, const nlohmann::json& body, const std::string& headers = {}) {
  return {.pieces = {http(status, "Content-Type: application/json\r\n" + headers, body.dump())}};
}

// A stream of chunks with one word each, as vLLM sends it; `ends` is what follows.
inline ScriptedReply stream_reply(const std::vector<std::string>& words, const std::string& ends) {
  ScriptedReply reply;
  reply.pieces.push_back(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n");
  for (const std::string& word : words) {
    const nlohmann::json chunk = {
        {"model", "tiny"}, {"choices", {{{"index", 0}, {"delta", {{"content", word}}}, {"finish_reason", nullptr}}}}};
    reply.pieces.push_back("data: " + chunk.dump() + "\n\n");
  }
  reply.pieces.push_back(ends);
  return reply;
}

class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<ScriptedReply> replies) : replies_(std::move(replies)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~ScriptedServer() {
    stopping_ = true;
    thread_.join();
    ::close(listener_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  [[nodiscard]] std::string url() const { return fmt::format("http://127.0.0.1:{}/v1", port_); }
  // Whole requests, headers included, in order.
  [[nodiscard]] std::vector<std::string> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  [[nodiscard]] nlohmann::json body(std::size_t n) const {
    const std::string request = requests().at(n);
    return nlohmann::json::parse(request.substr(request.find("\r\n\r\n") + 4));
  }

 private:
  // As long as the test goes on.
  bool is_ready(int fd, short events) const {
    while (!stopping_) {
      pollfd one{fd, events, 0};
      if (::poll(&one, 1, 20) > 0) return true;
    }
    return false;
  }
  void pause(double seconds) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!stopping_ && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void serve() {
    for (std::size_t n = 0; is_ready(listener_, POLLIN); ++n) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      std::string request;
      const auto is_whole = [&] {
        const std::size_t end = request.find("\r\n\r\n");
        const std::size_t at = request.find("Content-Length: ");
        return end != std::string::npos && at != std::string::npos &&
               request.size() >= end + 4 + std::stoul(request.substr(at + 16));
      };
      char buffer[4096];
      while (!is_whole() && is_ready(client, POLLIN)) {
        const ssize_t count = ::recv(client, buffer, sizeof buffer, 0);
        if (count <= 0) break;
        request.append(buffer, static_cast<std::size_t>(count));
      }
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      if (n < replies_.size()) {
        pause(replies_[n].before_s);
        for (const std::string& piece : replies_[n].pieces) {
          for (std::size_t sent = 0; sent < piece.size() && is_ready(client, POLLOUT);) {
            const ssize_t count = ::send(client, piece.data() + sent, piece.size() - sent, MSG_NOSIGNAL);
            if (count <= 0) break;
            sent += static_cast<std::size_t>(count);
          }
          pause(replies_[n].between_s);
        }
      }
      ::close(client);
    }
  }

  std::vector<ScriptedReply> replies_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace heed::models
