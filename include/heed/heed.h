/* libheed: scaled-dot-product attention as a C library.
 *
 *     O = softmax(scale * Q K^T + mask) V        for every batch entry and query head
 *
 * A problem is described once, a plan is made of it, and the plan is run as often as there are tensors:
 *
 *     heed_problem problem;
 *     heed_problem_init(&problem);
 *     problem.device_type = HEED_CUDA;
 *     problem.heads = problem.heads_kv = 8;  problem.len_q = problem.len_k = 512;  problem.dim = problem.dim_v = 64;
 *     heed_plan* plan = NULL;
 *     if (heed_plan_create(&problem, NULL, &plan) != HEED_OK) puts(heed_last_error());
 *     heed_plan_prepare(plan, workspace, stream);                      once for a workspace
 *     heed_plan_run(plan, &tensors, workspace, stream);                as often as wanted
 *     heed_plan_destroy(plan);
 *
 * No exception leaves the library. Every function that can fail returns a heed_status; heed_last_error() then says in a
 * sentence what was wrong and what would be right. Structs begin with their size, which their _init function sets, so
 * that a library can tell which version of a struct a caller was compiled with.
 */
#ifndef HEED_HEED_H
#define HEED_HEED_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HEED_API __attribute__((visibility("default")))
#else
#define HEED_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HEED_ABI_VERSION 5

/* NOLINTBEGIN(modernize-use-using): C has no other */

typedef enum heed_status {
  HEED_OK = 0,
  HEED_INVALID_ARGUMENT = 1, /* a null or misaligned pointer, a struct of another size, a plan that was destroyed */
  HEED_INVALID_PROBLEM = 2,  /* a problem that no attention can have: heads that do not divide, a negative length */
  HEED_UNSUPPORTED = 3,      /* a valid problem that no program of this library runs on this device */
  HEED_NO_DEVICE = 4,        /* no driver, no GPU, or none of that number */
  HEED_BAD_PROGRAMS = 5,     /* a file of programs that is missing, truncated, altered, or of another version */
  HEED_DRIVER_ERROR = 6,     /* the CUDA driver refused a call */
  HEED_OUT_OF_MEMORY = 7,
  HEED_INTERNAL = 8 /* a broken invariant of the library itself */
} heed_status;

typedef enum heed_device_type { HEED_CPU = 0, HEED_CUDA = 1 } heed_device_type;

/* Element types. Sums are fp32 and the log-sum-exp is fp32, whatever the elements are. Those of 8 bits are for Q, K and
 * V alone, with HEED_SCALED; e4m3 and e5m2 are those of the OCP 8-bit Floating Point Specification, e4m3 without
 * infinities. HEED_BOOL is for biases alone. */
typedef enum heed_dtype {
  HEED_FP16 = 0,
  HEED_BF16 = 1,
  HEED_FP32 = 2,
  HEED_FP8_E4M3 = 3,
  HEED_FP8_E5M2 = 4,
  HEED_INT8 = 5,
  HEED_BOOL = 6 /* one byte, of a bias alone: 0 hides the score */
} heed_dtype;

/* Which keys a query sees, by bounds around the query's own key: key i for query i where the mask is aligned to the top
 * left, key i + (len_k - len_q) where it is aligned to the bottom right. Where entries of a batch have lengths of their
 * own, these are the entry's. */
typedef enum heed_mask {
  HEED_MASK_NONE = 0,
  HEED_MASK_CAUSAL_TOP_LEFT = 1,     /* keys up to the own one: PyTorch's is_causal=True */
  HEED_MASK_CAUSAL_BOTTOM_RIGHT = 2, /* the same: FlashAttention's causal=True */
  HEED_MASK_WINDOW_TOP_LEFT = 3,     /* window_left keys before the own one and window_right after it */
  HEED_MASK_WINDOW_BOTTOM_RIGHT = 4  /* the same: FlashAttention's window_size */
} heed_mask;

/* Strides of a tensor (batch, head, length, dim), in elements, none negative. All zero: dense in that order, or, of
 * ragged tensors, as (length, head, dim). */
typedef struct heed_strides {
  int64_t batch;
  int64_t head;
  int64_t row;
  int64_t dim;
} heed_strides;

/* What else a problem asks for: heed_problem.flags. A score goes through, in this order (as in FlashAttention-3 and in
 * Transformers):
 *
 *     s = scale * q.k       softcap * tanh(s / softcap)       s + bias       s + table[bucket of key - own key]
 *
 *     s - slope |own key - key|       the mask
 *
 * and a sink is one more score of each row. A row that sees no key is zeros; its log-sum-exp is -infinity, or its sink.
 * Dropout (heed_problem.dropout) sets probabilities to zero, after the softmax, and divides the others by the
 * probability of keeping one; row sums and log-sum-exps are those without.
 *
 * A row of O may then be normed, o / sqrt(mean of its o^2 + eps) * weight, and after that multiplied by the sigmoid of
 * a gate, both in fp32 and before it is rounded to dtype_o. Log-sum-exps are those without.
 */
#define HEED_WANTS_LSE (1u << 0) /* the log-sum-exp of each row is written, as fp32 and natural log */
/* A tensor of dtype_bias and bias_strides is added to the scores. What is -infinity or not above the most negative
 * finite number of its dtype hides a score, and so does 0 in one of HEED_BOOL. Times log2(e) numbers leave fp32 at
 * 2.36e38: what is at or below -2.36e38 hides a score too, and from 2.36e38 on a row is NaN. */
#define HEED_HAS_BIAS (1u << 1)
#define HEED_HAS_SINKS (1u << 2) /* a score of each query head joins the softmax of its rows, without a value */
/* Entries have lengths of their own, and their rows follow each other in one tensor, without a dimension of the batch:
 * Q and O are (total_q, heads, ..), K and V (total_k, heads_kv, ..), lse is (heads, total_q). Entry b has the rows
 * [cu_seqlens_q[b], cu_seqlens_q[b + 1]) and [cu_seqlens_k[b], cu_seqlens_k[b + 1]), which must lie in the tensors;
 * len_q and len_k are the most that one has, and what an entry has beyond them, or below 0, is not computed. With
 * HEED_PAGED queries alone are ragged, and HEED_KEY_LENGTHS says how many keys an entry has. */
#define HEED_RAGGED (1u << 3)
/* K and V lie in `pages` pages: K is (pages, heads_kv, page_size, dim), V (pages, heads_kv, page_size, dim_v), and the
 * batch strides are from page to page. Key j of entry b is row j % page_size of page page_table[b, j / page_size]. A
 * number of a page that there is not counts as the nearest there is. */
#define HEED_PAGED (1u << 4)
/* Those of Q, K and V that are HEED_FP8_E4M3, HEED_FP8_E5M2 or HEED_INT8 are quantised: a number is element times scale
 * factor, of the place that q_scales, k_scales and v_scales give it. Factors are fp32, positive and finite: a CPU's
 * plan refuses a run with others, on a GPU what rows see of them shows in O. Those of keys that no row sees may be NaN.
 */
#define HEED_SCALED (1u << 5)
/* Scores are biased by -slope * |own key - key|, a slope each query head; the own key of query i is i + (len_k - len_q)
 * whatever the mask. Press et al., arXiv 2108.12409. */
#define HEED_HAS_ALIBI (1u << 6)
#define HEED_ALIBI_BY_BATCH (1u << 7) /* with it: a slope each batch entry and query head */
/* Entry b uses its first seqused_k[b] keys alone: at most len_k, and less than 0 counts as 0. Not with HEED_RAGGED,
 * unless keys lie in pages. */
#define HEED_KEY_LENGTHS (1u << 8)
/* Rows see listed blocks of keys alone, and of these what mask and bias leave: row i of an entry sees key j where j /
 * block_keys is one of the first block_counts[b, h, r] numbers of block_indices[b, h, r, ..], with r = i / block_rows.
 * As FlexAttention's kv_num_blocks and kv_indices. Numbers come in any order, each once; in the order of keys, blocks
 * that a causal mask hides cost nothing. One that no block of the entry's keys has shows nothing, and a count beyond
 * block_most, or below 0, counts as the nearest. Blocks that no list has are not read. */
#define HEED_HAS_BLOCKS (1u << 9)
/* With HEED_HAS_BIAS, a number of a list with this added stands for the same block, where the bias shows all scores as
 * they are: it need not be read there. FlexAttention's full_kv_indices, in one list with the others. */
#define HEED_FULL_BLOCK (1 << 30)
/* Rows of entry b also see, of its keys before prefix_lengths[b], those that the mask's right bound hides: with a
 * causal mask a prefix LM. Less than 0 counts as 0, and more than the entry's keys as all of them. */
#define HEED_HAS_PREFIX (1u << 10)
/* Scores are biased by the bucket of the distance from the own key of the query, i + (len_k - len_q) for query i, to
 * the key: a table (heads, relative_buckets), as in T5 (Raffel et al., arXiv 1910.10683). Buckets are those of
 * _relative_position_bucket of Transformers: of a side, half have a distance each, the others grow with its logarithm
 * up to relative_max_distance, and the last has all beyond. */
#define HEED_HAS_RELATIVE_BIAS (1u << 11)
#define HEED_RELATIVE_PAST (1u << 12) /* with it: the table is of the past, keys after the own one count as it */
/* Rows of O are multiplied by the sigmoid of a tensor of gates of dtype_o, by out_gate_strides: with `dim` 1 of
 * (batch, heads, len_q, dim_v), with `dim` 0 a gate each row of a head; ragged as O. As in gated attention, arXiv
 * 2505.06708. */
#define HEED_HAS_OUT_GATE (1u << 13)
/* Rows of O have an RMS norm, with out_norm_eps and weights in fp32. As the norms of heads in RetNet (arXiv 2307.08621)
 * and Differential Transformer (arXiv 2410.05258). A row of zeros stays one. */
#define HEED_HAS_OUT_NORM (1u << 14)
#define HEED_OUT_NORM_BY_HEAD (1u << 15) /* with it: weights each query head; else heads share them */

/* Where the scale factors of a quantised tensor (batch, heads, rows, dim) lie, strides in numbers: that of element
 * (b, h, r, d) is number b * batch + h * head + r / rows * row + d * dim. A stride of 0 shares factors:
 *
 *     a factor for      batch  head  row  dim  rows      dense strides
 *     all of it         0      0     0    0    0 or 1
 *     each head         x      x     0    0    0 or 1    (heads, 1)              batch = 0: of all entries alike
 *     B rows each       x      x     x    0    B         (heads * n, n, 1)       n = ceil(rows / B); B up to 2^20
 *     each row          x      x     x    0    1         (heads * rows, rows, 1)
 *     each column of V  x      x     0    1    0 or 1    (heads_kv * dim_v, dim_v, 0, 1)
 *
 * Of ragged tensors factors of rows are each row's (rows = 1) of the one tensor, and `batch` is 0. Of pages factors of
 * rows are a page's: `batch` is from page to page and r counts from the begin of the page; others are an entry's. */
typedef struct heed_scales {
  int64_t batch;
  int64_t head;
  int64_t row; /* from one block of `rows` rows to the next */
  int64_t dim;
  int64_t rows; /* of a block */
} heed_scales;

typedef struct heed_problem {
  uint32_t struct_size; /* sizeof(heed_problem) */
  uint32_t abi_version; /* HEED_ABI_VERSION */
  int32_t device_type;  /* heed_device_type */
  int32_t device;       /* ordinal of the GPU, as the CUDA driver counts them; 0 on a CPU */
  int64_t batch;
  int64_t heads;    /* of Q and O; a multiple of heads_kv: query head h reads key head h / (heads / heads_kv) */
  int64_t heads_kv; /* of K and V */
  int64_t len_q;    /* the most that an entry has, where they have lengths of their own */
  int64_t len_k;
  int64_t dim;     /* of Q and K */
  int64_t dim_v;   /* of V and O */
  int32_t dtype_q; /* heed_dtype: that of O, or with HEED_SCALED one of 8 bits; so dtype_k and dtype_v */
  int32_t dtype_k;
  int32_t dtype_v;
  int32_t dtype_o;
  int32_t mask;         /* heed_mask */
  int32_t dtype_bias;   /* with HEED_HAS_BIAS: HEED_FP16, HEED_BF16, HEED_FP32 or HEED_BOOL */
  int64_t window_left;  /* keys before the own one, -1 for all; also of causal masks */
  int64_t window_right; /* keys after it, -1 for all; of window masks alone */
  double scale;         /* of Q K^T; 0 for 1 / sqrt(dim) */
  double softcap;       /* scores become softcap * tanh(score / softcap), 1e-30 to 1e30; 0 for none */
  double dropout;       /* the probability that a probability is dropped, 0 to 1; 0 for none */
  double out_norm_eps;  /* with HEED_HAS_OUT_NORM: positive, 1e-30 to 1e30; else 0 */
  heed_strides q_strides;
  heed_strides k_strides;
  heed_strides v_strides;
  heed_strides o_strides;
  heed_strides bias_strides; /* of (batch, heads, len_q, len_k), `dim` from key to key; 0: all share it */
  int64_t total_q;           /* with HEED_RAGGED: rows of Q and O, at least len_q */
  int64_t total_k;           /* with HEED_RAGGED: rows of K and V, at least len_k; 0 where they lie in pages */
  int64_t page_size;         /* with HEED_PAGED: keys of a page, at most 2^20 */
  int64_t pages;             /* with HEED_PAGED: of K, and of V */
  int64_t page_table_stride; /* with HEED_PAGED: numbers from one entry of the page table to the next; 0: as many as
                              * len_k keys take */
  int64_t block_rows;        /* with HEED_HAS_BLOCKS: rows of a block, 64 or 128 */
  int64_t block_keys;        /* with HEED_HAS_BLOCKS: keys of a block, 64 or 128 */
  int64_t block_most;        /* with HEED_HAS_BLOCKS: numbers that a list has room for, 1 to 2^24 */
  heed_strides block_count_strides; /* of (batch, heads, blocks of rows), `dim` 0; 0: all share them */
  heed_strides block_index_strides; /* of (batch, heads, blocks of rows, block_most), `dim` 1; 0 as above */
  int64_t relative_buckets;      /* with HEED_HAS_RELATIVE_BIAS: 4 to 1024, even; with HEED_RELATIVE_PAST 2 to 1024 */
  int64_t relative_max_distance; /* with HEED_HAS_RELATIVE_BIAS: at most 2^16 */
  heed_scales q_scales;          /* with HEED_SCALED: of those tensors that are quantised; else 0 */
  heed_scales k_scales;
  heed_scales v_scales;
  heed_strides out_gate_strides; /* with HEED_HAS_OUT_GATE: in elements, 0: shared; else 0 */
  uint32_t flags;
  uint32_t reserved_flags; /* 0 */
  uint64_t reserved[8];    /* 0 */
} heed_problem;

/* Addresses of one run: of the GPU's memory, or the host's on a CPU. Those of tensors that the problem does not have
 * are null. On a GPU Q, K, V and O begin at a multiple of 16 bytes, the others at one of their elements' size. O and
 * lse overlap no other tensor. */
typedef struct heed_tensors {
  uint32_t struct_size; /* sizeof(heed_tensors) */
  uint32_t reserved_flags;
  const void* q;                 /* (batch, heads, len_q, dim); ragged (total_q, heads, dim) */
  const void* k;                 /* (batch, heads_kv, len_k, dim); ragged (total_k, heads_kv, dim); pages of it */
  const void* v;                 /* (batch, heads_kv, len_k, dim_v), as k */
  void* o;                       /* (batch, heads, len_q, dim_v), as q; a row that sees no key is zeros, and one that no
                                  * entry has may be overwritten */
  float* lse;                    /* (batch, heads, len_q), ragged (heads, total_q), dense; of such a row -infinity, or
                                  * its sink; not written without HEED_WANTS_LSE */
  const void* bias;              /* (batch, heads, len_q, len_k), by bias_strides; entries count from their own rows */
  const float* sinks;            /* (heads), natural logarithms */
  const float* alibi_slopes;     /* (heads), or (batch, heads) with HEED_ALIBI_BY_BATCH */
  const int32_t* cu_seqlens_q;   /* (batch + 1) */
  const int32_t* cu_seqlens_k;   /* (batch + 1); null where keys lie in pages */
  const int32_t* seqused_k;      /* (batch) */
  const int32_t* page_table;     /* (batch, pages of len_k keys), by page_table_stride */
  const int32_t* block_counts;   /* (batch, heads, blocks of rows), by block_count_strides */
  const int32_t* block_indices;  /* (batch, heads, blocks of rows, block_most), by block_index_strides */
  const int32_t* prefix_lengths; /* (batch) */
  const float* relative_bias;    /* (heads, relative_buckets) */
  const float* q_scale;          /* by q_scales, of a quantised Q, else null */
  const float* k_scale;
  const float* v_scale;
  const void* out_gate;         /* (batch, heads, len_q, dim_v), ragged (total_q, heads, dim_v), by out_gate_strides */
  const float* out_norm_weight; /* (dim_v), or (heads, dim_v) with HEED_OUT_NORM_BY_HEAD */
  /* Of problems with dropout, else 0: with batch entry, head, row and key they say what is dropped, in every program
   * alike, as FlashAttention-2 does. */
  uint64_t dropout_seed;
  uint64_t dropout_offset;
  int32_t dropout_first_entry; /* what the first batch entry counts as, 0 or more: of a batch in parts, where each is */
  int32_t reserved_dropout;    /* 0 */
  uint64_t reserved[8];        /* 0 */
} heed_tensors;

/* Whether NVRTC builds, on this machine, the program that the rule names for the very problem where no file has it. It
 * takes seconds of a processor; what was built is kept and taken by every later plan of every process. */
typedef enum heed_build {
  HEED_BUILD_OFF = 0,
  HEED_BUILD_BACKGROUND = 1, /* a plan takes the best program that is there, later plans take the one that was built */
  HEED_BUILD_WAIT = 2        /* heed_plan_create waits for it; without NVRTC it takes the best that is there */
} heed_build;
/* What a GPU's plan asks of the L2: nothing, or that K and V, which many launches share, stay in it from launch to
 * launch, by an access-policy window (CUDA C++ Programming Guide, "L2 Cache Control"). As much may stay as the caller's
 * context sets aside, cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE) before the plan is made;
 * cuCtxResetPersistingL2Cache releases it. */
typedef enum heed_l2 { HEED_L2_DEFAULT = 0, HEED_L2_KEEP_KV = 1 } heed_l2;
/* Whether each run looks at a boolean mask, or at a bias, once by blocks of 64 rows and 64 keys, and lists those that
 * it leaves (HEED_HAS_BLOCKS), so that no other is read or computed, and the bias is not read where it shows all scores
 * as they are. What heads, entries or rows share of the tensor by a stride of 0 is looked at once. Lists lie in the
 * workspace. Of problems with lists of their own, and of a named variant, none are made. */
typedef enum heed_listing {
  HEED_LIST_AUTO = 0,  /* of 256 rows and 512 keys or more; of numbers that are added only where heads share them */
  HEED_LIST_OFF = 1,   /* none */
  HEED_LIST_ALWAYS = 2 /* of any sizes, wherever a program takes lists */
} heed_listing;
/* Calls task(argument, index) once for every index from 0 to tasks - 1, one after another or several at a time, on any
 * threads, and returns when all have ended. It lets no exception out; tasks let none out and wait for nothing. */
typedef void (*heed_parallel_for)(void* context, int tasks, void (*task)(void* argument, int index), void* argument);

/* How a plan is made. Null pointers and zeros stand for the library's own choice. */
typedef struct heed_options {
  uint32_t struct_size; /* sizeof(heed_options) */
  int32_t threads;      /* that share a CPU plan's work, at most 4096; 0: as many as this process has processors */
  const char*
      programs;        /* a file of programs to choose from instead of the library's own; HEED_PROGRAMS names another */
  const char* variant; /* "family:knob=value,..." or "auto": this one alone */
  const void* image;   /* its binary: a cubin, or on a CPU a shared object; else it is looked for among the programs */
  size_t image_bytes;
  int32_t build;    /* heed_build; on a CPU nothing is built */
  int32_t debug;    /* 1, or HEED_DEBUG=1 in the environment: each run checks that cu_seqlens, seqused_k and page_table
                     * fit, and that no value is lost where a `precision` quantises it, O written, and fails with
                     * HEED_INVALID_ARGUMENT. A GPU's run waits for its stream then, which must not be captured */
  const char* book; /* a book of champions (heed book), which comes before the programs; "" for none. Null: the one
                     * that HEED_BOOK names, else that of $XDG_DATA_HOME/heed or ~/.local/share/heed if there is one */
  heed_parallel_for parallel_for; /* runs a CPU plan as `threads` tasks; null: on threads of the library's own */
  void* parallel_context;         /* its first argument */
  /* A mode of heed_precision_name, or null or "" for none: Q, K and V, of 16 or 32 bits, are quantised in the plan's
   * workspace by each run, and a program for quantised inputs runs. In e4m3 NaN and infinity become NaN; in int8 all
   * rows that share a factor with one are NaN. */
  const char* precision;
  int32_t l2;           /* heed_l2; a CPU has none to ask */
  int32_t listing;      /* heed_listing */
  uint64_t reserved[2]; /* 0 */
} heed_options;

typedef struct heed_plan heed_plan;

/* What a plan is. Texts live as long as the plan. */
typedef struct heed_plan_info {
  uint32_t struct_size;      /* sizeof(heed_plan_info) */
  uint32_t can_be_dependent; /* whether HEED_RUN_DEPENDENT may be given */
  size_t workspace_bytes;    /* memory that a run takes beside the tensors; 0 for none */
  size_t workspace_alignment;
  size_t workspace_zeroed; /* the first bytes of it that heed_plan_prepare sets to zero and every run leaves at zero */
  const char* family;
  const char* variant;    /* its full text */
  const char* origin;     /* "given", "book FILE", or the file of programs */
  const char* reason;     /* why this one, in a sentence */
  double flops;           /* of both products, over the scores that the mask leaves; entries with lengths of their own
                           * count as if each had the most, lists of blocks as if they had all, prefixes as if there
                           * were none */
  heed_strides o_strides; /* that a program built for one shape writes to; all zero: those of the problem */
  uint32_t is_building;   /* whether a better program is being built: a plan made after heed_wait_for_builds takes it */
  uint32_t reserved_building;
  const char* precision; /* the mode that quantises Q, K and V; "" for none */
} heed_plan_info;

/* NOLINTEND(modernize-use-using) */

#define HEED_RUN_DEPENDENT \
  (1u << 0) /* as a programmatic dependent launch: it may be set up while the launch before it on the stream runs */

/* The library's version, as 10000 * major + 100 * minor + patch. */
HEED_API uint32_t heed_version(void);
/* The digest of the kernels' sources that the library carries; programs and evidence name theirs. */
HEED_API const char* heed_source_digest(void);
/* "HEED_UNSUPPORTED" for HEED_UNSUPPORTED; "unknown status" for a number that is none. */
HEED_API const char* heed_status_name(int status);
/* What was wrong with the calling thread's last call that failed; "" before the first. Valid until the next call. */
HEED_API const char* heed_last_error(void);

/* The modes of heed_options.precision by number, from 0 on; null past the last. */
HEED_API const char* heed_precision_name(size_t index);

/* Sets the sizes, one head of one query and key of dim 64, fp16, no mask, windows of all keys, and zeros. */
HEED_API void heed_problem_init(heed_problem* problem);
HEED_API void heed_tensors_init(heed_tensors* tensors);
HEED_API void heed_options_init(heed_options* options);
HEED_API void heed_plan_info_init(heed_plan_info* info);

/* Chooses a program and loads it. On a GPU into the calling thread's current context if it is of the problem's device,
 * else into the device's primary context. `options` may be null. Takes milliseconds where the program is not loaded
 * yet. A problem without queries, heads or batch entries gives a plan that does nothing. */
HEED_API heed_status heed_plan_create(const heed_problem* problem, const heed_options* options, heed_plan** plan);
HEED_API heed_status heed_plan_get_info(const heed_plan* plan, heed_plan_info* info);
/* Sets the zeroed part of a workspace, on the stream: once before a workspace's first run, and after a run that failed
 * or was interrupted. Null where no workspace is needed. Plans whose info.workspace_zeroed are equal may use one
 * workspace in turn, prepared once, if it is large enough for each. */
HEED_API heed_status heed_plan_prepare(const heed_plan* plan, void* workspace, void* stream);
/* Queues one run on a CUstream (null: the default stream); on a CPU returns when it is done. On a GPU it allocates
 * nothing, takes no lock and waits for nothing, so that it can be captured into a CUDA graph. Threads may run one plan
 * at a time each on a stream and a workspace of its own: two runs that may overlap need two workspaces. */
HEED_API heed_status heed_plan_run(const heed_plan* plan, const heed_tensors* tensors, void* workspace, void* stream);
/* The same `count` times in order, each with its tensors. `microseconds`, where not null, gets how long a CPU took for
 * all of them without the calling thread in between; 0 on a GPU. */
HEED_API heed_status heed_plan_run_many(const heed_plan* plan, const heed_tensors* tensors, size_t count,
                                        void* workspace, void* stream, uint32_t flags, double* microseconds);
/* On a GPU runs may still be queued: programs stay loaded. Null is ignored. */
HEED_API void heed_plan_destroy(heed_plan* plan);

/* Waits until no build of HEED_BUILD_BACKGROUND waits or runs, for so many seconds at most; 0 only asks. Returns how
 * many still do. */
HEED_API size_t heed_wait_for_builds(double seconds);

/* The problem as the command line spells it ("b1h8l512d64:fp16"), with a layout where Q and O lie in that of PyTorch's
 * (batch, length, head, dim). Writes at most `bytes` characters, the last of them 0, and returns how many the whole
 * text takes without it; nothing and 0 for a problem that no attention can have. */
HEED_API size_t heed_problem_text(const heed_problem* problem, char* text, size_t bytes);

/* What heed_plan_create would do, as text: the program and why, or what is not supported and the nearest thing that is.
 * Builds nothing. Writes at most `bytes` characters, the last of them 0, and returns how many the whole text takes
 * without it. */
HEED_API size_t heed_explain(const heed_problem* problem, const heed_options* options, char* text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
