#include "serve/mcp_server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <ostream>
#include <thread>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "json/integer.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"

namespace heed::serve {
namespace {

using Json = nlohmann::json;

// Codes of JSON-RPC 2.0 (https://www.jsonrpc.org/specification), and -32002 of MCP for a resource that is not there.
constexpr int kParseError = -32700;
constexpr int kInvalidRequest = -32600;
constexpr int kNoSuchMethod = -32601;
constexpr int kInvalidParams = -32602;
constexpr int kInternalError = -32603;
constexpr int kNoSuchResource = -32002;

constexpr std::size_t kMostLine = 16 << 20;
constexpr std::array<const char*, 4> kVersions = {"2025-11-25", "2025-06-18", "2025-03-26",
                                                  "2024-11-05"};  // the newest first

struct ProtocolError {
  int code;
  std::string message;
};

Json failure(const Json& id, int code, const std::string& message) {
  return {{"jsonrpc", "2.0"}, {"id", id}, {"error", {{"code", code}, {"message", message}}}};
}

const Json& object_at(const Json& params, const char* name) {
  static const Json empty = Json::object();
  if (!params.contains(name)) return empty;
  if (!params[name].is_object()) throw ProtocolError{kInvalidParams, fmt::format("\"{}\" is no object", name)};
  return params[name];
}

std::string text_at(const Json& params, const char* name) {
  if (!params.contains(name) || !params[name].is_string())
    throw ProtocolError{kInvalidParams, fmt::format("a text \"{}\" is missing", name)};
  return params[name];
}

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  return type == "object" ? value.is_object() : value.is_array();
}

// Tools have whole numbers of 64 bits with a sign, or of the range that their schema names.
void expect_in_range(const std::string& tool, const std::string& name, const Json& value, const Json& property) {
  using Limits = std::numeric_limits<std::int64_t>;
  const std::int64_t least = property.value("minimum", Limits::min());
  const std::int64_t most = property.value("maximum", Limits::max());
  if (!fits<std::int64_t>(value) || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
    throw ProtocolError{kInvalidParams, fmt::format("argument \"{}\" of {} is {}; it is a whole number from {} to {}",
                                                    name, tool, json_text(value), least, most)};
}

void expect_fitting(const Tool& tool, const Json& arguments) {
  const Json& properties = tool.input_schema.at("properties");
  for (const auto& [name, value] : arguments.items()) {
    const auto property = properties.find(name);
    if (property == properties.end()) {
      std::vector<std::string> known;
      for (const auto& [one, schema] : properties.items()) known.push_back(one);
      throw ProtocolError{kInvalidParams,
                          fmt::format("{} has no argument \"{}\"; it takes {}", tool.name, name, join(known, ", "))};
    }
    const std::string type = property->at("type");
    if (type == "integer" && value.is_number()) expect_in_range(tool.name, name, value, *property);
    if (!is_of_type(value, type))
      throw ProtocolError{kInvalidParams, fmt::format("argument \"{}\" of {} is of type {}", name, tool.name, type)};
  }
  for (const Json& name : tool.input_schema.value("required", Json::array()))
    if (!arguments.contains(name.get<std::string>()))
      throw ProtocolError{kInvalidParams, fmt::format("{} needs an argument {}", tool.name, name.dump())};
}

bool is_gone(int fd, short events) {
  pollfd one{fd, 0, 0};
  return ::poll(&one, 1, 0) > 0 && (one.revents & events) != 0;
}

// While it lives: looks whether both ends of a client are gone. One that only has no more requests still reads answers.
class Watcher {
 public:
  Watcher(int input, const Client& client) {
    if (client.output < 0) return;
    thread_ = std::jthread([this, input, &client](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      while (!ended_.wait_for(lock, stop, std::chrono::milliseconds(200), [] { return false; }) &&
             !stop.stop_requested())
        if (is_gone(input, POLLHUP | POLLERR) && is_gone(client.output, POLLHUP | POLLERR)) {
          client.on_gone();
          return;
        }
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // the last: it ends before what it uses
};

}  // namespace

McpServer::McpServer(std::string name, std::string version, std::string instructions)
    : name_(std::move(name)), version_(std::move(version)), instructions_(std::move(instructions)) {}

Json McpServer::call_tool(const Json& params) {
  const std::string name = text_at(params, "name");
  const auto tool = std::find_if(tools_.begin(), tools_.end(), [&](const Tool& one) { return one.name == name; });
  if (tool == tools_.end()) {
    std::vector<std::string_view> known;
    for (const Tool& one : tools_) known.push_back(one.name);
    throw ProtocolError{kInvalidParams, fmt::format("there is no tool \"{}\"; {}", name, one_of(name, known))};
  }
  const Json& arguments = object_at(params, "arguments");
  expect_fitting(*tool, arguments);
  try {
    const Json result = tool->call(arguments);
    const std::string text = result.is_string() ? result.get<std::string>() : json_text(result, 1);
    Json answer = {{"content", {{{"type", "text"}, {"text", text}}}}, {"isError", false}};
    if (result.is_object()) answer["structuredContent"] = parse_json(json_text(result));  // numbers that JSON has
    return answer;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    return {{"content", {{{"type", "text"}, {"text", error.what()}}}}, {"isError", true}};
  }
}

Json McpServer::read_resource(const Json& params) {
  const std::string uri = text_at(params, "uri");
  for (const Resource& one : resources_)
    if (one.uri == uri) return {{"contents", {{{"uri", one.uri}, {"mimeType", one.mime_type}, {"text", one.read()}}}}};
  throw ProtocolError{kNoSuchResource, fmt::format("there is no resource {}", uri)};
}

Json McpServer::result_of(const std::string& method, const Json& params) {
  if (method == "initialize") {
    const std::string wanted = text_at(params, "protocolVersion");
    const bool is_known = std::find(kVersions.begin(), kVersions.end(), wanted) != kVersions.end();
    return {{"protocolVersion", is_known ? wanted : kVersions.front()},
            {"capabilities", {{"tools", Json::object()}, {"resources", Json::object()}}},
            {"serverInfo", {{"name", name_}, {"version", version_}}},
            {"instructions", instructions_}};
  }
  if (method == "ping") return Json::object();
  if (method == "tools/list") {
    Json all = Json::array();
    for (const Tool& tool : tools_)
      all.push_back({{"name", tool.name}, {"description", tool.description}, {"inputSchema", tool.input_schema}});
    return {{"tools", all}};
  }
  if (method == "tools/call") return call_tool(params);
  if (method == "resources/list") {
    Json all = Json::array();
    for (const Resource& one : resources_)
      all.push_back(
          {{"uri", one.uri}, {"name", one.name}, {"description", one.description}, {"mimeType", one.mime_type}});
    return {{"resources", all}};
  }
  if (method == "resources/templates/list") return {{"resourceTemplates", Json::array()}};
  if (method == "resources/read") return read_resource(params);
  throw ProtocolError{kNoSuchMethod, fmt::format("this server has no method {}", method)};
}

std::optional<Json> McpServer::answer(const std::string& line) {
  const Json message = parse_json(line);
  if (message.is_discarded()) {
    return failure(nullptr, kParseError,
                   fmt::format("the line is no JSON of at most {} levels of arrays and objects", kMostJsonLevels));
  }
  if (!message.is_object() || message.value("jsonrpc", Json()) != "2.0")
    return failure(nullptr, kInvalidRequest, "a message is an object of JSON-RPC 2.0");
  const bool has_id = message.contains("id");
  const Json id = has_id ? message["id"] : Json();
  if (!message.contains("method") || !message["method"].is_string()) {
    if (has_id && (message.contains("result") || message.contains("error"))) return std::nullopt;  // of nothing asked
    return failure(id, kInvalidRequest, "a request names its method");
  }
  if (!has_id) return std::nullopt;  // a notification
  if (!id.is_string() && !id.is_number_integer())
    return failure(nullptr, kInvalidRequest, "the id of a request is a text or a whole number");
  try {
    const Json& params = object_at(message, "params");
    return Json{{"jsonrpc", "2.0"}, {"id", id}, {"result", result_of(message["method"], params)}};
  } catch (const ProtocolError& error) {
    return failure(id, error.code, error.message);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    return failure(id, kInternalError, error.what());
  } catch (const std::exception& error) {
    return failure(id, kInternalError, error.what());
  }
}

void McpServer::run(int input, std::ostream& output, const Client& client) {
  std::string pending;
  bool is_too_long = false;
  const auto send = [&](const Json& message) {
    output << json_text(message) << '\n' << std::flush;
    return output.good();
  };
  for (;;) {
    check_interrupt();
    pollfd ready{input, POLLIN, 0};
    if (::poll(&ready, 1, 200) <= 0) continue;
    std::array<char, 1 << 16> buffer;
    const ssize_t count = ::read(input, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    pending.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      if (std::exchange(is_too_long, false)) continue;  // the rest of it
      if (trim(line).empty()) continue;
      std::optional<Json> reply;
      {
        const Watcher watcher(input, client);
        reply = answer(line);
      }
      if (reply && !send(*reply)) return;
    }
    if (pending.size() > kMostLine) {
      if (!is_too_long && !send(failure(nullptr, kInvalidRequest, "a message has at most 16 MiB"))) return;
      is_too_long = true;
      pending.clear();
    }
  }
}

}  // namespace heed::serve
