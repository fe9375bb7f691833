// How many cores this process may keep busy.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <fstream>
#include <string>

#if defined(__linux__)
#include <sched.h>
#endif

namespace scone {

// Cores' worth of time that the process's container is given, rounded up; looked at once.
inline int quota() {
  static const int found = [] {
    double limit = 0, period = 0;
    std::ifstream both("/sys/fs/cgroup/cpu.max");  // "max 100000" where there is no limit
    std::ifstream first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), second("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    const bool limited = (both >> limit >> period) || (first >> limit && second >> period);
    return limited && limit > 0 && period > 0 ? std::max(1, int(std::ceil(limit / period))) : INT_MAX;
  }();
  return found;
}

// Those that the calling thread may run on, and no more than the quota: torch asks for neither when it counts its threads.
inline int usable_cores() {
  int cores = INT_MAX;
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = std::max(1, CPU_COUNT(&allowed));
#endif
  return std::min(cores, quota());
}

}  // namespace scone
