#include "models/http.hpp"

#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "process/interrupt.hpp"

// Macros that check argument types at compile time and call the functions by name.
#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace heed::models {
namespace {

struct Curl {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) init = nullptr;
  decltype(&::curl_easy_cleanup) cleanup = nullptr;
  decltype(&::curl_easy_setopt) setopt = nullptr;
  decltype(&::curl_easy_perform) perform = nullptr;
  decltype(&::curl_easy_getinfo) getinfo = nullptr;
  decltype(&::curl_easy_strerror) strerror = nullptr;
  decltype(&::curl_slist_append) append = nullptr;
  decltype(&::curl_slist_free_all) free_all = nullptr;
};

template <typename Function>
void bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    throw Error(ErrorCode::model, fmt::format("libcurl.so.4 lacks {}; Heed needs libcurl 7.85 or newer", name));
}

const Curl& curl() {
  static const Curl loaded = [] {
    void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw Error(
          ErrorCode::model,
          "libcurl.so.4, through which endpoints are asked, was not found; install libcurl4, or run scripts/setup");
    Curl api;
    bind(library, "curl_global_init", api.global_init);
    bind(library, "curl_easy_init", api.init);
    bind(library, "curl_easy_cleanup", api.cleanup);
    bind(library, "curl_easy_setopt", api.setopt);
    bind(library, "curl_easy_perform", api.perform);
    bind(library, "curl_easy_getinfo", api.getinfo);
    bind(library, "curl_easy_strerror", api.strerror);
    bind(library, "curl_slist_append", api.append);
    bind(library, "curl_slist_free_all", api.free_all);
    if (api.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
      throw Error(ErrorCode::model, "libcurl could not be initialised");
    return api;
  }();
  return loaded;
}

struct Transfer {
  HttpReply reply;
  std::size_t most_bytes = 0;
};

std::size_t take_body(char* data, std::size_t, std::size_t bytes, void* at) {
  auto& transfer = *static_cast<Transfer*>(at);
  if (transfer.reply.body.size() + bytes > transfer.most_bytes) {
    transfer.reply.failure = HttpReply::Failure::too_large;
    return 0;  // fewer than `bytes` end the transfer
  }
  transfer.reply.body.append(data, bytes);
  return bytes;
}

std::size_t take_header(char* data, std::size_t, std::size_t bytes, void* at) {
  auto& transfer = *static_cast<Transfer*>(at);
  const std::string line(data, bytes);
  if (line.rfind("HTTP/", 0) == 0) transfer.reply.headers.clear();  // of a reply before, such as 100 Continue
  if (const std::size_t colon = line.find(':'); colon != std::string::npos) {
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    transfer.reply.headers[name] = trim(line.substr(colon + 1));
  }
  return bytes;
}

int is_to_stop(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return interrupted() ? 1 : 0;
}

HttpReply::Failure failure_of(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return HttpReply::Failure::timed_out;
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return HttpReply::Failure::unreachable;
    default:
      return HttpReply::Failure::broken;
  }
}

}  // namespace

HttpReply post(const HttpRequest& request) {
  const Curl& api = curl();
  const std::unique_ptr<CURL, decltype(api.cleanup)> handle(api.init(), api.cleanup);
  if (!handle) throw Error(ErrorCode::model, "libcurl has no memory for a request");
  curl_slist* list = nullptr;
  for (const std::string& header : request.headers) list = api.append(list, header.c_str());
  const std::unique_ptr<curl_slist, decltype(api.free_all)> headers(list, api.free_all);

  Transfer transfer;
  transfer.most_bytes = request.most_bytes;
  const auto ms = [](double seconds) { return static_cast<long>(std::lround(seconds * 1000)); };
  CURL* const h = handle.get();
  api.setopt(h, CURLOPT_URL, request.url.c_str());
  api.setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
  api.setopt(h, CURLOPT_NOSIGNAL, 1L);
  api.setopt(h, CURLOPT_POST, 1L);
  api.setopt(h, CURLOPT_POSTFIELDS, request.body.data());
  api.setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  api.setopt(h, CURLOPT_HTTPHEADER, headers.get());
  api.setopt(h, CURLOPT_CONNECTTIMEOUT_MS, ms(request.connect_s));
  api.setopt(h, CURLOPT_TIMEOUT_MS, ms(request.limit_s));
  api.setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
  api.setopt(h, CURLOPT_LOW_SPEED_TIME, std::max(1L, std::lround(request.idle_s)));
  api.setopt(h, CURLOPT_WRITEFUNCTION, &take_body);
  api.setopt(h, CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  api.setopt(h, CURLOPT_HEADERFUNCTION, &take_header);
  api.setopt(h, CURLOPT_HEADERDATA, static_cast<void*>(&transfer));
  api.setopt(h, CURLOPT_NOPROGRESS, 0L);
  api.setopt(h, CURLOPT_XFERINFOFUNCTION, &is_to_stop);
  const CURLcode code = api.perform(h);
  check_interrupt();
  if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL)
    throw Error(ErrorCode::model,
                fmt::format("the endpoint {} is no http or https address: {}", request.url, api.strerror(code)),
                request.url);
  HttpReply& reply = transfer.reply;
  long status = 0;
  api.getinfo(h, CURLINFO_RESPONSE_CODE, &status);
  reply.status = static_cast<int>(status);
  curl_off_t sent = 0;
  api.getinfo(h, CURLINFO_SIZE_UPLOAD_T, &sent);
  reply.is_sent = status != 0 || sent >= static_cast<curl_off_t>(request.body.size());
  if (code != CURLE_OK) {
    if (reply.failure == HttpReply::Failure::none) reply.failure = failure_of(code);
    reply.why = api.strerror(code);
  }
  return std::move(reply);
}

}  // namespace heed::models
