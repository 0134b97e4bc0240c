// K and V rows to their slots of a paged pool and back, one launch for both.
//
// The idea is that of vLLM's reshape_and_cache_flash: heads whose elements lie side by side are
// copied as vectors, whatever their elements are. Vector is uint4 (16 bytes) where heads, strides
// and addresses are multiples of it, else as wide a type as they allow. Every length and stride is
// in bytes, or in vectors where it says so, and every offset 64-bit.
//
// It includes nothing: NVRTC needs no headers for it, and a C++ compiler no CUDA.

struct Half {  // K or V
  char* rows;  // [tokens, heads, head_vectors]
  char* pool;  // [blocks, block_size, heads, head_vectors]
  long long row_token, row_head;
  long long pool_block, pool_slot, pool_head;
  int vectors;       // of a token's row
  int head_vectors;  // of one head
};

struct Move {
  Half key, value;
  const char* slot_mapping;  // [tokens]; a negative slot is padding
  long long slot_mapping_stride;
  long long tokens;
  int block_size;
};

// Where a vector of a row is copied from and to.
template <typename Vector, bool TO_POOL>
struct Place {
  const Vector* from;
  Vector* to;

  __device__ Place(const Half& half, char* row, char* slot, int vector) {
    const long long head = vector / half.head_vectors;
    const long long in_head = vector % half.head_vectors * (long long)sizeof(Vector);
    char* const in_row = row + head * half.row_head + in_head;
    char* const in_slot = slot + head * half.pool_head + in_head;
    from = (const Vector*)(TO_POOL ? in_row : in_slot);
    to = (Vector*)(TO_POOL ? in_slot : in_row);
  }
};

// Threads along x share a token, threads along y and blocks take the next tokens, and the next.
template <typename Vector, typename Slot, bool TO_POOL>
__device__ void move_kv(const Move& move) {
  const long long step = (long long)gridDim.x * blockDim.y;
  long long token = (long long)blockIdx.x * blockDim.y + threadIdx.y;
  for (; token < move.tokens; token += step) {
    const long long slot =
        *(const Slot*)(move.slot_mapping + token * move.slot_mapping_stride);
    if (slot < 0) continue;
    long long block, offset;
    if (slot < (1LL << 31)) {  // 32 bits are divided several times faster than 64
      block = (unsigned)slot / (unsigned)move.block_size;
      offset = (unsigned)slot % (unsigned)move.block_size;
    } else {
      block = slot / move.block_size;
      offset = slot % move.block_size;
    }
    const Half &k = move.key, &v = move.value;
    char* const key_row = k.rows + token * k.row_token;
    char* const value_row = v.rows + token * v.row_token;
    char* const key_slot = k.pool + block * k.pool_block + offset * k.pool_slot;
    char* const value_slot = v.pool + block * v.pool_block + offset * v.pool_slot;
    const int most = k.vectors > v.vectors ? k.vectors : v.vectors;
    for (int vector = threadIdx.x; vector < most; vector += blockDim.x) {
      const Place<Vector, TO_POOL> key(k, key_row, key_slot, vector);
      const Place<Vector, TO_POOL> value(v, value_row, value_slot, vector);
      // Both loads are on their way before either is waited for.
      Vector of_key, of_value;
      if (vector < k.vectors) of_key = *key.from;
      if (vector < v.vectors) of_value = *value.from;
      if (vector < k.vectors) *key.to = of_key;
      if (vector < v.vectors) *value.to = of_value;
    }
  }
}

// BLOCKS of 256 threads are all that a multiprocessor holds: a thread has the registers for that.
template <typename Vector, typename Slot, int BLOCKS>
__global__ void __launch_bounds__(256, BLOCKS) scatter_kv(const Move move) {
  move_kv<Vector, Slot, true>(move);
}

template <typename Vector, typename Slot, int BLOCKS>
__global__ void __launch_bounds__(256, BLOCKS) gather_kv(const Move move) {
  move_kv<Vector, Slot, false>(move);
}
