// SPDX-License-Identifier: Apache-2.0
// Parses, runs, and turns whatever went wrong into one line, perhaps a hint, and an exit status.
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/verbs.hpp"

#include <foci/attention.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <new>

namespace foci::cli {
namespace {

constexpr int ok = 0, failed = 1, misuse = 2;

int complain(int status, const std::string& message, const std::string& hint = {}) {
  fmt::print(stderr, "foci: {}\n", message);
  if (!hint.empty()) fmt::print(stderr, "foci: hint: {}\n", hint);
  return status;
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
  const std::string verb = arguments.empty() ? "" : shown(arguments[0]);
  try {
    const int status = std::visit([](const auto& what) { return run(what); }, parse(arguments));
    if (std::fflush(stdout) != 0) return complain(failed, "standard output cannot be written");
    return status;
  } catch (const Misuse& fault) {
    return complain(misuse, fault.what(), fault.hint());
  } catch (const InvalidArgument& fault) {
    return complain(misuse, fault.what(), fmt::format("see foci help {}", verb));
  } catch (const Unsupported& fault) {
    const bool wide = std::string_view(fault.what()).find("takes no f64") != std::string_view::npos;
    return complain(
        misuse, fault.what(),
        wide ? "--dtype f32 rounds the tensors first" : "foci info lists what this build can do");
  } catch (const Error& fault) {
    return complain(failed, fault.what());
  } catch (const std::bad_alloc&) {
    return complain(failed, "there is not enough memory");
  } catch (const std::exception& fault) {
    return complain(failed, shown(fault.what()));
  }
}

int run(const Version&) {
  fmt::print("foci {}\n", version());
  return ok;
}

}  // namespace foci::cli
