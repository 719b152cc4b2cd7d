#include "dispatch/covering.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "device/device.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

namespace heed::dispatch {
namespace {

std::int64_t log_uniform(Random& random, std::int64_t least, std::int64_t most) {
  const double x = std::log(static_cast<double>(least)) +
                   random.uniform() * std::log(static_cast<double>(most) / static_cast<double>(least));
  return std::clamp<std::int64_t>(std::llround(std::exp(x)), least, most);
}

constexpr double kMostElements = 1 << 28;  // of a tensor: 512 MiB

// Larger head dims, which fwd_cpu alone has, are those of few models: the one head of an autoencoder's channels.
constexpr std::int64_t kMostUsualDim = 256;

}  // namespace

DeviceFacts representative_gpu(std::string_view arch) {
  struct Chip {
    std::string_view arch;
    int processors;
    std::int64_t cache_mib;
  };
  constexpr Chip kChips[] = {{"compute_80", 84, 6}, {"sm_80", 108, 40}, {"sm_86", 84, 6},
                             {"sm_89", 58, 48},     {"sm_90", 132, 50}, {"sm_90a", 132, 50}};
  DeviceFacts facts = gpu_limits(arch);
  for (const Chip& chip : kChips) {
    if (chip.arch != arch) continue;
    facts.processors = chip.processors;
    facts.cache_bytes = chip.cache_mib << 20;
  }
  return facts;
}

Workload sample_workload(Random& random, Dtype dtype, std::int64_t dim, MaskKind mask) {
  Workload w;
  w.dtype = dtype;
  w.dim = w.dim_v = dim;
  do {
    w.batch = log_uniform(random, 1, 64);
    w.heads_kv = log_uniform(random, 1, 32);
    w.heads = w.heads_kv * (std::int64_t{1} << random.below(4));
    const std::int64_t length = log_uniform(random, 16, 32768);
    const bool decodes = random.below(3) == 0;
    w.len_q = decodes ? (random.below(2) == 0 ? 1 : log_uniform(random, 1, 64)) : length;
    w.len_k = decodes || random.below(4) == 0 ? std::max(w.len_q, log_uniform(random, 16, 131072)) : length;
  } while (static_cast<double>(w.batch) * static_cast<double>(w.heads) *
               static_cast<double>(std::max(w.len_q, w.len_k)) * static_cast<double>(dim) >
           kMostElements);
  const bool at_top_left = mask != MaskKind::none && random.below(2) == 0;
  switch (mask) {
    case MaskKind::none:
      break;
    case MaskKind::causal:
      w.mask = at_top_left ? Mask::causal_top_left : Mask::causal_bottom_right;
      break;
    case MaskKind::window:
      // Where every key lies in the window the problem is another one.
      w.mask = Mask::causal_bottom_right;
      w.len_k = std::max<std::int64_t>(w.len_k, 130);
      w.window.left = std::min(w.len_k / 2, log_uniform(random, 64, 4096));
      break;
  }
  return reduced(w);
}

namespace {

/// The programs of one dtype, head dim and mask.
class Cell {
 public:
  Cell(const DeviceFacts& device, Dtype dtype, std::int64_t dim, MaskKind mask)
      : device_(device), dtype_(dtype), dim_(dim), mask_(mask) {}

  void draw(Random& random, int samples) {
    for (int i = 0; i < samples; ++i) {
      const Workload w = sample_workload(random, dtype_, dim_, mask_);
      if (mask_kind(w) != mask_) continue;
      last_ = w;
      ++drawn_count_;
      if (const auto variant = default_of(w)) {
        wanted_by_.insert(variant->family);
        want(drawn_, *variant, w, 1);
      }
    }
  }

  /// The one that runs every problem, with features or without.
  std::vector<CoveringProgram> program_for_all() {
    if (wanted_by_.empty()) return {};
    const Family& family = default_family(*last_, device_);
    want(added_, family, with_features(*last_, family.features()), device_, 0);
    return {added_.begin()->second};
  }

  /// @param most of those that were drawn
  std::vector<CoveringProgram> programs(int most) {
    std::vector<CoveringProgram> chosen;
    for (auto& [id, program] : drawn_)
      if (!has_stand_in(program)) chosen.push_back(program);
    std::sort(chosen.begin(), chosen.end(), [](const CoveringProgram& a, const CoveringProgram& b) {
      return a.count != b.count ? a.count > b.count : a.variant.id() < b.variant.id();
    });
    if (chosen.size() > static_cast<std::size_t>(most)) chosen.resize(static_cast<std::size_t>(most));
    if (last_) {
      for (const std::int64_t len_q : {std::int64_t{1}, std::int64_t{2048}}) add_of_every_family(*last_, len_q);
      add_of_few_queries(*last_);
    }
    for (auto& [id, program] : added_)
      if (std::none_of(chosen.begin(), chosen.end(),
                       [&id = id](const CoveringProgram& c) { return c.variant.id() == id; }))
        chosen.push_back(program);
    return chosen;
  }

 private:
  using ById = std::map<std::string, CoveringProgram>;  // by variant id

  // The program that the rule names for a problem; none where no family runs it.
  [[nodiscard]] std::optional<Variant> default_of(const Workload& w) const {
    try {
      const Family& family = default_family(w, device_);
      return make_variant(family, family.default_config(w, device_), w);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      return std::nullopt;
    }
  }

  static void want(ById& all, const Family& family, const Workload& w, const DeviceFacts& device, int count) {
    want(all, make_variant(family, family.default_config(w, device), w), w, count);
  }

  static void want(ById& all, const Variant& variant, const Workload& w, int count) {
    auto& entry = all.try_emplace(variant.id(), CoveringProgram{variant, w, 0}).first->second;
    entry.count += count;
  }

  // Whether plans of the few problems that want this program take one that more want and that is one knob away
  // (selection.hpp): on a GPU of a single problem, any knob but those of the row maximum and of accuracy; on a CPU of
  // one in thirty, the rows of a block.
  [[nodiscard]] bool has_stand_in(const CoveringProgram& rare) const {
    const bool cpu = device_.kind == DeviceKind::cpu;
    const int few = cpu ? drawn_count_ / 30 : 1;
    if (rare.count > few) return false;
    const std::vector<Knob>& knobs = rare.variant.family->knobs();
    return std::any_of(drawn_.begin(), drawn_.end(), [&](const auto& entry) {
      const Variant& other = entry.second.variant;
      if (entry.second.count <= few || other.family != rare.variant.family) return false;
      int differing = 0;
      bool may = true;
      for (std::size_t i = 0; i < other.config.size(); ++i) {
        if (other.config[i] == rare.variant.config[i]) continue;
        ++differing;
        may = may && (cpu ? knobs[i].name == "block_m" : knobs[i].name != "row_max" && !knobs[i].of_accuracy);
      }
      return differing == 1 && may;
    });
  }

  // What each family falls back to.
  void add_of_every_family(const Workload& drawn, std::int64_t len_q) {
    Workload w = drawn;
    w.len_q = len_q;
    w.len_k = std::max<std::int64_t>(w.len_k, 4096);
    w = reduced(w);
    if (mask_kind(w) != mask_) return;
    for (const Family* family : families()) {
      if (family->is_special() || family->refuses(w, device_)) continue;
      if (device_.kind != DeviceKind::cuda || is_wanted(*family, w)) add_plain(*family, w);
      if (len_q != 1 && has_features(family->features()))
        add_with_features(*family, family->name() == "fwd_sm90_split" ? short_launch(w) : w);
    }
  }

  // What fwd_sm90_split is the default of; under a window as many keys as there were.
  [[nodiscard]] Workload short_launch(const Workload& drawn) const {
    Workload w = drawn;
    w.batch = 1;
    w.heads = w.heads_kv = 8;
    w.len_q = 512;
    if (!w.has_left_bound()) w.len_k = 512;
    return reduced(w);
  }

  // Whether plans of problems without features take this family's choice for a workload: programs of a family that no
  // rule names are never reached. Nor is what fwd_sm90_split, the default of short launches, would run the long ones
  // with: of 300,000 problems on five GPUs none took such a program, unless it was the default of some.
  [[nodiscard]] bool is_wanted(const Family& family, const Workload& w) const {
    if (&default_family(w, device_) == &family) return true;
    if (wanted_by_.count(&family) == 0) return false;
    return family.name() != "fwd_sm90_split" ||
           is_default_of_some(make_variant(family, family.default_config(w, device_), w).id());
  }

  // Of ten times as many problems as were drawn.
  [[nodiscard]] bool is_default_of_some(const std::string& id) const {
    Random random(0);
    for (int i = 0; i < 10 * drawn_count_; ++i) {
      const Workload w = sample_workload(random, dtype_, dim_, mask_);
      if (mask_kind(w) != mask_) continue;
      const auto variant = default_of(w);
      if (variant && variant->id() == id) return true;
    }
    return false;
  }

  void add_plain(const Family& family, const Workload& w) {
    want(added_, family, w, device_, 0);
    add_of_smaller(family, w);
  }

  // Machine code of sm_80 also runs on 8.6 and 8.7, where tiles have to fit into 99 KiB of shared memory.
  void add_of_smaller(const Family& family, const Workload& w) {
    if (device_.arch != "sm_80") return;
    const DeviceFacts smaller = representative_gpu("sm_86");
    if (!family.refuses(w, smaller)) want(added_, family, w, smaller, 0);
  }

  void add_with_features(const Family& family, const Workload& w) {
    Features usual = family.features();
    // A program of fwd_sm80 with features takes NVRTC 2 to 18 s where others take about one. For Hopper it is the
    // one of dropout and of small pages, and one is enough.
    const bool one_alone = family.name() == "fwd_sm80" && device_.compute_capability >= 90;
    // Dropout would take registers from all others of fwd_sm90_persistent.
    if (family.name() == "fwd_sm90_persistent" && !find_family("fwd_sm80").refuses(w, device_)) usual.dropout = false;
    const Features all = usual;
    // Norms and gates take registers where rows of O are written. Where a GPU's programs with them have other
    // tiles, or no register left, problems without have a program of their own.
    if (changes_output(usual) && device_.kind == DeviceKind::cuda && !one_alone) {
      const Workload with_all = with_features(w, usual);
      usual.out_norm = usual.out_gate = false;
      if (dim_ > 128 ||
          family.default_config(with_all, device_) != family.default_config(with_features(w, usual), device_))
        want(added_, family, with_all, device_, 0);
      else
        usual = all;
    }
    const Workload with_usual = with_features(w, usual);
    want(added_, family, with_usual, device_, 0);
    // Programs with all features take lists of any rows, and so have tiles of 64 rows at most: where others would have
    // more, problems without lists have a program of their own, and those with lists of 128 rows and nothing else.
    // Tiles of 128 rows of fwd_sm80 spill registers with features, and are left out.
    const bool usual_has_lists = usual.blocks;
    usual.blocks = false;
    const Workload without_blocks = with_features(w, usual);
    if (family.name() != "fwd_sm80" &&
        family.default_config(with_usual, device_) != family.default_config(without_blocks, device_))
      want(added_, family, without_blocks, device_, 0);
    if (!usual_has_lists) return;
    const auto with_lists = [&](std::int64_t rows) {
      Workload lists = w;
      lists.blocks = BlockPattern{.rows = rows, .keys = rows};
      return lists;
    };
    if (family.default_config(with_lists(128), device_) != family.default_config(with_lists(64), device_))
      want(added_, family, with_lists(128), device_, 0);
  }

  // Of the family for few queries one with all features that it has: of rows of one head, for any heads a group, and of
  // long keys, which it is made for. On a CPU it is the family for all, on the vector unit with the columns of few rows
  // in its lanes, and without lists of blocks, as the program for many rows.
  void add_of_few_queries(const Workload& drawn) {
    Workload few = drawn;
    few.batch = 1;
    few.heads = few.heads_kv = 8;
    few.len_q = 8;
    few.len_k = std::max<std::int64_t>(few.len_k, 8192);
    few = reduced(few);
    if (mask_kind(few) != mask_) return;
    const bool by_lanes = device_.kind == DeviceKind::cpu;
    for (const Family* family : families()) {
      if ((!family->is_special() && !by_lanes) || !has_features(family->features())) continue;
      Features wanted = family->features();
      if (by_lanes) wanted.blocks = false;
      const Workload with_all = with_features(few, wanted);
      if (family->refuses(with_all, device_)) continue;
      if (!by_lanes && family->made_for(with_all, device_).empty()) continue;
      want(added_, *family, with_all, device_, 0);
      add_of_smaller(*family, with_all);
      add_of_smaller(*family, few);
      break;
    }
  }

  const DeviceFacts& device_;
  Dtype dtype_;
  std::int64_t dim_;
  MaskKind mask_;
  std::optional<Workload> last_;  // of those drawn
  int drawn_count_ = 0;
  std::set<const Family*> wanted_by_;
  ById drawn_;
  ById added_;
};

}  // namespace

std::vector<CoveringProgram> covering_programs(const DeviceFacts& device, const CoveringOptions& options) {
  std::vector<CoveringProgram> all;
  Random random(options.seed);
  for (const bool is_usual : {true, false})
    for (const Dtype dtype : options.dtypes)
      for (const std::int64_t dim : options.dims)
        for (const MaskKind mask : options.masks) {
          if ((dim <= kMostUsualDim) != is_usual) continue;
          Cell cell(device, dtype, dim, mask);
          cell.draw(random, options.samples);
          for (CoveringProgram& program : is_usual ? cell.programs(options.most) : cell.program_for_all())
            all.push_back(std::move(program));
        }
  return all;
}

}  // namespace heed::dispatch
