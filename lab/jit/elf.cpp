#include "jit/elf.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "jit/elf_bytes.hpp"

namespace heed::jit {
namespace {

std::string_view slice(std::string_view bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) malformed_elf("a section reaches past the end");
  return bytes.substr(offset, size);
}

std::string_view string_at(std::string_view table, std::uint64_t offset) {
  if (offset >= table.size()) malformed_elf("a name lies outside its string table");
  const std::string_view rest = table.substr(offset);
  const std::size_t end = rest.find('\0');
  if (end == std::string_view::npos) malformed_elf("an unterminated name");
  return rest.substr(0, end);
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; });
}

}  // namespace

ElfFile parse_elf(std::string_view bytes) {
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) malformed_elf("the magic bytes are missing");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    malformed_elf("not 64-bit little-endian");
  if (header.e_shentsize != sizeof(Elf64_Shdr)) malformed_elf("unexpected section header size");
  std::vector<Elf64_Shdr> headers;
  for (std::uint64_t i = 0; i < header.e_shnum; ++i)
    headers.push_back(read_at<Elf64_Shdr>(bytes, header.e_shoff + i * sizeof(Elf64_Shdr)));
  if (header.e_shstrndx >= headers.size()) malformed_elf("no section names");
  const auto content = [&](const Elf64_Shdr& h) {
    return h.sh_type == SHT_NOBITS || h.sh_type == SHT_NULL ? std::string_view() : slice(bytes, h.sh_offset, h.sh_size);
  };
  const std::string_view names = content(headers[header.e_shstrndx]);

  ElfFile file;
  for (const Elf64_Shdr& h : headers) {
    file.sections.push_back({string_at(names, h.sh_name), h.sh_type, h.sh_flags, h.sh_size, content(h)});
    const auto linked_strings = [&]() -> std::string_view {
      if (h.sh_link >= headers.size()) malformed_elf("a section links to none");
      return content(headers[h.sh_link]);
    };
    if (h.sh_type == SHT_DYNSYM || h.sh_type == SHT_SYMTAB) {
      for (std::uint64_t at = sizeof(Elf64_Sym); at + sizeof(Elf64_Sym) <= h.sh_size; at += sizeof(Elf64_Sym)) {
        const auto symbol = read_at<Elf64_Sym>(content(h), at);
        const std::string_view name = string_at(linked_strings(), symbol.st_name);
        if (name.empty()) continue;
        if (symbol.st_shndx == SHN_UNDEF) {
          file.undefined.emplace_back(name);
        } else if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && ELF64_ST_BIND(symbol.st_info) != STB_LOCAL) {
          file.defined.emplace_back(name);
        }
      }
    }
  }
  return file;
}

std::string machine_code_digest(const ElfFile& file) {
  Digester digester;
  for (const ElfSection& section : file.sections) {
    const bool code = (section.flags & SHF_EXECINSTR) != 0 || starts_with_any(section.name, {".text"});
    // A cubin's bank 4 has room for the address of each module-scope variable, NVRTC makes one of every constant of a
    // namespace, and the contract lets no code name any (contract_violation_in_ptx): what it holds, nothing loads.
    const bool addresses = starts_with_any(section.name, {".nv.constant4"});
    const bool constants = starts_with_any(section.name, {".rodata", ".nv.constant"}) && !addresses;
    if (code || constants) digester.add(section.name).add(section.data);
  }
  return digester.hex();
}

std::int64_t code_bytes(const ElfFile& file) {
  std::int64_t bytes = 0;
  for (const ElfSection& section : file.sections)
    if (starts_with_any(section.name, {".text"})) bytes += static_cast<std::int64_t>(section.data.size());
  return bytes;
}

std::string contract_violation_in_cubin(const ElfFile& file, std::string_view entry) {
  for (const std::string& name : file.undefined)
    if (name.find(".nv.") != 0 && name != "__nv_reservedSMEM_offset_0_alias")
      return fmt::format("it calls {}, which is outside the kernel contract", name);
  if (std::find(file.defined.begin(), file.defined.end(), entry) == file.defined.end())
    return fmt::format("it has no kernel {}", entry);
  return {};
}

}  // namespace heed::jit
