// The public header compiles alone: nothing is included before it.
#include "heed/heed.hpp"

static_assert(heed::size_of(heed::Dtype::bf16) == 2);
