#include "worker/candidate_image.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/files.hpp"
#include "jit/shared_object.hpp"
#include "worker/executor.hpp"

namespace heed::worker {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("cannot load {}: {}", path, why));
}

}  // namespace

CandidateImage::CandidateImage(const std::string& path, const std::string& entry) {
  std::string file;
  jit::SharedObject object;
  try {
    file = read_file(path, ErrorCode::worker);
    object = jit::parse_shared_object(file);
  } catch (const Error& error) {
    refuse(path, error.what());
  }
  // Audited when it was built; the file may be another by now.
  if (const std::string violation = jit::contract_violation_in_shared_object(object, entry); !violation.empty())
    refuse(path, violation);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto page_end = [&](std::uint64_t at) { return (at + page - 1) / page * page; };
  bytes_ = page_end(object.span);
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) refuse(path, last_system_error());
  memory_ = static_cast<std::byte*>(memory);
  for (const jit::LoadSegment& s : object.segments)
    std::memcpy(memory_ + s.address, s.content.data(), s.content.size());
  bool closed = ::mprotect(memory_, bytes_, PROT_READ) == 0;
  for (const jit::LoadSegment& s : object.segments) {
    const std::uint64_t begin = s.address / page * page;
    if (s.executable)
      closed = closed && ::mprotect(memory_ + begin, page_end(s.address + s.bytes) - begin, PROT_READ | PROT_EXEC) == 0;
  }
  if (!closed) refuse(path, last_system_error());
  entry_ = address() + *object.find(entry);
}

CandidateImage::~CandidateImage() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

}  // namespace heed::worker
