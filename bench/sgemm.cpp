// SPDX-License-Identifier: Apache-2.0
// The machine's own rate of matrix multiplication: OpenBLAS sgemm of two square matrices, in a
// process of its own so that its threads are never ours. Usage: sgemm THREADS [SIZE]. Says one line
// about itself, then answers every line it reads with the seconds of one run; ends with its input.
#include <cblas.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int usual_size = 2048;

/// Numbers in [-0.5, 0.5) that a reader can work out again.
float number(std::size_t i) { return float((i * 2654435761u >> 8) % 4096) / 4096.0f - 0.5f; }

class Product {
 public:
  explicit Product(int size) : size_(size) {
    const std::size_t count = std::size_t(size) * std::size_t(size);
    a_.resize(count);
    b_.resize(count);
    c_.resize(count);
    for (std::size_t i = 0; i < count; ++i) a_[i] = number(i);
    for (std::size_t i = 0; i < count; ++i) b_[i] = number(i + count);
  }

  double seconds() {
    const auto begin = std::chrono::steady_clock::now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size_, size_, size_, 1.0f, a_.data(),
                size_, b_.data(), size_, 0.0f, c_.data(), size_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  /// One row of the product against sums in double.
  bool is_right() const {
    const std::size_t n = std::size_t(size_), row = n / 2;
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t d = 0; d < n; ++d) sum += double(a_[row * n + d]) * double(b_[d * n + j]);
      if (!(std::abs(sum - double(c_[row * n + j])) < 1e-6 * double(n))) return false;
    }
    return true;
  }

 private:
  int size_;
  std::vector<float> a_, b_, c_;  // (size,size)
};

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 0;
  const int size = count > 2 ? std::atoi(arguments[2]) : usual_size;
  if (threads < 1 || size < 1 || count > 3) {
    std::fprintf(stderr, "usage: sgemm THREADS [SIZE]\n");
    return 2;
  }
  openblas_set_num_threads(threads);
  Product product(size);
  product.seconds();
  if (!product.is_right()) {
    std::printf("{\"error\": \"OpenBLAS gives a wrong product\"}\n");
    return 1;
  }
  const std::string config = openblas_get_config();
  const std::string version = config.substr(0, config.find(' ', config.find(' ') + 1));
  std::printf("{\"sgemm\": {\"what\": \"%s, %s kernels, threads: %d, %d^3\", \"flops\": %.0f}}\n",
              version.c_str(), openblas_get_corename(), openblas_get_num_threads(), size,
              2.0 * size * size * size);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::printf("{\"seconds\": %.9f}\n", product.seconds());
    std::fflush(stdout);
  }
  return 0;
}
