// The baseline build of the vector kernels, and the choice between the builds.
#include "kernels.h"

#define SCONE_BUILD baseline
#define SCONE_BUILD_NAME "baseline"
#define SCONE_NARROWER nullptr
#include "kernels.inc"

namespace scone {
namespace {

std::vector<const Kernels*> find_builds() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // and F16C, which came before them
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2 && has_avx512) found.push_back(&avx512::table);
  if (has_avx2) found.push_back(&avx2::table);
#endif
  found.push_back(&baseline::table);
  return found;
}

const Kernels*& in_use() {
  static const Kernels* table = builds().front();
  return table;
}

}  // namespace

const std::vector<const Kernels*>& builds() {
  static const std::vector<const Kernels*> found = find_builds();
  return found;
}

const Kernels& kernels() { return *in_use(); }

void use_build(const Kernels& table) { in_use() = &table; }

}  // namespace scone
