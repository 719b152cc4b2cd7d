#include "process/confinement.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace heed {
namespace {

// The kernel's interface, written out because the headers of older systems lack its later parts (linux/landlock.h).
constexpr long kCreateRuleset = 444;
constexpr long kAddRule = 445;
constexpr long kRestrictSelf = 446;
constexpr std::uint64_t kExecute = 1U << 0;
constexpr std::uint64_t kWriteFile = 1U << 1;
constexpr std::uint64_t kReadFile = 1U << 2;
constexpr std::uint64_t kReadFolder = 1U << 3;
constexpr std::uint64_t kTruncate = 1U << 14;
constexpr std::uint64_t kOnFiles = kExecute | kWriteFile | kReadFile | kTruncate;  // what a rule on a file may hold

struct RulesetAttributes {
  std::uint64_t files;
  std::uint64_t network;
  std::uint64_t scopes;
};

struct [[gnu::packed]] PathRule {
  std::uint64_t access;
  std::int32_t folder;
};

int landlock_version() {
  return static_cast<int>(std::max(0L, ::syscall(kCreateRuleset, nullptr, 0, 1)));
}

// Every kind of access that this kernel can refuse.
std::uint64_t accesses_of(int version) {
  const int bits = version >= 5 ? 16 : version >= 3 ? 15 : version == 2 ? 14 : 13;
  return (std::uint64_t{1} << bits) - 1;
}

void allow(int rules, const std::string& path, std::uint64_t access) {
  const int fd = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (fd < 0) return;
  struct stat status {};
  if (::fstat(fd, &status) == 0 && !S_ISDIR(status.st_mode)) access &= kOnFiles;
  const PathRule rule{access, fd};
  ::syscall(kAddRule, rules, 1, &rule, 0);
  ::close(fd);
}

int ruleset_for(const Confinement& confinement) {
  const int version = landlock_version();
  if (version < 1) return -1;
  RulesetAttributes attributes{accesses_of(version), 0, 0};
  attributes.network = 3;  // bind and connect TCP
  attributes.scopes = 3;   // abstract sockets and signals out of it
  const std::size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  const int rules = static_cast<int>(::syscall(kCreateRuleset, &attributes, size, 0));
  if (rules < 0) return -1;
  for (const std::string& path : confinement.readable) allow(rules, path, kExecute | kReadFile | kReadFolder);
  for (const std::string& path : confinement.writable) allow(rules, path, attributes.files);
  allow(rules, "/dev/null", (kReadFile | kWriteFile | kTruncate) & attributes.files);
  return rules;
}

bool limit(__rlimit_resource_t resource, std::int64_t most) {
  if (most <= 0) return true;
  rlimit value{};
  if (::getrlimit(resource, &value) != 0) return false;
  value.rlim_cur = std::min<rlim_t>(value.rlim_max, static_cast<rlim_t>(most));
  value.rlim_max = value.rlim_cur;
  return ::setrlimit(resource, &value) == 0;
}

}  // namespace

PreparedConfinement::PreparedConfinement(const Confinement& confinement) : confinement_(confinement) {
  if (!confinement.confines()) return;
  for (const std::string& variable : confinement.environment)
    environment_.push_back(const_cast<char*>(variable.c_str()));
  environment_.push_back(nullptr);
  rules_ = ruleset_for(confinement);
}

PreparedConfinement::~PreparedConfinement() {
  if (rules_ >= 0) ::close(rules_);
}

bool PreparedConfinement::enter() const {
  if (!confinement_.confines()) return true;
  if (!confinement_.folder.empty() && ::chdir(confinement_.folder.c_str()) != 0) return false;
  const rlimit no_core{0, 0};
#if defined(__SANITIZE_ADDRESS__)
  const bool in_memory = true;  // the sanitizer's shadow alone takes terabytes of addresses
#else
  const bool in_memory = limit(RLIMIT_AS, confinement_.memory_bytes);
#endif
  return in_memory && limit(RLIMIT_FSIZE, confinement_.file_bytes) && limit(RLIMIT_CPU, confinement_.processor_s) &&
         ::setrlimit(RLIMIT_CORE, &no_core) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         (rules_ < 0 || ::syscall(kRestrictSelf, rules_, 0) == 0);
}

char* const* PreparedConfinement::environment() const {
  return confinement_.confines() ? environment_.data() : environ;
}

bool can_hide_files() {
  return landlock_version() >= 1;
}

std::string describe_confinement() {
  const int version = landlock_version();
  if (version < 1)
    return "limits of memory, files and time alone: this kernel has no Landlock, so compilers may read any file";
  return fmt::format("{} (Landlock ABI {}), limits of memory, files and time",
                     version >= 4 ? "files and network" : "files", version);
}

}  // namespace heed
