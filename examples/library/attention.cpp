// attention.cpp: plans in C++, on a CPU. Where all scores are equal, O is the mean of V and the log-sum-exp is
// log(keys).
#include <cmath>
#include <cstdio>
#include <heed/plan.hpp>
#include <vector>

namespace {

constexpr int kHeads = 2;
constexpr int kQueries = 64;
constexpr int kKeys = 256;
constexpr int kDim = 64;

double error_of_run(const heed::c::Plan& plan) {
  const std::vector<float> q(kHeads * kQueries * kDim, 1);
  const std::vector<float> k(kHeads * kKeys * kDim, 0.5F);
  std::vector<float> v(kHeads * kKeys * kDim);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = i / kDim % 2 == 0 ? 1 : 3;  // mean 2
  std::vector<float> o(kHeads * kQueries * kDim);
  std::vector<float> lse(kHeads * kQueries);

  heed_tensors tensors = heed::c::tensors();
  tensors.q = q.data();
  tensors.k = k.data();
  tensors.v = v.data();
  tensors.o = o.data();
  tensors.lse = lse.data();
  plan.run(tensors);

  double worst = 0;
  const double score = 0.5 * kDim / std::sqrt(kDim);
  for (const float x : o) worst = std::fmax(worst, std::fabs(x - 2.0));
  for (const float x : lse) worst = std::fmax(worst, std::fabs(x - score - std::log(kKeys)));
  return worst;
}

}  // namespace

int main() try {
  heed_problem problem = heed::c::problem();
  problem.heads = problem.heads_kv = kHeads;
  problem.len_q = kQueries;
  problem.len_k = kKeys;
  problem.dtype_q = problem.dtype_k = problem.dtype_v = problem.dtype_o = HEED_FP32;
  problem.flags = HEED_WANTS_LSE;
  std::printf("%s", heed::c::explain(problem).c_str());
  const double worst = error_of_run(heed::c::Plan(problem));
  std::printf("greatest error %.1e\n", worst);
  return worst < 1e-4 ? 0 : 1;
} catch (const heed::c::Error& error) {
  std::fprintf(stderr, "%s: %s\n", heed_status_name(error.status()), error.what());
  return 1;
}
