// Rows of K and V into their slots of a paged pool, and back, on a CPU: one call for both.
//
// launch.py fills a Plan once a step; a call has the addresses of a layer's tensors alone. Strides
// and offsets are in bytes.

#include <algorithm>
#include <atomic>
#include <limits>

#include "codes.hpp"
#include "copy.hpp"
#include "team.hpp"

namespace kvbench {

// K or V: rows [tokens, heads, packs, pack], slots [blocks, block_size, heads, packs, pack].
struct Side {
  Int heads, packs, pack;
  Int row_token, row_head, row_pack, row_element;
  Int pool_block, pool_slot, pool_head, pool_pack, pool_element;
  Int scale_block, scale_slot, scale_head;  // 0 where a scale doesn't depend on them
};

struct Plan {
  Side key, value;
  const char* slots;  // a negative one is padding: its row is skipped
  Int slot_bytes, slot_stride;
  Int tokens, block_size, num_slots;
  Int write;          // 1: rows into slots; 0: slots into rows
  Int element_bytes;  // of the pool
  Int streaming;      // 1: streaming stores, where a piece is long enough
  Int threads;
  // Of a write: the slots that each thread writes, from bounds[i] up to bounds[i + 1]. Null: each
  // thread has an equal part of the tokens.
  const Int* bounds;
  Int row_format, code_format;  // of a quantised pool, as numbered in launch.py
  Int per_token;                // 1: each slot has a scale of its own, which a write computes
};

namespace {

// What a layer hands in for K or V.
struct Tensors {
  char* row;
  char* pool;
  char* scale;
};

struct Call {
  const Plan& plan;
  Tensors key, value;
  Int block_size;
  std::atomic<Int> beyond{-1};  // a token whose slot is past the pool
};

Int slot_of(const Plan& plan, Int token) {
  const char* at = plan.slots + token * plan.slot_stride;
  if (plan.slot_bytes == 4) return *reinterpret_cast<const std::int32_t*>(at);
  return *reinterpret_cast<const Int*>(at);
}

// A thread's part: of the tokens from first to last, those with slots from low up to high.
struct Share {
  Int first, last, low, high;
};

// Tokens that follow each other in a block.
struct Run {
  Int token, count, block, offset;

  char* row(const Side& side, const Tensors& at) const { return at.row + token * side.row_token; }
  char* slot(const Side& side, const Tensors& at) const {
    return at.pool + block * side.pool_block + offset * side.pool_slot;
  }
};

// The first run of a share from a token on; of count 0 if there is none, or a slot is past the pool.
Run next_run(Call& call, const Share& share, Int token) {
  const Plan& plan = call.plan;
  Int slot = -1;
  for (; token < share.last; ++token) {
    slot = slot_of(plan, token);
    if (slot >= share.low && slot < share.high) break;
  }
  if (token == share.last) return {token, 0, 0, 0};
  if (slot >= plan.num_slots) {
    call.beyond.store(token, std::memory_order_relaxed);
    return {token, 0, 0, 0};
  }
  Run run{token, 1, slot / call.block_size, slot % call.block_size};
  const Int most = std::min({share.last - token, call.block_size - run.offset, share.high - slot});
  while (run.count < most && slot_of(plan, token + run.count) == slot + run.count) ++run.count;
  return run;
}

// One of the nested loops that move a run.
struct Loop {
  Int count, to, from;
};

// The loops that move a run of so many tokens, in the order of the target's memory, the innermost
// last, and as few as the strides allow.
struct Nest {
  Loop loops[4];
  int depth = 0;
  Int tokens = 0;

  Nest() = default;
  Nest(const Plan& plan, const Side& side, Int tokens_of_run) : tokens(tokens_of_run) {
    add(plan, tokens, side.row_token, side.pool_slot);
    add(plan, side.heads, side.row_head, side.pool_head);
    add(plan, side.packs, side.row_pack, side.pool_pack);
    add(plan, side.pack, side.row_element, side.pool_element);
    join();
    if (depth == 0) loops[depth++] = {1, plan.element_bytes, plan.element_bytes};
  }

  void add(const Plan& plan, Int count, Int row, Int pool) {
    if (count == 1) return;
    const Loop loop = plan.write ? Loop{count, pool, row} : Loop{count, row, pool};
    int at = depth++;
    for (; at > 0 && loops[at - 1].to < loop.to; --at) loops[at] = loops[at - 1];
    loops[at] = loop;
  }

  // A loop that goes on where the one inside it ends is one with it.
  void join() {
    int kept = 0;
    for (int i = 1; i < depth; ++i) {
      Loop& outer = loops[kept];
      const Loop inner = loops[i];
      if (outer.to == inner.to * inner.count && outer.from == inner.from * inner.count) {
        outer = {outer.count * inner.count, inner.to, inner.from};
      } else {
        loops[++kept] = inner;
      }
    }
    depth = std::min(depth, kept + 1);
  }
};

template <typename Element>
void copy_elements(char* to, const char* from, const Loop& loop) {
  for (Int i = 0; i < loop.count; ++i) {
    std::memcpy(to + i * loop.to, from + i * loop.from, sizeof(Element));
  }
}

void copy_loop(const Plan& plan, const Loop& loop, char* to, const char* from, const char* next) {
  const Int size = plan.element_bytes;
  if (loop.to == size && loop.from == size) {
    if (plan.streaming) {
      stream(to, from, loop.count * size, next);
    } else {
      copy(to, from, loop.count * size);
    }
  } else if (size == 4) {
    copy_elements<std::uint32_t>(to, from, loop);
  } else if (size == 2) {
    copy_elements<std::uint16_t>(to, from, loop);
  } else {
    copy_elements<std::uint8_t>(to, from, loop);
  }
}

void copy_nest(const Plan& plan, const Loop* loop, const Loop* innermost, char* to,
               const char* from, const char* next) {
  if (loop == innermost) {
    copy_loop(plan, *loop, to, from, next);
    return;
  }
  for (Int i = 0; i < loop->count; ++i) {
    copy_nest(plan, loop + 1, innermost, to + i * loop->to, from + i * loop->from, nullptr);
  }
}

// K or V on its way.
struct Mover {
  const Plan& plan;
  const Side& side;
  const Tensors& at;
  Nest nest{};

  const char* source(const Run& run) const {
    return plan.write ? run.row(side, at) : run.slot(side, at);
  }

  void copy(const Run& run, const char* next) {
    // Runs are mostly as long as the one before: a block, or one token of each sequence.
    if (nest.tokens != run.count) nest = Nest(plan, side, run.count);
    char* to = plan.write ? run.slot(side, at) : run.row(side, at);
    copy_nest(plan, nest.loops, nest.loops + nest.depth - 1, to, source(run), next);
  }
};

void copy_tokens(Call& call, const Share& share) {
  const Plan& plan = call.plan;
  Mover key{plan, plan.key, call.key}, value{plan, plan.value, call.value};
  for (Run run = next_run(call, share, share.first); run.count > 0;) {
    const Run next = next_run(call, share, run.token + run.count);
    key.copy(run, value.source(run));
    value.copy(run, next.count > 0 ? key.source(next) : nullptr);
    run = next;
  }
  if (plan.streaming) finish_streaming();
}

// The codes of one token's K or V, or the numbers that they stand for.
void convert_token(const Plan& plan, const Side& side, const Run& run, const Tensors& at) {
  constexpr Int kNumbers = 256;
  alignas(kLine) float numbers[kNumbers];
  const RowFormat& rows = kRowFormats[plan.row_format];
  const CodeFormat& codes = kCodeFormats[plan.code_format];
  char *row = run.row(side, at), *slot = run.slot(side, at);
  auto* scale = reinterpret_cast<float*>(at.scale + run.block * side.scale_block +
                                         run.offset * side.scale_slot);
  if (plan.write && plan.per_token) {
    float most = 0;
    for (Int head = 0; head < side.heads; ++head) {
      for (Int pack = 0; pack < side.packs; ++pack) {
        char* elements = row + head * side.row_head + pack * side.row_pack;
        most = std::max(most, rows.largest(elements, side.row_element, side.pack));
      }
    }
    *scale = std::max(most / codes.largest, power_of_two(-20));
  }
  for (Int head = 0; head < side.heads; ++head) {
    const float own = scale[head * side.scale_head / static_cast<Int>(sizeof(float))];
    for (Int pack = 0; pack < side.packs; ++pack) {
      char* elements = row + head * side.row_head + pack * side.row_pack;
      char* stored = slot + head * side.pool_head + pack * side.pool_pack;
      for (Int first = 0; first < side.pack; first += kNumbers) {
        const Int count = std::min(kNumbers, side.pack - first);
        char* part = elements + first * side.row_element;
        char* stored_part = stored + first * side.pool_element;
        if (plan.write) {
          rows.load(part, side.row_element, count, numbers);
          codes.encode(numbers, count, own, stored_part, side.pool_element);
        } else {
          codes.decode(stored_part, side.pool_element, count, own, numbers);
          rows.store(numbers, count, part, side.row_element);
        }
      }
    }
  }
}

void convert_tokens(Call& call, const Share& share) {
  for (Run run = next_run(call, share, share.first); run.count > 0;
       run = next_run(call, share, run.token + run.count)) {
    for (Int i = 0; i < run.count; ++i) {
      const Run token{run.token + i, 1, run.block, run.offset + i};
      convert_token(call.plan, call.plan.key, token, call.key);
      convert_token(call.plan, call.plan.value, token, call.value);
    }
  }
}

constexpr Int kMost = std::numeric_limits<Int>::max();

Share share_of(const Plan& plan, Int number) {
  if (plan.bounds != nullptr) {
    return {0, plan.tokens, plan.bounds[number], plan.bounds[number + 1]};
  }
  const Int first = plan.tokens * number / plan.threads;
  return {first, plan.tokens * (number + 1) / plan.threads, 0, kMost};
}

template <void (*move)(Call&, const Share&)>
Int move_all(const Plan& plan, const Tensors& key, const Tensors& value, Int block_size) {
  Call call{plan, key, value, block_size};
  in_team(plan.threads, [&](Int number) { move(call, share_of(plan, number)); });
  return call.beyond.load(std::memory_order_relaxed);
}

}  // namespace
}  // namespace kvbench

extern "C" {

int kvbench_streams() { return kvbench::kStreams; }

// Both return -1, or the number of a token whose slot is past the pool; others may have been moved.

std::int64_t kvbench_copy(const kvbench::Plan* plan, char* key, char* value, char* key_pool,
                          char* value_pool) {
  const kvbench::Side &k = plan->key, &v = plan->value;
  // Where blocks follow each other in memory, all slots are as one block.
  const bool flat = k.pool_block == plan->block_size * k.pool_slot &&
                    v.pool_block == plan->block_size * v.pool_slot;
  return kvbench::move_all<kvbench::copy_tokens>(*plan, {key, key_pool, nullptr},
                                                 {value, value_pool, nullptr},
                                                 flat ? plan->num_slots : plan->block_size);
}

std::int64_t kvbench_convert(const kvbench::Plan* plan, char* key, char* value, char* key_pool,
                             char* value_pool, char* key_scale, char* value_scale) {
  return kvbench::move_all<kvbench::convert_tokens>(*plan, {key, key_pool, key_scale},
                                                    {value, value_pool, value_scale},
                                                    plan->block_size);
}
}
