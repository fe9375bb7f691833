/* The CUDA kernels of HogwildState on the CPU, under csrc/tests/cuda_on_cpu: what a test of any language calls. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each returns NULL, or why the launch failed. `words` are (rows, positions), rows `row_stride` words apart; all other
   arrays are contiguous. With a `grid` of 0 the package's own launcher chooses grid and threads. */
const char* hogwild_read_on_cpu(uint64_t* words, int64_t row_stride, int64_t rows, int64_t positions, int64_t* tokens,
                                int64_t* versions, unsigned grid, unsigned threads);
const char* hogwild_write_on_cpu(uint64_t* words, int64_t row_stride, int64_t rows, int64_t positions,
                                 const int64_t* block_rows, const int64_t* block_starts, const int64_t* block_tokens,
                                 const int64_t* versions, int64_t count, int64_t size, int64_t* staleness, unsigned grid,
                                 unsigned threads);

/* How the launches from now on take turns; order: 0 up, 1 down, 2 shuffled by the seed. */
void hogwild_schedule_on_cpu(unsigned multiprocessors, unsigned resident, int order, uint64_t seed);

/* How often a kernel was launched so far. */
int hogwild_launches_on_cpu(const char* kernel);

#ifdef __cplusplus
}
#endif
