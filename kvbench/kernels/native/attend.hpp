// Attention of a tile of rows to some tokens: scores, softmax as far as it goes, weighted sums.
//
// A row is a query head of a token. Rows go in tiles of 1, 2, 4, ... up to as many as a vector has
// lanes. A tile's scores and weights are [tokens][kRows], so that lane i of a vector is of the row
// i % kRows, and what rows have of their own (the largest score, the sum of weights) is a vector
// that repeats itself. Tokens are given by the addresses of their K and V; the one after the last
// that counts may be any token's, up to a multiple of kStep.
#pragma once

#include "lanes.hpp"

namespace kvbench {

// Tokens that one step of the scores takes at most.
constexpr int kStep = 16;
constexpr Int kLine = 64;

// Lines of memory that are asked for while others are at work, a few at a time: many at once would
// make all wait.
struct Ahead {
  const char* const* rows = nullptr;  // pieces of memory, of so many bytes each
  Int offset = 0, bytes = 0, row = 0, last = 0, line = 0;

  Int lines() const { return (last - row) * ((bytes + kLine - 1) / kLine); }

  void ask(Int lines) {
    for (; lines > 0 && row < last; --lines) {
      __builtin_prefetch(rows[row] + offset + line, 0, 2);
      line += kLine;
      if (line >= bytes) line = 0, ++row;
    }
  }
};

// Scores of rows [kRows][dims]: lanes are elements, whose products are summed up at the end, for as
// many pairs of a row and a token at once as there are lanes.
template <typename Format, int kRows>
void scores_by_element(const float* rows, const char* const* keys, Int offset, Int tokens, Int dims,
                       float* scores, Ahead& ahead) {
  constexpr int kTokens = kLanes / kRows;
  constexpr Int kBytes = sizeof(typename Format::Bits);
  const Int lines = ahead.lines() * kTokens / tokens + 1;
  for (Int token = 0; token < tokens; token += kTokens) {
    ahead.ask(lines);
    Lanes sums[kLanes] = {};
    const char* at[kTokens];
    for (int t = 0; t < kTokens; ++t) at[t] = keys[token + t] + offset;
    for (Int d = 0; d < dims; d += kLanes) {
      Lanes key[kTokens];
      for (int t = 0; t < kTokens; ++t) key[t] = load_as_floats<Format>(at[t] + d * kBytes);
      for (int r = 0; r < kRows; ++r) {
        const Lanes row = in_register(load(rows + r * dims + d));
        for (int t = 0; t < kTokens; ++t) sums[t * kRows + r] += row * key[t];
      }
    }
    store(scores + token * kRows, sums_of(sums));
  }
}

#if defined(__AVX512BF16__)
constexpr bool kPairs = true;

// As scores_by_element, of rows and K in bf16, whose elements are multiplied two by two and summed
// as floats. What is below the normal numbers counts as 0: no weight can tell.
template <int kRows>
void scores_by_pair(const char* rows, const char* const* keys, Int offset, Int tokens, Int dims,
                    float* scores, Ahead& ahead) {
  constexpr int kTokens = kLanes / kRows;
  const Int lines = ahead.lines() * kTokens / tokens + 1, bytes = 2 * dims;
  for (Int token = 0; token < tokens; token += kTokens) {
    ahead.ask(lines);
    Lanes sums[kLanes] = {};
    const char* at[kTokens];
    for (int t = 0; t < kTokens; ++t) at[t] = keys[token + t] + offset;
    for (Int d = 0; d < bytes; d += kLine) {
      __m512bh key[kTokens], row;
      for (int t = 0; t < kTokens; ++t) std::memcpy(&key[t], at[t] + d, sizeof row);
      for (int r = 0; r < kRows; ++r) {
        std::memcpy(&row, rows + r * bytes + d, sizeof row);
        for (int t = 0; t < kTokens; ++t) {
          Lanes& sum = sums[t * kRows + r];
          sum = reinterpret_cast<Lanes>(
              _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), row, key[t]));
        }
      }
    }
    store(scores + token * kRows, sums_of(sums));
  }
}
#else
constexpr bool kPairs = false;

template <int kRows>
void scores_by_pair(const char*, const char* const*, Int, Int, Int, float*, Ahead&) {}
#endif

// Scores of rows [dims][kLanes]: lanes are rows. K is floats.
inline void scores_by_row(const float* rows, const char* const* keys, Int offset, Int tokens,
                          Int dims, float* scores, Ahead& ahead) {
  constexpr int kTokens = kSums / 2;
  const Int lines = ahead.lines() * kTokens / tokens + 1;
  for (Int token = 0; token < tokens; token += kTokens) {
    ahead.ask(lines);
    Lanes sums[kTokens] = {};
    const char* at[kTokens];
    for (int t = 0; t < kTokens; ++t) at[t] = keys[token + t] + offset;
    for (Int d = 0; d < dims; ++d) {
      const Lanes row = load(rows + d * kLanes);
      for (int t = 0; t < kTokens; ++t) {
        float key;
        std::memcpy(&key, at[t] + d * sizeof(float), sizeof key);
        sums[t] += row * key;
      }
    }
    for (int t = 0; t < kTokens; ++t) store(scores + (token + t) * kLanes, sums[t]);
  }
}

// What a tile has seen so far, but for the sums of V.
struct Seen {
  float largest[kLanes];  // score of each row; minus infinity where it has seen nothing
  float weights[kLanes];  // their sum, in parts: one for each lane of the row

  static Seen nothing() {
    Seen seen{};
    for (float& score : seen.largest) score = -std::numeric_limits<float>::infinity();
    return seen;
  }
};

// The tokens that each lane's row sees, from first up to last, by their number in the scores.
struct Sight {
  std::int32_t first[kLanes], last[kLanes];
};

// Products into scores, and these into weights: powers of e, relative to the largest score that the
// row has seen. Rows that have sums of V from before must multiply them by `shrink`.
template <int kRows>
void weigh(float* scores, Int tokens, float scale, float soft_cap, const Sight* sight, Seen& seen,
           float* shrink) {
  constexpr int kTokens = kLanes / kRows;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const Lanes before = load(seen.largest);
  Lanes largest = before;
  Ints number;
  for (int i = 0; i < kLanes; ++i) number[i] = i / kRows;
  Ints first, last;
  if (sight != nullptr) {
    std::memcpy(&first, sight->first, sizeof first);
    std::memcpy(&last, sight->last, sizeof last);
  }
  for (Int token = 0; token < tokens; token += kTokens) {
    Lanes score = load(scores + token * kRows) * scale;
    if (soft_cap > 0) score = soft_cap * hyperbolic_tangent(score / soft_cap);
    if (sight != nullptr) {
      const Ints at = number + static_cast<std::int32_t>(token);
      const Ints seen_here = (at >= first) & (at < last);
      score = seen_here ? score : all(kLeast);
    }
    largest = larger(largest, score);
    store(scores + token * kRows, score);
  }
  largest = joined_by_row<kRows>(largest, larger);
  // Nothing seen yet is nothing times anything: but not infinity less infinity.
  const Lanes base = largest == kLeast ? Lanes{} : largest;
  const Lanes factor = exponential(before - base);
  Lanes sum = load(seen.weights) * factor;
  for (Int token = 0; token < tokens; token += kTokens) {
    const Lanes weight = exponential(load(scores + token * kRows) - base);
    store(scores + token * kRows, weight);
    sum += weight;
  }
  store(seen.largest, largest);
  store(seen.weights, sum);
  store(shrink, factor);
}

// kVectors of the sums of V of kRows rows out of tiles of kTile.
template <typename Format, int kTile, int kRows, int kVectors>
void add_vectors(const float* weights, const char* const* values, Int offset, Int tokens,
                 const float* shrink, Int dims, float* sums, Ahead& ahead, Int lines) {
  Lanes sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = load(sums + r * dims + v * kLanes) * shrink[r];
    }
  }
  for (Int token = 0; token < tokens; ++token) {
    ahead.ask(lines);
    const char* at = values[token] + offset;
    Lanes value[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      value[v] = load_as_floats<Format>(at + v * kLanes * sizeof(typename Format::Bits));
    }
    for (int r = 0; r < kRows; ++r) {
      const float weight = weights[token * kTile + r];
      for (int v = 0; v < kVectors; ++v) sum[r][v] += weight * value[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(sums + r * dims + v * kLanes, sum[r][v]);
  }
}

// Sums of V by weight, [kTile][dims], of the tokens' V added to what there is.
template <typename Format, int kTile>
void add_values(const float* weights, const char* const* values, Int offset, Int tokens,
                const float* shrink, Int dims, float* sums, Ahead& ahead) {
  constexpr int kRows = kTile < 4 ? kTile : 4, kVectors = kSums / 4;
  constexpr Int kBytes = sizeof(typename Format::Bits);
  const Int times = tokens * (kTile / kRows) * (dims / (kVectors * kLanes));
  const Int lines = times > 0 ? ahead.lines() / times + 1 : 0;
  Int d = 0;
  for (; d + kVectors * kLanes <= dims; d += kVectors * kLanes) {
    for (int r = 0; r < kTile; r += kRows) {
      add_vectors<Format, kTile, kRows, kVectors>(weights + r, values, offset + d * kBytes, tokens,
                                                  shrink + r, dims, sums + r * dims + d, ahead,
                                                  lines);
    }
  }
  for (; d < dims; d += kLanes) {
    for (int r = 0; r < kTile; r += kRows) {
      add_vectors<Format, kTile, kRows, 1>(weights + r, values, offset + d * kBytes, tokens,
                                           shrink + r, dims, sums + r * dims + d, ahead, 0);
    }
  }
}

}  // namespace kvbench
