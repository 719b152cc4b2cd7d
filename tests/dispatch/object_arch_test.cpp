// What a shared object says of the processors that run it, of whole and of damaged files.
#include "dispatch/object_arch.hpp"

#include <elf.h>

#include <cstring>

#include "device/cpu_level.hpp"
#include "testing.hpp"

namespace heed::dispatch {
namespace {

using testing_support::expect_error;

// An ELF file of two sections: their names, and the one that names an architecture.
std::string object_of(const std::string& arch, const std::string& section = std::string(kArchSection)) {
  const std::string names = std::string(1, '\0') + section + '\0';
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  header.e_shoff = sizeof header + names.size() + arch.size();
  Elf64_Shdr of_names{};
  of_names.sh_type = SHT_STRTAB;
  of_names.sh_offset = sizeof header;
  of_names.sh_size = names.size();
  Elf64_Shdr of_arch{};
  of_arch.sh_type = SHT_PROGBITS;
  of_arch.sh_name = 1;
  of_arch.sh_offset = sizeof header + names.size();
  of_arch.sh_size = arch.size();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += names + arch;
  bytes.append(reinterpret_cast<const char*>(&of_names), sizeof of_names);
  bytes.append(reinterpret_cast<const char*>(&of_arch), sizeof of_arch);
  return bytes;
}

TEST(ObjectArch, IsReadFromItsSection) {
  EXPECT_EQ(arch_of_object(object_of("x86-64-v3")), "x86-64-v3");
  EXPECT_EQ(arch_of_object(object_of("x86-64-v3", ".heed.archive")), "");
  EXPECT_EQ(arch_of_object(object_of("")), "");
  EXPECT_EQ(arch_of_object(object_of(std::string(1000, 'x'))), "");
  EXPECT_EQ(arch_of_object(""), "");
  EXPECT_EQ(arch_of_object("this is no shared object, but longer than the header of one: 64 bytes are its size"), "");
}

TEST(ObjectArch, OfDamagedFilesIsReadWithinThem) {
  const std::string whole = object_of("x86-64-v3");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) EXPECT_EQ(arch_of_object(whole.substr(0, bytes)), "");
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = value;
      EXPECT_LE(arch_of_object(damaged).size(), whole.size());
    }
}

TEST(ObjectArch, AnImageIsForADeviceThatRunsIt) {
  DeviceFacts device = representative_cpu(*find_cpu_level("x86-64-v4"));
  device.name = "this processor";
  device.arch = "x86_64-avx512-01234567";
  for (const char* runs : {"x86-64-v3", "x86-64-v4", "x86_64-avx512-01234567"})
    EXPECT_EQ(expect_runnable(object_of(runs), device), runs);
  expect_error(ErrorCode::unsupported,
               "the image was built for x86-64-v4-amx, which this processor does not run: it runs CPU levels to "
               "x86-64-v4; build it with heed build --arch",
               [&] { (void)expect_runnable(object_of("x86-64-v4-amx"), device); });
  device.level.clear();
  expect_error(ErrorCode::unsupported, "which this processor does not run; build it",
               [&] { (void)expect_runnable(object_of("aarch64-neon"), device); });
  expect_error(ErrorCode::programs, "heed build writes one", [&] { (void)expect_runnable("no object", device); });
}

}  // namespace
}  // namespace heed::dispatch
