// SPDX-License-Identifier: Apache-2.0
// A golden file as a call that is computed three ways, and its name as a test's.
#pragma once

#include "cpu/three.hpp"
#include "golden.hpp"

namespace foci::cases {

/// What the file holds, rounded to `dtype`.
inline Three three_of(const Safetensors& file, DType dtype) {
  const View q = file.find("q"), k = file.find("k"), v = file.find("v");
  const Case c{"golden",   q.shape[0], q.shape[1], k.shape[1],
               q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  Three three(c, dtype);
  for (const char* name : {"q", "k", "v", "v_prev"}) {
    if (file.find(name)) three.ours.put(name, Tensor::copy(file.find(name), dtype));
  }
  three.ours.put("d_o", Tensor::copy(file.find("do"), dtype));
  if (const View bias = file.find("key_bias"))
    three.ours.put("key_bias", Tensor::copy(bias, DType::f32));
  if (const View mask = file.find("key_mask"))
    three.ours.put("key_mask", Tensor::copy(mask, DType::boolean));
  return three;
}

inline std::string case_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace foci::cases
