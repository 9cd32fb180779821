/* SPDX-License-Identifier: Apache-2.0 */
/* foci in C: the structs and calls of attention.hpp and decode.hpp, with errors as return values.
 * Zero-filled structs are valid: an all-zero view is absent, all-zero options are dot softmax
 * attention. Every function may be called from any thread; the last error is kept per thread. */
#ifndef FOCI_H
#define FOCI_H

#include <foci/export.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum foci_status {
  FOCI_OK = 0,
  FOCI_INVALID_ARGUMENT, /* the caller's mistake */
  FOCI_UNSUPPORTED,      /* this build or backend cannot */
  FOCI_NUMERICAL_ERROR,  /* a covariance that no ridge could factor */
  FOCI_OUT_OF_MEMORY,
  FOCI_FAILED /* anything else */
} foci_status;

/* One line about this thread's last failure; "" when there was none. Valid until the next call. */
FOCI_API const char* foci_last_error(void);
/* "major.minor.patch" */
FOCI_API const char* foci_version(void);

typedef enum foci_dtype {
  FOCI_F64,
  FOCI_F32,
  FOCI_BF16,
  FOCI_F16,
  FOCI_I64,
  FOCI_I32,
  FOCI_U8,
  FOCI_BOOL
} foci_dtype;

#define FOCI_MAX_RANK 5

/* Somebody's memory; rank 0 = absent; strides count elements. Inputs are never written through. */
typedef struct foci_view {
  void* data;
  foci_dtype dtype;
  int rank;
  int64_t shape[FOCI_MAX_RANK];
  int64_t strides[FOCI_MAX_RANK];
} foci_view;

/* Row-major memory of the given shape; an absent view when rank is not in 1..FOCI_MAX_RANK. */
FOCI_API foci_view foci_row_major(const void* data, foci_dtype dtype, int rank,
                                  const int64_t* shape);

/* Shapes: B batch, H query heads, G key heads, N queries, M keys, D head size, E value size. */
typedef struct foci_inputs {
  foci_view q;         /* (B,H,N,D) */
  foci_view k;         /* (B,G,M,D) */
  foci_view v;         /* (B,G,M,E) */
  foci_view v_prev;    /* (B,G,M,E) layer-change, flat */
  foci_view key_mask;  /* (B,M) bool, true = keep */
  foci_view key_bias;  /* (B,H,M) or (B,G,M) */
  foci_view metric;    /* given */
  foci_view q_offsets; /* (S+1) packed sequences */
  foci_view k_offsets; /* (S+1) */
} foci_inputs;

typedef struct foci_outputs {
  foci_view o;              /* (B,H,N,E) */
  foci_view lse;            /* (B,H,N) */
  foci_view concentration;  /* (B,H,N) */
  foci_view effective_keys; /* (B,H,N) */
  foci_view entropy;        /* (B,H,N) */
  foci_view largest;        /* (B,H,N) */
  foci_view largest_at;     /* (B,H,N) i64 */
  foci_view metric;         /* foci_metric_shape() */
  foci_view status;         /* that without (D,D), i32 */
  foci_view scale;          /* (B,G) */
} foci_outputs;

typedef struct foci_gradients {
  foci_view d_o; /* (B,H,N,E) in */
  foci_view dq, dk, dv, dv_prev, dmetric, dkey_bias;
} foci_gradients;

typedef enum foci_metric {
  FOCI_DOT,
  FOCI_LAYER_CHANGE,
  FOCI_FLAT,
  FOCI_JACOBIAN,
  FOCI_KEY_COVARIANCE,
  FOCI_RANDOM,
  FOCI_GIVEN
} foci_metric;
typedef enum foci_weighting {
  FOCI_SOFTMAX,
  FOCI_RELU2,
  FOCI_IDENTITY,
  FOCI_LINEAR,
  FOCI_DECAY
} foci_weighting;
typedef enum foci_form { FOCI_PRODUCT, FOCI_DISTANCE } foci_form;
typedef enum foci_reduce { FOCI_REDUCE_MEAN, FOCI_REDUCE_MEDIAN } foci_reduce;
typedef enum foci_normalize { FOCI_BY_MAX, FOCI_BY_MEAN, FOCI_BY_NONE } foci_normalize;
typedef enum foci_scope { FOCI_SCOPE_AUTOMATIC, FOCI_SCOPE_SEQUENCE, FOCI_SCOPE_PREFIX } foci_scope;
typedef enum foci_extent { FOCI_DIAGONAL, FOCI_FULL } foci_extent;
typedef enum foci_rescale {
  FOCI_RESCALE_LENGTH,
  FOCI_RESCALE_L1,
  FOCI_RESCALE_L2,
  FOCI_RESCALE_NONE
} foci_rescale;
typedef enum foci_feature { FOCI_ELU1, FOCI_RELU, FOCI_EXP } foci_feature;
typedef enum foci_scale_rule {
  FOCI_SCALE_STANDARD,
  FOCI_SCALE_NUMBER,
  FOCI_SCALE_MATCH_DOT
} foci_scale_rule;
typedef enum foci_metric_grad {
  FOCI_GRAD_STANDARD,
  FOCI_GRAD_DETACHED,
  FOCI_GRAD_THROUGH
} foci_metric_grad;
typedef enum foci_backend {
  FOCI_BACKEND_AUTOMATIC,
  FOCI_BACKEND_REF,
  FOCI_BACKEND_CPU,
  FOCI_BACKEND_CUDA
} foci_backend;

/* Only the fields of the chosen metric and weighting are looked at. Numbers marked * mean their
 * default when 0; foci_default_options() has every default written out. */
typedef struct foci_options {
  foci_metric metric;
  foci_form form;
  foci_reduce reduce;
  foci_normalize normalize;
  foci_scope scope;
  foci_extent extent;
  double ridge;   /* key-covariance: taken as it is; 1e-6 in foci_default_options() */
  double prior;   /* key-covariance: < 0 = the standard (0; D under prefix) */
  int64_t period; /* * key-covariance: 64 */
  double floor;   /* random: 0.1 in foci_default_options() */
  uint64_t seed;  /* random */
  int64_t layer;  /* random */
  foci_weighting weighting;
  foci_rescale rescale;
  foci_feature feature;
  double rate; /* * decay: 0.9 */
  int content; /* decay: 1 = times the score */
  foci_scale_rule scale_rule;
  double scale; /* with FOCI_SCALE_NUMBER */
  int causal;
  int allow_leak;
  foci_metric_grad metric_grad;
  foci_backend backend;
} foci_options;

FOCI_API foci_options foci_default_options(void);

typedef struct foci_executor foci_executor;
/* threads >= 1, 0 = one per core; NULL on failure. */
FOCI_API foci_executor* foci_executor_make(int threads);
FOCI_API void foci_executor_free(foci_executor* executor);

/* Workspace and threads; a NULL foci_call lets foci allocate and use the calling thread. */
typedef struct foci_call {
  void* workspace;
  size_t workspace_bytes;
  foci_executor* executor;
} foci_call;

/* NULL options = the defaults. */
FOCI_API foci_status foci_attend(const foci_outputs* to, const foci_inputs* from,
                                 const foci_options* how, const foci_call* call);
FOCI_API foci_status foci_attend_backward(const foci_gradients* to, const foci_inputs* from,
                                          const foci_outputs* saved, const foci_options* how,
                                          const foci_call* call);
/* Bytes of workspace for either call on `threads` threads. */
FOCI_API foci_status foci_need(size_t* bytes, const foci_inputs* from, const foci_options* how,
                               int threads);
/* Rank 0 for dot. */
FOCI_API foci_status foci_metric_shape(int* rank, int64_t shape[FOCI_MAX_RANK],
                                       const foci_inputs* from, const foci_options* how);

typedef struct foci_decoder foci_decoder;
typedef struct foci_decoder_sizes {
  int64_t B, H, G, D, E;
  int64_t capacity; /* most tokens it will ever hold */
  foci_dtype dtype;
} foci_decoder_sizes;

/* NULL on failure. Options must be causal. */
FOCI_API foci_decoder* foci_decoder_make(const foci_decoder_sizes* sizes, const foci_options* how);
FOCI_API foci_status foci_decoder_step(foci_decoder* decoder, const foci_outputs* to,
                                       const foci_inputs* tokens);
FOCI_API int64_t foci_decoder_length(const foci_decoder* decoder);
FOCI_API void foci_decoder_reset(foci_decoder* decoder);
FOCI_API void foci_decoder_free(foci_decoder* decoder);

#ifdef __cplusplus
}
#endif

#endif
