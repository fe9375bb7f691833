// The AVX2 build of the vector kernels. Headers come before the target pragma, so that no inline function of theirs is
// compiled for a CPU that may not be there.
#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

#include "kernels.h"
#include "noise.h"

#pragma GCC target("avx2,fma,f16c")
#define SCONE_BUILD avx2
#define SCONE_BUILD_NAME "AVX2"
#define SCONE_NARROWER nullptr
#define SCONE_AVX2
#include "kernels.inc"
#endif
