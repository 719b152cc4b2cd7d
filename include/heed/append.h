/* libheed: new keys and values written into a cache, in pages or in one tensor, before the attention that reads them.
 *
 *     heed_append_rows rows;
 *     heed_append_rows_init(&rows);
 *     rows.len_new = 1;                              one new key each entry, of a decode step
 *     heed_append* append = NULL;
 *     if (heed_append_create(&problem, &rows, NULL, &append) != HEED_OK) puts(heed_last_error());
 *
 *     heed_append_run(append, &new_tensors, stream, 0);        writes K and V, and the lengths that follow
 *     heed_plan_run(plan, &tensors, workspace, stream);        of the same problem: tensors.seqused_k = lengths_after
 *     heed_append_destroy(append);
 *
 * What FlashAttention does in flash_attn_with_kvcache(k=, v=), FlashInfer in append_paged_kv_cache, vLLM in
 * reshape_and_cache. Statuses, sentences and struct sizes are as in heed.h.
 */
#ifndef HEED_APPEND_H
#define HEED_APPEND_H

#include <heed/heed.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): C has no other */

/* Entries get numbers of rows of their own, which follow each other in one tensor: entry b the rows [cu_seqlens[b],
 * cu_seqlens[b + 1]). */
#define HEED_APPEND_RAGGED (1u << 0)
/* heed_append_tensors.lengths are those after the append, as serving engines keep them; else those before it. */
#define HEED_APPEND_LENGTHS_AFTER (1u << 1)

/* The new rows, of the problem's dtype_o. */
typedef struct heed_append_rows {
  uint32_t struct_size; /* sizeof(heed_append_rows) */
  uint32_t flags;
  int64_t len_new;   /* rows that each entry gets; with HEED_APPEND_RAGGED the most that one gets */
  int64_t total_new; /* with HEED_APPEND_RAGGED: of all entries, at least len_new where there is one; else 0 */
  heed_strides
      k_strides; /* of (batch, heads_kv, len_new, dim), ragged (total_new, heads_kv, dim) with `batch` 0; all */
  heed_strides v_strides; /* zero: dense in that order. A stride of 0 beside others: rows, heads or entries are one */
  uint64_t reserved[4];   /* 0 */
} heed_append_rows;

/* Addresses of one append: of the GPU's memory, or the host's on a CPU, at multiples of their elements' size. What is
 * written overlaps nothing else: a run where it does is refused. Rows of K and V, and factors that are written, may
 * take turns in one memory, where all have the same strides: (pages, 2, page_size, heads_kv, dim). */
typedef struct heed_append_tensors {
  uint32_t struct_size; /* sizeof(heed_append_tensors) */
  uint32_t reserved_flags;
  const void* new_k;         /* (batch, heads_kv, len_new, dim), by heed_append_rows.k_strides; ragged */
  const void* new_v;         /* (total_new, heads_kv, ..) */
  void* k;                   /* the cache, as the problem says it lies: len_k rows for each entry, or pages */
  void* v;                   /* of them */
  const int32_t* lengths;    /* (batch), keys that entries have; on a GPU less than 0 counts as 0 */
  int32_t* lengths_after;    /* (batch), written: keys after the append, at most len_k; null where not wanted. The
                              * seqused_k of the attention that follows */
  const int32_t* cu_seqlens; /* (batch + 1), with HEED_APPEND_RAGGED, else null */
  const int32_t* page_table; /* with HEED_PAGED, as heed_tensors.page_table, else null */
  /* Of a K or V of 8 bits, as k_scales and v_scales of the problem say. Factors are read, but where each row has its
   * own (rows = 1): those are the largest magnitude of the row over that of the elements, and are written. */
  float* k_scale;
  float* v_scale;
  uint64_t reserved[4]; /* 0 */
} heed_append_tensors;

typedef struct heed_append heed_append;

/* NOLINTEND(modernize-use-using) */

HEED_API void heed_append_rows_init(heed_append_rows* rows);
HEED_API void heed_append_tensors_init(heed_append_tensors* tensors);

/* Row i that entry b gets becomes its key lengths[b] + i. `problem` is that of the attention that reads the cache: its
 * batch, heads_kv, len_k (keys that an entry has room for), dims, element types, k_strides, v_strides, pages and scale
 * factors count, its queries and features do not. K and V of 8 bits are quantised by heed_quantise's rule (nearest
 * even, beyond the largest element the largest; NaN and infinity become NaN, in int8 the factor of a row that has its
 * own). On a GPU it loads a program, in milliseconds, into the context as heed_plan_create does. `options` may be null:
 * `programs` alone counts.
 * HEED_INVALID_ARGUMENT: strides of K or V that lay rows over one another. HEED_UNSUPPORTED: keys of HEED_RAGGED
 * problems, which follow each other without room behind them; on a GPU caches of 8 bits with head dims beyond 256
 * (other caches take any); a file of programs without that of the append. */
HEED_API heed_status heed_append_create(const heed_problem* problem, const heed_append_rows* rows,
                                        const heed_options* options, heed_append** append);
/* One launch on the stream, which allocates nothing and waits for nothing, so that it can be captured into a CUDA
 * graph; on a CPU it is done on return. Threads may run one append at a time each on a stream of its own. `flags`:
 * HEED_RUN_DEPENDENT, where heed_append_can_be_dependent says so. A plan that runs behind it with that flag is set up
 * while this runs. A CPU refuses, before anything is written, what does not fit: lengths below 0 or with the new rows
 * beyond len_k, numbers of pages that there are not, cu_seqlens that decrease, reach past total_new or give an entry
 * more than len_new, factors that are not positive and finite. A GPU leaves out the rows concerned: nothing is written
 * before key 0, from key len_k on, or where the page table names no page, and where cu_seqlens decrease or reach past
 * total_new nothing at all is. */
HEED_API heed_status heed_append_run(const heed_append* append, const heed_append_tensors* tensors, void* stream,
                                     uint32_t flags);
/* 1 where HEED_RUN_DEPENDENT may be given, else 0. */
HEED_API int heed_append_can_be_dependent(const heed_append* append);
/* On a GPU runs may still be queued. Null is ignored. */
HEED_API void heed_append_destroy(heed_append* append);

#ifdef __cplusplus
}
#endif

#endif
