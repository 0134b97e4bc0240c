// Attention that reads a paged pool where it lies, on a CPU.
//
// attend.py fills a Plan once a step; a call has the addresses of a layer's tensors alone. Strides
// and offsets are in bytes. Work is cut into items: some tokens' query heads of some KV heads of a
// sequence, over the positions that they see. An item goes through them a chunk at a time, K and V
// of a chunk being read once for all rows. Chunks are dealt out evenly: a thread may begin in the
// middle of an item, and end in another's. What it knows of these is merged afterwards.

#include <algorithm>
#include <atomic>

#include "attend_plan.hpp"
#include "team.hpp"

namespace kvbench {
namespace {

// What a layer hands in.
struct Tensors {
  const char *query, *key, *value, *key_scale, *value_scale;
  char* output;
};

struct Call {
  const Plan& plan;
  const Tensors& at;
  std::atomic<Int> astray{-1};  // a sequence with a block that there isn't
};

Int block_of(const Plan& plan, Int sequence, Int entry) {
  const char* at = plan.blocks + sequence * plan.block_sequence + entry * plan.block_entry;
  if (plan.block_bytes == 4) return *reinterpret_cast<const std::int32_t*>(at);
  return *reinterpret_cast<const Int*>(at);
}

// A chunk's tokens: where their K, V and scales are, but for the head.
struct Chunk {
  Int item, first, tokens;
  const char* key[kMostTokens];
  const char* value[kMostTokens];
  const char* key_scale[kMostTokens];
  const char* value_scale[kMostTokens];

  // The chunk of an item that has this number among all items'; false if a block is not there.
  bool find(Call& call, Int at_item, Int number) {
    const Plan& plan = call.plan;
    const Item& own = plan.items[at_item];
    item = at_item;
    first = own.first + (number - own.chunk) * plan.chunk_tokens;
    tokens = std::min(plan.chunk_tokens, own.last - first);
    const Tensors& at = call.at;
    for (Int t = 0; t < tokens;) {
      const Int entry = (first + t) / plan.block_size;
      const Int block = block_of(plan, own.sequence, entry);
      if (block < 0 || block >= plan.num_blocks) {
        call.astray.store(own.sequence, std::memory_order_relaxed);
        return false;
      }
      Int slot = first + t - entry * plan.block_size;
      for (; slot < plan.block_size && t < tokens; ++slot, ++t) {
        key[t] = at.key + block * plan.key.block + slot * plan.key.slot;
        value[t] = at.value + block * plan.value.block + slot * plan.value.slot;
        if (plan.code_format < 0) continue;
        key_scale[t] = at.key_scale + block * plan.key.scale_block + slot * plan.key.scale_slot;
        value_scale[t] =
            at.value_scale + block * plan.value.scale_block + slot * plan.value.scale_slot;
      }
    }
    for (Int t = tokens; t < up_to_multiple(tokens, kStep); ++t) key[t] = key[tokens - 1];
    return true;
  }
};

// Rows of K or V as the kernels take them.
struct Rows {
  const char* const* rows;
  Int offset;
  Int format;  // of the elements
};

template <typename Use>
void with_format(Int format, const Use& use) {
  if (format == 0) return use(Fp32{});
  if (format == 1) return use(Fp16{});
  return use(Bf16{});
}

// One thread's part of a call.
class Share {
 public:
  Share(Call& call, Int number)
      : call_(call),
        plan_(call.plan),
        sizes_(plan_),
        memory_(plan_, plan_.memory + number * plan_.share_bytes),
        first_(first_chunk(plan_, number)),
        last_(first_chunk(plan_, number + 1)) {
    for (Int t = 0; t < kMostTokens; ++t) {
      key_rows_[t] = reinterpret_cast<const char*>(memory_.keys + t * sizes_.key_width);
      value_rows_[t] = plan_.latent
                           ? key_rows_[t]
                           : reinterpret_cast<const char*>(memory_.values + t * sizes_.value_width);
    }
  }

  static Int first_chunk(const Plan& plan, Int share) { return plan.chunks * share / plan.threads; }

  static Int item_of(const Plan& plan, Int chunk) {
    const Item* after = std::upper_bound(plan.items, plan.items + plan.num_items, chunk,
                                         [](Int c, const Item& item) { return c < item.chunk; });
    return after - plan.items - 1;
  }

  static Int end_of(const Plan& plan, Int item) {
    return item + 1 < plan.num_items ? plan.items[item + 1].chunk : plan.chunks;
  }

  void run() {
    if (first_ == last_) return;
    Chunk chunks[2];
    Int item = item_of(plan_, first_);
    if (!chunks[0].find(call_, item, first_)) return;
    begin(item);
    for (Int number = first_; number < last_; ++number) {
      Chunk &chunk = chunks[(number - first_) & 1], &next = chunks[(number - first_ + 1) & 1];
      const bool ends = number + 1 == end_of(plan_, item);
      const bool more = number + 1 < last_;
      if (more && !next.find(call_, item + ends, number + 1)) return;
      if (chunk.tokens > 0) attend(plan_.items[item], chunk, more ? &next : nullptr);
      if (!ends) continue;
      if (plan_.items[item].chunk >= first_) finish(plan_.items[item]);
      if (more) begin(++item);
    }
  }

  // What it knows of the item that it begins in the middle of.
  const char* unfinished() const { return memory_.states[0]; }
  Int first() const { return first_; }
  Int last() const { return last_; }

  // Rows of an item, done: as elements of the output.
  void finish(const Item& item) {
    const Int rows = item.queries * plan_.group;
    const StateSize size(rows, sizes_.value_width);
    const RowFormat& format = kRowFormats[plan_.row_format];
    const Int element = kElementBytes[plan_.row_format];
    for (Int head = 0; head < item.heads; ++head) {
      const State state = size.at(memory_.states[1], head);
      each_tile(rows, [&](auto tile, Int row, Int number) {
        constexpr int kRows = decltype(tile)::value;
        float weights[kLanes];
        store(weights, joined_by_row<kRows>(load(state.seen[number].weights),
                                            [](Lanes a, Lanes b) { return a + b; }));
        for (int r = 0; r < kRows && row + r < rows; ++r) {
          float* sums = state.sums + (row + r) * sizes_.value_width;
          const float share = weights[r] > 0 ? 1 / weights[r] : 0;
          for (Int d = 0; d < sizes_.value_width; ++d) sums[d] *= share;
          const Int token = item.sequence * plan_.query_len + item.query + (row + r) / plan_.group;
          const Int query_head = (item.head + head) * plan_.group + (row + r) % plan_.group;
          const Int place = (token * plan_.query_heads + query_head) * sizes_.value_dim;
          format.store(sums, sizes_.value_dim, call_.at.output + place * element, element);
        }
      });
    }
  }

  // Take in what another share knows of an item.
  void merge(const Item& item, const char* states) {
    const Int rows = item.queries * plan_.group;
    const StateSize size(rows, sizes_.value_width);
    for (Int head = 0; head < item.heads; ++head) {
      const State own = size.at(memory_.states[1], head);
      const State other = size.at(const_cast<char*>(states), head);
      each_tile(rows, [&](auto tile, Int row, Int number) {
        constexpr int kRows = decltype(tile)::value;
        Seen &mine = own.seen[number], &theirs = other.seen[number];
        const Lanes a = load(mine.largest), b = load(theirs.largest);
        const Lanes largest = larger(a, b);
        const Lanes base = largest == -std::numeric_limits<float>::infinity() ? Lanes{} : largest;
        float keep[kLanes], add[kLanes];
        store(keep, exponential(a - base));
        store(add, exponential(b - base));
        store(mine.largest, largest);
        store(mine.weights,
              load(mine.weights) * load(keep) + load(theirs.weights) * load(add));
        for (int r = 0; r < kRows; ++r) {
          float* to = own.sums + (row + r) * sizes_.value_width;
          const float* from = other.sums + (row + r) * sizes_.value_width;
          for (Int d = 0; d < sizes_.value_width; ++d) to[d] = to[d] * keep[r] + from[d] * add[r];
        }
      });
    }
  }

 private:
    template <typename Use>
  static void each_tile(Int rows, const Use& use) {
    Int row = 0;
    for (Int number = 0; row < rows; ++number) {
      const int tile = tile_rows(rows - row);
      with_tile(tile, [&](auto size) { use(size, row, number); });
      row += tile;
    }
  }

  // Rows of an item, of which nothing is known yet.
  void begin(Int number) {
    const Item& item = plan_.items[number];
    state_ = memory_.states[item.chunk >= first_];
    const Int rows = item.queries * plan_.group;
    const StateSize size(rows, sizes_.value_width);
    std::memset(state_, 0, item.heads * size.bytes());
    std::memset(memory_.queries, 0, item.heads * size.rows * sizes_.key_width * sizeof(float));
    const RowFormat& format = kRowFormats[plan_.row_format];
    const Int element = kElementBytes[plan_.row_format];
    for (Int head = 0; head < item.heads; ++head) {
      const State state = size.at(state_, head);
      std::fill_n(state.seen, size.tiles, Seen::nothing());
      float* queries = memory_.queries + head * size.rows * sizes_.key_width;
      each_tile(rows, [&](auto tile, Int row, Int) {
        constexpr int kRows = decltype(tile)::value;
        for (int r = 0; r < kRows && row + r < rows; ++r) {
          const Int token = item.sequence * plan_.query_len + item.query + (row + r) / plan_.group;
          const Int query_head = (item.head + head) * plan_.group + (row + r) % plan_.group;
          const char* from =
              call_.at.query + token * plan_.query_token + query_head * plan_.query_head;
          if (in_pairs(rows)) {
            std::memcpy(reinterpret_cast<char*>(queries) + (row + r) * size_of_pairs(), from,
                        size_of_pairs());
            continue;
          }
          float* numbers = memory_.keys;
          format.load(const_cast<char*>(from), element, sizes_.key_dim, numbers);
          float* to = queries + row * sizes_.key_width;
          const bool across = kRows == kLanes;
          for (Int d = 0; d < sizes_.key_dim; ++d) {
            to[across ? d * kLanes + r : r * sizes_.key_width + d] = numbers[d];
          }
        }
      });
    }
  }

  // Rows of K or V of a head: as they lie in the pool, or as floats in this thread's memory.
  Rows rows_of(const Side& side, const char* const* rows, const char* const* scales, Int tokens,
               Int head, Int width, bool direct, const char* const* own, Int at) {
    if (direct) return {rows, head * side.head, plan_.row_format};
    for (Int t = 0; t < tokens; ++t) {
      auto* to = reinterpret_cast<float*>(const_cast<char*>(own[t])) + at;
      char* from = const_cast<char*>(rows[t]) + head * side.head;
      float scale = 1;
      if (plan_.code_format >= 0) std::memcpy(&scale, scales[t] + head * side.scale_head, 4);
      for (Int pack = 0; pack < side.packs; ++pack, to += side.pack, from += side.pack_stride) {
        if (plan_.code_format >= 0) {
          kCodeFormats[plan_.code_format].decode(from, side.element, side.pack, scale, to);
        } else {
          kRowFormats[plan_.row_format].load(from, side.element, side.pack, to);
        }
      }
      const Int filled = at + side.dim();
      std::fill_n(to, std::max<Int>(width - filled, 0), 0.0f);
    }
    return {own, 0, 0};
  }

  // Whether vectors are loaded from the pool itself, for so many rows. What several tiles need is
  // converted once.
  bool direct(const Side& side, Int rows) const {
    const bool vectors = plan_.code_format < 0 && !plan_.latent && side.packs == 1 &&
                         side.element == kElementBytes[plan_.row_format] &&
                         side.pack % kLanes == 0;
    return vectors && (plan_.row_format == 0 || rows <= kLanes / 2);
  }

  // Whether elements of queries and K are multiplied two by two, as they are.
  bool in_pairs(Int rows) const {
    return kPairs && plan_.row_format == 2 && direct(plan_.key, rows) &&
           sizes_.key_dim % (2 * kLanes) == 0;
  }
  Int size_of_pairs() const { return 2 * sizes_.key_dim; }

  // One of as many parts of the next chunk as its item has heads, in the order of memory.
  Ahead part_of(const Side& side, const char* const* rows, const Chunk* next, Int part) const {
    Ahead ahead;
    if (next == nullptr) return ahead;
    const Item& item = plan_.items[next->item];
    const Int element = plan_.code_format < 0 ? kElementBytes[plan_.row_format] : 1;
    if (part >= item.heads || side.packs != 1 || side.element != element) return ahead;
    ahead.rows = rows;
    if (side.head < side.slot) {
      ahead.offset = item.head * side.head;
      ahead.bytes = item.heads * side.head;
      ahead.row = next->tokens * part / item.heads;
      ahead.last = next->tokens * (part + 1) / item.heads;
    } else {
      ahead.offset = (item.head + part) * side.head;
      ahead.bytes = side.pack * element;
      ahead.last = next->tokens;
    }
    return ahead;
  }

  // The positions that a token of an item sees.
  std::pair<Int, Int> seen_by(const Item& item, Int query) const {
    const Int position = plan_.lengths[item.sequence] - plan_.query_len + item.query + query;
    const Int first = plan_.window > 0 ? std::max<Int>(0, position - plan_.window + 1) : 0;
    return {first, position + 1};
  }

  // Whether all of an item's tokens see all of a chunk.
  bool wholly_seen(const Item& item, const Chunk& chunk) const {
    return seen_by(item, item.queries - 1).first <= chunk.first &&
           seen_by(item, 0).second >= chunk.first + chunk.tokens;
  }

  Sight sight_of(const Item& item, const Chunk& chunk, int tile, Int row) const {
    Sight sight;
    for (int i = 0; i < kLanes; ++i) {
      const Int query = std::min((row + i % tile) / plan_.group, item.queries - 1);
      const auto [first, last] = seen_by(item, query);
      const auto within = [&](Int position, Int most) {
        return static_cast<std::int32_t>(std::clamp<Int>(position - chunk.first, 0, most));
      };
      sight.first[i] = within(first, kMostTokens), sight.last[i] = within(last, chunk.tokens);
    }
    return sight;
  }

  void attend(const Item& item, const Chunk& chunk, const Chunk* next) {
    const Int rows = item.queries * plan_.group;
    const StateSize size(rows, sizes_.value_width);
    const bool wholly = wholly_seen(item, chunk);
    const bool key_direct = direct(plan_.key, rows), value_direct = direct(plan_.value, rows);
    for (Int part = 0; part < item.heads; ++part) {
      const Int head = item.head + part;
      const State state = size.at(state_, part);
      const float* queries = memory_.queries + part * size.rows * sizes_.key_width;
      Ahead ahead = part_of(plan_.key, next != nullptr ? next->key : nullptr, next, part);
      Rows keys = rows_of(plan_.key, chunk.key, chunk.key_scale, chunk.tokens, head,
                          plan_.latent ? 0 : sizes_.key_width, key_direct, key_rows_, 0);
      if (plan_.latent) {
        rows_of(plan_.value, chunk.value, chunk.value_scale, chunk.tokens, head, sizes_.key_width,
                false, key_rows_, plan_.key.dim());
      }
      each_tile(rows, [&](auto tile, Int row, Int number) {
        constexpr int kRows = decltype(tile)::value;
        constexpr Int kTokens = kRows == kLanes ? kSums / 2 : kLanes / kRows;
        const Int tokens = up_to_multiple(chunk.tokens, kTokens);
        float* scores = memory_.scores + row * kMostTokens;
        const float* own = queries + row * sizes_.key_width;
        if constexpr (kRows == kLanes) {
          scores_by_row(own, keys.rows, keys.offset, tokens, sizes_.key_dim, scores, ahead);
        } else if (in_pairs(rows)) {
          const char* pairs = reinterpret_cast<const char*>(queries) + row * size_of_pairs();
          scores_by_pair<kRows>(pairs, keys.rows, keys.offset, tokens, sizes_.key_dim, scores,
                                ahead);
        } else {
          with_format(keys.format, [&](auto format) {
            scores_by_element<decltype(format), kRows>(own, keys.rows, keys.offset, tokens,
                                                       sizes_.key_width, scores, ahead);
          });
        }
        Seen& seen = state.seen[number];
        if (wholly && tokens == chunk.tokens) {
          weigh<kRows>(scores, tokens, plan_.scale, plan_.soft_cap, nullptr, seen, shrink_of(row));
        } else {
          const Sight sight = sight_of(item, chunk, kRows, row);
          weigh<kRows>(scores, tokens, plan_.scale, plan_.soft_cap, &sight, seen, shrink_of(row));
        }
      });
      ahead = part_of(plan_.value, next != nullptr ? next->value : nullptr, next, part);
      Rows values = {value_rows_, 0, 0};
      if (!plan_.latent) {
        values = rows_of(plan_.value, chunk.value, chunk.value_scale, chunk.tokens, head,
                         sizes_.value_width, value_direct, value_rows_, 0);
      }
      each_tile(rows, [&](auto tile, Int row, Int) {
        constexpr int kRows = decltype(tile)::value;
        with_format(values.format, [&](auto format) {
          add_values<decltype(format), kRows>(memory_.scores + row * kMostTokens, values.rows,
                                              values.offset, chunk.tokens, shrink_of(row),
                                              sizes_.value_width,
                                              state.sums + row * sizes_.value_width, ahead);
        });
      });
    }
  }

  float* shrink_of(Int row) { return memory_.shrink + row * kLanes; }

  Call& call_;
  const Plan& plan_;
  Sizes sizes_;
  Memory memory_;
  Int first_, last_;
  char* state_ = nullptr;
  const char* key_rows_[kMostTokens];
  const char* value_rows_[kMostTokens];
};

// Items that several shares have a part of: what these know goes to the share that began.
void merge_parts(Call& call) {
  const Plan& plan = call.plan;
  for (Int share = 0; share + 1 < plan.threads; ++share) {
    const Int boundary = Share::first_chunk(plan, share + 1);
    const Int item = Share::item_of(plan, boundary);
    const Int begin = plan.items[item].chunk;
    // Where the item began before this share, another has its parts already.
    if (begin == boundary || begin < Share::first_chunk(plan, share)) continue;
    Share owner(call, share);
    for (Int other = share + 1; other < plan.threads; ++other) {
      if (Share::first_chunk(plan, other) >= Share::end_of(plan, item)) break;
      owner.merge(plan.items[item], Share(call, other).unfinished());
    }
    owner.finish(plan.items[item]);
  }
}

}  // namespace
}  // namespace kvbench

extern "C" {

// How much memory each thread needs: share_bytes.
std::int64_t kvbench_attend_plan(kvbench::Plan* plan) {
  kvbench::measure(*plan);
  return plan->share_bytes;
}

// Returns -1, or the number of a sequence with a block that the pool doesn't have: then the output
// is undefined.
std::int64_t kvbench_attend(const kvbench::Plan* plan, const char* query, const char* key_pool,
                            const char* value_pool, const char* key_scale, const char* value_scale,
                            char* output) {
  const kvbench::Tensors at{query, key_pool, value_pool, key_scale, value_scale, output};
  kvbench::Call call{*plan, at};
  kvbench::in_team(plan->threads, [&](kvbench::Int share) { kvbench::Share(call, share).run(); });
  if (call.astray < 0) kvbench::merge_parts(call);
  return call.astray;
}
}
