// SPDX-License-Identifier: Apache-2.0
// A pickle as plain values: numbers, texts, containers, and the few names that state dicts use. No
// name is looked up and no code runs; a pickle that asks for more is refused by name.
#pragma once

#include "data/bytes.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foci::data {

/// Values refer to one another by number, so depth and cycles cost nothing.
struct Pickled {
  enum class Kind : std::uint8_t {
    nothing,
    boolean,
    integer,
    real,
    text,
    global,  ///< a name that is allowed: "torch.FloatStorage"
    tuple,
    list,
    dict,     ///< key, value, key, value, ...; `number` is 1 when a value is a tensor
    storage,  ///< "storage", type, key, place, count
    tensor,   ///< storage, offset, sizes, strides
  };
  Kind kind = Kind::nothing;
  std::int64_t number = 0;
  std::string_view text = {};
  std::vector<std::uint32_t> items = {};
};

struct Pickle {
  std::vector<Pickled> values;
  std::uint32_t top = 0;  ///< what the pickle is
  std::size_t end = 0;    ///< one past its last byte

  const Pickled& at(std::uint32_t i) const { return values[i]; }
  const Pickled& whole() const { return values[top]; }
};

/// Reads from `begin` on; texts stay in `bytes`. `name` stands before every message. Throws
/// FileError.
Pickle read_pickle(ByteView bytes, std::size_t begin, const std::string& name);

}  // namespace foci::data
