// SPDX-License-Identifier: Apache-2.0
// Records to JSON and back, and files of them.
#include <foci/error.hpp>
#include <foci/record.hpp>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <type_traits>

namespace foci {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int schema = 1;

/// The text of a file up to the end of its last whole line: a writer that was killed in the middle
/// of a line has not recorded it.
std::string whole_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text.resize(text.rfind('\n') + 1);
  return text;
}

/// What lies deeper than anything in a Record is left out: a copy would need a stack as deep.
bool is_near(int depth, Json::parse_event_t, const Json&) { return depth < 8; }

template <class T>
T field(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) throw InvalidArgument(std::string("no field '") + name + "'");
  try {
    if (!std::is_integral_v<T> || found->is_number_integer()) return found->get<T>();
  } catch (const Json::exception&) {
  }
  throw InvalidArgument(std::string("field '") + name + "' is not what it should be");
}

RecordFlag flag_of(const Json& json) {
  if (!json.is_object()) throw InvalidArgument("a flag is not an object");
  return {field<std::string>(json, "name"), field<std::string>(json, "means"),
          field<std::string>(json, "do")};
}

}  // namespace

std::string to_json(const Record& record) {
  if (!std::isfinite(record.value) || (record.spread && !std::isfinite(*record.spread)))
    throw InvalidArgument("record '" + record.name + "': its value or spread is not finite");
  Json flags = Json::array();
  for (const RecordFlag& flag : record.flags)
    flags.push_back({{"name", flag.name}, {"means", flag.means}, {"do", flag.remedy}});
  Json json{{"schema", schema},
            {"name", record.name},
            {"value", record.value},
            {"unit", record.unit},
            {"n", record.n},
            {"seed", record.seed},
            {"spread", record.spread ? Json(*record.spread) : Json()},
            {"model", record.model},
            {"data_sha256", record.data_sha256},
            {"config_sha256", record.config_sha256},
            {"commit", record.commit},
            {"machine", record.machine},
            {"command", record.command},
            {"flags", flags}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Record record_of(std::string_view text) {
  const Json json = Json::parse(text, is_near, /*allow_exceptions=*/false);
  if (!json.is_object()) throw InvalidArgument("not a JSON object");
  if (const auto is = field<std::int64_t>(json, "schema"); is != schema)
    throw InvalidArgument("its schema is " + std::to_string(is) + ", not " +
                          std::to_string(schema));
  Record record{.name = field<std::string>(json, "name"),
                .value = field<double>(json, "value"),
                .unit = field<std::string>(json, "unit"),
                .n = field<std::int64_t>(json, "n"),
                .seed = field<std::uint64_t>(json, "seed"),
                .model = field<std::string>(json, "model"),
                .data_sha256 = field<std::string>(json, "data_sha256"),
                .config_sha256 = field<std::string>(json, "config_sha256"),
                .commit = field<std::string>(json, "commit"),
                .machine = field<std::string>(json, "machine"),
                .command = field<std::string>(json, "command")};
  if (!field<Json>(json, "spread").is_null()) record.spread = field<double>(json, "spread");
  const Json flags = field<Json>(json, "flags");
  if (!flags.is_array()) throw InvalidArgument("field 'flags' is not what it should be");
  for (const Json& flag : flags) record.flags.push_back(flag_of(flag));
  return record;
}

void append_records(const std::string& path, std::span<const Record> records) {
  std::string text = whole_lines(path);
  for (const Record& record : records) text += to_json(record) + "\n";
  const std::string other = path + ".part";
  errno = 0;
  std::ofstream file(other, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  std::error_code fault(errno != 0 ? errno : EIO, std::generic_category());
  if (file) fs::rename(other, path, fault);
  if (!file || fault) throw FileError(path + ": cannot be written: " + fault.message());
}

std::vector<Record> read_records(const std::string& path) {
  if (!fs::is_regular_file(path)) throw FileError(path + ": is not there");
  const std::string text = whole_lines(path);
  std::vector<Record> records;
  for (std::size_t begin = 0, line = 1; begin < text.size(); ++line) {
    const std::size_t end = text.find('\n', begin);
    try {
      records.push_back(record_of(std::string_view(text).substr(begin, end - begin)));
    } catch (const InvalidArgument& fault) {
      throw FileError(path + ", line " + std::to_string(line) + ": " + fault.what());
    }
    begin = end + 1;
  }
  return records;
}

}  // namespace foci
