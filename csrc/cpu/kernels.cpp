// The baseline build of the vector kernels, and the choice between the builds.
#include "kernels.h"

#define SCONE_BUILD baseline
#define SCONE_BUILD_NAME "baseline"
#include "kernels.inc"

namespace scone {

const Kernels& kernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return avx2::table;
#endif
  return baseline::table;
}

}  // namespace scone
