// Files of programs, and of the book: the index, its provenances, and the images that they name.
#include "dispatch/book.hpp"
#include "dispatch/provenance.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  heed::fuzz::refuses_or_reads([&] {
    const auto file = heed::dispatch::ProgramFile::parse(bytes, "input");
    for (const heed::dispatch::ProgramRecord& record : file->records()) {
      if (record.provenance) (void)to_string(*record.provenance);
      (void)file->image(record);
    }
  });
  heed::fuzz::refuses_or_reads([&] {
    const auto book = heed::dispatch::Book::of(*heed::dispatch::ProgramFile::parse(bytes, "input"));
    const auto again = heed::dispatch::Book::of(*heed::dispatch::ProgramFile::parse(book.bytes(), "again"));
    heed::fuzz::require(again.entries().size() == book.entries().size(), "what is written is read");
  });
  return 0;
}
