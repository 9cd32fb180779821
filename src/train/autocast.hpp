// SPDX-License-Identifier: Apache-2.0
// Matrix products and attention in bf16 for as long as it lives: torch's autocast, whose names
// changed between the versions that foci is built with.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace foci::train {

class Autocast {
 public:
  Autocast(bool wanted, c10::DeviceType device) : device_(device), was_(is_on()) {
    if (wanted == was_) return;
    set(wanted);
    set_type();
  }
  ~Autocast() {
    if (is_on() == was_) return;
    at::autocast::clear_cache();  // weights in bf16, which the optimiser makes stale
    set(was_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
#if TORCH_VERSION_MAJOR >= 2
  bool is_on() const { return at::autocast::is_autocast_enabled(device_); }
  void set(bool on) const { at::autocast::set_autocast_enabled(device_, on); }
  void set_type() const { at::autocast::set_autocast_dtype(device_, at::kBFloat16); }
#else
  bool on_cpu() const { return device_ == c10::DeviceType::CPU; }
  bool is_on() const {
    return on_cpu() ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
  }
  void set(bool on) const {
    on_cpu() ? at::autocast::set_cpu_enabled(on) : at::autocast::set_enabled(on);
  }
  void set_type() const {
    on_cpu() ? at::autocast::set_autocast_cpu_dtype(at::kBFloat16)
             : at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
  }
#endif
  c10::DeviceType device_;
  bool was_;
};

}  // namespace foci::train
