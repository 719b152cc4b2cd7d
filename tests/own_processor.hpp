// A processor of its own for a test process that measures, so that several such tests run at once.
#pragma once

namespace heed::testing_support {

// Binds this process, and what it starts, to one processor that no other such process holds, until it ends. Where all
// are held, or files of /tmp cannot be locked, nothing changes. Two searches on CPU that share two processors take 35 s
// each, bound to one each 14 s: their threads spin while they wait for each other.
void take_a_processor();

}  // namespace heed::testing_support
