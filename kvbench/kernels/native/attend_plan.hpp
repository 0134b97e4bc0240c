// What attention is told once a step, how its rows are tiled, and what threads need memory for.
#pragma once

#include <algorithm>

#include "attend.hpp"

namespace kvbench {

// The pool of K or V: slots [blocks, block_size, heads, packs, pack].
struct Side {
  Int packs, pack;
  Int block, slot, head, pack_stride, element;
  Int scale_block, scale_slot, scale_head;  // 0 where a scale doesn't depend on them

  Int dim() const { return packs * pack; }
};

struct Item {
  Int sequence;
  Int query, queries;  // its tokens, by their number in the sequence's own
  Int head, heads;     // of K and V
  Int first, last;     // the positions that any of its tokens sees
  Int chunk;           // how many chunks the items before it have
};

struct Plan {
  Side key, value;
  const char* blocks;  // [sequences, entries]
  Int block_bytes, block_sequence, block_entry;
  Int num_blocks, block_size;
  const Int* lengths;  // of each sequence's context
  const Item* items;
  Int num_items, chunks, chunk_tokens;
  Int query_token, query_head, query_len, query_heads, group;
  Int window;  // 0: none
  Int latent;  // 1: a row of K is one of each pool, K's first; its first part is V
  Int row_format, code_format;  // as numbered in launch.py; code_format is -1 of a plain pool
  Int threads;
  float scale, soft_cap;  // soft_cap 0: none
  char* memory;  // share_bytes for each thread, from a multiple of a line on
  // What kvbench_attend_plan finds out: the most that any item needs.
  Int share_bytes, state_bytes, query_floats, rows;
};

namespace {

constexpr Int kMostTokens = 64;  // of a chunk
constexpr Int kElementBytes[] = {4, 2, 2};

Int up_to_multiple(Int count, Int of) { return (count + of - 1) / of * of; }

// Sizes in floats that do not change from item to item, but for the largest number of rows.
struct Sizes {
  Int key_dim, value_dim;      // of a head
  Int key_width, value_width;  // with the zeros that fill the last vector

  explicit Sizes(const Plan& plan)
      : key_dim(plan.key.dim() + (plan.latent ? plan.value.dim() : 0)),
        value_dim(plan.latent ? plan.key.dim() : plan.value.dim()),
        key_width(up_to_multiple(key_dim, kLanes)),
        value_width(up_to_multiple(value_dim, kLanes)) {}
};

// How many rows the next tile has, of so many that are left. Where most of the largest tile would
// be taken, one of it is cheaper than several small ones: then some of its rows are nobody's.
int tile_rows(Int left) {
  if (left > kLanes / 2) return kLanes;
  int rows = 1;
  while (2 * rows <= left) rows *= 2;
  return rows;
}

template <typename Use>
void with_tile(int rows, const Use& use) {
  if constexpr (kLanes >= 16) {
    if (rows == 16) return use(std::integral_constant<int, 16>{});
  }
  if constexpr (kLanes >= 8) {
    if (rows == 8) return use(std::integral_constant<int, 8>{});
  }
  if (rows == 4) return use(std::integral_constant<int, 4>{});
  if (rows == 2) return use(std::integral_constant<int, 2>{});
  return use(std::integral_constant<int, 1>{});
}

// What is known of an item's rows of one head: for each tile what it has seen, then the sums of V,
// [rows][value_width].
struct State {
  Seen* seen;
  float* sums;
};

Int tiles_of(Int rows) {
  Int tiles = 0;
  for (Int row = 0; row < rows; row += tile_rows(rows - row)) ++tiles;
  return tiles;
}

Int padded(Int rows) {
  Int row = 0;
  while (row < rows) row += tile_rows(rows - row);
  return row;
}

struct StateSize {
  Int tiles, rows, width;

  StateSize(Int real_rows, Int value_width)
      : tiles(tiles_of(real_rows)), rows(padded(real_rows)), width(value_width) {}
  Int bytes() const { return tiles * sizeof(Seen) + rows * width * sizeof(float); }
  State at(char* memory, Int head) const {
    char* own = memory + head * bytes();
    return {reinterpret_cast<Seen*>(own), reinterpret_cast<float*>(own + tiles * sizeof(Seen))};
  }
};

// A thread's memory.
struct Memory {
  char* states[2];  // of the item that it begins in the middle of, and of others
  float* queries;   // [heads][rows][key_width]
  float* scores;    // [rows][tokens], tile after tile
  float* shrink;    // [rows][lanes]
  float* keys;      // [tokens][key_width]
  float* values;    // [tokens][value_width]
  char* end;

  Memory(const Plan& plan, char* from) : end(from) {
    const Sizes sizes(plan);
    const auto take = [&](Int size) {
      return std::exchange(end, end + up_to_multiple(size, kLine));
    };
    const auto floats = [&](Int count) { return reinterpret_cast<float*>(take(4 * count)); };
    for (char*& each : states) each = take(plan.state_bytes);
    queries = floats(plan.query_floats);
    scores = floats(plan.rows * kMostTokens);
    shrink = floats(plan.rows * kLanes);
    keys = floats(kMostTokens * sizes.key_width);
    values = floats(kMostTokens * sizes.value_width);
  }
};

void measure(Plan& plan) {
  const Sizes sizes(plan);
  plan.state_bytes = plan.query_floats = plan.rows = 0;
  for (Int i = 0; i < plan.num_items; ++i) {
    const Item& item = plan.items[i];
    const StateSize size(item.queries * plan.group, sizes.value_width);
    plan.state_bytes = std::max(plan.state_bytes, item.heads * size.bytes());
    plan.query_floats = std::max(plan.query_floats, item.heads * size.rows * sizes.key_width);
    plan.rows = std::max(plan.rows, size.rows);
  }
  alignas(kLine) char start[kLine];
  plan.share_bytes = Memory(plan, start).end - start;
}

}  // namespace
}  // namespace kvbench
