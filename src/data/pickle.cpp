// SPDX-License-Identifier: Apache-2.0
// The opcodes of protocols 2 to 4 that a state dict is written in. Each pushes a value that takes
// at least a byte of the file, so memory is bounded by the file's size and by most_values.
#include "data/pickle.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace foci::data {
namespace {

using Kind = Pickled::Kind;

constexpr std::size_t most_values = std::size_t{1} << 22, storage_items = 5;

/// What a state dict may name. Calls of the last four are carried out here, as data.
constexpr std::string_view known_globals[] = {
    "torch.FloatStorage",
    "torch.DoubleStorage",
    "torch.HalfStorage",
    "torch.BFloat16Storage",
    "torch.LongStorage",
    "torch.IntStorage",
    "torch.ByteStorage",
    "torch.BoolStorage",
    "torch.Size",
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
};

class Machine {
 public:
  Machine(ByteView bytes, std::size_t begin, const std::string& name)
      : bytes_(bytes), at_(begin), name_(name) {}
  Pickle run();

 private:
  [[noreturn]] void fail(const std::string& fault) const {
    refuse(name_, fmt::format("byte {}: {}", opcode_at_, fault));
  }

  std::string_view take(std::uint64_t count);
  template <class T>
  T number();
  std::string_view line();

  void push(Pickled value);
  std::uint32_t pop();
  std::vector<std::uint32_t> pop_to_mark();
  Pickled& container(Kind kind, const char* what);

  bool push_value(int opcode);
  bool push_text(int opcode);
  bool build(int opcode);
  bool remember(int opcode);
  bool call(int opcode);
  [[noreturn]] void refuse_opcode(int opcode) const;

  void memoize(std::uint32_t slot);
  void recall(std::uint32_t slot);
  void name_global(const std::string& name);
  void set_items(const std::vector<std::uint32_t>& items);
  void reduce();

  const ByteView bytes_;
  std::size_t at_, opcode_at_ = 0;
  const std::string& name_;
  std::vector<Pickled> values_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::unordered_map<std::uint32_t, std::uint32_t> memo_;
};

std::string_view Machine::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) {
    fail(fmt::format("wants {} bytes, and {} are left", count, bytes_.size() - at_));
  }
  const std::string_view taken = text_of(bytes_.subspan(at_, count));
  at_ += count;
  return taken;
}

template <class T>
T Machine::number() {
  T value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

std::string_view Machine::line() {
  const std::string_view rest = text_of(bytes_.subspan(at_));
  const std::size_t end = rest.find('\n');
  if (end == rest.npos) fail("a name does not end");
  return take(end + 1).substr(0, end);
}

void Machine::push(Pickled value) {
  if (values_.size() == most_values) fail(fmt::format("has more than {} values", most_values));
  stack_.push_back(std::uint32_t(values_.size()));
  values_.push_back(std::move(value));
}

std::uint32_t Machine::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("takes from an empty stack");
  const std::uint32_t top = stack_.back();
  stack_.pop_back();
  return top;
}

std::vector<std::uint32_t> Machine::pop_to_mark() {
  if (marks_.empty()) fail("goes back to a mark that is not there");
  const auto begin = stack_.begin() + std::ptrdiff_t(marks_.back());
  std::vector<std::uint32_t> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

/// What lies on top, which must be of this kind.
Pickled& Machine::container(Kind kind, const char* what) {
  const std::uint32_t top = pop();
  stack_.push_back(top);
  if (values_[top].kind != kind) fail(fmt::format("fills what is no {}", what));
  return values_[top];
}

bool Machine::push_value(int opcode) {
  switch (opcode) {
    case 'N':
      push({});
      return true;
    case 0x88:
    case 0x89:
      push({.kind = Kind::boolean, .number = opcode == 0x88});
      return true;
    case 'J':
      push({.kind = Kind::integer, .number = number<std::int32_t>()});
      return true;
    case 'K':
      push({.kind = Kind::integer, .number = number<std::uint8_t>()});
      return true;
    case 'M':
      push({.kind = Kind::integer, .number = number<std::uint16_t>()});
      return true;
    case 0x8a: {  // LONG1: so many bytes, the last with the sign
      const std::string_view digits = take(number<std::uint8_t>());
      if (digits.size() > 8) fail(fmt::format("has an integer of {} bytes", digits.size()));
      std::int64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? -1 : 0;
      std::memcpy(&value, digits.data(), digits.size());
      push({.kind = Kind::integer, .number = value});
      return true;
    }
    case 'G':
      take(sizeof(double));
      push({.kind = Kind::real});
      return true;
    default:
      return push_text(opcode);
  }
}

bool Machine::push_text(int opcode) {
  std::uint64_t size = 0;
  switch (opcode) {
    case 0x8c:  // SHORT_BINUNICODE
    case 'U':   // SHORT_BINSTRING
    case 'C':   // SHORT_BINBYTES
      size = number<std::uint8_t>();
      break;
    case 'X':  // BINUNICODE
    case 'T':  // BINSTRING
    case 'B':  // BINBYTES
      size = number<std::uint32_t>();
      break;
    default:
      return false;
  }
  push({.kind = Kind::text, .text = take(size)});
  return true;
}

bool Machine::build(int opcode) {
  switch (opcode) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case ')':
    case ']':
    case '}':
      push({.kind = opcode == ')' ? Kind::tuple : opcode == ']' ? Kind::list : Kind::dict});
      return true;
    case 't':
      push({.kind = Kind::tuple, .items = pop_to_mark()});
      return true;
    case 0x85:
    case 0x86:
    case 0x87: {
      std::vector<std::uint32_t> items(std::size_t(opcode - 0x84));
      for (std::size_t i = items.size(); i-- > 0;) items[i] = pop();
      push({.kind = Kind::tuple, .items = std::move(items)});
      return true;
    }
    case 'a': {
      const std::uint32_t item = pop();
      container(Kind::list, "list").items.push_back(item);
      return true;
    }
    case 'e': {
      const auto items = pop_to_mark();
      auto& list = container(Kind::list, "list").items;
      list.insert(list.end(), items.begin(), items.end());
      return true;
    }
    case 's': {
      const std::uint32_t value = pop(), key = pop();
      set_items({key, value});
      return true;
    }
    case 'u':
      set_items(pop_to_mark());
      return true;
    default:
      return false;
  }
}

void Machine::set_items(const std::vector<std::uint32_t>& items) {
  if (items.size() % 2 != 0) fail("a key has no value");
  Pickled& dict = container(Kind::dict, "dictionary");
  for (std::size_t i = 1; i < items.size(); i += 2) {
    if (values_[items[i]].kind == Kind::tensor) dict.number = 1;
  }
  dict.items.insert(dict.items.end(), items.begin(), items.end());
}

void Machine::memoize(std::uint32_t slot) {
  const std::uint32_t top = pop();
  stack_.push_back(top);
  memo_[slot] = top;
}

void Machine::recall(std::uint32_t slot) {
  const auto found = memo_.find(slot);
  if (found == memo_.end()) fail(fmt::format("recalls value {}, which was never kept", slot));
  stack_.push_back(found->second);
}

bool Machine::remember(int opcode) {
  switch (opcode) {
    case 'q':
      memoize(number<std::uint8_t>());
      return true;
    case 'r':
      memoize(number<std::uint32_t>());
      return true;
    case 0x94:
      memoize(std::uint32_t(memo_.size()));
      return true;
    case 'h':
      recall(number<std::uint8_t>());
      return true;
    case 'j':
      recall(number<std::uint32_t>());
      return true;
    case 0x80:  // PROTO
      if (const int protocol = number<std::uint8_t>(); protocol > 5) {
        fail(fmt::format("is of protocol {}; foci reads 2 to 5", protocol));
      }
      return true;
    case 0x95:  // FRAME: a hint to readers of streams
      take(8);
      return true;
    default:
      return false;
  }
}

void Machine::name_global(const std::string& name) {
  const auto* known = std::find(std::begin(known_globals), std::end(known_globals), name);
  if (known != std::end(known_globals)) {
    push({.kind = Kind::global, .text = *known});
    return;
  }
  if (name.starts_with("torch.") && name.ends_with("Storage")) {
    fail(
        fmt::format("{} holds a type that foci does not; it holds f64, f32, bf16, f16, i64, i32, "
                    "u8 and bool",
                    in_quotes(name)));
  }
  fail(
      fmt::format("names {}, which no state dict needs, and foci runs no code: save the "
                  "state_dict() alone",
                  in_quotes(name)));
}

bool Machine::call(int opcode) {
  switch (opcode) {
    case 'c': {
      const std::string module(line());
      name_global(module + "." + std::string(line()));
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const Pickled &name = values_[pop()], &module = values_[pop()];
      if (name.kind != Kind::text || module.kind != Kind::text) fail("names something by no text");
      name_global(std::string(module.text) + "." + std::string(name.text));
      return true;
    }
    case 'R':
      reduce();
      return true;
    case 'b':  // BUILD: attributes of an OrderedDict (_metadata), which hold no weights
      pop();
      container(Kind::dict, "dictionary");
      return true;
    case 'Q': {
      const Pickled& id = values_[pop()];
      if (id.kind != Kind::tuple || id.items.size() < storage_items ||
          values_[id.items[0]].text != "storage") {
        fail("has a persistent id that is no storage");
      }
      const auto last = id.items.begin() + std::min<std::ptrdiff_t>(6, std::ssize(id.items));
      push({.kind = Kind::storage, .items = {id.items.begin(), last}});
      return true;
    }
    default:
      return false;
  }
}

/// Copies nothing whose length the file chooses: a value may be an argument many times.
void Machine::reduce() {
  const Pickled& arguments = values_[pop()];
  const Pickled& callee = values_[pop()];
  if (callee.kind != Kind::global || arguments.kind != Kind::tuple) fail("calls what is no name");
  const std::string_view name = callee.text;
  const auto& items = arguments.items;
  const Kind first = items.empty() ? Kind::nothing : values_[items[0]].kind;
  if (name == "collections.OrderedDict" && items.empty()) {
    push({.kind = Kind::dict});
  } else if (name.starts_with("torch._utils._rebuild_tensor") && items.size() >= 4) {
    push({.kind = Kind::tensor, .items = {items.begin(), items.begin() + 4}});
  } else if ((name == "torch._utils._rebuild_parameter" && first == Kind::tensor) ||
             (name == "torch.Size" && first == Kind::tuple)) {
    stack_.push_back(items[0]);
  } else {
    fail(fmt::format("calls {} with {} arguments that do not fit it", name, items.size()));
  }
}

void Machine::refuse_opcode(int opcode) const {
  constexpr std::pair<int, std::string_view> makers[] = {
      {'i', "INST"},  {'o', "OBJ"},     {0x81, "NEWOBJ"},    {0x92, "NEWOBJ_EX"},   {0x82, "EXT1"},
      {0x83, "EXT2"}, {0x84, "EXT4"},   {'P', "PERSID"},     {0x97, "NEXT_BUFFER"}, {'S', "STRING"},
      {'I', "INT"},   {'V', "UNICODE"}, {0x8f, "EMPTY_SET"}, {'L', "LONG"},         {'F', "FLOAT"},
  };
  for (const auto& [code, name] : makers) {
    if (code == opcode) fail(fmt::format("has the opcode {}, which no state dict needs", name));
  }
  fail(fmt::format("has the opcode 0x{:02x}, which no state dict needs", opcode));
}

Pickle Machine::run() {
  for (;;) {
    opcode_at_ = at_;
    const int opcode = number<std::uint8_t>();
    if (opcode == '.') break;
    if (!push_value(opcode) && !build(opcode) && !remember(opcode) && !call(opcode)) {
      refuse_opcode(opcode);
    }
  }
  const std::uint32_t top = pop();
  return {.values = std::move(values_), .top = top, .end = at_};
}

}  // namespace

Pickle read_pickle(ByteView bytes, std::size_t begin, const std::string& name) {
  return Machine(bytes, begin, name).run();
}

}  // namespace foci::data
