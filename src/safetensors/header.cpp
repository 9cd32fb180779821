// SPDX-License-Identifier: Apache-2.0
// Reads the JSON of a safetensors header, event by event, and refuses whatever the format does not
// allow: another field, another depth, a key said twice, a size that does not match, a hole or an
// overlap. Nothing nests deeper than the format does, so no input can exhaust the stack.
#include "safetensors/header.hpp"

#include <foci/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <tuple>
#include <vector>

namespace foci::safetensors {
namespace {

constexpr Kind kinds[] = {
    {"F64", 64, DType::f64},   {"F32", 32, DType::f32},
    {"BF16", 16, DType::bf16}, {"F16", 16, DType::f16},
    {"I64", 64, DType::i64},   {"I32", 32, DType::i32},
    {"U8", 8, DType::u8},      {"BOOL", 8, DType::boolean},
    {"U64", 64, {}},           {"C64", 64, {}},
    {"U32", 32, {}},           {"I16", 16, {}},
    {"U16", 16, {}},           {"I8", 8, {}},
    {"F8_E4M3", 8, {}},        {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},        {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},        {"F4", 4, {}},
};

/// An empty axis counts as 1 here, so that View's strides cannot overflow either.
constexpr const char* too_large = "has a shape too large; it needs fewer than 2^61 bytes";

/// Length of the well-formed UTF-8 sequence that `text` begins with; 0 when it is not one.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4 || !follows(1)) return 0;
  if (first < 0xe0) return 2;
  if (!follows(2)) return 0;
  // Overlong forms and the surrogates' range.
  if (first == 0xe0 && second < 0xa0) return 0;
  if (first == 0xed && second > 0x9f) return 0;
  if (first < 0xf0) return 3;
  if (first == 0xf0 && second < 0x90) return 0;
  if (first == 0xf4 && second > 0x8f) return 0;
  return follows(3) ? 4 : 0;
}

class Handler {
 public:
  Handler(Header& header, const std::string& path) : header_(header), path_(path) {}

  bool null() { return refuse_value("null"); }
  bool boolean(bool value) { return refuse_value(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { return refuse_value(std::to_string(value)); }
  bool number_float(double, const std::string& text) { return refuse_value(printable(text)); }
  bool binary(std::vector<std::uint8_t>&) { return refuse_value("binary"); }
  bool number_unsigned(std::uint64_t value);
  bool string(std::string& value);
  bool start_object(std::size_t);
  bool key(std::string& name);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    fail("header is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Where { outside, file, metadata, tensor, shape, offsets };
  enum class Field { dtype, shape, offsets };
  static constexpr std::string_view field_names[] = {"dtype", "shape", "data_offsets"};

  [[noreturn]] void fail(const std::string& fault) const { throw FileError(path_ + ": " + fault); }
  [[noreturn]] void fail_tensor(const std::string& fault) const {
    fail("tensor " + in_quotes(*name_) + " " + fault);
  }
  bool refuse_value(const std::string& got) const;
  void start_field(const std::string& name);
  void finish_tensor();

  Header& header_;
  const std::string& path_;
  Where where_ = Where::outside;
  bool has_metadata_ = false;
  std::string* text_ = nullptr;        // the metadata value to come
  const std::string* name_ = nullptr;  // the tensor at hand, nullptr for metadata
  Entry* entry_ = nullptr;
  Field field_ = Field::dtype;
  bool seen_[3] = {};
  int offsets_ = 0;             // how many of the two were read
  std::uint64_t elements_ = 1;  // product of the shape, an empty axis counted as 1
  bool empty_ = false;
};

/// A value of the wrong sort, wherever it stands.
bool Handler::refuse_value(const std::string& got) const {
  if (where_ == Where::metadata) {
    fail("metadata holds " + got + "; it needs strings only");
  }
  if (where_ == Where::file && !name_) {
    fail("metadata is " + got + "; it needs an object of strings");
  }
  if (where_ == Where::file) {
    fail_tensor("is " + got + "; it needs an object of dtype, shape and data_offsets");
  }
  switch (field_) {
    case Field::dtype:
      fail_tensor("has dtype " + got + "; it needs a string");
    case Field::shape:
      fail_tensor("has " + got + " as shape; it needs a list of sizes >= 0");
    case Field::offsets:
      break;
  }
  fail_tensor("has " + got + " in data_offsets; it needs [begin, end]");
}

bool Handler::number_unsigned(std::uint64_t value) {
  if (where_ == Where::shape) {
    if (__builtin_mul_overflow(elements_, std::max<std::uint64_t>(value, 1), &elements_)) {
      fail_tensor(too_large);
    }
    empty_ |= value == 0;
    if (entry_->rank < max_rank) entry_->shape[std::size_t(entry_->rank)] = std::int64_t(value);
    ++entry_->rank;
    return true;
  }
  if (where_ == Where::offsets && offsets_ < 2) {
    (offsets_++ == 0 ? entry_->begin : entry_->end) = value;
    return true;
  }
  return refuse_value(std::to_string(value));
}

bool Handler::string(std::string& value) {
  if (where_ == Where::metadata) {
    *text_ = std::move(value);
    return true;
  }
  if (where_ != Where::tensor || field_ != Field::dtype) return refuse_value(in_quotes(value));
  entry_->kind = find_kind(value);
  if (!entry_->kind) {
    fail_tensor("has unknown dtype " + in_quotes(value) +
                "; it needs one of the format's, like F32");
  }
  return true;
}

bool Handler::start_object(std::size_t) {
  if (where_ == Where::outside) {
    where_ = Where::file;
  } else if (where_ == Where::file) {
    where_ = name_ ? Where::tensor : Where::metadata;
  } else {
    refuse_value("an object");
  }
  return true;
}

bool Handler::key(std::string& name) {
  if (where_ == Where::metadata) {
    const auto [at, fresh] = header_.metadata.try_emplace(name);
    if (!fresh) fail("metadata key " + in_quotes(name) + " comes twice");
    text_ = &at->second;
  } else if (where_ == Where::tensor) {
    start_field(name);
  } else if (name == metadata_key) {
    if (has_metadata_) fail("__metadata__ comes twice");
    has_metadata_ = true;
    name_ = nullptr;
  } else {
    const auto [at, fresh] = header_.tensors.try_emplace(std::move(name));
    name_ = &at->first;
    if (!fresh) fail_tensor("comes twice");
    entry_ = &at->second;
    std::fill(std::begin(seen_), std::end(seen_), false);
    offsets_ = 0;
    elements_ = 1;
    empty_ = false;
  }
  return true;
}

void Handler::start_field(const std::string& name) {
  const auto* at = std::find(std::begin(field_names), std::end(field_names), name);
  if (at == std::end(field_names)) {
    fail_tensor("has a field " + in_quotes(name) + "; it needs dtype, shape and data_offsets only");
  }
  const auto index = std::size_t(at - std::begin(field_names));
  if (seen_[index]) fail_tensor("says " + name + " twice");
  seen_[index] = true;
  field_ = Field(index);
}

bool Handler::end_object() {
  if (where_ == Where::tensor) finish_tensor();
  where_ = where_ == Where::file ? Where::outside : Where::file;
  return true;
}

void Handler::finish_tensor() {
  for (std::size_t i = 0; i < std::size(field_names); ++i) {
    if (!seen_[i]) fail_tensor("has no " + std::string(field_names[i]));
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(elements_, std::uint64_t(entry_->kind->bits), &bits)) {
    fail_tensor(too_large);
  }
  if (empty_) bits = 0;
  if (bits % 8 != 0) {
    fail_tensor("has " + std::to_string(bits) + " bits; it needs whole bytes");
  }
  if (entry_->end < entry_->begin || entry_->end - entry_->begin != bits / 8) {
    fail_tensor("lies at [" + std::to_string(entry_->begin) + ", " + std::to_string(entry_->end) +
                "), but its shape and type need " + std::to_string(bits / 8) + " bytes");
  }
}

bool Handler::start_array(std::size_t) {
  if (where_ != Where::tensor || field_ == Field::dtype) return refuse_value("a list");
  where_ = field_ == Field::shape ? Where::shape : Where::offsets;
  return true;
}

bool Handler::end_array() {
  if (where_ == Where::offsets && offsets_ != 2) {
    fail_tensor("has " + std::to_string(offsets_) + " numbers in data_offsets; it needs 2");
  }
  where_ = Where::tensor;
  return true;
}

/// The tensors must fill the data from the first byte to the last, in whatever order.
void check_layout(const Header& header, std::uint64_t data_bytes, const std::string& path) {
  using Item = std::pair<const std::string, Entry>;
  std::vector<const Item*> order;
  order.reserve(header.tensors.size());
  for (const Item& item : header.tensors) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return std::tie(a->second.begin, a->second.end) < std::tie(b->second.begin, b->second.end);
  });
  std::uint64_t filled = 0;
  for (const Item* item : order) {
    const std::uint64_t begin = item->second.begin;
    if (begin != filled) {
      throw FileError(path + ": tensor " + in_quotes(item->first) + " begins at byte " +
                      std::to_string(begin) + " of the data, but the one before ends at " +
                      std::to_string(filled) + (begin > filled ? " (a hole)" : " (an overlap)"));
    }
    filled = item->second.end;
  }
  if (filled != data_bytes) {
    throw FileError(path + ": tensors need " + std::to_string(filled) +
                    " bytes of data, but the file holds " + std::to_string(data_bytes));
  }
}

}  // namespace

const Kind* find_kind(std::string_view name) {
  const auto* at = std::find_if(std::begin(kinds), std::end(kinds),
                                [&](const Kind& kind) { return kind.name == name; });
  return at == std::end(kinds) ? nullptr : at;
}

const Kind& kind_of(DType dtype) { return kinds[std::size_t(dtype)]; }

Header read_header(std::string_view text, std::uint64_t data_bytes, const std::string& path) {
  const auto fail = [&](const std::string& fault) { throw FileError(path + ": header " + fault); };
  if (text.empty() || text.front() != '{') fail("does not begin with {; is it a safetensors file?");
  const std::size_t bad = find_invalid_utf8(text);
  if (bad != text.npos) fail("is not valid UTF-8 at byte " + std::to_string(bad));
  // The JSON reader would take a zero byte for the end and pass over what follows.
  const std::size_t zero = text.find('\0');
  if (zero != text.npos) fail("is not valid JSON at byte " + std::to_string(zero));
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  if (text.back() != '}') fail("does not end with }; only spaces may follow it");

  Header header;
  Handler handler(header, path);
  nlohmann::json::sax_parse(text, &handler);
  check_layout(header, data_bytes, path);
  return header;
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return text.npos;
}

std::string printable(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t length = utf8_length(text.substr(at));
    const bool control =
        byte < 0x20 || byte == 0x7f ||
        (byte == 0xc2 && length == 2 && static_cast<unsigned char>(text[at + 1]) < 0xa0);
    if (length == 0 || control) {
      result += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
      ++at;
    } else {
      result += text.substr(at, length);
      at += length;
    }
  }
  return result;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 80;
  if (text.size() <= longest) return '"' + printable(text) + '"';
  std::size_t cut = longest;  // never inside a character
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return '"' + printable(text.substr(0, cut)) + "...\"";
}

}  // namespace foci::safetensors
