// SPDX-License-Identifier: Apache-2.0
// What a measurement was made on: the processor, its cores, and the commit that was built.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace foci::cli {

std::string this_host();
std::string cpu_model();
int cpu_cores();  ///< that this process may use
/// "Intel(R) Xeon(R) ..., 2 cores"
std::string machine_text();
/// The same behind the name of the GPU, where there is one: "NVIDIA H200; Intel ..., 16 cores".
std::string gpu_machine_text();
/// The same, asked in a process of its own, once: where CUDA was asked anything, a fork cannot use
/// it.
std::string gpu_machine_text_apart();
/// What cmake was told, -DFOCI_COMMIT=NAME, or `git describe` when this was configured, "unknown"
/// outside a checkout.
std::string commit_text();
/// Instruction sets of this processor that kernels care about.
std::vector<std::string> instruction_sets();

/// The folder of the running program; empty when Linux does not say.
std::string program_folder();

/// The most memory this process had resident while `task` ran, everything it holds counted; nothing
/// where Linux does not let a process begin that count anew.
std::optional<std::size_t> peak_resident(const std::function<void()>& task);

}  // namespace foci::cli
