/// fwd_cpu: what a candidate includes. `Forward<kConfig, kProblem>(params, block, scratch).run()` computes one block.
#pragma once

#include "cpu/decode_forward.hpp"
#include "cpu/matrix_forward.hpp"
#include "cpu/vector_forward.hpp"

namespace heed::cpu {

template <Unit kUnit, Lanes kLanesHold, Config kConfig, Problem kProblem>
struct ForwardOn {
  using Type = VectorForward<kConfig, kProblem>;
};

template <Config kConfig, Problem kProblem>
struct ForwardOn<Unit::vector, Lanes::columns, kConfig, kProblem> {
  using Type = DecodeForward<kConfig, kProblem>;
};

#if defined(__x86_64__) && defined(__AVX512F__)
template <Config kConfig, Problem kProblem>
struct ForwardOn<Unit::matrix, Lanes::queries, kConfig, kProblem> {
  using Type = MatrixForward<kConfig, kProblem>;
};
#endif

template <Config kConfig, Problem kProblem>
using Forward = typename ForwardOn<kConfig.unit, kConfig.lanes, kConfig, kProblem>::Type;

}  // namespace heed::cpu
