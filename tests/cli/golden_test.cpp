// SPDX-License-Identifier: Apache-2.0
// Every golden file through the real command with the flags in its metadata: outputs, statistics,
// metric and gradients within 1e-10 of the largest value of each tensor; and through foci check on
// backend cpu in every type.
#include "cli/command.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

namespace {

using namespace cli_test;

constexpr double tolerance = 1e-10;

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_folder)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Words flags_of(const foci::Safetensors& file) {
  Words words;
  const auto options = nlohmann::json::parse(file.metadata().at("options"));
  for (const auto& [name, value] : options.items()) {
    if (value == false) continue;
    words.push_back("--" + name);
    if (value != true) words.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  }
  return words;
}

/// Largest |a - b| over the largest finite |b|; infinite where only one of them is.
double relative_distance(const foci::Tensor& a, const foci::Tensor& b) {
  const auto ours = a.values(), theirs = b.values();
  if (ours.size() != theirs.size()) return std::numeric_limits<double>::infinity();
  double most = 0, scale = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (std::isfinite(theirs[i])) scale = std::max(scale, std::abs(theirs[i]));
    if (ours[i] == theirs[i]) continue;
    const double gap = std::abs(ours[i] - theirs[i]);
    most = std::max(most, std::isnan(gap) ? std::numeric_limits<double>::infinity() : gap);
  }
  return most == 0 ? 0 : most / scale;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, TheCommandGivesTheAnswers) {
  const std::string in = golden_folder + "/" + GetParam() + ".safetensors";
  const std::string out = folder().file("out.safetensors");
  const foci::Safetensors golden(in);
  const Ran ran =
      run_foci(Words{"attend", "--in", in, "--out", out, "--backend", "ref", "--dtype", "f64"} +
               flags_of(golden));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const foci::Safetensors answer(out);
  const std::set<std::string> inputs = {"q", "k", "v", "v_prev", "key_mask", "key_bias", "do"};
  int compared = 0;
  for (const std::string& name : golden.names()) {
    if (inputs.contains(name)) continue;
    ASSERT_TRUE(answer.contains(name)) << name << " is not in the output";
    const foci::View ours = answer.find(name), theirs = golden.find(name);
    EXPECT_EQ(ours.dtype, foci::DType::f64) << name;
    EXPECT_TRUE(std::ranges::equal(ours.sizes(), theirs.sizes())) << name;
    EXPECT_LE(relative_distance(foci::Tensor::copy(ours, foci::DType::f64),
                                foci::Tensor::copy(theirs, foci::DType::f64)),
              tolerance)
        << name;
    ++compared;
  }
  EXPECT_GE(compared, 6);
}

TEST_P(Golden, TheCommandChecksBackendCpu) {
  const std::string in = golden_folder + "/" + GetParam() + ".safetensors";
  const Words flags = flags_of(foci::Safetensors(in));
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    const Ran ran =
        run_foci(Words{"check", "--in", in, "--backend", "cpu", "--dtype", dtype} + flags);
    EXPECT_EQ(ran.status, 0) << dtype << "\n" << ran.out << ran.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Golden, AllFilesAreThere) { EXPECT_EQ(golden_names().size(), 53u); }

TEST(Golden, ADifferenceWouldBeSeen) {
  const foci::Tensor a = numbers({3, 4});
  foci::Tensor b = foci::Tensor::copy(a, foci::DType::f32);
  EXPECT_EQ(relative_distance(a, b), 0);
  b.data<float>()[5] += 1e-3f;
  EXPECT_GT(relative_distance(a, b), 1e-4);
  b.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(relative_distance(a, b)));
}

}  // namespace
