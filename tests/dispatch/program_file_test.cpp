// Files of programs: what is written is read, and nothing that was altered, cut or made by another version is taken.
#include "dispatch/program_file.hpp"

#include "testing.hpp"

namespace heed::dispatch {
namespace {

using testing_support::expect_error;

const std::string kTwo = [] {
  std::string image(5000, 'x');
  image.back() = '2';
  return image;
}();

std::string two_programs() {
  ProgramFileWriter writer("abcd");
  for (const char* variant : {"one", "two", "one again"}) {
    ProgramRecord record;
    record.arch = "sm_90a";
    record.workload = "b1h8l512d64:fp16";
    record.variant = variant;
    record.origin = "rule";
    writer.add(record, std::string_view(variant) == "two" ? kTwo : std::string(3000, 'y'));
  }
  return writer.bytes();
}

TEST(ProgramFile, HoldsWhatWasWritten) {
  const auto file = ProgramFile::parse(two_programs(), "f");
  ASSERT_EQ(file->records().size(), 3U);
  EXPECT_EQ(file->source_digest(), "abcd");
  EXPECT_EQ(file->records()[1].variant, "two");
  EXPECT_EQ(file->image(file->records()[0]), std::string(3000, 'y'));
  EXPECT_EQ(file->image(file->records()[1]), kTwo);
  EXPECT_EQ(file->records()[2].offset, file->records()[0].offset) << "equal images are kept once";
  EXPECT_LT(two_programs().size(), 3000U) << "deflated";
}

TEST(ProgramFile, RefusesEveryFlippedByteAndEveryLength) {
  const std::string whole = two_programs();
  const auto reads = [](const std::string& bytes) {
    try {
      const auto file = ProgramFile::parse(bytes, "f");
      for (const ProgramRecord& record : file->records()) (void)file->image(record);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::programs) << error.what();
      return false;
    }
  };
  EXPECT_TRUE(reads(whole));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string altered = whole;
    altered[i] = static_cast<char>(altered[i] ^ 0x10);
    EXPECT_FALSE(reads(altered)) << "byte " << i;
    EXPECT_FALSE(reads(whole.substr(0, i))) << "cut at " << i;
  }
}

TEST(ProgramFile, SaysWhatIsWrong) {
  std::string bytes = two_programs();
  expect_error(ErrorCode::programs, "holds no programs", [] { (void)ProgramFile::parse("", "f"); });
  expect_error(ErrorCode::programs, "is truncated", [&] { (void)ProgramFile::parse(bytes.substr(0, 60), "f"); });
  expect_error(ErrorCode::programs, "1 bytes lie behind its last program",
               [&] { (void)ProgramFile::parse(bytes + "x", "f"); });
  bytes[8] = 9;
  expect_error(ErrorCode::programs, "version 9 of the format", [&] { (void)ProgramFile::parse(bytes, "f"); });
  expect_error(ErrorCode::programs, "/no/such/file", [] { (void)ProgramFile::open("/no/such/file"); });
}

}  // namespace
}  // namespace heed::dispatch
