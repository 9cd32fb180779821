// SPDX-License-Identifier: Apache-2.0
// A small HTTP server for one page: one thread, one request a connection, everything bounded: how
// many connections, how long a request and an answer may take. No TLS.
#pragma once

#include "cli/request.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace foci::cli {

struct Answer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
  std::map<std::string, std::string> headers = {};
};

/// An answer of one line of text.
Answer said(int status, const std::string& line);

struct Listen {
  std::string host = "127.0.0.1";             ///< a number, or localhost
  int port = 0;                               ///< 0 = any that is free
  std::chrono::milliseconds patience{10000};  ///< for a request to come in, and an answer to go out
};

/// Whether only this machine reaches it. Throws Misuse when it is not an address.
bool is_loopback(const std::string& host);

class Server {
 public:
  /// Listens. Throws Error when the address cannot be had.
  explicit Server(const Listen& where);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  /// Answers until SIGTERM or SIGINT.
  void run(const std::function<Answer(const Request&)>& answer);

 private:
  using Clock = std::chrono::steady_clock;
  /// A connection: its request comes in, its answer goes out, then what is left is thrown away
  /// until the other side closes too (a close with bytes unread would cut the answer off).
  struct Client {
    int socket = -1;
    Clock::time_point until;
    RequestReader reader = {};
    std::string out = {};
    std::size_t sent = 0;
    bool draining = false;
  };
  void welcome();
  bool serve(Client& client, const std::function<Answer(const Request&)>& answer);
  bool hear(Client& client, const std::function<Answer(const Request&)>& answer);
  bool speak(Client& client);

  int socket_ = -1;
  int port_ = 0;
  std::chrono::milliseconds patience_;
  std::vector<Client> clients_;
};

}  // namespace foci::cli
