/* libheed: attention over keys and values that lie in host memory.
 *
 * A pool holds the keys and values of sequences in pages of host memory, those that a GPU has room for on the GPU as
 * well. Calls attend to all of them, exactly: the GPU to the pages that it holds and to those that come over the link,
 * the processors to the others at the same time, and a merge by log-sum-exp makes one result of the parts.
 *
 *     heed_offload_config config;
 *     heed_offload_config_init(&config);
 *     config.device_type = HEED_CUDA;  config.layers = 32;  config.heads = 32;  config.heads_kv = 8;
 *     config.dim = config.dim_v = 128;  config.host_pages = 16384;  config.device_pages = 4096;
 *     heed_offload* pool = NULL;
 *     if (heed_offload_create(&config, &pool) != HEED_OK) puts(heed_last_error());
 *     int64_t sequence;
 *     heed_offload_add(pool, &sequence);
 *     heed_offload_prefill(pool, &call, stream);     rows of a prompt, layer by layer
 *     heed_offload_decode(pool, &call, stream);      one row, layer by layer
 *     heed_offload_destroy(pool);
 *
 * Statuses, sentences and struct sizes are as in heed.h. Threads may call one pool; calls take turns.
 */
#ifndef HEED_OFFLOAD_H
#define HEED_OFFLOAD_H

#include <heed/heed.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): C has no other */

/* Where a key lies in its page, as in the pools of serving engines. */
typedef enum heed_page_layout {
  HEED_PAGES_HND = 0, /* (pages, heads_kv, page_size, dim) */
  HEED_PAGES_NHD = 1  /* (pages, page_size, heads_kv, dim) */
} heed_page_layout;

typedef struct heed_offload_config {
  uint32_t struct_size; /* sizeof(heed_offload_config) */
  uint32_t abi_version; /* HEED_ABI_VERSION */
  int32_t
      device_type; /* HEED_CUDA; HEED_CPU: a simulated GPU, whose memory is the host's and whose kernels are fwd_cpu */
  int32_t device;  /* ordinal of the GPU */
  int32_t dtype;   /* HEED_FP16, HEED_BF16 or HEED_FP32, of Q and O; of K and V where dtype_kv is 0 */
  int32_t page_layout; /* heed_page_layout */
  int64_t layers;      /* of the model: each has K and V of its own in every page */
  int64_t heads;       /* of Q and O; a multiple of heads_kv */
  int64_t heads_kv;
  int64_t dim;          /* of Q and K */
  int64_t dim_v;        /* of V and O */
  int64_t page_size;    /* keys; a multiple of 8 */
  int64_t host_pages;   /* in host memory, of layers * page_size * heads_kv * (dim + dim_v) elements of pages each */
  int64_t device_pages; /* of these, at most so many on the device as well; 0: none */
  int64_t sink_pages;   /* first pages of a sequence, which stay on the device; others leave it oldest first */
  int64_t chunk_pages;  /* pages of one copy over the link; 0: as many as have 64 MiB */
  int64_t chunks;       /* device buffers of one chunk each, in a ring; 0: 3 */
  /* What the machine does in a second; 0: it is measured when the pool is made. Where all four are 0 and the share is
   * negative, decoding goes on measuring the first two, and the share follows them. */
  double link_rate;    /* bytes over the link */
  double host_rate;    /* bytes of keys and values that the processors attend to, in decoding */
  double device_rate;  /* the same of the device */
  double device_flops; /* of a prefill on the device */
  /* The share of remote pages that decoding brings over the link, 0 to 1; negative: the one that the rates give. */
  double streamed_share;
  /* Of a simulated GPU alone: */
  double link_bandwidth; /* bytes per second; 0: as fast as memory is copied */
  double link_latency;   /* seconds of a copy */
  int32_t threads;       /* that the processors' part is shared by; 0: as many as this process has processors */
  /* Element type of pages: HEED_FP8_E4M3, HEED_FP8_E5M2 or HEED_INT8; 0: dtype. A key of 8 bits is element times scale
   * factor, as in problems with HEED_SCALED. */
  int32_t dtype_kv;
  const char* programs; /* as of heed_options */
  /* Scale factors of pages of 8 bits, in host memory, read when the pool is made: positive and finite. The count is 1
   * (all of K), heads_kv (a factor each head) or layers * heads_kv ((layers, heads_kv), a factor each layer and head).
   * Null and 0: factors of 1, not of HEED_INT8. */
  const float* k_scales;
  int64_t k_scale_count;
  const float* v_scales;
  int64_t v_scale_count;
  uint64_t reserved[4]; /* 0 */
} heed_offload_config;

/* One layer of some sequences. Addresses are of the device's memory, of the host's where it is simulated. */
typedef struct heed_offload_call {
  uint32_t struct_size;     /* sizeof(heed_offload_call) */
  int32_t layer;            /* 0 to layers - 1 */
  int64_t batch;            /* entries */
  const int64_t* sequences; /* (batch), in host memory: each once */
  int64_t len_k;            /* new keys of each entry, which come behind those that it has; 0: none */
  const void* k;            /* (batch, heads_kv, len_k, dim), of the config's dtype, or as dtype_kv says */
  const void* v;            /* (batch, heads_kv, len_k, dim_v) */
  heed_strides k_strides;   /* all zero: dense */
  heed_strides v_strides;
  int64_t len_q; /* rows of each entry; the last one's own key is the last key of the entry */
  const void* q; /* (batch, heads, len_q, dim) */
  void* o; /* (batch, heads, len_q, dim_v), of elements that follow each other; apart from all other tensors, as lse */
  float* lse; /* (batch, heads, len_q), dense, natural logarithm; null: not wanted */
  heed_strides q_strides;
  heed_strides o_strides;
  int32_t mask; /* HEED_MASK_NONE or HEED_MASK_CAUSAL_BOTTOM_RIGHT */
  /* Element type of k and v: 0, the config's dtype, of which pages of 8 bits get k / factor and v / factor: rounded to
   * nearest even, beyond the largest number the largest; in e4m3 and e5m2 NaN and infinity become NaN, in int8 NaN
   * becomes 0. Or the config's dtype_kv: elements of 8 bits, written as they are. */
  int32_t dtype_kv;
  int64_t window_left;  /* keys before the own one that a row sees, -1: all */
  double scale;         /* 0: 1 / sqrt(dim) */
  double softcap;       /* 0: none */
  const float* sinks;   /* (heads), a score of each row without a value; null: none */
  uint64_t reserved[8]; /* 0 */
} heed_offload_call;

typedef struct heed_offload heed_offload;

typedef struct heed_offload_info {
  uint32_t struct_size; /* sizeof(heed_offload_info) */
  int32_t host_node;    /* NUMA node of the host's pages; -1: the system does not say */
  int32_t device_node;  /* of the device */
  int32_t reserved_node;
  uint64_t host_bytes;   /* of pages */
  uint64_t device_bytes; /* of pages, ring and work */
  int64_t host_pages_free;
  int64_t device_pages_free;
  int64_t remote_pages; /* used, and not on the device */
  int64_t sequences;
  double link_rate; /* as in the config, as measured, or as decoding has shown since */
  double host_rate;
  double device_rate;
  double device_flops;
  double bytes_in;  /* over the link to the device since the pool was made, but in launches of graphs */
  double bytes_out; /* and back */
  /* Seconds that copies to the device, its kernels and the processors were at work; the first two of a simulated GPU
   * alone. */
  double seconds_in;
  double seconds_compute;
  double seconds_host;
  uint64_t reserved[8];
} heed_offload_info;

/* NOLINTEND(modernize-use-using) */

/* One layer of 1 head of dim 64 in fp16, pages of 64 keys, no pages, rates that are measured, a share that follows from
 * them. */
HEED_API void heed_offload_config_init(heed_offload_config* config);
HEED_API void heed_offload_call_init(heed_offload_call* call);
HEED_API void heed_offload_info_init(heed_offload_info* info);

/* Takes the memory of all pages, pinned where a GPU is, on the NUMA node of the GPU where that can be had, and measures
 * the rates that are not given, which takes a few hundred milliseconds. HEED_OUT_OF_MEMORY where the host, its locked
 * pages or the GPU have too little. */
HEED_API heed_status heed_offload_create(const heed_offload_config* config, heed_offload** pool);
/* Waits for the calls that are queued. Null is ignored. A child of fork has no pools: calls of those of its parent are
 * HEED_INVALID_ARGUMENT, and their destruction frees nothing. */
HEED_API void heed_offload_destroy(heed_offload* pool);
HEED_API heed_status heed_offload_get_info(const heed_offload* pool, heed_offload_info* info);

/* An empty sequence. */
HEED_API heed_status heed_offload_add(heed_offload* pool, int64_t* sequence);
/* Its pages are free for others. Calls that are queued still read them: whoever writes them next waits for these.
 * HEED_INVALID_ARGUMENT while a graph reads them. */
HEED_API heed_status heed_offload_remove(heed_offload* pool, int64_t sequence);
/* Keys of a layer. */
HEED_API heed_status heed_offload_length(const heed_offload* pool, int64_t sequence, int32_t layer, int64_t* keys);

/* Writes new keys and values of a layer alone; rows are not looked at. HEED_OUT_OF_MEMORY where the pool is full,
 * HEED_INVALID_ARGUMENT for a stream that is being captured and for sequences that a graph reads. */
HEED_API heed_status heed_offload_append(heed_offload* pool, const heed_offload_call* call, void* stream);
/* Writes new keys and values if there are any, then attends with many rows: entry by entry, pages that the device does
 * not hold over the link, in the order of keys, while the kernel works on those before. */
HEED_API heed_status heed_offload_prefill(heed_offload* pool, const heed_offload_call* call, void* stream);
/* The same with few rows, all entries at once: the processors attend to their share of the pages that the device does
 * not hold. With a window, or where rows do not see all of these pages, it is a prefill.
 *
 * On a GPU both are queued on the stream; inputs and outputs belong to the call until the stream has passed it. Where a
 * call fails, its keys are not there, and pages that it took are free.
 *
 * A stream that is being captured takes calls without new keys (a len_k of 0) into its graph: launches of the device,
 * copies over the link and the processors' part as a host node, with the split, the tables and the lengths of this
 * call, in memory of the graph's own. Each launch reads Q and writes O where the call said. Until the graph and what
 * was instantiated from it are destroyed, its sequences have no new keys, are not removed, and keep their pages on the
 * device (HEED_INVALID_ARGUMENT). One launch at a time, behind the keys on its stream, before heed_offload_destroy. */
HEED_API heed_status heed_offload_decode(heed_offload* pool, const heed_offload_call* call, void* stream);

/* The pool's pages in host memory, for problems with HEED_PAGED, of 8 bits with HEED_SCALED and the pool's factors: the
 * layer's K and V, and, for each sequence, the pages of its keys, `stride` numbers apart. Only once the stream of the
 * last call has passed it. */
HEED_API heed_status heed_offload_pages(const heed_offload* pool, int32_t layer, const void** k, const void** v);
HEED_API heed_status heed_offload_table(const heed_offload* pool, const int64_t* sequences, int64_t batch,
                                        int32_t* table, int64_t stride);

/* What the pool is and what calls of these sequences would do, as text: rates and where they are from, which pages are
 * where, what decoding brings over the link and why, from how many rows on a prefill hides the link. Writes at most
 * `bytes` characters, the last of them 0, and returns how many the whole text takes without it. */
HEED_API size_t heed_offload_explain(const heed_offload* pool, const int64_t* sequences, int64_t batch, char* text,
                                     size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
