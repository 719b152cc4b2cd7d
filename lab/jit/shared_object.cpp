#include "jit/shared_object.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "jit/cpu_code.hpp"
#include "jit/elf_bytes.hpp"

namespace heed::jit {
namespace {

constexpr std::uint64_t kPage = 4096;
#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
constexpr CpuMachine kCode = CpuMachine::x86_64;
#else
constexpr unsigned kMachine = EM_AARCH64;
constexpr CpuMachine kCode = CpuMachine::aarch64;
#endif
constexpr std::uint64_t kMostSpan = 64 << 20;  // of an object in memory; kernels take less than 1 MiB

// The tags that a linker writes for an object without relocations, and that make a loader do nothing.
constexpr std::array kHarmlessTags = {DT_HASH,   DT_GNU_HASH, DT_STRTAB, DT_SYMTAB,  DT_STRSZ, DT_SYMENT,
                                      DT_SONAME, DT_SYMBOLIC, DT_FLAGS,  DT_FLAGS_1, DT_DEBUG, DT_VERSYM};

// Tags with a sentence of their own; any other that is not harmless is refused by its number.
std::string violation_of_tag(std::int64_t tag) {
  switch (tag) {
    case DT_NEEDED:
      return "it asks for a library";
    case DT_INIT:
    case DT_FINI:
    case DT_INIT_ARRAY:
    case DT_FINI_ARRAY:
    case DT_PREINIT_ARRAY:
    case DT_INIT_ARRAYSZ:
    case DT_FINI_ARRAYSZ:
    case DT_PREINIT_ARRAYSZ:
      return "it has code that runs while it is loaded";
    case DT_REL:
    case DT_RELSZ:
    case DT_RELENT:
    case DT_RELA:
    case DT_RELASZ:
    case DT_RELAENT:
    case DT_RELACOUNT:
    case DT_RELCOUNT:
    case DT_JMPREL:
    case DT_PLTREL:
    case DT_PLTRELSZ:
    case DT_PLTGOT:
    case DT_TEXTREL:
    case 35:  // DT_RELRSZ
    case 36:  // DT_RELR
    case 37:  // DT_RELRENT
      return "it has addresses that a loader would have to write into it (relocations): pointers kept in constants, or "
             "symbols of others";
    case DT_AUXILIARY:
    case DT_FILTER:
    case DT_RPATH:
    case DT_RUNPATH:
      return "it asks for other libraries";
    default:
      return fmt::format("it has an entry for the loader that is outside the kernel contract (dynamic tag {:#x})", tag);
  }
}

class ObjectReader {
 public:
  explicit ObjectReader(std::string_view bytes) : bytes_(bytes) {}

  SharedObject read() {
    const auto header = read_at<Elf64_Ehdr>(bytes_, 0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) malformed_elf("the magic bytes are missing");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
      malformed_elf("not 64-bit little-endian");
    if (header.e_type != ET_DYN) malformed_elf("not a shared object");
    if (header.e_phentsize != sizeof(Elf64_Phdr)) malformed_elf("unexpected program header size");
    if (header.e_machine != kMachine) malformed_elf("made for another processor");
    std::vector<Elf64_Phdr> headers;
    for (std::uint64_t i = 0; i < header.e_phnum; ++i)
      headers.push_back(read_at<Elf64_Phdr>(bytes_, header.e_phoff + i * sizeof(Elf64_Phdr)));
    for (const Elf64_Phdr& h : headers)
      if (h.p_type == PT_DYNAMIC) dynamic_.emplace_back(h);
    for (const Elf64_Phdr& h : headers) take(h);
    check_overlaps();
    // What the dynamic section asks for says more than the writable memory that comes with it.
    const std::string of_segments = std::exchange(object_.violation, {});
    if (dynamic_.size() == 1)
      read_dynamic();
    else
      violation("it has no dynamic section, or several");
    violation(of_segments);
    return std::move(object_);
  }

 private:
  void violation(std::string what) {
    if (object_.violation.empty()) object_.violation = std::move(what);
  }

  void take(const Elf64_Phdr& h) {
    switch (h.p_type) {
      case PT_LOAD:
        return take_load(h);
      case PT_GNU_STACK:
        if ((h.p_flags & PF_X) != 0) violation("it asks for an executable stack");
        return;
      case PT_NULL:
      case PT_DYNAMIC:
      case PT_PHDR:
      case PT_NOTE:
      case PT_GNU_RELRO:
      case PT_GNU_EH_FRAME:
      case 0x6474e553:  // PT_GNU_PROPERTY
        return;
      case PT_TLS:
        return violation("it has thread-local memory, which would keep state between launches");
      case PT_INTERP:
        return violation("it asks for a loader of its own");
      default:
        return violation(
            fmt::format("it has a segment that is outside the kernel contract (program header type {:#x})", h.p_type));
    }
  }

  void take_load(const Elf64_Phdr& h) {
    if (h.p_offset > bytes_.size() || bytes_.size() - h.p_offset < h.p_filesz)
      malformed_elf("a segment reaches past the end");
    if (h.p_memsz < h.p_filesz || h.p_vaddr > kMostSpan || h.p_memsz > kMostSpan - h.p_vaddr)
      malformed_elf("a segment of an impossible size");
    if (h.p_memsz == 0) return;
    // A linker keeps the dynamic section in a writable segment, whatever it holds. It is mapped read-only here, and
    // nothing else may lie there.
    if ((h.p_flags & PF_W) != 0 && !is_dynamic_section_alone(h))
      violation(fmt::format("it keeps state between launches ({} bytes of writable memory of its own)", h.p_memsz));
    if ((h.p_flags & PF_W) != 0 && (h.p_flags & PF_X) != 0) violation("it has code that can be written to");
    object_.segments.push_back(
        {h.p_vaddr, h.p_memsz, bytes_.substr(h.p_offset, h.p_filesz), (h.p_flags & (PF_X | PF_W)) == PF_X});
    object_.span = std::max(object_.span, h.p_vaddr + h.p_memsz);
  }

  bool is_dynamic_section_alone(const Elf64_Phdr& h) const {
    if (dynamic_.empty() || h.p_vaddr < dynamic_.front().p_vaddr) return false;
    const std::uint64_t end = dynamic_.front().p_vaddr + dynamic_.front().p_memsz;
    if (h.p_vaddr + h.p_memsz <= end) return true;
    // GNU's linker for aarch64 puts a table of addresses behind it that has none: its reserved words are the address of
    // the dynamic section and zeros.
    if (kMachine != EM_AARCH64 || h.p_vaddr > end || h.p_filesz != h.p_memsz ||
        h.p_vaddr + h.p_memsz - end > kReservedBytes)
      return false;
    for (std::uint64_t at = end - h.p_vaddr; at < h.p_filesz; at += sizeof(std::uint64_t))
      if (const auto word = read_at<std::uint64_t>(bytes_, h.p_offset + at);
          word != 0 && word != dynamic_.front().p_vaddr)
        return false;
    return true;
  }

  void check_overlaps() {
    std::vector<LoadSegment>& all = object_.segments;
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
    for (std::size_t i = 1; i < all.size(); ++i) {
      if ((all[i - 1].address + all[i - 1].bytes + kPage - 1) / kPage > all[i].address / kPage)
        violation("two of its segments share a page");
      else if (all[i - 1].executable && all[i].executable)
        violation("its code lies in two segments, of which an instruction could have a part each");
    }
  }

  // What is mapped at an address, to the end of its segment's content.
  std::string_view at(std::uint64_t address) const {
    for (const LoadSegment& s : object_.segments)
      if (address >= s.address && address - s.address < s.content.size()) return s.content.substr(address - s.address);
    malformed_elf("an address of the dynamic section lies outside the segments");
  }

  void read_dynamic() {
    // Read where it is mapped, not where the file header says it lies: those may differ.
    const std::string_view all = at(dynamic_.front().p_vaddr);
    std::optional<std::uint64_t> hash, strings, string_bytes, symbols;
    std::string of_tags;
    for (std::uint64_t i = 0;; i += sizeof(Elf64_Dyn)) {
      const auto entry = read_at<Elf64_Dyn>(all, i);
      if (entry.d_tag == DT_NULL) break;
      if (of_tags.empty() && std::find(kHarmlessTags.begin(), kHarmlessTags.end(), entry.d_tag) == kHarmlessTags.end())
        of_tags = violation_of_tag(entry.d_tag);
      if (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_TEXTREL) != 0) of_tags = violation_of_tag(DT_TEXTREL);
      if (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_STATIC_TLS) != 0)
        return violation("it has thread-local memory, which would keep state between launches");
      if (entry.d_tag == DT_HASH) hash = entry.d_un.d_ptr;
      if (entry.d_tag == DT_STRTAB) strings = entry.d_un.d_ptr;
      if (entry.d_tag == DT_STRSZ) string_bytes = entry.d_un.d_val;
      if (entry.d_tag == DT_SYMTAB) symbols = entry.d_un.d_ptr;
    }
    if (!hash || !strings || !symbols || !string_bytes) return violation("it has no table of its symbols");
    const std::string_view names = at(*strings).substr(0, *string_bytes);
    const std::string_view table = at(*symbols);
    const auto count = read_at<std::uint32_t>(at(*hash), sizeof(std::uint32_t));  // nchain: one for each symbol
    for (std::uint64_t i = 1; i < count; ++i) {
      const auto symbol = read_at<Elf64_Sym>(table, i * sizeof(Elf64_Sym));
      const std::size_t end = symbol.st_name < names.size() ? names.find('\0', symbol.st_name) : std::string_view::npos;
      if (end == std::string_view::npos) malformed_elf("a name lies outside its string table");
      const std::string name(names.substr(symbol.st_name, end - symbol.st_name));
      const unsigned type = ELF64_ST_TYPE(symbol.st_info);
      if (type == STT_GNU_IFUNC) return violation("it has functions that run while it is loaded (IFUNC)");
      if (type == STT_TLS) return violation("it has thread-local memory, which would keep state between launches");
      if (symbol.st_shndx == SHN_UNDEF)
        return violation(fmt::format("it calls {}, which is outside the kernel contract", name));
      if (type == STT_FUNC && ELF64_ST_BIND(symbol.st_info) != STB_LOCAL)
        object_.functions.emplace_back(name, symbol.st_value);
    }
    violation(of_tags);
  }

  static constexpr std::uint64_t kReservedBytes = 32;  // .got and .got.plt without an entry

  std::string_view bytes_;
  std::vector<Elf64_Phdr> dynamic_;
  SharedObject object_;
};

}  // namespace

std::optional<std::uint64_t> SharedObject::find(std::string_view function) const {
  for (const auto& [name, address] : functions)
    if (name == function) return address;
  return std::nullopt;
}

SharedObject parse_shared_object(std::string_view bytes) {
  return ObjectReader(bytes).read();
}

std::string contract_violation_in_shared_object(const SharedObject& object, std::string_view entry) {
  if (!object.violation.empty()) return object.violation;
  for (const LoadSegment& s : object.segments)
    if (std::string found = s.executable ? violation_in_cpu_code(s.content, kCode) : ""; !found.empty()) return found;
  const std::optional<std::uint64_t> address = object.find(entry);
  if (!address) return fmt::format("it has no function {}", entry);
  for (const LoadSegment& s : object.segments)
    if (s.executable && *address >= s.address && *address - s.address < s.content.size()) return {};
  return fmt::format("its function {} lies outside its code", entry);
}

std::string machine_code_digest(const SharedObject& object) {
  Digester digester;
  for (const LoadSegment& s : object.segments)
    digester.add(fmt::format("{} {} {}", s.address, s.bytes, s.executable)).add(s.content);
  return digester.hex();
}

std::int64_t code_bytes(const SharedObject& object) {
  std::int64_t bytes = 0;
  for (const LoadSegment& s : object.segments) bytes += s.executable ? static_cast<std::int64_t>(s.bytes) : 0;
  return bytes;
}

}  // namespace heed::jit
