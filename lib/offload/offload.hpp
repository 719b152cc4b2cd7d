/// A pool of keys and values in host memory, with attention over them.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "heed/offload.h"
#include "kernels/tile/packed_rows.hpp"
#include "offload/host_memory.hpp"
#include "offload/lanes.hpp"
#include "offload/moving_rate.hpp"
#include "offload/pages.hpp"
#include "offload/pieces.hpp"
#include "offload/planner.hpp"

namespace heed::offload {

/// What heed_offload_config says, checked.
struct Config {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;
  Dtype dtype = Dtype::fp16;     ///< of Q and O
  Dtype dtype_kv = Dtype::fp16;  ///< of pages: dtype, or one of 8 bits
  bool heads_outer = true;       ///< HND
  std::int64_t heads = 1;
  std::int64_t heads_kv = 1;
  std::int64_t dim = 64;
  std::int64_t dim_v = 64;
  PagesSizes pages;
  std::int64_t chunk_pages = 1;
  std::int64_t chunks = 3;
  Rates rates;            ///< 0: measured. Of a pool: those that plan, which follow what steps take where none is given
  double streamed = -1;   ///< below 0: the planner's
  Simulation simulation;  ///< of a simulated GPU
  int threads = 0;
  std::string programs;
  /// Of pages of 8 bits, (layers, heads_kv) factors each.
  std::vector<float> k_scales;
  std::vector<float> v_scales;

  [[nodiscard]] bool has_eight_bits() const { return is_quantised(dtype_kv); }
  [[nodiscard]] int element_bytes() const { return static_cast<int>(size_of(dtype)); }
  [[nodiscard]] int page_element_bytes() const { return static_cast<int>(size_of(dtype_kv)); }
  /// Of one page of one layer.
  [[nodiscard]] std::int64_t k_page_bytes() const { return pages.page_size * heads_kv * dim * page_element_bytes(); }
  [[nodiscard]] std::int64_t v_page_bytes() const { return pages.page_size * heads_kv * dim_v * page_element_bytes(); }
  [[nodiscard]] std::int64_t page_bytes() const { return k_page_bytes() + v_page_bytes(); }
  /// Rows of one launch. Those over pages of 8 bits are of the families for few queries, whose packed rows are limited;
  /// a simulated GPU has the same, so that what differs can be tested.
  [[nodiscard]] std::int64_t most_rows() const {
    return has_eight_bits() ? std::max<std::int64_t>(1, tile::kMostPackedRows / (heads / heads_kv)) : api::kMostSize;
  }
};
/// @throws Error(usage), Error(invalid_workload), Error(unsupported)
Config read_config(const heed_offload_config* config);

/// What heed_offload_call says, checked: no address is null that is needed, strides are filled in.
struct Call {
  int layer = 0;
  std::vector<std::int64_t> ids;
  std::int64_t new_keys = 0;
  bool is_quantised = false;  ///< the new keys are of the pool's 8 bits
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  heed_strides k_strides{};
  heed_strides v_strides{};
  std::int64_t rows = 0;
  const std::byte* q = nullptr;
  std::byte* o = nullptr;
  float* lse = nullptr;
  heed_strides q_strides{};
  heed_strides o_strides{};
  bool causal = false;
  std::int64_t window_left = -1;
  double scale = 0;
  double softcap = 0;
  const float* sinks = nullptr;
};
/// @param has_rows whether Q and O are looked at
/// @throws Error(usage), Error(invalid_workload)
Call read_call(const heed_offload_call* call, const Config& config, bool has_rows);

/// Why the processors' part of a call failed, for a later call to say.
class HostFailure {
 public:
  void set(const std::string& why);
  /// @throws Error(internal) where it was set
  void throw_if_set() const;

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

/// Where pages and device lie, as a line of explain, and what to do where they are far; empty where that is unknown.
std::string about_nodes(int host_node, int device_node);

/// Pages of K and of V in one memory.
struct PageMemory {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  std::int64_t pages = 0;
};

class Offload {
 public:
  explicit Offload(const Config& config);
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  std::int64_t add();
  void remove(std::int64_t id);
  [[nodiscard]] std::int64_t length(std::int64_t id, int layer) const;
  void append(const Call& call, void* stream);
  void attend(const Call& given, bool is_decoding, void* stream);
  /// Waits for all that is queued. @throws Error(driver)
  void finish();

  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] PageMemory host_pages(int layer) const;
  void write_table(std::span<const std::int64_t> ids, std::int32_t* table, std::int64_t stride) const;
  void info(heed_offload_info& info) const;
  [[nodiscard]] std::string explain(std::span<const std::int64_t> ids) const;

 private:
  struct Scratch {
    void* at = nullptr;
    std::size_t bytes = 0;
  };
  /// What one call needs in pinned memory until it is done: numbers of pages, Q and results of the processors' part.
  struct Desk {
    HostMemory memory;
    Scratch numbers;  ///< those of the device
    MarkPointer end;
  };
  /// What launches work in, and where they are: those that are done as they come, or those of one graph, which work in
  /// the same memory each time that it is launched.
  struct Work {
    Scratch ring;
    Scratch parts;
    Scratch sums;
    Scratch workspace;
    Scratch q;                 ///< queries that kernels do not read as they lie
    Scratch lse;               ///< of a launch over some rows of a piece
    std::size_t prepared = 0;  ///< bytes of the workspace that are as the last plan leaves them
    std::vector<std::unique_ptr<Desk>> desks;
    std::size_t next_desk = 0;
    std::vector<MarkPointer> read;  ///< of each buffer of the ring: the kernel that read it last
    std::int64_t next_buffer = 0;
    MarkPointer last_end;
    std::shared_ptr<HostMemory> host_workspace = std::make_shared<HostMemory>();
  };
  /// Copies of one chunk over the link, between two marks with times.
  struct Copies {
    MarkPointer begin;
    MarkPointer end;
    double bytes = 0;
  };
  /// A graph that calls were captured into, until it has ended.
  struct Graph {
    RecordingPointer recording;
    Work work;
    std::vector<Scratch> outgrown;  ///< that nodes work in, before there was a larger one
    std::set<std::int64_t> held;    ///< sequences whose pages nodes read
    std::vector<std::shared_ptr<const api::Plan>> plans;
  };
  /// Entries of one call that share launches, and what is theirs.
  struct View {
    const Call* call = nullptr;
    std::int64_t first_entry = 0;
    std::int64_t entries = 0;
  };
  /// A piece with where its table and its counts of keys lie among the numbers of a desk.
  struct Launch {
    const Piece* piece = nullptr;
    std::int64_t table_pages = 0;
    std::int64_t table = 0;
    std::int64_t keys = 0;
    std::int64_t buffer = 0;       ///< of the ring, where it is streamed
    std::vector<RowGroup> groups;  ///< launches of its own on the device, each with counts of keys
  };

  // offload.cpp
  void begin();
  void end();
  void give_up(const Error& error);
  void undo(const Call& call, const Error* error);
  void let_go() noexcept;
  MarkPointer write_keys(const Call& call, const MarkPointer& start);
  void copy_pages(const Call& call, std::size_t entry, const std::vector<PageRows>& rows, bool to_host);
  void promote(const Call& call, const MarkPointer& start);
  std::byte* at_least(Scratch& scratch, std::size_t bytes);
  Desk& desk_of(std::size_t host_bytes, std::size_t number_bytes);
  [[nodiscard]] PageMemory device_pages(int layer) const;
  [[nodiscard]] DecodeBytes bytes_of(std::span<const std::int64_t> ids, int layer) const;
  [[nodiscard]] double share_of(const DecodeBytes& bytes) const;

  // graphs.cpp
  void use(const Call& call, bool attends, void* stream);
  void stop_recording() noexcept;
  bool end_graphs();
  void free_sequences(std::span<const std::int64_t> ids);
  void release(Work& work) noexcept;
  [[nodiscard]] static std::size_t bytes_of(const Work& work);
  [[nodiscard]] static std::size_t bytes_of(const Graph& graph);

  // eight_bits.cpp
  [[nodiscard]] Call with_eight_bits(const Call& call);
  [[nodiscard]] Call with_dense_rows(const Call& call);
  [[nodiscard]] bool writes_in_place(const Call& call) const;
  void bring_scales();

  // attend.cpp
  /// Queries of some entries to dense rows at `to`, on the compute lane.
  void copy_queries(const std::byte* from, const heed_strides& strides, std::int64_t entries, std::int64_t rows,
                    std::byte* to);
  void attend_view(const View& view, const std::vector<Piece>& pieces, const MarkPointer& written);
  std::vector<Launch> lay_out(const View& view, const std::vector<Piece>& pieces, std::int64_t& numbers);
  void write_numbers(const Launch& launch, std::int32_t* numbers) const;
  void queue_host(const View& view, const Launch& launch, const std::int32_t* numbers, std::byte* q, std::byte* o,
                  float* lse, const MarkPointer& written);
  MarkPointer bring(const Launch& chunk, int layer, const MarkPointer& written, bool is_watched);

  // launches.cpp
  [[nodiscard]] heed_problem problem_of(const View& view, const Launch& launch, const heed_strides& q_strides,
                                        const heed_strides& o_strides) const;
  std::shared_ptr<const api::Plan> plan_of(const heed_problem& problem);
  void run_piece(const View& view, const Launch& launch, const std::int32_t* numbers, std::byte* o, float* lse,
                 const heed_strides& o_strides);
  void run_rows(const View& view, const Launch& launch, const std::int32_t* numbers, std::byte* o, float* lse,
                const heed_strides& o_strides);
  void take_host_scales(heed_tensors& tensors, int layer) const;

  // rates.cpp
  void measure();
  void follow_rates();
  [[nodiscard]] bool can_watch_link() const;
  [[nodiscard]] double link_rate();
  /// @return bytes of keys and values a second, and operations
  std::pair<double, double> attention_rate(Place place, std::int64_t rows, bool is_timed);

  Config config_;
  mutable std::mutex mutex_;
  std::unique_ptr<Lanes> lanes_;
  Pages pages_;
  HostMemory host_;
  bool is_pinned_ = false;
  Scratch device_;
  Scratch scales_;  ///< of pages of 8 bits: (layers, heads_kv) factors of K, as many of V
  Scratch fresh_;   ///< new keys and values in 8 bits on their way to pages
  Work own_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  Graph* graph_ = nullptr;  ///< that this call is captured into
  Work* work_ = &own_;      ///< of this call
  MarkPointer written_;     ///< the last keys are in host memory
  std::map<std::string, std::shared_ptr<const api::Plan>> plans_;
  bool host_can_ = true;  ///< there is a program for the processors' part
  std::string host_refusal_;
  std::string rates_from_;
  bool is_following_ = false;  ///< steps say what rates have become
  std::shared_ptr<MovingRate> host_rate_ = std::make_shared<MovingRate>();
  MovingRate in_rate_;
  std::array<Copies, 32> watched_;  ///< a ring: of as many calls as the host may be ahead of the device
  std::size_t oldest_watched_ = 0;
  std::size_t watched_count_ = 0;
  std::string broken_;
  std::shared_ptr<HostFailure> host_failure_ = std::make_shared<HostFailure>();
};

}  // namespace heed::offload
