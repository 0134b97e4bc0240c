// What the tests of the C++ kernels in C++ share: numbers, teams and tensors at random. Tensors
// have memory of their own, of exactly their size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

using kvbench::Int;

namespace {

std::mt19937 rng(1);

Int draw(Int least, Int most) { return std::uniform_int_distribution<Int>(least, most)(rng); }

int member, members;

// A team that works one after the other, and may be smaller than asked for.
void team(void (*work)(void*), void* data, unsigned threads, unsigned) {
  members = static_cast<int>(draw(1, threads));
  for (member = 0; member < members; ++member) work(data);
}
int number() { return member; }
int size() { return members; }

// Memory for dimensions in some order, with gaps, and their strides.
struct Tensor {
  std::vector<char> memory;
  std::vector<Int> strides;
  Int offset;

  // If whole, elements of the last dimension are next to each other.
  Tensor(const std::vector<Int>& shape, Int element, bool gaps, bool whole = false)
      : strides(shape.size()) {
    std::vector<std::size_t> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    if (draw(0, 1)) std::shuffle(order.begin(), order.end() - whole, rng);
    Int stride = element;
    for (std::size_t i = order.size(); i-- > 0;) {
      strides[order[i]] = stride;
      stride *= shape[order[i]] + (gaps ? draw(0, 2) : 0);
    }
    offset = element * draw(0, 40);
    Int end = element;
    for (std::size_t i = 0; i < shape.size(); ++i) end += (shape[i] - 1) * strides[i];
    memory.resize(offset + end);
    for (char& byte : memory) byte = static_cast<char>(rng());
  }

  char* data() { return memory.data() + offset; }
};

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  std::exit(1);
}

}  // namespace
