// SPDX-License-Identifier: Apache-2.0
// Names are matched whole, never joined to a path that a client wrote, and opened one step at a
// time without following links: there is nothing to climb out of.
#include "cli/site.hpp"

#include "cli/explore.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <foci/error.hpp>
#include <foci/report.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace foci::cli {
namespace {

constexpr std::int64_t most_file = std::int64_t{256} << 20;
constexpr std::string_view waiting =
    R"({"schema":1,"title":"Waiting for the first results","state":"running"})";

class Opened {
 public:
  explicit Opened(int number) : number_(number) {}
  ~Opened() {
    if (number_ >= 0) close(number_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  int operator*() const { return number_; }

 private:
  int number_;
};

struct Stored {
  std::string bytes;
  std::string tag;  ///< another when the file is another
};

/// A plain file in an opened folder; nothing for a link, a device, or what is too large.
std::optional<Stored> stored(int folder, const std::string& name) {
  const Opened file(openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat about = {};
  if (*file < 0 || fstat(*file, &about) != 0 || !S_ISREG(about.st_mode)) return {};
  if (about.st_size > most_file) return {};
  Stored found;
  found.bytes.resize(std::size_t(about.st_size));
  std::size_t have = 0;
  while (have < found.bytes.size()) {
    const ssize_t count = read(*file, found.bytes.data() + have, found.bytes.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    have += std::size_t(count);
  }
  found.bytes.resize(have);
  found.tag = fmt::format(
      "\"{:x}-{:x}-{:x}\"", std::uint64_t(about.st_ino), have,
      std::uint64_t(about.st_mtim.tv_sec) * 1'000'000'000u + std::uint64_t(about.st_mtim.tv_nsec));
  return found;
}

int open_folder(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/// figures/NAME.svg or .png, NAME of letters, digits, '-', '_' and dots that it does not begin
/// with.
bool is_figure(std::string_view name) {
  const bool letters = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
           c == '_' || c == '.';
  });
  return letters && name.size() > 4 && name.size() < 128 && name.front() != '.' &&
         (name.ends_with(".svg") || name.ends_with(".png"));
}

/// Takes the same time wherever they differ.
bool is_same(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  }
  return difference == 0;
}

/// The value of `name` among parts like name=value.
std::string_view value_in(std::string_view text, const std::string& name, char separator) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    std::string_view part = text.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.starts_with(name + "=")) return part.substr(name.size() + 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

Answer json(int status, const Json& value) {
  return {.status = status,
          .type = "application/json",
          .body = value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"};
}

Answer fault(int status, const std::string& line) { return json(status, {{"error", line}}); }

Answer explored(const Request& request) {
  if (!request.header("content-type").starts_with("application/json")) {
    return fault(415, "the explorer reads application/json");
  }
  const Json asked = Json::parse(request.body, nullptr, false);
  if (asked.is_discarded()) return fault(400, "the question is no JSON");
  try {
    return json(200, explore(asked));
  } catch (const Misuse& why) {
    return fault(400, why.what());
  } catch (const Error& why) {
    return fault(400, why.what());
  }
}

}  // namespace

std::string made_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != ssize_t(sizeof bytes)) {
    throw Error("this system gives no random numbers for a token");
  }
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

/// A page elsewhere may make a browser ask here under a name of its own: it is not answered.
bool Site::is_ours(std::string_view host) const {
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) {
    if (host == fmt::format("{}:{}", name, port) || (port == 80 && host == name)) return true;
  }
  return false;
}

bool Site::is_known(const Request& request) const {
  constexpr std::string_view bearer = "Bearer ";
  const std::string_view sent = request.header("authorization");
  if (sent.starts_with(bearer) && is_same(sent.substr(bearer.size()), token)) return true;
  return is_same(value_in(request.header("cookie"), fmt::format("foci_{}", port), ';'), token);
}

/// Status 200: there is none.
Answer Site::refusal(const Request& request) const {
  if (loopback && !is_ours(request.header("host"))) {
    return said(403, fmt::format("this is 127.0.0.1:{}, and answers to no other name", port));
  }
  if (!token.empty() && request.path == "/" && !request.query.empty() &&
      is_same(value_in(request.query, "token", '&'), token)) {
    Answer answer = said(303, "come in");
    answer.headers = {
        {"Location", "/"},
        {"Set-Cookie", fmt::format("foci_{}={}; Path=/; HttpOnly; SameSite=Strict", port, token)}};
    return answer;
  }
  if (!token.empty() && !is_known(request)) {
    return said(401, "a token is needed: open the address that foci serve printed");
  }
  const bool explores = request.path == "/explore";
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (explores ? request.method != "POST" : !reads) {
    Answer answer = said(405, explores ? "the explorer takes POST" : "only GET and HEAD are taken");
    answer.headers = {{"Allow", explores ? "POST" : "GET, HEAD"}};
    return answer;
  }
  const std::string_view origin = request.header("origin");
  if (explores && !origin.empty() && origin != fmt::format("http://{}", request.header("host"))) {
    return said(403, "asked from a page of another place");
  }
  return {};
}

Answer Site::results(const Request& request) const {
  const Opened at(open_folder(folder));
  const auto found = stored(*at, "results.json");
  if (!found) return said(404, "there are no results yet");
  if (request.header("if-none-match") == found->tag) {
    return {.status = 304, .headers = {{"ETag", found->tag}}};
  }
  return {.type = "application/json", .body = found->bytes, .headers = {{"ETag", found->tag}}};
}

Answer Site::page(const Request& request) const {
  const bool is_copy = request.path == "/report.html";
  const report::Place place = is_copy ? report::Place::file : report::Place::server;
  const Opened at(open_folder(folder));
  const auto found = stored(*at, "results.json");
  Answer answer{.type = "text/html; charset=utf-8"};
  try {
    answer.body = report::page(found ? std::string_view(found->bytes) : waiting, place);
  } catch (const InvalidArgument& why) {
    return said(500, fmt::format("results.json: {}", why.what()));
  }
  answer.headers = {{"Content-Security-Policy", report::policy(place)}};
  if (is_copy) answer.headers["Content-Disposition"] = "attachment; filename=\"report.html\"";
  return answer;
}

Answer Site::figure(const std::string& name) const {
  const Opened at(open_folder(folder));
  const Opened figures(openat(*at, "figures", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const auto found = stored(*figures, name);
  if (!found) return said(404, "there is no such figure");
  return {.type = name.ends_with(".svg") ? "image/svg+xml" : "image/png",
          .body = found->bytes,
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; sandbox"}}};
}

Answer Site::answer(const Request& request) const {
  constexpr std::string_view figures = "/figures/";
  try {
    Answer refused = refusal(request);
    if (refused.status != 200) return refused;
    if (request.path == "/" || request.path == "/report.html") return page(request);
    if (request.path == "/results.json") return results(request);
    if (request.path == "/explore") return explored(request);
    if (request.path.starts_with(figures)) {
      const std::string name = request.path.substr(figures.size());
      if (is_figure(name)) return figure(name);
    }
    return said(404, "there is nothing of this name");
  } catch (const std::bad_alloc&) {
    return said(500, "there is not enough memory");
  } catch (const std::exception& why) {
    return said(500, shown(why.what()));
  }
}

}  // namespace foci::cli
