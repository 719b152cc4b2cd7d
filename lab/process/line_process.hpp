/// A helper program that answers one line for each line it is sent.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace heed {

class LineProcess {
 public:
  /// @throws Error(worker) when the program cannot be started at all
  explicit LineProcess(const std::vector<std::string>& argv);
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  /// Sends a line, waits for the answer. Empty when the helper ended, did not answer in time, or a Ctrl-C came.
  std::optional<std::string> ask(const std::string& line, double limit_s);

  /// The end of what it wrote to stderr.
  [[nodiscard]] std::string complaints() const;

 private:
  void stop();
  pid_t pid_ = -1;
  int socket_ = -1;
  int log_ = -1;
  std::string pending_;
};

}  // namespace heed
