// SPDX-License-Identifier: Apache-2.0
// Who may include whom. A layer looks down, never sideways or up; a public header looks at public
// headers alone; the command and the examples see what any user sees; torch begins at nn.
// Tests may look anywhere and are not checked.
#pragma once

#include "house/tree.hpp"

#include <map>
#include <optional>
#include <regex>
#include <set>

namespace house {

/// The folders of src/, bottom first; those of one row do not know one another.
inline const std::vector<std::vector<std::string>> rows = {
    {"error"},
    {"tensor", "executor", "record", "theory"},
    {"safetensors"},
    {"metric"},
    {"ref", "cpu", "cuda"},
    {"attend"},
    {"experiments"},
    {"capi", "nn", "dist", "data"},
    {"models", "corrupt"},
    {"train", "attack", "measure", "report"},
    {"compare"},
};

/// Public headers that are not named after the folder that implements them.
inline const std::map<std::string, std::string> header_layers = {
    {"weighting", "metric"},
    {"call", "metric"},
    {"attention", "attend"},
    {"decode", "attend"},
    {"foci", "capi"},
    {"settings", "attend"},
    {"device", "metric"},
    {"fused", "metric"},
    {"generate", "data"},
    {"text", "data"},
    {"random", "data"},
    {"image", "data"},
    {"subset", "data"},
    {"loader", "data"},
    {"convert", "data"},
    {"llama2c", "data"},
    {"language", "models"},
    {"watch", "nn"},
    {"corrupt_sequences", "corrupt"},
    {"pictures", "report"},
    {"share", "error"},
    {"nn_parts", "nn"},
    {"context", "dist"},
    {"run", "train"},
    {"run_lock", "train"},
    {"classify", "train"},
    {"classifier", "train"},
    {"train_text", "train"},
    {"passes", "train"},
    {"train_sequences", "train"},
    {"train_segments", "train"},
};

inline int row_of(const std::string& layer) {
  for (int row = 0; row < int(rows.size()); ++row) {
    if (std::find(rows[row].begin(), rows[row].end(), layer) != rows[row].end()) return row;
  }
  return -1;
}

/// "std", "posix", or the package that a system header comes from.
inline std::string package_of(const std::string& header) {
  static const std::set<std::string> c = {
      "assert.h", "ctype.h", "errno.h",  "float.h",  "inttypes.h", "limits.h",
      "locale.h", "math.h",  "signal.h", "stdarg.h", "stdbool.h",  "stddef.h",
      "stdint.h", "stdio.h", "stdlib.h", "string.h", "time.h",     "wchar.h"};
  static const std::set<std::string> posix = {
      "fcntl.h",     "unistd.h",      "pthread.h",    "sched.h",        "sys/mman.h",
      "sys/stat.h",  "sys/wait.h",    "sys/types.h",  "sys/resource.h", "sys/ioctl.h",
      "poll.h",      "spawn.h",       "sys/socket.h", "malloc.h",       "termios.h",
      "dlfcn.h",     "sys/utsname.h", "sys/time.h",   "sys/syscall.h",  "ucontext.h",
      "arpa/inet.h", "netinet/in.h",  "sys/random.h", "sys/prctl.h",    "netdb.h",
      "sys/file.h"};
  if (posix.contains(header)) return "posix";
  if (c.contains(header)) return "std";
  const auto slash = header.find('/');
  if (slash != std::string::npos) {
    const auto first = header.substr(0, slash);
    return first == "ATen" || first == "c10" ? "torch" : first;
  }
  const bool machine = header == "arm_neon.h" || header == "cpuid.h";
  if (machine || header.find("intrin.h") != std::string::npos) return "intrinsics";
  if (header.starts_with("cuda")) return "cuda";
  return header.find('.') == std::string::npos ? "std" : header;
}

inline std::set<std::string> packages_for(const std::string& layer) {
  std::set<std::string> may = {"std"};
  if (layer == "safetensors" || layer == "record")
    may.merge(std::set<std::string>{"nlohmann", "posix"});
  if (layer == "executor") may.insert("posix");
  if (layer == "cpu") may.merge(std::set<std::string>{"intrinsics", "posix"});
  if (layer == "cuda") may.merge(std::set<std::string>{"cuda", "posix"});
  if (layer == "error" || row_of(layer) >= row_of("ref")) may.insert("fmt");  // error compiles it
  if (row_of(layer) >= row_of("attend")) may.merge(std::set<std::string>{"nlohmann", "posix"});
  if (row_of(layer) >= row_of("nn") && layer != "capi")
    may.merge(std::set<std::string>{"torch", "cuda"});
  if (layer == "data" || layer == "corrupt") {
    may.merge(std::set<std::string>{"jpeglib.h", "jerror.h", "png.h", "zlib.h"});
  }
  return may;
}

struct Include {
  int line = 0;
  bool angled = false;
  std::string name;
};

inline std::vector<Include> includes_of(const File& file) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> found;
  int number = 0;
  for (const auto& line : lines_of(file.text)) {
    ++number;
    std::smatch match;
    if (std::regex_search(line, match, pattern)) {
      found.push_back({number, match[1] == "<", match[2]});
    }
  }
  return found;
}

/// "src/ref/x.hpp" -> "ref", "include/foci/call.hpp" -> "metric", "cli/x.cpp" -> "cli".
inline std::string layer_of(const std::string& path) {
  if (path.starts_with("include/foci/")) {
    const auto stem = std::filesystem::path(path).stem().string();
    if (stem == "export" || stem == "version") return "any";
    const auto found = header_layers.find(stem);
    return found == header_layers.end() ? stem : found->second;
  }
  const auto inside = path.starts_with("src/") ? path.substr(4) : path;
  return inside.substr(0, inside.find('/'));
}

/// Where a quoted include leads: beside the file, or below src/ (in cli/, below the root).
inline std::optional<std::string> resolve(const std::string& from, const std::string& name,
                                          const std::set<std::string>& paths) {
  const auto beside =
      (std::filesystem::path(from).parent_path() / name).lexically_normal().string();
  for (const auto& candidate : {beside, "src/" + name, name}) {
    if (paths.contains(candidate)) return candidate;
  }
  return std::nullopt;
}

/// Why a file of `layer` may not include the file at `path`; empty when it may.
inline std::string refuse_file(const std::string& from, const std::string& path) {
  const auto layer = layer_of(from), other = layer_of(path);
  const bool is_public = path.starts_with("include/foci/");
  if (from.starts_with("include/") && !is_public)
    return "a public header includes public headers only";
  if (extension(from) == ".h" && extension(path) == ".hpp")
    return "a C header includes C headers only";
  if (other == layer || other == "any") return "";
  if (layer == "cli" || layer == "examples") {
    return is_public ? "" : layer + " sees only <foci/...>, not " + path;
  }
  if (row_of(other) < 0) return path + " is in no known layer";
  if (row_of(other) < row_of(layer)) return "";
  return layer + " is not above " + other;
}

inline std::string refuse_package(const std::string& from, const std::string& package) {
  const auto layer = layer_of(from);
  static const std::set<std::string> command = {"std", "posix", "fmt", "nlohmann", "CLI"};
  if (layer == "cli" && command.contains(package)) return "";
  if (from.starts_with("cli/torch/") && package == "torch") return "";
  if (layer == "examples" && (package == "std" || package == "torch")) return "";
  if (from.starts_with("include/") && package != "std" &&
      !(package == "torch" && row_of(layer) >= row_of("nn"))) {
    return "a public header does not know " + package;
  }
  return packages_for(layer).contains(package) ? "" : layer + " does not use " + package;
}

inline Findings check_layers(const std::vector<File>& files) {
  std::set<std::string> paths = {"include/foci/version.h"};  // made by CMake
  for (const auto& file : files) paths.insert(file.path);
  Findings found;
  for (const auto& file : files) {
    const auto layer = layer_of(file.path);
    const bool checked = file.path.starts_with("src/") || file.path.starts_with("include/") ||
                         layer == "cli" || layer == "examples";
    if (!checked || !is_code(file.path)) continue;
    if (layer != "cli" && layer != "examples" && layer != "any" && row_of(layer) < 0) {
      found.push_back({file.path, 0, layer + " is in no known layer"});
      continue;
    }
    for (const auto& include : includes_of(file)) {
      std::string why;
      if (include.angled && !include.name.starts_with("foci/")) {
        why = refuse_package(file.path, package_of(include.name));
      } else {
        const auto target = include.angled ? "include/" + include.name
                                           : resolve(file.path, include.name, paths).value_or("");
        why = paths.contains(target) ? refuse_file(file.path, target)
                                     : include.name + " is not in this repository";
      }
      if (!why.empty()) found.push_back({file.path, include.line, why});
    }
  }
  return found;
}

}  // namespace house
