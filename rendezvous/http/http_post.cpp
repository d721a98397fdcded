// What libcurl is told. By itself it does nothing: no redirects, no signals, and no proxy: those
// that http_proxy names are for the world outside, where what answers a job's nodes is not.
#include "rendezvous/http/http_post.h"

#include <fmt/format.h>

#include <memory>

#if DDPRUN_HAVE_CURL
#include "rendezvous/http/curl_library.h"
#endif

namespace ddprun::rendezvous {

#if DDPRUN_HAVE_CURL
namespace {

constexpr std::size_t answer_bytes_max = 4u << 20;

std::size_t keep_answer(char* data, std::size_t size, std::size_t count, void* into) {
  auto& body = *static_cast<std::string*>(into);
  if (body.size() + size * count > answer_bytes_max) return 0;
  body.append(data, size * count);
  return size * count;
}

}  // namespace

HttpAnswer http_post(const HttpRequest& request) try {
  const CurlFunctions& library = curl();
  const std::unique_ptr<CURL, void (*)(CURL*)> handle(library.init(),
                                                      [](CURL* it) { curl().clean_up(it); });
  if (!handle) throw HttpError("libcurl cannot begin a request: no memory");
  HttpAnswer answer;
  char reason[CURL_ERROR_SIZE] = {};
  const auto set = [&](CURLoption option, auto value) { library.set(handle.get(), option, value); };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_USERAGENT, "ddprun");
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NOSIGNAL, 1L);  // Its alarm() would be a signal in a thread of somebody else.
  // By number: the option that takes names is younger than Debian 11's libcurl.
  set(static_cast<CURLoption>(181), static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
  set(CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
  set(CURLOPT_POSTFIELDS, request.body.data());
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.limit.count()));
  set(CURLOPT_ERRORBUFFER, reason);
  set(CURLOPT_WRITEDATA, &answer.body);
  set(CURLOPT_WRITEFUNCTION, &keep_answer);
  if (!request.authority_file.empty()) set(CURLOPT_CAINFO, request.authority_file.c_str());
  if (!request.certificate_file.empty()) set(CURLOPT_SSLCERT, request.certificate_file.c_str());
  if (!request.key_file.empty()) set(CURLOPT_SSLKEY, request.key_file.c_str());
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
      nullptr, [](curl_slist* it) { curl().free_list(it); });
  for (const std::string& header : request.headers) {
    curl_slist* const longer = library.append(headers.get(), header.c_str());
    if (longer == nullptr) throw HttpError("libcurl cannot hold a header: no memory");
    static_cast<void>(headers.release());  // It is a part of the longer one.
    headers.reset(longer);
  }
  if (headers) set(CURLOPT_HTTPHEADER, headers.get());
  const CURLcode code = library.perform(handle.get());
  if (code != CURLE_OK) {
    throw HttpError(
        fmt::format("{}: {}", request.url, reason[0] != '\0' ? reason : library.words(code)));
  }
  library.info(handle.get(), CURLINFO_RESPONSE_CODE, &answer.status);
  char* local = nullptr;
  library.info(handle.get(), CURLINFO_LOCAL_IP, &local);
  if (local != nullptr) answer.local_address = local;
  return answer;
} catch (const CurlMissing& missing) {
  throw HttpError(fmt::format("{}: {}", request.url, missing.what()));
}

#else

HttpAnswer http_post(const HttpRequest& request) {
  throw HttpError(fmt::format(
      "{}: this ddprun was built without libcurl (Debian: libcurl4-openssl-dev)", request.url));
}

#endif

}  // namespace ddprun::rendezvous
