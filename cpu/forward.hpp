/// fwd_cpu: what a candidate includes. `Forward<kConfig, kProblem>(params, block, scratch).run()` computes one block.
#pragma once

#include "cpu/matrix_forward.hpp"
#include "cpu/vector_forward.hpp"

namespace heed::cpu {

template <Unit kUnit, Config kConfig, Problem kProblem>
struct ForwardOn {
  using Type = VectorForward<kConfig, kProblem>;
};

#if defined(__x86_64__) && defined(__AVX512F__)
template <Config kConfig, Problem kProblem>
struct ForwardOn<Unit::matrix, kConfig, kProblem> {
  using Type = MatrixForward<kConfig, kProblem>;
};
#endif

template <Config kConfig, Problem kProblem>
using Forward = typename ForwardOn<kConfig.unit, kConfig, kProblem>::Type;

}  // namespace heed::cpu
