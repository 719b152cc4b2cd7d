#include "dispatch/object_arch.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "dispatch/architecture.hpp"

namespace heed::dispatch {
namespace {

constexpr std::uint64_t kMostNameBytes = 256;

template <typename T>
std::optional<T> read_at(std::string_view bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string_view content(std::string_view bytes, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_offset > bytes.size() ||
      bytes.size() - section.sh_offset < section.sh_size)
    return {};
  return bytes.substr(section.sh_offset, section.sh_size);
}

}  // namespace

std::string arch_of_object(std::string_view bytes) {
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_shentsize != sizeof(Elf64_Shdr) ||
      header->e_shoff > bytes.size())
    return {};
  const auto section = [&](std::uint64_t i) {
    return read_at<Elf64_Shdr>(bytes, header->e_shoff + i * sizeof(Elf64_Shdr));
  };
  const auto of_names = section(header->e_shstrndx);
  if (!of_names) return {};
  const std::string_view names = content(bytes, *of_names);
  for (std::uint64_t i = 0; i < header->e_shnum; ++i) {
    const auto one = section(i);
    if (!one || one->sh_name >= names.size()) continue;
    const std::string_view name = names.substr(one->sh_name);
    if (name.substr(0, name.find('\0')) != kArchSection) continue;
    const std::string_view arch = content(bytes, *one);
    return arch.size() <= kMostNameBytes ? std::string(arch) : std::string();
  }
  return {};
}

std::string expect_runnable(std::string_view image, const DeviceFacts& device) {
  std::string arch = arch_of_object(image);
  if (arch.empty())
    throw Error(ErrorCode::programs,
                fmt::format("the image cannot be loaded: it is no shared object that says in a section {} which "
                            "processors run it; heed build writes one",
                            kArchSection));
  if (arch_fit(arch, device) == ArchFit::none)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("the image was built for {}, which {} does not run{}; build it with heed build --arch", arch,
                    device.name, device.level.empty() ? "" : fmt::format(": it runs CPU levels to {}", device.level)),
        arch);
  return arch;
}

}  // namespace heed::dispatch
