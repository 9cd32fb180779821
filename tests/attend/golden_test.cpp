// SPDX-License-Identifier: Apache-2.0
// Every golden file through the library in double: outputs, statistics, metric and gradients to
// 1e-10 of the largest value.
#include "golden.hpp"

#include <foci/attention.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace foci {
namespace {

class Golden : public testing::TestWithParam<std::string> {};

/// Every tensor the file has an answer for, made to be written to.
struct Answers {
  const Safetensors& file;
  std::map<std::string, Tensor> ours;

  View wanted(const std::string& name) {
    const View theirs = file.find(name);
    if (!theirs) return {};
    Tensor tensor(DType::f64, theirs.sizes());
    for (std::int64_t i = 0; i < tensor.view().count(); ++i)
      tensor.data<double>()[i] = std::nan("");
    return ours.emplace(name, std::move(tensor)).first->second;
  }

  void compare() const {
    for (const auto& [name, tensor] : ours) {
      const std::vector<double> got = tensor.values();
      const std::vector<double> want = Tensor::copy(file.find(name), DType::f64).values();
      double largest = 0, error = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (std::isfinite(want[i])) largest = std::max(largest, std::abs(want[i]));
        const double apart = got[i] == want[i] ? 0 : std::abs(got[i] - want[i]);
        if (!(apart <= error) && !std::isnan(error)) error = apart;  // a NaN stays
      }
      EXPECT_LE(error, 1e-10 * largest) << name;
    }
  }
};

TEST_P(Golden, agrees_to_1e_10) {
  const Safetensors file(GetParam());
  const Inputs from = golden::inputs_of(file);
  const Options how = golden::options_of(file);
  Answers answers{file, {}};
  Outputs to;
  to.o = answers.wanted("o");
  to.lse = answers.wanted("lse");
  to.concentration = answers.wanted("concentration");
  to.effective_keys = answers.wanted("effective_keys");
  to.entropy = answers.wanted("entropy");
  to.metric = answers.wanted("metric");
  attend(to, from, how);
  Gradients back;
  back.d_o = file.find("do");
  back.dq = answers.wanted("dq");
  back.dk = answers.wanted("dk");
  back.dv = answers.wanted("dv");
  back.dv_prev = answers.wanted("dv_prev");
  back.dkey_bias = answers.wanted("dkey_bias");
  attend_backward(back, from, to, how);
  answers.compare();
}

std::string case_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden::files()), case_name);

}  // namespace
}  // namespace foci
