// SPDX-License-Identifier: Apache-2.0
// Each file includes only what its layer may see; and the checker that says so is itself checked on
// small trees with one fault each.
#include "house/layers.hpp"

#include <gtest/gtest.h>

namespace {

using house::File;
using house::Finding;
using house::Findings;

Findings check(std::vector<File> files) {
  for (const char* path :
       {"include/foci/export.h", "include/foci/tensor.hpp", "include/foci/attention.hpp",
        "include/foci/foci.h", "src/metric/fold.hpp", "src/ref/row.hpp", "src/cpu/tile.hpp",
        "src/attend/check.hpp", "cli/flags.hpp"}) {
    files.push_back({path, ""});
  }
  return house::check_layers(files);
}

TEST(Layers, TheRepositoryKeepsThem) {
  const auto files = house::read_tree(FOCI_SOURCE_DIR, {"src", "include", "cli", "examples"});
  const auto in_src = std::count_if(files.begin(), files.end(), [](const File& f) {
    return f.path.starts_with("src/") && !house::includes_of(f).empty();
  });
  EXPECT_GT(in_src, 10);
  const auto found = house::check_layers(files);
  EXPECT_TRUE(found.empty()) << to_string(found);
}

TEST(Layers, LookingDownIsFine) {
  EXPECT_EQ(
      check({{"src/attend/attend.cpp",
              "#include \"attend/check.hpp\"\n#include \"check.hpp\"\n"
              "#include \"ref/row.hpp\"\n#include <foci/attention.hpp>\n"
              "#include <fmt/format.h>\n#include <vector>\n"},
             {"src/ref/softmax.hpp", "#include \"metric/fold.hpp\"\n#include <foci/tensor.hpp>\n"},
             {"src/safetensors/reader.cpp",
              "#include <nlohmann/json.hpp>\n#include <sys/mman.h>\n#include <foci/tensor.hpp>\n"},
             {"cli/main.cpp",
              "#include \"flags.hpp\"\n#include \"cli/flags.hpp\"\n#include <CLI/CLI.hpp>\n"
              "#include <foci/attention.hpp>\n#include <foci/version.h>\n"}}),
      Findings{});
}

struct Fault {
  const char* name;
  const char* path;
  const char* text;
  const char* what;
};

class Planted : public testing::TestWithParam<Fault> {};

TEST_P(Planted, IsFound) {
  const auto& fault = GetParam();
  EXPECT_EQ(check({{fault.path, std::string("\n") + fault.text}}),
            (Findings{{fault.path, 2, fault.what}}));
}

INSTANTIATE_TEST_SUITE_P(
    Layers, Planted,
    testing::Values(
        Fault{"up", "src/metric/a.hpp", "#include \"ref/row.hpp\"", "metric is not above ref"},
        Fault{"sideways", "src/ref/a.hpp", "#include \"cpu/tile.hpp\"", "ref is not above cpu"},
        Fault{"relative", "src/ref/a.hpp", "#include \"../attend/check.hpp\"",
              "ref is not above attend"},
        Fault{"public_up", "src/ref/a.hpp", "#include <foci/attention.hpp>",
              "ref is not above attend"},
        Fault{"torch", "src/attend/a.cpp", "#include <ATen/core/Tensor.h>",
              "attend does not use torch"},
        Fault{"c10", "src/tensor/a.cpp", "# include <c10/util/Half.h>",
              "tensor does not use torch"},
        Fault{"json_in_ref", "src/ref/a.cpp", "#include <nlohmann/json.hpp>",
              "ref does not use nlohmann"},
        Fault{"fmt_in_tensor", "src/tensor/a.cpp", "#include <fmt/format.h>",
              "tensor does not use fmt"},
        Fault{"cuda_in_ref", "src/ref/a.cpp", "#include <cuda_runtime.h>", "ref does not use cuda"},
        Fault{"command_inside", "cli/a.cpp", "#include \"attend/check.hpp\"",
              "cli sees only <foci/...>, not src/attend/check.hpp"},
        Fault{"command_torch", "cli/a.cpp", "#include <torch/torch.h>", "cli does not use torch"},
        Fault{"example_inside", "examples/a.cpp", "#include \"../src/ref/row.hpp\"",
              "examples sees only <foci/...>, not src/ref/row.hpp"},
        Fault{"header_private", "include/foci/metric.hpp", "#include \"../../src/ref/row.hpp\"",
              "a public header includes public headers only"},
        Fault{"header_package", "include/foci/safetensors.hpp", "#include <nlohmann/json.hpp>",
              "a public header does not know nlohmann"},
        Fault{"header_up", "include/foci/call.hpp", "#include <foci/attention.hpp>",
              "metric is not above attend"},
        Fault{"c_header", "include/foci/foci.h", "#include <foci/tensor.hpp>",
              "a C header includes C headers only"},
        Fault{"nowhere", "src/ref/a.cpp", "#include \"metric/gone.hpp\"",
              "metric/gone.hpp is not in this repository"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Layers, AnUnknownFolderIsFound) {
  EXPECT_EQ(check({{"src/tools/a.cpp", "#include <vector>\n"}}),
            (Findings{{"src/tools/a.cpp", 0, "tools is in no known layer"}}));
}

}  // namespace
