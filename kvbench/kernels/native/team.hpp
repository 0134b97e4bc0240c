// A team of threads, of the OpenMP runtime that PyTorch has loaded: with a second runtime its
// threads would wait for work on the cores that the first one's work on.
#pragma once

#include <cstdint>

namespace kvbench {

static void (*start_team)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
static int (*number_in_team)();
static int (*size_of_team)();

// Calls share(0), share(1), ... share(shares - 1), each once, on as many threads.
template <typename Share>
void in_team(std::int64_t shares, const Share& share) {
  struct Work {
    const Share& share;
    std::int64_t shares;
  } work{share, shares};
  const auto member = [](void* data) {
    const Work& work = *static_cast<const Work*>(data);
    // A team may be smaller than asked for, as inside another team.
    const std::int64_t team = size_of_team();
    for (std::int64_t i = number_in_team(); i < work.shares; i += team) work.share(i);
  };
  if (shares > 1) {
    start_team(member, &work, static_cast<unsigned>(shares), 0);
  } else {
    share(0);
  }
}

}  // namespace kvbench

extern "C" {

// GOMP_parallel, omp_get_thread_num and omp_get_num_threads.
void kvbench_use_openmp(void (*parallel)(void (*)(void*), void*, unsigned, unsigned),
                             int (*thread_num)(), int (*num_threads)()) {
  kvbench::start_team = parallel;
  kvbench::number_in_team = thread_num;
  kvbench::size_of_team = num_threads;
}
}
