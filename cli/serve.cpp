// SPDX-License-Identifier: Apache-2.0
// foci serve: the page of a folder of results on this machine, as long as it is wanted.
#include "cli/serve.hpp"

#include "cli/misuse.hpp"
#include "cli/server.hpp"
#include "cli/site.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>

namespace foci::cli {

Serve serve_of(const Called& called) {
  const auto text = [&](const char* flag, const char* standard) {
    const auto found = called.words.find(flag);
    return found == called.words.end() ? std::string(standard) : found->second;
  };
  if (called.word.empty())
    throw Misuse("serve needs a folder of results", "for instance foci serve compare");
  const std::int64_t port = to_count(text("port", "0"));
  if (port > 65535) throw Misuse(fmt::format("--port {} is more than 65535", port));
  const std::int64_t patience = to_count(text("patience", "10"));
  if (patience < 1 || patience > 3600) {
    throw Misuse(fmt::format("--patience {} does not lie between 1 and 3600", patience));
  }
  Serve verb{.common = {},
             .folder = called.word,
             .host = text("host", "127.0.0.1"),
             .port = int(port),
             .patience = int(patience),
             .token = text("token", "false") == "true"};
  verb.common.json = text("json", "false") == "true";
  verb.common.quiet = text("quiet", "false") == "true";
  return verb;
}

int run(const Serve& verb) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(verb.folder, ignored)) {
    throw FileError(fmt::format("{} is no folder; serve needs one that foci compare writes into",
                                shown(verb.folder)));
  }
  const bool loopback = is_loopback(verb.host);
  Server server(
      {.host = verb.host, .port = verb.port, .patience = std::chrono::seconds(verb.patience)});
  const Site site{.folder = verb.folder,
                  .port = server.port(),
                  .token = verb.token || !loopback ? made_token() : "",
                  .loopback = loopback && !verb.token};
  const std::string host =
      verb.host.find(':') == std::string::npos ? verb.host : fmt::format("[{}]", verb.host);
  const std::string url =
      fmt::format("http://{}:{}/{}", host, server.port(),
                  site.token.empty() ? "" : fmt::format("?token={}", site.token));
  if (verb.common.json) {
    print_json({{"url", url}, {"host", verb.host}, {"port", server.port()}, {"token", site.token}});
  } else if (verb.common.quiet) {
    fmt::print("{}\n", url);
  } else {
    fmt::print("{} at {}\n", shown(verb.folder), painted(url, Paint::bold));
    if (verb.host == "0.0.0.0" || verb.host == "::")
      fmt::print("from elsewhere, with this machine's name in place of {}\n", host);
    if (!loopback) fmt::print("whoever has this address can read it; it is not encrypted\n");
    fmt::print("Ctrl-C ends it\n");
  }
  std::fflush(stdout);
  server.run([&](const Request& request) { return site.answer(request); });
  return 0;
}

}  // namespace foci::cli
