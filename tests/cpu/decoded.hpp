// SPDX-License-Identifier: Apache-2.0
// A case decoded by the CPU backend, beside the full causal pass of ref in the same type and in
// double; and decoded again, which must give the same bits.
#pragma once

#include "steps.hpp"
#include "three.hpp"

namespace foci::cases {

inline bool has_bias(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return !std::holds_alternative<Linear>(weighting) && (!decay || decay->content);
}

struct Decoded : Three {
  using Three::Three;

  void prepare(const Options& how, bool biased = false) {
    give_metric(ours, how.metric);
    if (biased) ours.normal("key_bias", {ours.c.B, ours.c.H, ours.c.M}, 1);
  }
  /// Another case with the inputs of `ours`.
  Made copy() const {
    Made made(ours.c, 1, ours.dtype);
    for (const char* name : {"q", "k", "v", "v_prev", "metric", "key_bias", "key_mask"}) {
      if (ours.find(name)) made.put(name, Tensor::copy(ours[name], ours[name].view().dtype));
    }
    return made;
  }
  void compare(Options how, const std::string& what) {
    for (const char* name : {"q", "k", "v", "v_prev", "metric", "key_bias", "key_mask"})
      share(name);
    how.causal = true;
    how.backend = Backend::ref;
    attend(decoded_outputs(naive, how), naive.inputs(), how);
    attend(decoded_outputs(exact, how), exact.inputs(), how);
    how.backend = Backend::cpu;
    Decoder decoder(sizes_of(ours.c, ours.dtype), how);
    decode(decoder, ours, decoded_outputs(ours, how), 1);
    Rule rule;
    rule.add(ours, naive, exact);
    rule.expect(what);
    EXPECT_EQ(ours["largest_at"].values(), exact["largest_at"].values()) << what;
    Made again = copy();  // from a reset decoder, several tokens at a time
    decoder.reset();
    decode(decoder, again, decoded_outputs(again, how), 4);
    expect_same_bits(ours, again, what);
  }
};

}  // namespace foci::cases
