/* SPDX-License-Identifier: Apache-2.0 */
/* The same library from C: attention with the inverse covariance of the keys, forward and backward.
 */
#include <foci/foci.h>

#include <stdio.h>

enum { H = 2, N = 12, D = 3 };

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, foci_last_error());
  return 1;
}

int main(void) {
  static float q[H * N * D], k[H * N * D], v[H * N * D], o[H * N * D], d_o[H * N * D],
      dk[H * N * D];
  float keys[H * N];
  for (int i = 0; i < H * N * D; ++i) {
    q[i] = (float)((7 * i) % 11) / 5.0f - 1.0f;
    k[i] = (float)((5 * i) % 13) / 6.0f - 1.0f;
    v[i] = (float)(i % 5);
    d_o[i] = 1.0f;
  }
  const int64_t shape[4] = {1, H, N, D};

  foci_inputs from = {0};
  from.q = foci_row_major(q, FOCI_F32, 4, shape);
  from.k = foci_row_major(k, FOCI_F32, 4, shape);
  from.v = foci_row_major(v, FOCI_F32, 4, shape);
  foci_outputs to = {0};
  to.o = foci_row_major(o, FOCI_F32, 4, shape);
  to.effective_keys = foci_row_major(keys, FOCI_F32, 3, shape);

  foci_options how = foci_default_options();
  how.metric = FOCI_KEY_COVARIANCE;
  how.ridge = 1e-3;
  if (foci_attend(&to, &from, &how, NULL) != FOCI_OK) return failed("foci_attend");

  foci_gradients back = {0};
  back.d_o = foci_row_major(d_o, FOCI_F32, 4, shape);
  back.dk = foci_row_major(dk, FOCI_F32, 4, shape);
  if (foci_attend_backward(&back, &from, &to, &how, NULL) != FOCI_OK)
    return failed("foci_attend_backward");

  printf("o[0] = %.4f, dk[0] = %.4f\n", o[0], dk[0]);
  printf("query 0 uses %.1f of %d keys\n", keys[0], (int)N);
  return 0;
}
