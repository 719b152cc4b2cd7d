/// Configs seen from outside: a list of named knobs with the values each may take.
///
/// Every family keeps its config as one aggregate beside its kernel (kernels/<arch>/config.hpp, cpu/config.hpp). The
/// search, the store and the command line see the same thing as numbers in the order of the family's knobs.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/enum_names.hpp"
#include "variant/bound.hpp"

namespace heed {

/// One dimension of a family's space.
struct Knob {
  std::string name;  ///< as in the aggregate and on the command line, e.g. "block_m"
  std::string help;
  std::vector<int> values;          ///< in an order in which neighbours are alike
  std::vector<std::string> names;   ///< one per value for a knob with named values, else empty
  int standard = 0;                 ///< the value of a default-constructed aggregate: variant ids leave it out
  std::vector<Bound> acts_on = {};  ///< what another value may relieve; diagnoses name such knobs
  bool shares_work = false;  ///< it says with the others so marked who does what; a search changes them together, too
  bool of_accuracy = false;  ///< it decides how exact results are: a search, which looks at speed, leaves it as it is
  /// It decides the launch alone: device code does not read it, and sources have it at its standard value, so that
  /// variants which differ in nothing else are one program.
  bool of_launch = false;
  std::optional<int> known = {};  ///< the value with which a program knows what it may of its workload, all else equal;
                                  ///< a search tries the default with all of these early

  [[nodiscard]] bool acts(Bound bound) const;
  [[nodiscard]] bool is_named() const { return !names.empty(); }
  [[nodiscard]] std::string text_of(int value) const;
  /// @throws Error(usage) listing what the knob accepts
  [[nodiscard]] int parse(std::string_view text) const;
  /// Position of `value` in `values`, or -1.
  [[nodiscard]] int index_of(int value) const;
};

/// One value per knob of a family, in the family's order.
using Config = std::vector<int>;

/// "block_m=64,block_n=128,..." in the family's order.
std::string to_string(const std::vector<Knob>& knobs, const Config& config);
/// "block_m=64,stages=2" for ids: the knobs that are not at their standard value, and how many of them there are beyond
/// 80 characters, "block_m=64,stages=2,+3"; "standard" where all are at it.
std::string to_compact_string(const std::vector<Knob>& knobs, const Config& config);
/// Knobs not named keep their value in `defaults`. @throws Error(usage) for an unknown knob or value
Config parse_config(const std::vector<Knob>& knobs, const Config& defaults, std::string_view text);

/// Names of the knobs that act on a bound, in the family's order.
std::vector<std::string> knobs_acting_on(const std::vector<Knob>& knobs, Bound bound);

/// How many points the space has, legal or not.
double space_size(const std::vector<Knob>& knobs);

/// Connects the knobs of a family with its aggregate `Aggregate`.
template <typename Aggregate>
class KnobTable {
 public:
  /// A numeric knob.
  KnobTable& add(std::string_view name, int Aggregate::*member, const std::vector<int>& values, std::string_view help) {
    return add({.name = std::string(name), .help = std::string(help), .values = values, .names = {}},
               {[member](const Aggregate& a) { return a.*member; }, [member](Aggregate& a, int v) { a.*member = v; },
                [](int v) { return std::to_string(v); }});
  }

  /// A switch.
  KnobTable& add(std::string_view name, bool Aggregate::*member, std::string_view help) {
    return add({.name = std::string(name), .help = std::string(help), .values = {0, 1}, .names = {"off", "on"}},
               {[member](const Aggregate& a) { return a.*member ? 1 : 0; },
                [member](Aggregate& a, int v) { a.*member = v != 0; },
                [](int v) { return std::string(v != 0 ? "true" : "false"); }});
  }

  /// A knob with named values: those of its enumeration, or as many of the first as the family takes.
  template <typename Enum>
    requires std::is_enum_v<Enum>
  KnobTable& add(std::string_view name, Enum Aggregate::*member, std::string_view help, int count = kEnumCount<Enum>) {
    std::vector<Enum> values;
    for (int i = 0; i < count; ++i) values.push_back(static_cast<Enum>(i));
    return add(name, member, values, help);
  }

  /// A knob with named values, some of an enumeration that families share.
  template <typename Enum>
    requires std::is_enum_v<Enum>
  KnobTable& add(std::string_view name, Enum Aggregate::*member, const std::vector<Enum>& values,
                 std::string_view help) {
    Knob knob{.name = std::string(name), .help = std::string(help), .values = {}, .names = {}};
    for (const Enum value : values) {
      const int i = static_cast<int>(value);
      knob.values.push_back(i);
      knob.names.emplace_back(unqualified(qualified_enum_names<Enum>().at(static_cast<std::size_t>(i))));
    }
    return add(std::move(knob),
               {[member](const Aggregate& a) { return static_cast<int>(a.*member); },
                [member](Aggregate& a, int v) { a.*member = static_cast<Enum>(v); },
                [](int v) { return std::string(qualified_enum_names<Enum>().at(static_cast<std::size_t>(v))); }});
  }

  /// What the knob added last acts on.
  KnobTable& acts_on(std::vector<Bound> bounds) {
    knobs_.back().acts_on = std::move(bounds);
    return *this;
  }

  /// The knob added last shares out the work, with the others of which that is said.
  KnobTable& shares_work() {
    knobs_.back().shares_work = true;
    return *this;
  }

  /// The knob added last is one of accuracy (Knob::of_accuracy).
  KnobTable& of_accuracy() {
    knobs_.back().of_accuracy = true;
    return *this;
  }

  /// The knob added last is one of the launch (Knob::of_launch).
  KnobTable& of_launch() {
    knobs_.back().of_launch = true;
    return *this;
  }

  /// The value with which a program knows what it may of its workload (Knob::known), of the knob added last.
  KnobTable& known_with(int value) {
    knobs_.back().known = value;
    return *this;
  }

  [[nodiscard]] const std::vector<Knob>& knobs() const { return knobs_; }

  [[nodiscard]] Config config_of(const Aggregate& aggregate) const {
    Config config;
    for (const Access& access : access_) config.push_back(access.get(aggregate));
    return config;
  }

  [[nodiscard]] Aggregate aggregate_of(const Config& config) const {
    Aggregate aggregate;
    for (std::size_t i = 0; i < access_.size(); ++i) access_[i].set(aggregate, config.at(i));
    return aggregate;
  }

  /// Some knobs of the aggregate as parse_variant reads them, in the family's order: "scheduler=dynamic,grid=full".
  [[nodiscard]] std::string text_of(const Aggregate& aggregate, std::initializer_list<std::string_view> names) const {
    std::string text;
    for (std::size_t i = 0; i < access_.size(); ++i)
      for (const std::string_view name : names)
        if (knobs_[i].name == name)
          text += (text.empty() ? "" : ",") + knobs_[i].name + "=" + knobs_[i].text_of(access_[i].get(aggregate));
    return text;
  }

  /// The aggregate as C++ with designated fields, e.g. "{.block_m = 64, .exp2 = heed::cpu::Exp2::degree5}", for device
  /// code: knobs of the launch have their standard value.
  [[nodiscard]] std::string render(const Config& config) const {
    std::string text = "{";
    for (std::size_t i = 0; i < access_.size(); ++i)
      text += (i == 0 ? "." : ", .") + knobs_[i].name + " = " +
              access_[i].literal(knobs_[i].of_launch ? knobs_[i].standard : config.at(i));
    return text + "}";
  }

 private:
  struct Access {
    std::function<int(const Aggregate&)> get;
    std::function<void(Aggregate&, int)> set;
    std::function<std::string(int)> literal;
  };

  KnobTable& add(Knob knob, Access access) {
    knob.standard = access.get(Aggregate{});
    knobs_.push_back(std::move(knob));
    access_.push_back(std::move(access));
    return *this;
  }

  std::vector<Knob> knobs_;
  std::vector<Access> access_;
};

}  // namespace heed
