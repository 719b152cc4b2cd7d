/// One HTTP request, through libcurl: https://curl.se/libcurl/c/.
///
/// libcurl is loaded when the first request is sent, so that the program runs on machines that have none.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "models/model.hpp"

namespace heed::models {

struct HttpRequest {
  std::string url;                   ///< http or https
  std::vector<std::string> headers;  ///< "Name: value"
  std::string body;
  double connect_s = 20;  ///< to be connected
  double idle_s = 120;    ///< without a byte either way
  double limit_s = 600;   ///< for the whole
  std::size_t most_bytes = kMostReplyBytes;
};

/// What came back, or why nothing did.
struct HttpReply {
  enum class Failure {
    none,
    unreachable,  ///< no address, no connection, no agreement on encryption
    broken,       ///< the connection ended in the middle
    timed_out,
    too_large,  ///< more than most_bytes
  };
  Failure failure = Failure::none;
  std::string why;                             ///< of a failure, in libcurl's words
  bool is_sent = false;                        ///< the whole request, as far as can be told
  int status = 0;                              ///< 200, 429, ...; 0 where none came
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
};

/// Sends a POST. Follows no redirect: a key would go along.
/// @throws Error(interrupted); Error(model) where libcurl cannot be loaded or the URL is none
HttpReply post(const HttpRequest& request);

}  // namespace heed::models
