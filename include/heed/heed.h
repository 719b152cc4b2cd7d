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

#define HEED_ABI_VERSION 1

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

/* Element types. Sums are fp32 and the log-sum-exp is fp32, whatever the elements are. */
typedef enum heed_dtype {
  HEED_FP16 = 0,
  HEED_BF16 = 1,
  HEED_FP32 = 2,
  HEED_FP8_E4M3 = 3,
  HEED_FP8_E5M2 = 4,
  HEED_INT8 = 5
} heed_dtype;

/* Which keys a query sees, by bounds around the query's own key: key i for query i where the mask is aligned to the top
 * left, key i + (len_k - len_q) where it is aligned to the bottom right. */
typedef enum heed_mask {
  HEED_MASK_NONE = 0,
  HEED_MASK_CAUSAL_TOP_LEFT = 1,     /* keys up to the own one: PyTorch's is_causal=True */
  HEED_MASK_CAUSAL_BOTTOM_RIGHT = 2, /* the same: FlashAttention's causal=True */
  HEED_MASK_WINDOW_TOP_LEFT = 3,     /* window_left keys before the own one and window_right after it */
  HEED_MASK_WINDOW_BOTTOM_RIGHT = 4  /* the same: FlashAttention's window_size */
} heed_mask;

/* Strides of a tensor (batch, head, length, dim), in elements. All zero: dense in that order. */
typedef struct heed_strides {
  int64_t batch;
  int64_t head;
  int64_t row;
  int64_t dim;
} heed_strides;

/* What else a problem asks for: heed_problem.flags. */
#define HEED_WANTS_LSE (1u << 0) /* the log-sum-exp of each row is written, as fp32 and natural log */
#define HEED_HAS_BIAS (1u << 1)  /* a tensor is added to the scaled scores */
#define HEED_HAS_SINKS (1u << 2) /* a logit for each head joins the softmax without a value */
#define HEED_RAGGED (1u << 3)    /* sequences of different lengths, packed: cu_seqlens_q and cu_seqlens_k */
#define HEED_PAGED (1u << 4)     /* K and V lie in pages of page_size keys, found by a page table */
#define HEED_SCALED (1u << 5)    /* quantised Q, K or V with scale factors */

typedef struct heed_problem {
  uint32_t struct_size; /* sizeof(heed_problem) */
  uint32_t abi_version; /* HEED_ABI_VERSION */
  int32_t device_type;  /* heed_device_type */
  int32_t device;       /* ordinal of the GPU, as the CUDA driver counts them; 0 on a CPU */
  int64_t batch;
  int64_t heads;    /* of Q and O; a multiple of heads_kv: query head h reads key head h / (heads / heads_kv) */
  int64_t heads_kv; /* of K and V */
  int64_t len_q;
  int64_t len_k;
  int64_t dim;     /* of Q and K */
  int64_t dim_v;   /* of V and O */
  int32_t dtype_q; /* heed_dtype */
  int32_t dtype_kv;
  int32_t dtype_o;
  int32_t mask;         /* heed_mask */
  int64_t window_left;  /* keys before the own one, -1 for all; also of causal masks */
  int64_t window_right; /* keys after it, -1 for all; of window masks alone */
  double scale;         /* of Q K^T; 0 for 1 / sqrt(dim) */
  double softcap;       /* scores become softcap * tanh(score / softcap); 0 for none */
  double dropout;       /* probability; 0 for none */
  uint64_t dropout_seed;
  uint64_t dropout_offset;
  heed_strides q_strides;
  heed_strides k_strides;
  heed_strides v_strides;
  heed_strides o_strides;
  heed_strides bias_strides;
  int64_t page_size; /* keys of a page, with HEED_PAGED */
  uint32_t flags;
  uint32_t reserved_flags; /* 0 */
  uint64_t reserved[8];    /* 0 */
} heed_problem;

/* Addresses of one run: of the GPU's memory, or the host's on a CPU. Those of tensors that the problem does not have
 * are null. On a GPU every tensor begins at a multiple of 16 bytes. O and lse overlap no other tensor. */
typedef struct heed_tensors {
  uint32_t struct_size; /* sizeof(heed_tensors) */
  uint32_t reserved_flags;
  const void* q; /* (batch, heads, len_q, dim) */
  const void* k; /* (batch, heads_kv, len_k, dim) */
  const void* v; /* (batch, heads_kv, len_k, dim_v) */
  void* o;       /* (batch, heads, len_q, dim_v); a row that sees no key is zeros */
  float* lse;    /* (batch, heads, len_q), dense; -infinity for such a row */
  const void* bias;
  const float* sinks;
  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_k;
  const int32_t* page_table;
  const float* q_scale;
  const float* k_scale;
  const float* v_scale;
  uint64_t reserved[8]; /* 0 */
} heed_tensors;

/* Whether NVRTC builds, on this machine, the program that the rule names for the very problem where no file has it. It
 * takes seconds of a processor; what was built is kept and taken by every later plan of every process. */
typedef enum heed_build {
  HEED_BUILD_OFF = 0,
  HEED_BUILD_BACKGROUND = 1, /* a plan takes the best program that is there, later plans take the one that was built */
  HEED_BUILD_WAIT = 2        /* heed_plan_create waits for it; without NVRTC it takes the best that is there */
} heed_build;
/* Calls task(argument, index) once for every index from 0 to tasks - 1, one after another or several at a time, on any
 * threads, and returns when all have ended. It lets no exception out. Tasks let none out either, and wait for nothing.
 */
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
  int32_t build;          /* heed_build; on a CPU nothing is built */
  int32_t reserved_build; /* 0 */
  const char* book; /* a book of champions (heed book), which comes before the programs; "" for none. Null: the one
                     * that HEED_BOOK names, else that of $XDG_DATA_HOME/heed or ~/.local/share/heed if there is one */
  heed_parallel_for parallel_for; /* runs a CPU plan as `threads` tasks; null: on threads of the library's own */
  void* parallel_context;         /* its first argument */
  uint64_t reserved[4];           /* 0 */
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
  double flops;           /* of both products, over the scores that the mask leaves */
  heed_strides o_strides; /* that a program built for one shape writes to; all zero: those of the problem */
  uint32_t is_building;   /* whether a better program is being built: a plan made after heed_wait_for_builds takes it */
  uint32_t reserved_building;
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
