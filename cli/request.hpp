// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 request as it arrives, piece by piece, held to limits from its first byte: what is
// too long, too many or not by the letter is refused with a status. No chunked bodies.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace foci::cli {

struct Request {
  std::string method;
  std::string path;                            ///< before '?', as it was sent
  std::string query;                           ///< after it
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;

  std::string_view header(const std::string& name) const;  ///< empty when there is none
};

inline constexpr std::size_t most_head = 16384, most_target = 2048, most_body = 1 << 20;
inline constexpr std::size_t most_headers = 64;

class RequestReader {
 public:
  /// Takes what has come in. Nothing more is looked at once the request is whole or refused.
  void take(std::string_view bytes);

  bool is_whole() const { return part_ == Part::whole; }
  /// The status to refuse with; 0 when there is no reason to.
  int refusal() const { return refusal_; }
  const std::string& why() const { return why_; }
  const Request& request() const { return request_; }

 private:
  enum class Part { head, body, whole, refused };
  void refuse(int status, const std::string& why);
  void read_head(std::string_view head);
  bool read_first(std::string_view line);
  bool read_header(std::string_view line);
  void begin_body();

  Part part_ = Part::head;
  std::string bytes_;  // not yet understood
  std::size_t body_ = 0;
  Request request_;
  int refusal_ = 0;
  std::string why_;
};

}  // namespace foci::cli
