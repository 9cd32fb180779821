// SPDX-License-Identifier: Apache-2.0
// Head first, line by line, then as many bytes of body as it announced.
#include "cli/request.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

namespace foci::cli {
namespace {

bool is_token(std::string_view text) {
  constexpr std::string_view others = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           others.find(c) != std::string_view::npos;
  });
}

/// Without control characters; a byte above 126 is somebody else's alphabet and harmless here.
bool is_plain(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; });
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string lower(std::string_view text) {
  std::string small(text);
  for (char& c : small) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  }
  return small;
}

}  // namespace

std::string_view Request::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

void RequestReader::refuse(int status, const std::string& why) {
  part_ = Part::refused;
  refusal_ = status;
  why_ = why;
  bytes_.clear();
}

void RequestReader::take(std::string_view bytes) {
  if (part_ == Part::whole || part_ == Part::refused) return;
  bytes_ += bytes;
  if (part_ == Part::head) {
    const std::size_t end = bytes_.find("\r\n\r\n");
    if (std::min(end, bytes_.size()) > most_head) {
      return refuse(431, fmt::format("the head has more than {} bytes", most_head));
    }
    if (end == std::string::npos) return;
    const std::string head = bytes_.substr(0, end);
    bytes_.erase(0, end + 4);
    read_head(head);
    if (part_ != Part::head) return;
    begin_body();
  }
  if (part_ == Part::body && bytes_.size() >= body_) {
    request_.body = bytes_.substr(0, body_);
    bytes_.clear();
    part_ = Part::whole;
  }
}

void RequestReader::read_head(std::string_view head) {
  for (bool first = true; !head.empty() || first; first = false) {
    const std::size_t end = std::min(head.find("\r\n"), head.size());
    if (!(first ? read_first(head.substr(0, end)) : read_header(head.substr(0, end)))) return;
    head.remove_prefix(std::min(end + 2, head.size()));
  }
  if (request_.header("host").empty()) refuse(400, "a request needs a Host");
}

/// "GET /results.json HTTP/1.1"
bool RequestReader::read_first(std::string_view line) {
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  if (first == std::string_view::npos || second == first || !is_token(line.substr(0, first))) {
    return refuse(400, "this is no request of HTTP"), false;
  }
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!version.starts_with("HTTP/1.")) return refuse(505, "only HTTP/1.1 is spoken here"), false;
  if (target.size() > most_target) {
    return refuse(414, fmt::format("the address has more than {} bytes", most_target)), false;
  }
  const bool plain = std::all_of(target.begin(), target.end(), [](char c) {
    return c > ' ' && static_cast<unsigned char>(c) < 127;
  });
  if (!target.starts_with('/') || !plain) return refuse(400, "the address is no path"), false;
  request_.method = std::string(line.substr(0, first));
  const std::size_t mark = target.find('?');
  request_.path = std::string(target.substr(0, mark));
  if (mark != std::string_view::npos) request_.query = std::string(target.substr(mark + 1));
  return true;
}

bool RequestReader::read_header(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)) || !is_plain(line)) {
    return refuse(400, "a line of the head is no header"), false;
  }
  if (request_.headers.size() >= most_headers) {
    return refuse(431, fmt::format("there are more than {} headers", most_headers)), false;
  }
  const std::string name = lower(line.substr(0, colon));
  const std::string value(trimmed(line.substr(colon + 1)));
  const auto [at, is_first] = request_.headers.emplace(name, value);
  if (is_first) return true;
  if (name == "host" || name == "content-length" || name == "authorization") {
    return refuse(400, fmt::format("{} stands there twice", name)), false;
  }
  at->second += (name == "cookie" ? "; " : ", ") + value;
  return true;
}

void RequestReader::begin_body() {
  if (!request_.header("transfer-encoding").empty()) {
    return refuse(501, "a body needs a Content-Length; other encodings are not understood");
  }
  const std::string_view length = request_.header("content-length");
  if (!length.empty()) {
    const auto [end, fault] = std::from_chars(length.begin(), length.end(), body_);
    const bool digits = length.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits) return refuse(400, "Content-Length is no number");
    if (fault != std::errc() || end != length.end() || body_ > most_body) {
      return refuse(413, fmt::format("the body has more than {} bytes", most_body));
    }
  }
  part_ = Part::body;
}

}  // namespace foci::cli
