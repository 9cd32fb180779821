/* SPDX-License-Identifier: Apache-2.0 */
/* A user's smallest C program: three tensors in, one out, and an error read as text. */
#include <foci/foci.h>
#include <foci/version.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const float q[] = {1, 0}, k[] = {1, 0, 0, 1}, v[] = {1, 0};
  const int64_t one_query[] = {1, 1, 1, 2}, two_keys[] = {1, 1, 2, 2}, two_values[] = {1, 1, 2, 1};
  const int64_t one_value[] = {1, 1, 1, 1};
  const double want = 1 / (1 + exp(-sqrt(0.5)));
  float o = 0;
  foci_inputs from;
  foci_outputs to;
  memset(&from, 0, sizeof from);
  memset(&to, 0, sizeof to);
  to.o = foci_row_major(&o, FOCI_F32, 4, one_value);
  if (foci_attend(&to, &from, NULL, NULL) != FOCI_INVALID_ARGUMENT) {
    fprintf(stderr, "attention without tensors was not refused\n");
    return 1;
  }
  printf("foci %s refused: %s\n", foci_version(), foci_last_error());

  from.q = foci_row_major(q, FOCI_F32, 4, one_query);
  from.k = foci_row_major(k, FOCI_F32, 4, two_keys);
  from.v = foci_row_major(v, FOCI_F32, 4, two_values);
  if (foci_attend(&to, &from, NULL, NULL) != FOCI_OK) {
    fprintf(stderr, "%s\n", foci_last_error());
    return 1;
  }
  if (fabs(o - want) > 1e-6) {
    fprintf(stderr, "o is %g, not %g\n", o, want);
    return 1;
  }
  return strcmp(foci_version(), FOCI_VERSION) != 0;
}
