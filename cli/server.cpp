// SPDX-License-Identifier: Apache-2.0
// The loop: poll, accept, read, answer, write. Nothing blocks; what takes too long is closed.
#include "cli/server.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace foci::cli {
namespace {

constexpr std::size_t most_clients = 32;
constexpr auto farewell = std::chrono::seconds(1);  // for the other side to close

volatile std::sig_atomic_t is_asked_to_end = 0;
void end(int) { is_asked_to_end = 1; }

/// SIGTERM and SIGINT end the loop while this lives, and come through in ppoll() alone.
class Ending {
 public:
  Ending() {
    is_asked_to_end = 0;
    sigset_t these;
    sigemptyset(&these);
    sigaddset(&these, SIGTERM);
    sigaddset(&these, SIGINT);
    sigprocmask(SIG_BLOCK, &these, &before_);
    struct sigaction how = {};
    how.sa_handler = end;
    sigaction(SIGTERM, &how, &term_);
    sigaction(SIGINT, &how, &int_);
    open_ = before_;
    sigdelset(&open_, SIGTERM);
    sigdelset(&open_, SIGINT);
  }
  ~Ending() {
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGINT, &int_, nullptr);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  const sigset_t* open() const { return &open_; }

 private:
  sigset_t before_, open_;
  struct sigaction term_, int_;
};

union Address {
  sockaddr any;
  sockaddr_in four;
  sockaddr_in6 six;
};

/// The number that a host is; throws Misuse for a name.
Address address_of(const std::string& host, int port) {
  const std::string number = host == "localhost" ? "127.0.0.1" : host;
  Address address = {};
  if (inet_pton(AF_INET, number.c_str(), &address.four.sin_addr) == 1) {
    address.four.sin_family = AF_INET;
    address.four.sin_port = htons(std::uint16_t(port));
  } else if (inet_pton(AF_INET6, number.c_str(), &address.six.sin6_addr) == 1) {
    address.six.sin6_family = AF_INET6;
    address.six.sin6_port = htons(std::uint16_t(port));
  } else {
    throw Misuse(
        fmt::format("--host '{}' is no address; it needs a number like 127.0.0.1, or "
                    "localhost",
                    shown(host)));
  }
  return address;
}

socklen_t size_of(const Address& address) {
  return address.any.sa_family == AF_INET ? sizeof address.four : sizeof address.six;
}

std::string_view reason_of(int status) {
  static const std::map<int, std::string_view> reasons = {{200, "OK"},
                                                          {303, "See Other"},
                                                          {304, "Not Modified"},
                                                          {400, "Bad Request"},
                                                          {401, "Unauthorized"},
                                                          {403, "Forbidden"},
                                                          {404, "Not Found"},
                                                          {405, "Method Not Allowed"},
                                                          {408, "Request Timeout"},
                                                          {413, "Content Too Large"},
                                                          {414, "URI Too Long"},
                                                          {415, "Unsupported Media Type"},
                                                          {431, "Request Header Fields Too Large"},
                                                          {500, "Internal Server Error"},
                                                          {501, "Not Implemented"},
                                                          {505, "HTTP Version Not Supported"}};
  const auto found = reasons.find(status);
  return found == reasons.end() ? "Unknown" : found->second;
}

/// Status line, headers and, but for HEAD, the body.
std::string wire(const Answer& answer, std::string_view method) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", answer.status, reason_of(answer.status));
  text +=
      fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", answer.type, answer.body.size());
  text +=
      "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "Referrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\n";
  for (const auto& [name, value] : answer.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += "\r\n";
  return method == "HEAD" ? text : text + answer.body;
}

bool is_for_later(int fault) { return fault == EAGAIN || fault == EWOULDBLOCK || fault == EINTR; }

}  // namespace

Answer said(int status, const std::string& line) { return {.status = status, .body = line + "\n"}; }

bool is_loopback(const std::string& host) {
  const Address address = address_of(host, 0);
  if (address.any.sa_family == AF_INET) return ntohl(address.four.sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&address.six.sin6_addr);
}

Server::Server(const Listen& where) : patience_(where.patience) {
  Address address = address_of(where.host, where.port);
  const auto fail = [&] {
    const int fault = errno;
    if (socket_ >= 0) close(socket_);
    throw Error(fmt::format("{} port {} cannot be listened on: {}", where.host, where.port,
                            std::strerror(fault)));
  };
  socket_ = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) fail();
  const int on = 1;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket_, &address.any, size_of(address)) != 0 || listen(socket_, 16) != 0) fail();
  socklen_t size = sizeof address;
  if (getsockname(socket_, &address.any, &size) != 0) fail();
  port_ = ntohs(address.any.sa_family == AF_INET ? address.four.sin_port : address.six.sin6_port);
}

Server::~Server() {
  for (const Client& client : clients_) close(client.socket);
  if (socket_ >= 0) close(socket_);
}

void Server::welcome() {
  while (clients_.size() < most_clients) {
    const int socket = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) return;
    clients_.push_back({.socket = socket, .until = Clock::now() + patience_});
  }
}

/// Whether the connection goes on.
bool Server::hear(Client& client, const std::function<Answer(const Request&)>& answer) {
  char piece[16384];
  const ssize_t count = recv(client.socket, piece, sizeof piece, 0);
  if (count < 0) return is_for_later(errno);
  if (count == 0) return false;
  if (client.draining) return true;
  client.reader.take({piece, std::size_t(count)});
  const Request& request = client.reader.request();
  if (client.reader.refusal() != 0) {
    client.out = wire(said(client.reader.refusal(), client.reader.why()), request.method);
  } else if (client.reader.is_whole()) {
    client.out = wire(answer(request), request.method);
  } else {
    return true;
  }
  client.until = Clock::now() + patience_;
  return speak(client);
}

bool Server::speak(Client& client) {
  while (client.sent < client.out.size()) {
    const ssize_t count = send(client.socket, client.out.data() + client.sent,
                               client.out.size() - client.sent, MSG_NOSIGNAL);
    if (count < 0) return is_for_later(errno);
    client.sent += std::size_t(count);
  }
  shutdown(client.socket, SHUT_WR);
  client.draining = true;
  client.until = Clock::now() + farewell;
  return true;
}

bool Server::serve(Client& client, const std::function<Answer(const Request&)>& answer) {
  return client.draining || client.out.empty() ? hear(client, answer) : speak(client);
}

void Server::run(const std::function<Answer(const Request&)>& answer) {
  const Ending ending;
  while (is_asked_to_end == 0) {
    std::vector<pollfd> watched;
    for (const Client& client : clients_) {
      const bool writes = !client.out.empty() && !client.draining;
      watched.push_back(
          {.fd = client.socket, .events = short(writes ? POLLOUT : POLLIN), .revents = 0});
    }
    const bool is_full = clients_.size() >= most_clients;
    watched.push_back({.fd = is_full ? -1 : socket_, .events = POLLIN, .revents = 0});
    const timespec tick{.tv_sec = 0, .tv_nsec = 250'000'000};
    const int ready =
        ppoll(watched.data(), watched.size(), clients_.empty() ? nullptr : &tick, ending.open());
    if (ready < 0 && errno != EINTR) {
      throw Error(fmt::format("the server cannot wait: {}", std::strerror(errno)));
    }
    std::vector<Client> left;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& client = clients_[i];
      const bool stays = ready > 0 && watched[i].revents != 0 ? serve(client, answer) : true;
      const bool late = Clock::now() > client.until;
      if (stays && late && client.out.empty()) {
        client.out = wire(said(408, "the request took too long"), "");
        send(client.socket, client.out.data(), client.out.size(), MSG_NOSIGNAL);
      }
      if (stays && !late) {
        left.push_back(std::move(client));
      } else {
        close(client.socket);
      }
    }
    clients_ = std::move(left);
    if (ready > 0 && watched.back().revents != 0) welcome();
  }
}

}  // namespace foci::cli
