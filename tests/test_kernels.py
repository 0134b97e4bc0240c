"""The Triton kernels: through the interpreter on any strides, and compiled without a GPU."""

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.kernels.rows import row_block, row_warps

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402 - only where Triton is
from triton.compiler import ASTSource  # noqa: E402

from kvbench.kernels import jit  # noqa: E402
from kvbench.kernels.gather import gather_kv, gather_kv_kernel  # noqa: E402
from kvbench.kernels.scatter import scatter_kv, scatter_kv_kernel  # noqa: E402

# 16-bit integers stand for bf16 where only the movement matters: no two NaNs compare unequal.
ELEMENT = torch.int16


def count_up(*shape: int) -> torch.Tensor:
    """A tensor in which every element differs from every other, and from 0."""
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=ELEMENT).view(shape)


def scatter_plainly(key, value, key_pool, value_pool, slots):
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, key_pool.shape[1])
            key_pool[block, offset] = key[row]
            value_pool[block, offset] = value[row]


def gather_plainly(key_pool, value_pool, slots, key, value):
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, key_pool.shape[1])
            key[row] = key_pool[block, offset]
            value[row] = value_pool[block, offset]


class Layout:
    """Where the elements of a [..., H, D] tensor lie in a longer 1-D one."""

    def __init__(self, order, gaps, first):
        self.order, self.gaps, self.first = order, gaps, first

    def __repr__(self):
        return f"Layout(order={self.order}, gaps={self.gaps}, first={self.first})"

    def place(self, shape):
        """A 1-D tensor and the view of this layout in it; every element of it is different."""
        outer = [shape[dim] for dim in self.order]
        spread = [size * gap for size, gap in zip(outer, self.gaps, strict=True)]
        flat = count_up(self.first + torch.Size(spread).numel())
        view = flat[self.first :].view(spread)
        view = view[tuple(slice(None, None, gap) for gap in self.gaps)]
        inverse = [self.order.index(dim) for dim in range(len(shape))]
        return flat, view.permute(inverse)


def layouts(dims):
    return st.builds(
        Layout,
        st.permutations(range(dims)),
        st.lists(st.integers(1, 3), min_size=dims, max_size=dims),
        st.integers(0, 5),
    )


@st.composite
def mappings(draw, num_slots):
    """Different slots in any order, with padding between them, in either integer type."""
    slots = draw(st.lists(st.integers(0, num_slots - 1), unique=True, max_size=5))
    padding = draw(st.lists(st.sampled_from((-1, -2, -(2**31))), max_size=2))
    mixed = draw(st.permutations(slots + padding))
    return torch.tensor(mixed, dtype=draw(st.sampled_from((torch.int64, torch.int32))))


CPU = torch.device("cpu")


def draw_operands(data, device, read_dims, written_dims):
    """Two tensors to read and two to write, as views in memory on `device`, and the slots.

    What is written is there twice: for the kernel, with all the memory around it, and for the
    plain loop.
    """
    pool_shape = tuple(data.draw(st.tuples(*(st.integers(1, n) for n in (3, 5, 3, 9))), "pool"))
    slots = data.draw(mappings(pool_shape[0] * pool_shape[1]), "slots")
    rows_shape = (len(slots) + data.draw(st.integers(0, 2), "more rows"), *pool_shape[2:])
    shapes = {4: pool_shape, 3: rows_shape}
    read = [data.draw(layouts(read_dims), "read").place(shapes[read_dims])[1] for _ in "KV"]
    for tensor in read:
        tensor.mul_(-1)  # unlike anything in what is written
    written = [
        data.draw(layouts(written_dims), "written").place(shapes[written_dims]) for _ in "KV"
    ]
    read_there = [moved(flat_of(tensor), tensor, device)[1] for tensor in read]
    written_there = [moved(memory.clone(), view, device) for memory, view in written]
    return slots, read, written, read_there, written_there


def flat_of(view):
    return torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())


def moved(memory, view, device):
    """Memory moved to a device, and the view of it that `view` was before."""
    memory = memory.to(device)
    return memory, memory.as_strided(view.shape, view.stride(), view.storage_offset())


def check_scatter(data, device):
    slots, rows, pools, rows_there, pools_there = draw_operands(data, device, 3, 4)
    scatter_kv(*rows_there, *(view for _, view in pools_there), slots.to(device))
    scatter_plainly(*rows, *(view for _, view in pools), slots)
    for (memory, _), (expected, _) in zip(pools_there, pools, strict=True):
        assert torch.equal(memory.cpu(), expected)


def check_gather(data, device):
    slots, pools, rows, pools_there, rows_there = draw_operands(data, device, 4, 3)
    gather_kv(*pools_there, slots.to(device), *(view for _, view in rows_there))
    gather_plainly(*pools, slots, *(view for _, view in rows))
    for (memory, _), (expected, _) in zip(rows_there, rows, strict=True):
        assert torch.equal(memory.cpu(), expected)


@given(st.data())
def test_scatter_writes_its_slots_and_nothing_else_whatever_the_strides(data):
    check_scatter(data, CPU)


@given(st.data())
def test_gather_writes_its_rows_and_nothing_else_whatever_the_strides(data):
    check_gather(data, CPU)


@pytest.mark.gpu
@settings(max_examples=20)  # each may compile a kernel
@given(st.data())
def test_scatter_writes_its_slots_and_nothing_else_on_a_gpu(gpu, data):
    check_scatter(data, gpu)


@pytest.mark.gpu
@settings(max_examples=20)
@given(st.data())
def test_gather_writes_its_rows_and_nothing_else_on_a_gpu(gpu, data):
    check_gather(data, gpu)


# The layouts that there are, by name.

NHD = (3, 4, 2, 8)


def contiguous(shape):
    return torch.zeros(shape, dtype=ELEMENT)


def hnd(shape):
    blocks, slots, heads, dims = shape
    return torch.zeros(blocks, heads, slots, dims, dtype=ELEMENT).transpose(1, 2)


def heads_outermost(shape):
    blocks, slots, heads, dims = shape
    return torch.zeros(heads, blocks, slots, dims, dtype=ELEMENT).permute(1, 2, 0, 3)


def sliced_dims(shape):
    *outer, dims = shape
    return torch.zeros(*outer, 2 * dims, dtype=ELEMENT)[..., 3 : 3 + dims]


def every_second_dim(shape):
    *outer, dims = shape
    return torch.zeros(*outer, 2 * dims, dtype=ELEMENT)[..., ::2]


def one_tensor_of_both(shape):
    return torch.zeros(shape[0], 2, *shape[1:], dtype=ELEMENT)[:, 1]


POOLS = [contiguous, hnd, heads_outermost, sliced_dims, every_second_dim, one_tensor_of_both]
SLOTS = torch.tensor([11, 0, -1, 6])


@pytest.mark.parametrize(
    ("k_layout", "v_layout"),
    [*((layout, layout) for layout in POOLS), *itertools.pairwise(POOLS)],
    ids=lambda layout: layout.__name__,
)
def test_what_is_scattered_into_a_layout_is_where_it_belongs_and_is_gathered_back(
    k_layout, v_layout
):
    key, value = count_up(2, 4, 2, 8)
    key_pool, value_pool = k_layout(NHD), v_layout(NHD)
    scatter_kv(key, value, key_pool, value_pool, SLOTS)

    expected = torch.zeros(2, *NHD, dtype=ELEMENT)
    scatter_plainly(key, value, *expected, SLOTS)
    assert torch.equal(key_pool, expected[0])
    assert torch.equal(value_pool, expected[1])

    back = torch.zeros(2, 4, 2, 8, dtype=ELEMENT)
    gather_kv(key_pool, value_pool, SLOTS, *back)
    key[2] = value[2] = 0  # the row of the padding is left alone
    assert torch.equal(back[0], key)
    assert torch.equal(back[1], value)


def test_k_and_v_are_taken_from_a_qkv_projection():
    _, key, value = count_up(4, 6 + 2 + 2, 8).split([6, 2, 2], dim=1)
    key_pool, value_pool = torch.zeros(2, *NHD, dtype=ELEMENT)
    scatter_kv(key, value, key_pool, value_pool, SLOTS)
    expected = torch.zeros(2, *NHD, dtype=ELEMENT)
    scatter_plainly(key, value, *expected, SLOTS)
    assert torch.equal(torch.stack([key_pool, value_pool]), expected)


@pytest.mark.parametrize("slots", [[], [-1, -1], [-7, -(2**31), -(2**63)]], ids=str)
def test_a_mapping_of_padding_alone_moves_nothing(slots):
    slots = torch.tensor(slots, dtype=torch.int64)
    rows, pools = count_up(2, 3, 2, 8), count_up(2, *NHD)
    unchanged = rows.clone(), pools.clone()
    scatter_kv(*rows, *pools, slots)
    gather_kv(*pools, slots, *rows)
    assert torch.equal(rows, unchanged[0])
    assert torch.equal(pools, unchanged[1])


def test_rows_past_the_mapping_are_not_touched():
    key, value = count_up(2, 9, 2, 8)
    pools = torch.zeros(2, *NHD, dtype=ELEMENT)
    scatter_kv(key, value, *pools, torch.tensor([5]))
    assert torch.equal(pools[0, 1, 1], key[0])
    assert pools.count_nonzero() == 2 * 2 * 8

    rows = torch.full((2, 9, 2, 8), -1, dtype=ELEMENT)
    gather_kv(*pools, torch.tensor([5]), *rows)
    assert torch.equal(rows[:, 0], torch.stack([key[0], value[0]]))
    assert rows[:, 1:].eq(-1).all()


@pytest.mark.parametrize(("heads", "dims"), [(8, 128), (9, 128), (3, 700), (1, 1025), (32, 80)])
def test_rows_of_several_programs_are_moved_to_the_last_element(heads, dims):
    key, value = count_up(2, 2, heads, dims)
    pools = torch.zeros(2, 2, 3, heads, dims, dtype=ELEMENT)
    scatter_kv(key, value, *pools, torch.tensor([4, 1]))
    expected = torch.zeros_like(pools)
    scatter_plainly(key, value, *expected, torch.tensor([4, 1]))
    assert torch.equal(pools, expected)

    back = torch.zeros(2, 2, heads, dims, dtype=ELEMENT)
    gather_kv(*pools, torch.tensor([4, 1]), *back)
    assert torch.equal(back, torch.stack([key, value]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_bit_of_a_nan_is_moved(dtype):
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    # Signalling and quiet NaNs of either sign, with payloads, and a negative zero.
    words = {
        torch.bfloat16: [0x7F81, 0x7FC1, -0x7F, -0x3F, -0x8000, 0x7F80],
        torch.float16: [0x7C01, 0x7E01, -0x3FF, -0x1FF, -0x8000, 0x7C00],
        torch.float32: [0x7F800001, 0x7FC00001, -0x7FFFFF, -0x3FFFFF, -(2**31), 0x7F800000],
    }[dtype]
    rows = torch.tensor(words, dtype=bits).view(1, 1, 6)
    assert rows.view(dtype).isnan().sum() == 4
    pools = torch.zeros(2, 1, 2, 1, 6, dtype=dtype)
    scatter_kv(rows.view(dtype), rows.view(dtype), *pools, torch.tensor([1]))
    back = torch.zeros(2, 1, 1, 6, dtype=dtype)
    gather_kv(*pools, torch.tensor([1]), *back)
    for moved in (pools[0, 0, 1], pools[1, 0, 1], *back[:, 0]):
        assert moved.view(bits).flatten().tolist() == words


# Far offsets. Triton's interpreter works on a CPU tensor's own memory, without a copy, so that the
# memory can be a sparse file of which a few pages are ever touched. The tensors begin in its
# middle: an offset of 2**31 that has become a 32-bit -2**31 hits the file too, and the test fails
# instead of the process.

FAR = 2**31
MIDDLE = FAR + 4096


@pytest.fixture
def far_memory(tmp_path):
    path = tmp_path / "sparse"
    memory = torch.from_file(str(path), shared=True, size=2 * MIDDLE, dtype=ELEMENT)
    yield memory
    touched = path.stat().st_blocks * 512
    path.unlink()
    assert touched < 2**20


def far_along(memory, shape, dim, first):
    """A tensor in `memory` whose last element along `dim` lies 2**31 elements from its first."""
    strides = [0] * len(shape)
    near = 1
    for other in reversed(range(len(shape))):
        if other != dim:
            strides[other] = near
            near *= shape[other]
    strides[dim] = FAR // (shape[dim] - 1)
    return memory.as_strided(shape, strides, MIDDLE + first)


FAR_POOL = (3, 3, 3, 3)
LAST_SLOTS = torch.tensor([8, 0, 5])


def check_far_pools(memory, dim):
    slots = LAST_SLOTS.to(memory.device)
    key, value = count_up(2, 3, 3, 3).to(memory.device)
    key_pool = far_along(memory, FAR_POOL, dim, 0)
    value_pool = far_along(memory, FAR_POOL, dim, 1000)
    scatter_kv(key, value, key_pool, value_pool, slots)
    expected = torch.zeros(2, *FAR_POOL, dtype=ELEMENT, device=memory.device)
    scatter_plainly(key, value, *expected, slots)
    assert torch.equal(key_pool, expected[0])
    assert torch.equal(value_pool, expected[1])

    # Put in place by torch: what was scattered to a wrong place can't be gathered from there.
    key_pool.copy_(count_up(*FAR_POOL))
    value_pool.copy_(-count_up(*FAR_POOL))
    back, right = torch.zeros(2, 2, 3, 3, 3, dtype=ELEMENT, device=memory.device)
    gather_kv(key_pool, value_pool, slots, *back)
    gather_plainly(key_pool, value_pool, slots, *right)
    assert torch.equal(back, right)


def check_far_rows(memory, dim):
    slots = LAST_SLOTS.to(memory.device)
    key = far_along(memory, (3, 3, 3), dim, 0)
    value = far_along(memory, (3, 3, 3), dim, 1000)
    pools = count_up(2, *FAR_POOL).to(memory.device)
    gather_kv(*pools, slots, key, value)
    right = torch.zeros(2, 3, 3, 3, dtype=ELEMENT, device=memory.device)
    gather_plainly(*pools, slots, *right)
    assert torch.equal(key, right[0])
    assert torch.equal(value, right[1])

    key.copy_(count_up(3, 3, 3))
    value.copy_(-count_up(3, 3, 3))
    actual, expected = torch.zeros(2, 2, *FAR_POOL, dtype=ELEMENT, device=memory.device)
    scatter_kv(key, value, *actual, slots)
    scatter_plainly(key, value, *expected, slots)
    assert torch.equal(actual, expected)


each_pool_dim = pytest.mark.parametrize(
    "dim", [0, 1, 2, 3], ids=["block", "slot in the block", "head", "element of the head"]
)
each_row_dim = pytest.mark.parametrize("dim", [0, 1, 2], ids=["token", "head", "element"])


@each_pool_dim
def test_pools_reach_beyond_2_to_the_31_elements_along(dim, far_memory):
    check_far_pools(far_memory, dim)


@each_row_dim
def test_rows_reach_beyond_2_to_the_31_elements_along(dim, far_memory):
    check_far_rows(far_memory, dim)


@pytest.fixture
def far_gpu_memory(gpu):
    try:
        return torch.zeros(2 * MIDDLE, dtype=ELEMENT, device=gpu)
    except torch.OutOfMemoryError:
        pytest.skip("needs 9 GB of GPU memory")


@pytest.mark.gpu
@each_pool_dim
def test_on_a_gpu_pools_reach_beyond_2_to_the_31_elements_along(dim, far_gpu_memory):
    check_far_pools(far_gpu_memory, dim)


@pytest.mark.gpu
@each_row_dim
def test_on_a_gpu_rows_reach_beyond_2_to_the_31_elements_along(dim, far_gpu_memory):
    check_far_rows(far_gpu_memory, dim)


# How a row is cut into programs.


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (1, (1, 1)),
        (2, (2, 1)),
        (3, (4, 1)),
        (80, (128, 1)),
        (1023, (1024, 1)),
        (1024, (1024, 1)),
        (1025, (1024, 2)),
        (8 * 256, (1024, 2)),
        (32 * 80, (1024, 3)),
    ],
)
def test_a_row_is_cut_into(elements, expected):
    assert row_block(elements) == expected


@pytest.mark.parametrize(
    ("block", "element_size", "warps"),
    [(1, 2, 1), (128, 2, 1), (256, 2, 1), (512, 2, 2), (1024, 2, 4), (1024, 4, 8), (1024, 1, 2)],
)
def test_a_program_has_a_thread_for_every_16_bytes(block, element_size, warps):
    assert row_warps(block, element_size) == warps


@given(st.integers(1, 2**20))
def test_programs_cover_a_row_with_none_to_spare(elements):
    block, programs = row_block(elements)
    assert block.bit_count() == 1
    assert block <= 1024
    assert (programs - 1) * block < elements <= programs * block
    assert block == 1024 or block < 2 * elements


# Compiled for a GPU that is not here.


class Launch:
    """Stands in for a kernel: keeps the arguments that a launcher passes to it."""

    def __getitem__(self, grid):
        self.grid = grid
        return self

    def __call__(self, *arguments, **constants):
        self.arguments, self.constants = arguments, constants


def compile_as_launched(kernel, launch, capability):
    """What Triton compiles for a launch: it specialises on 1 and on multiples of 16."""
    names = kernel.compiled.arg_names
    options = {"num_warps": launch.constants["num_warps"]}
    assert len(names) == len(launch.arguments) + len(launch.constants) - 1
    constants = {n: v for n, v in launch.constants.items() if n != "num_warps"}
    signature, attributes = {}, {}
    for index, (name, argument) in enumerate(zip(names, launch.arguments, strict=False)):
        if isinstance(argument, torch.Tensor):
            kind = {torch.bfloat16: "bf16", torch.int64: "i64"}[argument.dtype]
            signature[name], divisible = f"*{kind}", argument.data_ptr() % 16 == 0
        elif argument == 1:
            constants[name], divisible = 1, False
        else:
            signature[name], divisible = "i32", argument % 16 == 0
        if divisible:
            attributes[index,] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel.compiled, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


LAUNCHERS = {"scatter": (scatter_kv_kernel, scatter_kv), "gather": (gather_kv_kernel, gather_kv)}


@pytest.fixture(params=LAUNCHERS.values(), ids=LAUNCHERS)
def compiled(request, monkeypatch, tmp_path):
    """A function from a GPU's capability to what is compiled for it: bf16, 8 heads of 128."""
    if jit.interpreting():
        pytest.skip("TRITON_INTERPRET is set: nothing is compiled")
    kernel, launcher = request.param
    launch = Launch()
    rows = torch.empty(2, 5, 8, 128, dtype=torch.bfloat16)
    pools = torch.empty(2, 3, 16, 8, 128, dtype=torch.bfloat16)
    slots = torch.zeros(5, dtype=torch.int64)
    with monkeypatch.context() as patch, triton.knobs.cache.scope():
        patch.setattr(kernel, "interpreted", launch)
        triton.knobs.cache.dir = str(tmp_path)  # never what an earlier run compiled
        launcher(*((*rows, *pools, slots) if launcher is scatter_kv else (*pools, slots, *rows)))
        assert launch.grid == (5, 1)
        yield lambda capability: compile_as_launched(kernel, launch, capability)


@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_rows_are_moved_16_bytes_at_a_time_without_local_memory(compiled, capability):
    ptx = compiled(capability).asm["ptx"]
    moves = [word for word in ptx.split() if word.startswith(("ld.global", "st.global"))]
    # 1024 elements by 128 threads: 8 of 2 bytes each, one access for K and one for V. The slot is
    # the one other load.
    assert sorted(moves) == ["ld.global.b64", *2 * ["ld.global.v4.b32"], *2 * ["st.global.v4.b32"]]
    assert ".local" not in ptx


def test_compiled_products_with_strides_are_64_bit(compiled):
    lines = compiled(80).asm["ttir"].splitlines()
    products = [line.strip() for line in lines if "arith.muli" in line]
    # The one that needs no more is a program's first element of a row, which has no stride yet.
    assert [
        line for line in products if "i64" not in line and not line.startswith("%element")
    ] == []
    assert len(products) > 8


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"value": torch.zeros(3, 2, 5)}, "value's shape is (3, 2, 5); expected (3, 2, 4)"),
        ({"key": torch.zeros(3, 2, 4).half()}, "value's dtype is torch.float32; expected torch.f"),
        ({"key_pool": torch.zeros(2, 4, 3, 4)}, "value_pool's shape is (2, 4, 2, 4); expected"),
        ({"slot_mapping": torch.zeros(4, dtype=torch.int64)}, "4 slots; expected up to 3"),
    ],
)
def test_operands_that_do_not_go_together_are_refused(broken, message):
    operands = {
        "key": torch.zeros(3, 2, 4),
        "value": torch.zeros(3, 2, 4),
        "key_pool": torch.zeros(2, 4, 2, 4),
        "value_pool": torch.zeros(2, 4, 2, 4),
        "slot_mapping": torch.arange(3),
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        scatter_kv(**operands | broken)


def test_a_slot_mapping_with_a_stride_is_read_by_it():
    key, pool = torch.randn(3, 1, 4), torch.zeros(2, 4, 1, 4)
    value_pool = pool.clone()
    slots = torch.tensor([6, 0, 1, 0, 3, 0])[::2]
    scatter_kv(key, key, pool, value_pool, slots)
    assert torch.equal(pool.view(8, 1, 4)[[6, 1, 3]], key)
    assert int((pool.view(8, 4).abs().sum(1) > 0).sum()) == 3
