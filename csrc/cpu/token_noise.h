// The noise of a single token, for ops that need it of few: the steps of sampler.inc, on scalars.
#pragma once

#include <algorithm>
#include <bit>

#include "noise.h"

namespace scone {

inline uint32_t philox_word(uint64_t seed, uint64_t counter, uint32_t token) {
  uint32_t a = token / 4, b = uint32_t(counter), c = uint32_t(counter >> 32), d = kTag;
  uint32_t key_a = uint32_t(seed), key_b = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round, key_a += kWeylA, key_b += kWeylB) {
    const uint64_t product_a = uint64_t{a} * kRoundA, product_c = uint64_t{c} * kRoundB;
    a = uint32_t(product_c >> 32) ^ b ^ key_a, b = uint32_t(product_c);
    c = uint32_t(product_a >> 32) ^ d ^ key_b, d = uint32_t(product_a);
  }
  const uint32_t words[4] = {a, b, c, d};
  return words[token % 4];
}

inline float log_of_positive(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x), exponent = (bits - kSqrtHalfBits) >> 23;
  const float t = std::bit_cast<float>(bits - exponent * (1 << 23)) - 1.0f;
  float series = kLog[7];
  for (int i = 6; i >= 0; --i) series = series * t + kLog[i];
  return float(exponent) * kLn2 + ((t * t) * series + t);
}

inline float token_noise(uint64_t seed, uint64_t counter, uint32_t token) {
  const float u = (float(int32_t(philox_word(seed, counter, token) >> 1)) + 0.5f) * 0x1p-31f;
  const float v = std::min(u, 1.0f - 0x1p-24f);
  float series = 1.0f / 8;
  for (int power = 7; power > 0; --power) series = series * v + 1.0f / float(power);
  return -log_of_positive(v < 0.125f ? series * v : -log_of_positive(1.0f - v));
}

}  // namespace scone
