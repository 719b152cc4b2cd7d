/// The Model Context Protocol over standard input and output, as coding agents speak it:
/// https://modelcontextprotocol.io/specification/2025-11-25 (JSON-RPC 2.0, a message a line).
#pragma once

#include <functional>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace heed::serve {

/// What an agent may call.
struct Tool {
  std::string name;
  std::string description;
  nlohmann::json input_schema;  ///< JSON Schema of an object: properties with types, and which of them are required
  /// Gets arguments that fit the schema. Errors of heed become results with isError, so that the agent reads the
  /// sentence.
  std::function<nlohmann::json(const nlohmann::json& arguments)> call;
};

/// What an agent may read.
struct Resource {
  std::string uri;
  std::string name;
  std::string description;
  std::string mime_type;
  std::function<std::string()> read;
};

/// How a server learns that its client is gone.
struct Client {
  int output = -1;                ///< the descriptor that answers go to; negative: nobody looks
  std::function<void()> on_gone;  ///< called from another thread, while an answer is worked at
};

class McpServer {
 public:
  McpServer(std::string name, std::string version, std::string instructions);
  void add(Tool tool) { tools_.push_back(std::move(tool)); }
  void add(Resource resource) { resources_.push_back(std::move(resource)); }

  /// The answer to a message; nothing for notifications and answers. Never throws for what a client sends.
  /// @throws Error(interrupted)
  [[nodiscard]] std::optional<nlohmann::json> answer(const std::string& line);

  /// Answers line by line until the input ends or Ctrl-C comes. Lines of more than 16 MiB are refused.
  /// @param client where nobody writes to the input or reads the output any more, it is told so
  void run(int input, std::ostream& output, const Client& client = {});

 private:
  nlohmann::json result_of(const std::string& method, const nlohmann::json& params);
  nlohmann::json call_tool(const nlohmann::json& params);
  nlohmann::json read_resource(const nlohmann::json& params);

  std::string name_;
  std::string version_;
  std::string instructions_;
  std::vector<Tool> tools_;
  std::vector<Resource> resources_;
};

}  // namespace heed::serve
