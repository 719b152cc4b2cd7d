/// The kernel contract: the one parameter struct every variant's entry takes, on every device.
///
/// Included by host code, by nvcc, by NVRTC (which has no toolkit or system headers) and by the host compiler that
/// builds CPU candidates, so it includes nothing and uses only built-in types.
#pragma once

/// For functions that host and device share. CUDA compilers take an unannotated function for a host function; NVRTC
/// could take it for a device function (--device-as-default-execution-space), but then places every constexpr variable
/// in global memory.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define HEED_HOST_DEVICE __host__ __device__
#else
#define HEED_HOST_DEVICE
#endif

namespace heed {

/// Strides in elements; the head dim is contiguous (stride 1).
struct TensorStrides {
  long long batch;
  long long head;
  long long row;
  constexpr bool operator==(const TensorStrides&) const = default;
};

/// One attention problem as a kernel sees it. Shapes, with element types fixed when the variant is built:
///   q (batch, heads, len_q, D)   k (batch, heads_kv, len_k, D)   v (batch, heads_kv, len_k, D)
///   o (batch, heads, len_q, D)   lse (batch, heads, len_q), fp32, dense, natural log; null when not asked for
///
/// What every variant must keep to: sums in fp32; a row with nothing to attend to gives zeros and lse = -inf; a key
/// that no query row attends to (past len_k, or hidden from every row by the mask) may hold NaN or infinity; nothing is
/// written but o, lse and workspace; no state survives a launch except semaphores it leaves at zero.
///
/// Key 0 is one that some row may see: whoever launches cuts keys in front of the first such key off (`trimmed` of
/// kernels/attention/mask.hpp), because a bulk copy fills what lies behind a tensor with zeros, not what lies before.
struct ForwardParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;
  void* workspace;       ///< as many bytes as the variant's launch plan asks for; contents undefined at launch
  unsigned* semaphores;  ///< as many as the launch plan asks for: zero at launch, and left at zero
  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;
  int batch;
  int heads;
  int heads_kv;
  int group_size;  ///< heads / heads_kv: query head h reads key head h / group_size
  int len_q;
  int len_k;
  int right_offset;  ///< masks with a right bound: key j is visible to query i when j <= i + right_offset; else unused
  float scale;       ///< softmax(scale * q k^T)
  int left_offset;   ///< masks with a left bound: key j is visible to query i when j >= i + left_offset; else unused
};
static_assert(sizeof(ForwardParams) == 7 * sizeof(void*) + 4 * sizeof(TensorStrides) + 10 * sizeof(int),
              "nine numbers and four bytes of padding");

/// Where group_size and len_k lie in a ForwardParams, in ints: NVRTC has no offsetof.
inline constexpr unsigned kGroupSizeIndex =
    (7 * sizeof(void*) + 4 * sizeof(TensorStrides) + 3 * sizeof(int)) / sizeof(int);
inline constexpr unsigned kLenKIndex = kGroupSizeIndex + 2;

/// One tensor as bulk copies see it: an opaque CUtensorMap, encoded by whoever launches.
/// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

/// The second parameter of an entry whose launch plan asks for boxes (LaunchPlan::tensor_maps). Every map has the
/// dimensions (head dim, row, head, batch), coordinates in this order; what lies outside is read as zero and not
/// written. The rows of k and v end where the last query's keys end, so that keys no query attends to read as zeros.
struct TensorMaps {
  TensorMap q;
  TensorMap k;
  TensorMap v;
  TensorMap o;
};
static_assert(sizeof(ForwardParams) <= 3 * alignof(TensorMaps),
              "the second parameter of an entry begins 192 bytes after the first");

/// Element types a variant may be built for; those of 8 bits for Q, K and V alone (kernels/eight_bits.hpp).
enum class Element { fp16, bf16, fp32, e4m3, e5m2, int8 };

/// Element types of Q, K and V where they are not all that of O: quantised tensors, whose numbers are element times
/// scale factor (TensorScales of kernels/attention/scales.hpp).
struct Inputs {
  bool quantised = false;  ///< else they are those of O, and what follows is not read
  Element q = Element::fp16;
  Element k = Element::fp16;
  Element v = Element::fp16;
  constexpr bool operator==(const Inputs&) const = default;
};

/// Masks a variant may be built for; kernels/attention/mask.hpp says which keys a row sees under them.
enum class MaskKind {
  none,
  causal,  ///< a right bound: key j is visible to query i when j <= i + right_offset
  window,  ///< a left bound too, a band: when i + left_offset <= j <= i + right_offset
};

/// The sizes of all launches of a program that is built for these alone, and how their outputs lie.
struct FixedSizes {
  int batch = 0;
  int heads = 0;
  int heads_kv = 0;
  int len_q = 0;  ///< 0: built for any sizes, it takes them from its parameters
  int len_k = 0;
  int right_offset = 0;
  int left_offset = 0;
  TensorStrides o_strides = {};  ///< row = 0: it takes them from its parameters
  constexpr bool operator==(const FixedSizes&) const = default;
};

/// What a program knows of the sizes of its launches (Problem::sizes). The compiler works out what follows from them,
/// and no constant of a launch is waited for.
enum class Specialize {
  none,         ///< nothing: the same program for all
  shape,        ///< lengths, heads, batch and the alignment of the mask
  whole_tiles,  ///< and that Q tiles are whole: nothing asks whether a row is past the last, or sees past the last key
};

/// Whether a program for one shape leaves out the code that launches of the shape never reach.
enum class Prune {
  off,
  on,  ///< a quarter to nine tenths of the instructions are left. ptxas places them otherwise then, for better or worse
};

/// Where a program for one shape finds the rows of O.
enum class OutputLayout {
  strided,  ///< by the strides of a launch
  dense,    ///< one behind the other, in the order of the workload's layout: strides are constants
};

/// To which launches a program is narrowed, of those that its family can run: unlike a config, it says what a program
/// may be launched for. kernels/attention/specialization.hpp has its rules.
struct Specialization {
  Specialize specialize = Specialize::none;
  Prune prune = Prune::off;
  OutputLayout o_layout = OutputLayout::strided;
  constexpr bool operator==(const Specialization&) const = default;
};

/// What a program can do that most problems have no need of (kernels/attention/features.hpp). It also runs launches
/// that have fewer of them.
struct Features {
  bool softcap = false;
  bool bias = false;      ///< a tensor of biases or a boolean mask
  bool alibi = false;     ///< biases that are linear in the distance
  bool sinks = false;     ///< one more score of each row, without a value
  bool lengths = false;   ///< of each entry of the batch
  bool pages = false;     ///< of K and V
  bool blocks = false;    ///< lists of the blocks of keys that blocks of rows see
  bool prefix = false;    ///< keys that all rows see under a causal mask
  bool dropout = false;   ///< of probabilities
  bool relative = false;  ///< tables of biases by relative position
  bool out_norm = false;  ///< RMS norms of the rows of O
  bool out_gate = false;  ///< rows of O times the sigmoid of a gate
  constexpr bool operator==(const Features&) const = default;
};

/// Listed blocks have 64 or 128 rows and as many keys: tiles that divide this lie in one of either size.
inline constexpr int kLeastBlock = 64;

/// What is fixed when a variant is built, besides its config.
///
/// Templates take this and configs by reference, `template <const Config& kConfig, const Problem& kProblem>`, to
/// constants of the translation unit. What is taken by value NVRTC keeps, from 13.2 on, in global memory, and reads it
/// there wherever a function that is no constant expression asks for it: 1.2 MB of PTX instead of 0.25 at b1h8l512d64.
struct Problem {
  Element element;  ///< of O, and of Q, K and V but for quantised inputs
  int head_dim;
  MaskKind mask;
  FixedSizes sizes = {};  ///< none without a specialization
  Specialization specialization = {};
  Features features = {};
  Inputs inputs = {};
  constexpr bool operator==(const Problem&) const = default;
};

HEED_HOST_DEVICE constexpr Element q_element(const Problem& p) {
  return p.inputs.quantised ? p.inputs.q : p.element;
}
HEED_HOST_DEVICE constexpr Element k_element(const Problem& p) {
  return p.inputs.quantised ? p.inputs.k : p.element;
}
HEED_HOST_DEVICE constexpr Element v_element(const Problem& p) {
  return p.inputs.quantised ? p.inputs.v : p.element;
}

/// The parameters of a launch of a program for these sizes: with them as constants.
HEED_HOST_DEVICE constexpr ForwardParams with_sizes(const ForwardParams& params, const FixedSizes& sizes) {
  ForwardParams known = params;
  known.batch = sizes.batch;
  known.heads = sizes.heads;
  known.heads_kv = sizes.heads_kv;
  known.group_size = sizes.heads / sizes.heads_kv;
  known.len_q = sizes.len_q;
  known.len_k = sizes.len_k;
  known.right_offset = sizes.right_offset;
  known.left_offset = sizes.left_offset;
  if (sizes.o_strides.row != 0) known.o_strides = sizes.o_strides;
  return known;
}

}  // namespace heed
