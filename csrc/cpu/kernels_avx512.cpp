// The AVX-512 build of the vector kernels: kernels_avx2.cpp says why headers come first.
#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

#include "kernels.h"
#include "noise.h"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define SCONE_BUILD avx512
#define SCONE_BUILD_NAME "AVX-512"
#define SCONE_NARROWER &avx2::table
#define SCONE_AVX512
#include "kernels.inc"
#endif
