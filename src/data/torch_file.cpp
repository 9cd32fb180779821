// SPDX-License-Identifier: Apache-2.0
// From the pickle and the storages of a torch file to views: the dictionary of weights is picked,
// and every offset, size and stride is held against the storage it points into.
#include "data/torch_file.hpp"

#include "data/pickle.hpp"
#include "data/unicode.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace foci::data {
namespace {

using Kind = Pickled::Kind;
using Names = std::vector<std::string>;

/// How torch.save began before 1.6: the pickle of a number, its bytes.
constexpr std::string_view early_magic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                       15);

/// Weights lie under one of these in a checkpoint of a training; the first that is there is taken.
constexpr std::string_view usual_names[] = {"model",   "state_dict", "model_state_dict", "module",
                                            "network", "net",        "weights"};

DType dtype_of_storage(std::string_view global) {
  constexpr std::pair<std::string_view, DType> types[] = {
      {"torch.FloatStorage", DType::f32}, {"torch.DoubleStorage", DType::f64},
      {"torch.HalfStorage", DType::f16},  {"torch.BFloat16Storage", DType::bf16},
      {"torch.LongStorage", DType::i64},  {"torch.IntStorage", DType::i32},
      {"torch.ByteStorage", DType::u8},   {"torch.BoolStorage", DType::boolean},
  };
  for (const auto& [name, dtype] : types) {
    if (name == global) return dtype;
  }
  return DType::f32;  // check_storage has been here
}

/// Storages by key, and copies of those that do not lie where their type may be read.
struct Storages {
  std::map<std::string, ByteView, std::less<>> bytes;
  std::map<std::string, Tensor, std::less<>> copies;
};

class TorchFile {
 public:
  TorchFile(ByteView file, std::string name) : file_(file), name_(std::move(name)) {}
  Checkpoint read(const std::string& take);

 private:
  struct Found {
    const Pickled* dict;
    std::string path;  // keys with dots
    Names left;
  };
  struct Storage {
    std::string_view key;
    DType dtype;
    std::int64_t count;
  };

  void read_zipped();
  void read_early();
  Found find_weights(const std::string& take) const;
  std::string choose(const Pickled& dict) const;
  const Pickled* value_of(const Pickled& dict, std::string_view key) const;
  Names keys_of(const Pickled& dict) const;
  std::string key_text(const Pickled& key) const;
  Storage storage_of(const Pickled& value) const;
  const std::byte* begin_of(const Storage& storage);
  View view_of(const std::string& tensor, const Pickled& value);
  void make_room(const std::string& tensor, const Storage& storage, const Shape& sizes);
  Shape numbers_of(const std::string& tensor, const Pickled& tuple) const;
  [[noreturn]] void fail(const std::string& fault) const { refuse(name_, fault); }

  const ByteView file_;
  const std::string name_;
  Pickle pickle_;
  Storages storages_;
  std::uint64_t room_ = 0;  // bytes that tensors may still take
};

void TorchFile::read_zipped() {
  auto entries = read_zip(file_, name_);
  std::string folder;
  ByteView pickle;
  for (const auto& [path, bytes] : entries) {
    const std::size_t slash = path.find('/');
    const std::string_view rest = std::string_view(path).substr(slash + 1);
    if (rest == "constants.pkl") fail("is a TorchScript program; save its state_dict() instead");
    if (rest != "data.pkl") continue;
    folder = path.substr(0, slash + 1);
    pickle = bytes;
  }
  if (pickle.empty()) fail("is a zip file without data.pkl: torch.save did not write it");
  const auto order = entries.find(folder + "byteorder");
  if (order != entries.end() && text_of(order->second) != "little") {
    fail(
        fmt::format("has the byte order {}; foci reads little", in_quotes(text_of(order->second))));
  }
  pickle_ = read_pickle(pickle, 0, name_ + ": data.pkl");
  const std::string data = folder + "data/";
  for (const auto& [path, bytes] : entries) {
    if (path.starts_with(data)) storages_.bytes.emplace(path.substr(data.size()), bytes);
  }
}

/// Pickles of the magic number, the version, the machine, the object and the storages' keys; then
/// each storage with its count before it.
void TorchFile::read_early() {
  std::size_t at = early_magic.size();
  const Pickle version = read_pickle(file_, at, name_);
  if (version.whole().number != 1001) {
    fail(fmt::format("is of torch's version {}; foci reads 1001", version.whole().number));
  }
  const Pickle machine = read_pickle(file_, version.end, name_);
  const Pickle object = read_pickle(file_, machine.end, name_);
  const Pickle keys = read_pickle(file_, object.end, name_);
  pickle_ = machine;
  if (const Pickled* little = value_of(machine.whole(), "little_endian");
      !little || !little->number)
    fail("was written by a machine with another byte order");
  pickle_ = object;
  std::map<std::string_view, Storage> known;
  for (const Pickled& value : object.values) {
    if (value.kind != Kind::storage) continue;
    const Storage storage = storage_of(value);
    known.emplace(storage.key, storage);
  }
  at = keys.end;
  for (const std::uint32_t item : keys.whole().items) {
    const std::string_view key = keys.at(item).text;
    const auto found = known.find(key);
    if (found == known.end()) fail(fmt::format("storage {} belongs to no tensor", in_quotes(key)));
    const std::int64_t count = found->second.count;
    const std::uint64_t bytes = std::uint64_t(count) * size_of(found->second.dtype);
    if (file_.size() - at < sizeof count || file_.size() - at - sizeof count < bytes) {
      fail(fmt::format("ends early, at byte {}: storage {} of {} bytes begins at {}", file_.size(),
                       in_quotes(key), bytes, at + sizeof count));
    }
    if (std::memcmp(&count, file_.data() + at, sizeof count) != 0) {
      fail(fmt::format("byte {}: storage {} does not have {} numbers", at, in_quotes(key), count));
    }
    at += sizeof count;
    storages_.bytes.emplace(key, file_.subspan(at, bytes));
    at += bytes;
  }
}

std::string TorchFile::key_text(const Pickled& key) const {
  if (key.kind == Kind::text) return std::string(key.text);
  return key.kind == Kind::integer ? std::to_string(key.number) : "?";
}

Names TorchFile::keys_of(const Pickled& dict) const {
  Names keys;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    keys.push_back(key_text(pickle_.at(dict.items[i])));
  }
  return keys;
}

const Pickled* TorchFile::value_of(const Pickled& dict, std::string_view key) const {
  if (dict.kind != Kind::dict) return nullptr;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const Pickled& found = pickle_.at(dict.items[i]);
    if (found.kind == Kind::text && found.text == key) return &pickle_.at(dict.items[i + 1]);
  }
  return nullptr;
}

bool holds_tensors(const Pickled& value) { return value.kind == Kind::dict && value.number != 0; }

std::string some_of(const Names& names) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) {
    text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  }
  return names.size() > most ? text + " and more" : text;
}

/// The key under which weights lie; empty when there is none.
std::string TorchFile::choose(const Pickled& dict) const {
  for (const std::string_view name : usual_names) {
    const Pickled* value = value_of(dict, name);
    if (value && value->kind == Kind::dict) return std::string(name);
  }
  Names others;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const Pickled &key = pickle_.at(dict.items[i]), &value = pickle_.at(dict.items[i + 1]);
    if (key.kind == Kind::text && holds_tensors(value)) others.emplace_back(key.text);
  }
  if (others.size() > 1) {
    fail(fmt::format("holds several dictionaries of tensors: {}; say which with --take",
                     some_of(others)));
  }
  return others.empty() ? "" : others[0];
}

TorchFile::Found TorchFile::find_weights(const std::string& take) const {
  constexpr int deepest = 3;
  Found found{.dict = &pickle_.whole(), .path = {}, .left = {}};
  if (found.dict->kind != Kind::dict) fail("holds no dictionary of tensors; save a state_dict()");
  for (int depth = 0; depth < deepest; ++depth) {
    const bool asked = depth == 0 && !take.empty();
    if (!asked && holds_tensors(*found.dict)) return found;
    const std::string chosen = asked ? take : choose(*found.dict);
    if (chosen.empty()) break;
    const Pickled* value = value_of(*found.dict, chosen);
    if (!value || value->kind != Kind::dict) {
      fail(fmt::format("has no dictionary {}; it holds {}", in_quotes(chosen),
                       some_of(keys_of(*found.dict))));
    }
    for (const std::string& key : keys_of(*found.dict)) {
      if (key != chosen) found.left.push_back(found.path + key);
    }
    found.dict = value;
    found.path += chosen + ".";
  }
  if (holds_tensors(*found.dict)) return found;
  fail(fmt::format("holds no tensors where weights are looked for; it holds {}",
                   some_of(keys_of(pickle_.whole()))));
}

TorchFile::Storage TorchFile::storage_of(const Pickled& value) const {
  const Pickled &type = pickle_.at(value.items[1]), &key = pickle_.at(value.items[2]),
                &count = pickle_.at(value.items[4]);
  if (type.kind != Kind::global || !type.text.ends_with("Storage") || key.kind != Kind::text ||
      count.kind != Kind::integer) {
    fail("has a storage without type, key or count");
  }
  if (count.number < 0 || std::uint64_t(count.number) > file_.size()) {
    fail(fmt::format("storage {} says it has {} numbers; the file has {} bytes",
                     in_quotes(key.text), count.number, file_.size()));
  }
  if (value.items.size() > 5 && pickle_.at(value.items[5]).kind != Kind::nothing) {
    fail(fmt::format("storage {} is a view of another, which torch before 0.4 wrote",
                     in_quotes(key.text)));
  }
  return {key.text, dtype_of_storage(type.text), count.number};
}

const std::byte* TorchFile::begin_of(const Storage& storage) {
  const auto found = storages_.bytes.find(storage.key);
  if (found == storages_.bytes.end()) {
    fail(fmt::format("storage {} is missing", in_quotes(storage.key)));
  }
  const ByteView bytes = found->second;
  if (bytes.size() != std::uint64_t(storage.count) * size_of(storage.dtype)) {
    fail(fmt::format("storage {} has {} bytes; {} numbers of {} need {}", in_quotes(storage.key),
                     bytes.size(), storage.count, name_of(storage.dtype),
                     std::uint64_t(storage.count) * size_of(storage.dtype)));
  }
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % size_of(storage.dtype) == 0;
  if (aligned || bytes.empty()) return bytes.data();
  Tensor& copy = storages_.copies[std::string(storage.key)];
  if (!copy) {
    copy = Tensor(DType::u8, {std::int64_t(bytes.size())});
    std::memcpy(copy.data<std::byte>(), bytes.data(), bytes.size());
  }
  return copy.data<std::byte>();
}

Shape TorchFile::numbers_of(const std::string& tensor, const Pickled& tuple) const {
  Shape numbers;
  if (tuple.kind != Kind::tuple || tuple.items.size() > std::size_t(max_rank)) {
    fail(fmt::format("{} has {} axes; foci holds at most {}", in_quotes(tensor), tuple.items.size(),
                     max_rank));
  }
  for (const std::uint32_t item : tuple.items) {
    const Pickled& number = pickle_.at(item);
    if (number.kind != Kind::integer || number.number < 0) {
      fail(fmt::format("{} has a size or stride that is no whole number", in_quotes(tensor)));
    }
    numbers.push_back(number.number);
  }
  return numbers;
}

/// Throws unless a tensor of this storage fits into what a file of this size may hold.
void TorchFile::make_room(const std::string& tensor, const Storage& storage, const Shape& sizes) {
  std::uint64_t count = 1;  // an empty axis as 1, so that no product overflows
  for (const std::int64_t size : sizes) {
    const auto factor = std::uint64_t(std::max<std::int64_t>(size, 1));
    if (count > room_ / size_of(storage.dtype) / factor) {
      fail(fmt::format("{} of shape {} is too large for a file of {} bytes", in_quotes(tensor),
                       to_string(sizes), file_.size()));
    }
    count *= factor;
  }
  room_ -= std::min(room_, count * size_of(storage.dtype));
}

/// Whether every index lies in a storage of `count` numbers. Nothing overflows: what is left of the
/// storage bounds each step.
bool inside(std::int64_t count, std::int64_t offset, const Shape& sizes, const Shape& strides) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  if (offset < 0 || offset >= count) return false;
  std::int64_t left = count - 1 - offset;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1 || strides[i] == 0) continue;
    if (sizes[i] - 1 > left / strides[i]) return false;
    left -= (sizes[i] - 1) * strides[i];
  }
  return true;
}

View TorchFile::view_of(const std::string& tensor, const Pickled& value) {
  const Pickled &from = pickle_.at(value.items[0]), &offset = pickle_.at(value.items[1]);
  if (from.kind != Kind::storage || offset.kind != Kind::integer) {
    fail(fmt::format("{} has no storage or no offset", in_quotes(tensor)));
  }
  Shape sizes = numbers_of(tensor, pickle_.at(value.items[2])),
        strides = numbers_of(tensor, pickle_.at(value.items[3]));
  if (sizes.size() != strides.size()) {
    fail(fmt::format("{} has {} sizes and {} strides", in_quotes(tensor), sizes.size(),
                     strides.size()));
  }
  const Storage storage = storage_of(from);
  make_room(tensor, storage, sizes);
  if (!inside(storage.count, offset.number, sizes, strides)) {
    fail(fmt::format("{} of shape {}, strides {} and offset {} leaves its storage of {} numbers",
                     in_quotes(tensor), to_string(sizes), to_string(strides), offset.number,
                     storage.count));
  }
  if (sizes.empty()) sizes = strides = {1};  // a scalar: a view of rank 0 would mean "absent"
  const std::byte* begin = begin_of(storage);
  View view(begin, storage.dtype, sizes);
  if (view.count() == 0) return view;
  view.data = const_cast<std::byte*>(begin) + std::uint64_t(offset.number) * size_of(storage.dtype);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) view.strides[i] = strides[i];
  }
  return view;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character next = next_character(text);
    if (next.code == not_a_character) return false;
    text.remove_prefix(next.bytes);
  }
  return true;
}

Checkpoint TorchFile::read(const std::string& take) {
  constexpr std::uint64_t most_repeats = 16, always = 1 << 20;
  const bool zipped = is_zip(file_);
  room_ = file_.size() * most_repeats + always;
  zipped ? read_zipped() : read_early();
  Found found = find_weights(take);
  if (!found.path.empty()) found.path.pop_back();
  Checkpoint checkpoint{.format = zipped ? "torch" : "torch before 1.6",
                        .taken = found.path,
                        .left = std::move(found.left),
                        .tensors = {},
                        .metadata = {},
                        .memory = {}};
  for (std::size_t i = 0; i < found.dict->items.size(); i += 2) {
    const std::string name = key_text(pickle_.at(found.dict->items[i]));
    const Pickled& value = pickle_.at(found.dict->items[i + 1]);
    if (value.kind != Kind::tensor) {
      checkpoint.left.push_back(found.path.empty() ? name : found.path + "." + name);
      continue;
    }
    if (!is_utf8(name)) fail(fmt::format("the name {} is not UTF-8", in_quotes(name)));
    if (!checkpoint.tensors.emplace(name, view_of(name, value)).second) {
      fail(fmt::format("has two tensors {}", in_quotes(name)));
    }
  }
  checkpoint.memory = std::make_shared<Storages>(std::move(storages_));
  return checkpoint;
}

}  // namespace

bool is_early_torch(ByteView file) { return text_of(file).starts_with(early_magic); }

Checkpoint parse_torch(ByteView file, const std::string& name, const std::string& take) {
  return TorchFile(file, name).read(take);
}

}  // namespace foci::data
