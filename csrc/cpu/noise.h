// Constants of the sampler's noise: the same numbers as in scone_kernels/_noise.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace scone {

constexpr uint32_t kRoundA = 0xD2511F53u, kRoundB = 0xCD9E8D57u;  // Philox's multipliers
constexpr uint32_t kWeylA = 0x9E3779B9u, kWeylB = 0xBB67AE85u;    // what its key grows by in each round
constexpr uint32_t kTag = 0x53434F4Eu;
constexpr int32_t kSqrtHalfBits = 0x3F3504F3;
constexpr float kLn2 = 0.6931471824645996f;
constexpr float kLog[8] = {-0.49999988079071045f, 0.3333394229412079f,  -0.250020831823349f,  0.19962626695632935f,
                           -0.16564123332500458f, 0.14906279742717743f, -0.14344751834869385f, 0.08810625225305557f};

}  // namespace scone
