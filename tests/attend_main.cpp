// The C++ kernel of attention on random tensors, against plain loops in double precision: for
// sanitizers, and for other processors under an emulator. What no query sees may be anything.

#include <cmath>

#include "../kvbench/kernels/native/attend.cpp"
#include "native_tensors.hpp"

namespace {

double uniform() { return std::uniform_real_distribution<double>(-1, 1)(rng); }

struct Numbers {
  Int format;  // of rows, or of codes
  bool codes;

  Int bytes() const { return codes ? 1 : kvbench::kElementBytes[format]; }

  void put_any(char* at) const {
    if (codes) {
      const Int magnitude = format == 0 ? draw(0, 127) : draw(0, 0x3f);
      *at = static_cast<char>(magnitude | draw(0, 1) << 7);
    } else {
      const float x = static_cast<float>(uniform());
      kvbench::kRowFormats[format].store(&x, 1, at, bytes());
    }
  }

  double get(const char* at) const {
    float x;
    char* from = const_cast<char*>(at);
    if (codes) {
      kvbench::kCodeFormats[format].decode(from, 1, 1, 1, &x);
    } else {
      kvbench::kRowFormats[format].load(from, bytes(), 1, &x);
    }
    return x;
  }
};

// Dimensions of a head: packs of a pack, of which there is often one.
struct Head {
  Int packs, pack;

  explicit Head(bool whole) : packs(draw(0, 3) ? 1 : draw(2, 3)), pack(draw(1, 40)) {
    if (whole) packs = 1, pack = 16 * draw(1, 9);
  }
};

struct Pool {
  Head head;
  Tensor slots, scales;
  bool per_token;

  Pool(Int blocks, Int size, Int heads, Numbers numbers, Head dims, bool scale_per_token)
      : head(dims),
        slots({blocks, size, heads, dims.packs, dims.pack}, numbers.bytes(), draw(0, 1),
              draw(0, 1)),
        scales(scale_per_token ? std::vector<Int>{blocks, size, 1} : std::vector<Int>{1, 1, heads},
               4, true),
        per_token(scale_per_token) {
    for (Int at = 0; !per_token && at < heads; ++at) *scale(0, 0, at) = 0.3f + at;
  }

  char* element(Int block, Int slot, Int at_head, Int d) {
    const std::vector<Int>& s = slots.strides;
    return slots.data() + block * s[0] + slot * s[1] + at_head * s[2] + d / head.pack * s[3] +
           d % head.pack * s[4];
  }
  float* scale(Int block, Int slot, Int at_head) {
    const std::vector<Int>& s = scales.strides;
    const Int at = per_token ? block * s[0] + slot * s[1] : at_head * s[2];
    return reinterpret_cast<float*>(scales.data() + at);
  }
  Int dim() const { return head.packs * head.pack; }

  void put(Int block, Int slot, Int heads, Numbers numbers) {
    for (Int at = 0; at < heads; ++at) {
      for (Int d = 0; d < dim(); ++d) numbers.put_any(element(block, slot, at, d));
    }
    if (per_token) *scale(block, slot, 0) = static_cast<float>(0.5 + std::abs(uniform()));
  }

  kvbench::Side side() const {
    const std::vector<Int>&s = slots.strides, &c = scales.strides;
    kvbench::Side side{head.packs, head.pack, s[0], s[1], s[2], s[3], s[4], 0, 0, 0};
    if (per_token) {
      side.scale_block = c[0], side.scale_slot = c[1];
    } else {
      side.scale_head = c[2];
    }
    return side;
  }
};

struct Case {
  Int sequences = draw(0, 3), block_size = draw(1, 20), entries = draw(1, 12);
  Int blocks = sequences * entries + 1;
  Int group = draw(0, 2) ? draw(1, 5) : draw(6, 40), query_len = draw(0, 1) ? 1 : draw(2, 9);
  Int window = draw(0, 2) ? 0 : draw(1, 40);
  bool latent = draw(0, 7) == 0, codes = draw(0, 2) == 0, per_token = draw(0, 1);
  Int heads = latent ? 1 : draw(1, 3);
  Numbers row{draw(0, 2), false}, slot{codes ? draw(0, 2) : row.format, codes};
  Pool key, value;
  Int key_dim, value_dim;
  Tensor query;
  std::vector<Int> table, lengths;
  std::vector<kvbench::Item> items;
  std::vector<char> memory, output;
  kvbench::Plan plan{};

  Case()
      : key(blocks, block_size, heads, slot, Head(draw(0, 1)), codes && per_token),
        value(blocks, block_size, heads, slot, Head(draw(0, 1)), codes && per_token),
        key_dim(key.dim() + (latent ? value.dim() : 0)),
        value_dim(latent ? key.dim() : value.dim()),
        query({sequences * query_len + 1, heads * group, key_dim}, row.bytes(), draw(0, 1),
              true) {
    for (Int i = 0; i < sequences * query_len; ++i) {
      for (Int h = 0; h < heads * group; ++h) {
        for (Int d = 0; d < key_dim; ++d) row.put_any(query_at(i, h, d));
      }
    }
    std::vector<Int> free(blocks);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), rng);
    for (Int i = 0; i < sequences; ++i) {
      lengths.push_back(draw(0, draw(0, 3) ? entries * block_size : 1));
      const Int seen = first_seen(i, std::max<Int>(query_len - lengths[i], 0));
      for (Int entry = 0; entry < entries; ++entry) {
        const bool none = entry * block_size >= lengths[i] || (entry + 1) * block_size <= seen;
        table.push_back(none ? -1 : free[i * entries + entry]);
        for (Int s = 0; !none && s < block_size && entry * block_size + s < lengths[i]; ++s) {
          key.put(table.back(), s, heads, slot);
          value.put(table.back(), s, heads, slot);
        }
      }
    }
    fill_plan();
  }

  char* query_at(Int token, Int head, Int d) {
    const std::vector<Int>& s = query.strides;
    return query.data() + token * s[0] + head * s[1] + d * s[2];
  }

  Int first_seen(Int sequence, Int token) const {
    const Int position = lengths[sequence] - query_len + token;
    return window > 0 ? std::max<Int>(0, position - window + 1) : 0;
  }

  void fill_plan() {
    const Int queries = draw(1, query_len), heads_at_once = draw(1, heads);
    plan.key = key.side(), plan.value = value.side();
    plan.blocks = reinterpret_cast<const char*>(table.data());
    plan.block_bytes = plan.block_entry = sizeof(Int);
    plan.block_sequence = entries * sizeof(Int);
    plan.num_blocks = blocks, plan.block_size = block_size, plan.lengths = lengths.data();
    plan.chunk_tokens = draw(0, 1) ? 32 : draw(1, 64);
    for (Int i = 0; i < sequences; ++i) {
      for (Int head = 0; head < heads; head += heads_at_once) {
        for (Int token = 0; token < query_len; token += queries) {
          const Int last_token = std::min(token + queries, query_len);
          const Int last = std::max<Int>(lengths[i] - query_len + last_token, 0);
          const Int first_token = std::max(token, query_len - lengths[i]);
          const Int first = last == 0 ? 0 : std::min(first_seen(i, first_token), last);
          items.push_back({i, token, last_token - token, head,
                           std::min(heads_at_once, heads - head), first, last, plan.chunks});
          const Int seen = kvbench::up_to_multiple(last - first, plan.chunk_tokens);
          plan.chunks += std::max<Int>(1, seen / plan.chunk_tokens);
        }
      }
    }
    plan.items = items.data(), plan.num_items = static_cast<Int>(items.size());
    plan.query_token = query.strides[0], plan.query_head = query.strides[1];
    plan.query_len = query_len, plan.query_heads = heads * group, plan.group = group;
    plan.window = window, plan.latent = latent;
    plan.row_format = row.format, plan.code_format = codes ? slot.format : -1;
    plan.threads = draw(1, std::max<Int>(1, std::min<Int>(plan.chunks, 7)));
    plan.scale = static_cast<float>(1 / std::sqrt(key_dim));
    plan.soft_cap = draw(0, 2) ? 0 : static_cast<float>(draw(1, 30));
    memory.resize(plan.threads * kvbench_attend_plan(&plan) + 64);
    plan.memory = memory.data();
    plan.memory += -reinterpret_cast<std::uintptr_t>(plan.memory) & 63;
    for (char& byte : memory) byte = static_cast<char>(0xff);  // as floats NaN
    output.resize(sequences * query_len * heads * group * value_dim * row.bytes());
  }

  double number(Pool& pool, Int block, Int at_slot, Int head, Int d) {
    const double x = slot.get(pool.element(block, at_slot, head, d));
    return codes ? x * *pool.scale(block, at_slot, head) : x;
  }

  std::int64_t attend() {
    return kvbench_attend(&plan, query.data(), key.slots.data(), value.slots.data(),
                          codes ? key.scales.data() : nullptr,
                          codes ? value.scales.data() : nullptr, output.data());
  }

  void check_row(Int sequence, Int token, Int query_head) {
    const Int i = sequence * query_len + token, head = query_head / group;
    const Int last = lengths[sequence] - query_len + token + 1;
    std::vector<double> weights, slack;
    std::vector<std::pair<Int, Int>> at;
    double most = -1e300, total = 0;
    for (Int p = first_seen(sequence, token); p < last; ++p) {
      at.emplace_back(table[sequence * entries + p / block_size], p % block_size);
      double score = 0, size = 0;
      for (Int d = 0; d < key_dim; ++d) {
        Pool& pool = d < key.dim() ? key : value;
        const Int own = d < key.dim() ? d : d - key.dim();
        const double product = row.get(query_at(i, query_head, d)) *
                               number(pool, at.back().first, at.back().second, head, own);
        score += product, size += std::abs(product);
      }
      score *= plan.scale, size *= plan.scale;
      if (plan.soft_cap > 0) score = plan.soft_cap * std::tanh(score / plan.soft_cap);
      weights.push_back(score), slack.push_back(size * std::ldexp(key_dim + 8, -24));
      most = std::max(most, score);
    }
    for (double& weight : weights) total += weight = std::exp(weight - most);
    double slip = 0;
    for (std::size_t t = 0; t < at.size(); ++t) {
      slack[t] = std::expm1(slack[t]) + std::ldexp(at.size() + 16.0, -24);
      slip += weights[t] / total * slack[t];
    }
    for (Int d = 0; d < value_dim; ++d) {
      double right = 0, tolerance = 0;
      for (std::size_t t = 0; t < at.size(); ++t) {
        Pool& pool = latent ? key : value;
        const double v = number(pool, at[t].first, at[t].second, head, d);
        right += weights[t] / total * v;
        tolerance += weights[t] / total * std::abs(v) * (slack[t] + slip);
      }
      constexpr double kUnits[] = {1.0 / (1 << 24), 1.0 / (1 << 11), 1.0 / (1 << 8)};
      tolerance += std::abs(right) * kUnits[row.format] + 1e-7;
      const Int place = ((i * heads * group + query_head) * value_dim + d) * row.bytes();
      const double found = row.get(output.data() + place);
      expect(std::abs(found - right) <= tolerance, "attention");
    }
  }

  void check() {
    if (sequences == 0) return;
    std::fill(output.begin(), output.end(), static_cast<char>(0xff));
    expect(attend() == -1, "a block in the pool is said to be past it");
    for (Int i = 0; i < sequences; ++i) {
      for (Int token = 0; token < query_len; ++token) {
        for (Int head = 0; head < heads * group; ++head) check_row(i, token, head);
      }
    }
    // What a call leaves in memory is of no account to the next, nor is the size of the team.
    const std::vector<char> before = output;
    std::fill(output.begin(), output.end(), static_cast<char>(0xff));
    expect(attend() == -1 && output == before, "a second call differs");
    const Int sequence = draw(0, sequences - 1);
    if (lengths[sequence] == 0) return;
    Int& last = table[sequence * entries + (lengths[sequence] - 1) / block_size];
    last = draw(0, 1) ? -1 : blocks + draw(0, 1) * draw(0, Int{1} << 60);
    expect(attend() == sequence, "a block that is not there is not noticed");
  }
};

}  // namespace

int main(int, char** arguments) {
  kvbench_use_openmp(team, number, size);
  for (int i = std::atoi(arguments[1]); i > 0; --i) Case().check();
  std::printf("right\n");
}
