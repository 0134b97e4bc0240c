// The C++ kernels on random tensors, against plain loops: for sanitizers, and for other processors
// under an emulator. Tensors have memory of their own, of exactly their size.

#include "../kvbench/kernels/native/move.cpp"
#include "native_tensors.hpp"

namespace {

struct Case {
  Int tokens = draw(1, 40), block_size = draw(1, 8), blocks = draw(1, 12), heads = draw(1, 4);
  std::vector<Int> slots;
  std::vector<Int> bounds;

  Case() {
    std::vector<Int> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    for (Int token = 0; token < tokens; ++token) {
      const bool beyond = token / block_size >= blocks;
      slots.push_back(beyond || draw(0, 9) == 0
                          ? -1
                          : order[token / block_size] * block_size + token % block_size);
    }
  }

  Int num_slots() const { return blocks * block_size; }

  kvbench::Side side(const Tensor& row, const Tensor& pool, Int packs, Int pack) const {
    return {heads,           packs,           pack,            row.strides[0],  row.strides[1],
            row.strides[2],  row.strides[3],  pool.strides[0], pool.strides[1], pool.strides[2],
            pool.strides[3], pool.strides[4], 0,               0,               0};
  }

  kvbench::Plan plan(const kvbench::Side& key, const kvbench::Side& value) {
    kvbench::Plan plan{};
    plan.key = key, plan.value = value;
    plan.slots = reinterpret_cast<const char*>(slots.data());
    plan.slot_bytes = plan.slot_stride = sizeof(Int);
    plan.tokens = tokens, plan.block_size = block_size, plan.num_slots = num_slots();
    plan.write = draw(0, 1), plan.streaming = draw(0, 1), plan.threads = draw(1, 4);
    if (plan.write && draw(0, 1)) {
      bounds.assign(plan.threads + 1, std::numeric_limits<Int>::max());
      for (Int i = 0; i < plan.threads; ++i) bounds[i] = i == 0 ? 0 : draw(0, num_slots());
      std::sort(bounds.begin(), bounds.end());
      plan.bounds = bounds.data();
    }
    return plan;
  }
};

void copies_are_right() {
  Case c;
  const Int element = Int{1} << draw(0, 2);
  const bool gaps = draw(0, 1);
  std::vector<Tensor> rows, pools;
  std::vector<kvbench::Side> sides;
  for (int i = 0; i < 2; ++i) {
    const Int packs = draw(1, 3), pack = draw(0, 3) ? draw(1, 40) : draw(100, 600);
    rows.emplace_back(std::vector<Int>{c.tokens, c.heads, packs, pack}, element, gaps);
    pools.emplace_back(std::vector<Int>{c.blocks, c.block_size, c.heads, packs, pack}, element,
                       gaps);
    sides.push_back(c.side(rows[i], pools[i], packs, pack));
  }
  kvbench::Plan plan = c.plan(sides[0], sides[1]);
  plan.element_bytes = element;
  std::vector<Tensor> right_rows = rows, right_pools = pools;
  for (int i = 0; i < 2; ++i) {
    const kvbench::Side& s = sides[i];
    for (Int token = 0; token < c.tokens; ++token) {
      const Int slot = c.slots[token];
      for (Int at = 0; slot >= 0 && at < s.heads * s.packs * s.pack; ++at) {
        const Int h = at / (s.packs * s.pack), p = at / s.pack % s.packs, e = at % s.pack;
        char* row = right_rows[i].data() + token * s.row_token + h * s.row_head + p * s.row_pack +
                    e * s.row_element;
        char* pool = right_pools[i].data() + slot / c.block_size * s.pool_block +
                     slot % c.block_size * s.pool_slot + h * s.pool_head + p * s.pool_pack +
                     e * s.pool_element;
        std::memcpy(plan.write ? pool : row, plan.write ? row : pool, element);
      }
    }
  }
  expect(kvbench_copy(&plan, rows[0].data(), rows[1].data(), pools[0].data(), pools[1].data()) == -1,
         "a slot in the pool is said to be past it");
  for (int i = 0; i < 2; ++i) {
    expect(rows[i].memory == right_rows[i].memory, "rows");
    expect(pools[i].memory == right_pools[i].memory, "pools");
  }
  if (plan.bounds != nullptr) return;
  c.slots[draw(0, c.tokens - 1)] = c.num_slots() + draw(0, 1) * draw(0, Int{1} << 60);
  expect(kvbench_copy(&plan, rows[0].data(), rows[1].data(), pools[0].data(), pools[1].data()) >= 0,
         "a slot past the pool is not noticed");
}

void conversions_stay_within() {
  Case c;
  const Int row_format = draw(0, 2), packs = draw(1, 2), pack = draw(0, 3) ? draw(1, 40) : 300;
  std::vector<Tensor> rows, pools, scales;
  std::vector<kvbench::Side> sides;
  const bool per_token = draw(0, 1);
  for (int i = 0; i < 2; ++i) {
    rows.emplace_back(std::vector<Int>{c.tokens, c.heads, packs, pack}, row_format == 0 ? 4 : 2,
                      true);
    pools.emplace_back(std::vector<Int>{c.blocks, c.block_size, c.heads, packs, pack}, 1, true);
    scales.emplace_back(per_token ? std::vector<Int>{c.blocks, c.block_size, 1}
                                  : std::vector<Int>{1, 1, c.heads},
                        4, true);
    kvbench::Side side = c.side(rows[i], pools[i], packs, pack);
    if (per_token) {
      side.scale_block = scales[i].strides[0], side.scale_slot = scales[i].strides[1];
    } else {
      side.scale_head = scales[i].strides[2];
    }
    sides.push_back(side);
  }
  kvbench::Plan plan = c.plan(sides[0], sides[1]);
  plan.row_format = row_format, plan.code_format = draw(0, 2), plan.per_token = per_token;
  expect(kvbench_convert(&plan, rows[0].data(), rows[1].data(), pools[0].data(), pools[1].data(),
                         scales[0].data(), scales[1].data()) == -1,
         "a slot in the pool is said to be past it");
}

}  // namespace

int main(int, char** arguments) {
  kvbench_use_openmp(team, number, size);
  for (int i = std::atoi(arguments[1]); i > 0; --i) {
    copies_are_right();
    conversions_stay_within();
  }
  std::printf("right\n");
}
