"""The Triton kernels: through the interpreter on any strides, and compiled without a GPU."""

import functools
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from types import FunctionType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import quantisation
from kvbench.kernels.rows import stride_step
from kvbench.timing.launches import fake_cuda, predict_launches

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402 - only where Triton is
from simulated_gpu import simulated_gpu  # noqa: E402
from triton.runtime.interpreter import InterpretedFunction  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from kvbench.audit.targets import TARGETS  # noqa: E402
from kvbench.kernels import jit  # noqa: E402
from kvbench.kernels.gather import gather_kv, gather_kv_kernel  # noqa: E402
from kvbench.kernels.gather_quantised import (  # noqa: E402
    gather_quantised_kv,
    gather_quantised_kv_kernel,
)
from kvbench.kernels.scatter import scatter_kv, scatter_kv_kernel  # noqa: E402
from kvbench.kernels.scatter_quantised import (  # noqa: E402
    scatter_quantised_kv,
    scatter_quantised_kv_kernel,
)

CPU = torch.device("cpu")
E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8

# 16-bit integers stand for bf16 where only the movement matters: no two NaNs compare unequal.
ELEMENT = torch.int16


def count_up(*shape: int) -> torch.Tensor:
    """A tensor in which every element differs from every other (of 32,749), and from 0."""
    numbers = torch.arange(torch.Size(shape).numel()) % 32749 + 1
    return numbers.to(ELEMENT).view(shape)


def contents(dtype, shape, which):
    """Something to read (0 of K, 1 of V), or to write over (2 of K, 3 of V): no two alike.

    No code of it is a NaN, whose bits after a product are anyone's: see test_codes.
    """
    shape = torch.Size(shape)
    if dtype is ELEMENT:
        numbers = count_up(shape.numel() + which)[which:].clone().view(shape)
        return -numbers if which < 2 else numbers
    generator = torch.Generator().manual_seed(which)
    if dtype.itemsize == 1:
        codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        codes[(codes & 0x7F) >= 0x7C] &= 0x8F
        return codes.view(dtype)
    exponents = torch.randint(-8, 9, shape, generator=generator)
    numbers = torch.randn(shape, generator=generator) * 2.0**exponents
    numbers[torch.rand(shape, generator=generator) < 0.1] = 0.0
    return numbers.to(dtype)


def bits(tensor):
    """A tensor's bits on the CPU: what is compared, so that -0.0 is not 0.0."""
    tensor = tensor.contiguous().cpu()
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def same(actual, expected):
    return torch.equal(bits(actual), bits(expected))


@dataclass(frozen=True)
class Scheme:
    """What rows and pools hold, and with it which kernels move them and what they should do."""

    rows: torch.dtype = ELEMENT
    pool: torch.dtype = ELEMENT
    scale: str | None = None

    def __str__(self):
        names = [str(dtype).removeprefix("torch.") for dtype in (self.rows, self.pool)]
        return "plain" if self.scale is None else "-".join((*names, self.scale))

    @property
    def per_token(self):
        return self.scale == "per_token"

    def scale_shape(self, blocks, size, heads):
        shapes = {"per_tensor": (1, 1), "per_head": (1, heads), "per_token": (blocks, size)}
        return shapes[self.scale]

    def scales(self, blocks, size, heads):
        """Those of K and V; none of a plain pool."""
        if self.scale is None:
            return []
        shape = self.scale_shape(blocks, size, heads)
        return [contents(torch.float32, shape, which).abs() + 2.0**-6 for which in (2, 3)]

    def move(self, op, rows, pools, scales, slots):
        {"scatter": self.scatter, "gather": self.gather}[op](rows, pools, scales, slots)

    def move_plainly(self, op, rows, pools, scales, slots):
        """What `move` should do, row by row in PyTorch ops."""
        plainly = {"scatter": self.scatter_plainly, "gather": self.gather_plainly}
        plainly[op](rows, pools, scales, slots)

    def scatter(self, rows, pools, scales, slots):
        if self.scale is None:
            scatter_kv(*rows, *pools, slots)
        else:
            scatter_quantised_kv(*rows, *pools, *scales, slots, per_token=self.per_token)

    def gather(self, rows, pools, scales, slots):
        if self.scale is None:
            gather_kv(*pools, slots, *rows)
        else:
            gather_quantised_kv(*pools, *scales, slots, *rows, per_token=self.per_token)

    def scatter_plainly(self, rows, pools, scales, slots):
        for which in range(2):
            size, form = pools[which].shape[1], pools[which].shape[2:]
            for row, slot in enumerate(slots.tolist()):
                if slot < 0:
                    continue
                at = divmod(slot, size)
                stored = rows[which][row : row + 1]
                if self.per_token:
                    own = quantisation.token_scales(stored, self.pool)
                    scales[which][at] = own[0]
                    stored = quantisation.encode(stored, own[:, None], self.pool)
                elif self.scale is not None:
                    stored = quantisation.encode(stored, scales[which], self.pool)
                pools[which][at] = stored[0].reshape(form)

    def gather_plainly(self, rows, pools, scales, slots):
        for which in range(2):
            size, form = pools[which].shape[1], rows[which].shape[1:]
            for row, slot in enumerate(slots.tolist()):
                if slot < 0:
                    continue
                at = divmod(slot, size)
                stored = pools[which][at].reshape(1, *form)
                if self.scale is not None:
                    scale = scales[which][at].view(1, 1) if self.per_token else scales[which]
                    stored = quantisation.decode(stored, scale, self.rows)
                rows[which][row] = stored[0]


PLAIN = Scheme()
SCALES = ["per_tensor", "per_head", "per_token"]
# One scale of each kind, and formats of either kind: every pair of them is drawn by Hypothesis.
SCHEMES = [
    PLAIN,
    Scheme(torch.bfloat16, E4M3, "per_head"),
    Scheme(torch.bfloat16, INT8, "per_token"),
]
each_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=str)


def scatter_plainly(key, value, key_pool, value_pool, slots):
    PLAIN.scatter_plainly((key, value), (key_pool, value_pool), [], slots)


def gather_plainly(key_pool, value_pool, slots, key, value):
    PLAIN.gather_plainly((key, value), (key_pool, value_pool), [], slots)


# Any strides, any slots: drawn.


class Layout:
    """Where the elements of a tensor lie in a longer 1-D one."""

    def __init__(self, order, gaps, first):
        self.order, self.gaps, self.first = order, gaps, first

    def __repr__(self):
        return f"Layout(order={self.order}, gaps={self.gaps}, first={self.first})"

    def place(self, shape, dtype, which):
        """A 1-D tensor and the view of this layout in it."""
        outer = [shape[dim] for dim in self.order]
        spread = [size * gap for size, gap in zip(outer, self.gaps, strict=True)]
        flat = contents(dtype, (self.first + torch.Size(spread).numel(),), which)
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


@dataclass
class Problem:
    """Operands of any strides: K and V may have heads of different sizes, and pools be x-packed."""

    scheme: Scheme
    slots: torch.Tensor
    rows: list[tuple[tuple[int, ...], Layout]]
    """Shape and layout of K and V."""
    pools: list[tuple[tuple[int, ...], Layout]]
    scales: list[tuple[tuple[int, ...], Layout]]

    def place(self, name, dtype, first):
        return [
            layout.place(shape, dtype, first + which)
            for which, (shape, layout) in enumerate(getattr(self, name))
        ]

    def place_scales(self):
        placed = self.place("scales", torch.float32, 2)
        for memory, _ in placed:
            memory.abs_().add_(2.0**-6)
        return placed


@st.composite
def problems(draw, schemes):
    scheme = draw(schemes)
    blocks, size, heads = draw(st.tuples(*(st.integers(1, n) for n in (3, 5, 3))))
    slots = draw(mappings(blocks * size))
    tokens = len(slots) + draw(st.integers(0, 2))
    rows, pools, scales = [], [], []
    for _ in "KV":
        dim = draw(st.integers(1, 9))
        pack = draw(st.sampled_from([None, *(n for n in range(1, dim + 1) if dim % n == 0)]))
        inner = (dim,) if pack is None else (dim // pack, pack)
        rows.append(((tokens, heads, dim), draw(layouts(3))))
        pools.append(((blocks, size, heads, *inner), draw(layouts(3 + len(inner)))))
        if scheme.scale is not None:
            scales.append((scheme.scale_shape(blocks, size, heads), draw(layouts(2))))
    return Problem(scheme, slots, rows, pools, scales)


any_quantised = st.builds(
    Scheme,
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    st.sampled_from([E4M3, E5M2, INT8]),
    st.sampled_from(SCALES),
)
plain_problems = problems(st.just(PLAIN))
quantised_problems = problems(any_quantised)


def moved(memory, view, device):
    """A copy of memory on a device, and the view of it that `view` is of the memory."""
    memory = memory.clone().to(device)
    return memory, memory.as_strided(view.shape, view.stride(), view.storage_offset())


def check_problem(problem, device, op):
    """An operation on all the memory that operands lie in: only what it should write changes."""
    rows_first, pools_first = (0, 2) if op == "scatter" else (2, 0)
    groups = (
        problem.place("rows", problem.scheme.rows, rows_first),
        problem.place("pools", problem.scheme.pool, pools_first),
        problem.place_scales(),
    )
    there = [[moved(*placed, device) for placed in group] for group in groups]
    rows, pools, scales = ([view for _, view in group] for group in groups)
    rows_there, pools_there, scales_there = ([view for _, view in group] for group in there)
    problem.scheme.move(op, rows_there, pools_there, scales_there, problem.slots.to(device))
    problem.scheme.move_plainly(op, rows, pools, scales, problem.slots)
    every, right = itertools.chain(*there), itertools.chain(*groups)
    for (actual, _), (expected, _) in zip(every, right, strict=True):
        assert same(actual, expected)


@given(plain_problems)
def test_scatter_writes_its_slots_and_nothing_else_whatever_the_strides(problem):
    check_problem(problem, CPU, "scatter")


@given(plain_problems)
def test_gather_writes_its_rows_and_nothing_else_whatever_the_strides(problem):
    check_problem(problem, CPU, "gather")


@given(quantised_problems)
def test_quantised_scatter_writes_its_slots_and_scales_and_nothing_else(problem):
    check_problem(problem, CPU, "scatter")


@given(quantised_problems)
def test_quantised_gather_writes_its_rows_and_nothing_else(problem):
    check_problem(problem, CPU, "gather")


@pytest.mark.gpu
@settings(max_examples=20)  # each may compile a kernel
@given(st.one_of(plain_problems, quantised_problems))
def test_scatter_writes_its_slots_and_nothing_else_on_a_gpu(gpu, problem):
    check_problem(problem, gpu, "scatter")


@pytest.mark.gpu
@settings(max_examples=20)
@given(st.one_of(plain_problems, quantised_problems))
def test_gather_writes_its_rows_and_nothing_else_on_a_gpu(gpu, problem):
    check_problem(problem, gpu, "gather")


# The layouts that there are, by name, and shapes that kernels elsewhere get wrong.

NHD = (3, 4, 2, 8)


def contiguous(shape, dtype=ELEMENT):
    return torch.zeros(shape, dtype=dtype)


def hnd(shape, dtype=ELEMENT):
    blocks, slots, heads, dims = shape
    return torch.zeros(blocks, heads, slots, dims, dtype=dtype).transpose(1, 2)


def heads_outermost(shape, dtype=ELEMENT):
    blocks, slots, heads, dims = shape
    return torch.zeros(heads, blocks, slots, dims, dtype=dtype).permute(1, 2, 0, 3)


def sliced_dims(shape, dtype=ELEMENT):
    *outer, dims = shape
    return torch.zeros(*outer, 2 * dims, dtype=dtype)[..., 3 : 3 + dims]


def every_second_dim(shape, dtype=ELEMENT):
    *outer, dims = shape
    return torch.zeros(*outer, 2 * dims, dtype=dtype)[..., ::2]


def one_tensor_of_both(shape, dtype=ELEMENT):
    return torch.zeros(shape[0], 2, *shape[1:], dtype=dtype)[:, 1]


def x_packed(shape, dtype=ELEMENT, pack=4):
    blocks, slots, heads, dims = shape
    packed = torch.zeros(blocks, heads, dims // pack, slots, pack, dtype=dtype)
    return packed.permute(0, 3, 1, 2, 4)


def dims_before_slots(shape, dtype=ELEMENT):
    blocks, slots, heads, dims = shape
    return torch.zeros(blocks, heads, dims, slots, dtype=dtype).permute(0, 3, 1, 2)


POOLS = [
    contiguous,
    hnd,
    heads_outermost,
    sliced_dims,
    every_second_dim,
    one_tensor_of_both,
    x_packed,
    dims_before_slots,
]
SLOTS = torch.tensor([11, 0, -1, 6])


def check_moves(scheme, rows, pools):
    """Both operations of a scheme, on rows of these shapes and pools [3, 4, ...] of any strides."""
    sizes = (3, 4, pools[0].shape[2])
    rows = [contents(scheme.rows, shape, which) for which, shape in enumerate(rows)]
    scales, right_scales = scheme.scales(*sizes), scheme.scales(*sizes)
    right = [torch.zeros(pool.shape, dtype=pool.dtype) for pool in pools]
    scheme.scatter(rows, pools, scales, SLOTS)
    scheme.scatter_plainly(rows, right, right_scales, SLOTS)
    for actual, expected in zip((*pools, *scales), (*right, *right_scales), strict=True):
        assert same(actual, expected)

    # Put in place by torch: what was scattered to a wrong place can't be gathered from there.
    for which, pool in enumerate(pools):
        pool.copy_(contents(pool.dtype, pool.shape, which))
    actual = [torch.full_like(each, 77) for each in rows]  # the row of the padding is left alone
    right = [each.clone() for each in actual]
    scheme.gather(actual, pools, scales, SLOTS)
    scheme.gather_plainly(right, pools, scales, SLOTS)
    assert all(map(same, actual, right))
    assert all(each[2].eq(77).all() for each in actual)


def check_shape(scheme, heads, key_dim, value_dim, layout=contiguous):
    dims = key_dim, value_dim
    pools = [layout((3, 4, heads, dim), scheme.pool) for dim in dims]
    check_moves(scheme, [(4, heads, dim) for dim in dims], pools)


@pytest.mark.parametrize(
    ("k_layout", "v_layout"),
    [*((layout, layout) for layout in POOLS), *itertools.pairwise(POOLS)],
    ids=lambda layout: layout.__name__,
)
@pytest.mark.parametrize("scheme", SCHEMES[:2], ids=str)
def test_rows_are_moved_to_and_from_where_a_layout_has_them(scheme, k_layout, v_layout):
    pools = [layout(NHD, scheme.pool) for layout in (k_layout, v_layout)]
    check_moves(scheme, [(4, 2, 8), (4, 2, 8)], pools)


@each_scheme
def test_hnd_strides_are_followed(scheme):
    check_shape(scheme, 3, 5, 5, layout=hnd)


@each_scheme
@pytest.mark.parametrize("heads", [65, 128])
def test_more_than_64_heads_are_moved(heads, scheme):
    check_shape(scheme, heads, 3, 3)


@each_scheme
@pytest.mark.parametrize("dim", [1, 5, 80, 96, 576])
def test_head_sizes_that_are_not_powers_of_two_are_moved(dim, scheme):
    check_shape(scheme, 2, dim, dim)


@each_scheme
@pytest.mark.parametrize(
    ("heads", "key_dim", "value_dim"),
    [
        (1, 512, 64),
        (1, 64, 512),
        (2, 3, 7),
        (3, 700, 1),  # K takes three programs, V the first of them
        (3, 1, 700),
    ],
)
def test_heads_of_k_and_v_may_differ_in_size(heads, key_dim, value_dim, scheme):
    check_shape(scheme, heads, key_dim, value_dim)


@each_scheme
def test_k_and_v_may_be_parts_of_one_latent(scheme):
    latent = torch.zeros(3, 4, 1, 576, dtype=scheme.pool)
    check_moves(scheme, [(4, 1, 512), (4, 1, 64)], [latent[..., :512], latent[..., 512:]])


@each_scheme
@pytest.mark.parametrize("pack", [1, 2, 3, 4, 12])
def test_k_may_be_x_packed_by(pack, scheme):
    pools = [x_packed((3, 4, 2, 12), scheme.pool, pack), dims_before_slots(NHD, scheme.pool)]
    check_moves(scheme, [(4, 2, 12), (4, 2, 8)], pools)


@each_scheme
def test_rows_may_be_seen_as_the_slots_of_an_x_packed_pool(scheme):
    pools = [x_packed(NHD, scheme.pool), dims_before_slots(NHD, scheme.pool)]
    check_moves(scheme, [(4, 2, 2, 4), (4, 2, 8)], pools)


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


@each_scheme
@pytest.mark.parametrize(("heads", "dims"), [(8, 128), (9, 128), (3, 700), (1, 1025), (32, 80)])
def test_rows_of_several_programs_are_moved_to_the_last_element(heads, dims, scheme):
    check_shape(scheme, heads, dims, dims)


@pytest.mark.parametrize("dtype", [E4M3, E5M2, INT8], ids=str)
@pytest.mark.parametrize(
    ("at", "dim"),
    [(0, 700), (1023, 700), (1024, 700), (2099, 700), *((n, 1400) for n in (0, 4095, 4096, 4199))],
)
def test_a_token_s_scale_is_that_of_its_largest_element_wherever_it_is(at, dim, dtype):
    rows = torch.linspace(-1, 1, 2 * 3 * dim).view(2, 1, 3, dim)  # 3 x 1400 are two turns
    rows.view(2, 3 * dim)[:, at] = torch.tensor([-300.0, 20.0])
    pools = torch.zeros(2, 1, 2, 3, dim, dtype=dtype)
    scales = torch.zeros(2, 1, 2)
    scatter_quantised_kv(*rows, *pools, *scales, torch.tensor([1]), per_token=True)
    largest = {E4M3: 448, E5M2: 57344, INT8: 127}[dtype]
    assert torch.equal(scales[:, 0], torch.tensor([[0.0, 300], [0, 20]]) / largest)
    assert pools[:, 0, 1].flatten(1).float()[:, at].tolist() == [-largest, largest]


@each_scheme
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (1, 4), (2, 3), (1, 64), (2, 100)])
def test_tokens_that_share_a_program_go_to_slots_of_their_own(heads, dim, scheme):
    tokens, size = 150, 16  # three programs, or many; the last is not full
    slots = torch.randperm(12 * size, generator=torch.Generator().manual_seed(0))[:tokens]
    slots[::7] = -1
    rows = [contents(scheme.rows, (tokens, heads, dim), which) for which in range(2)]
    shape = (12, size, heads, dim)
    pools, right = ([torch.zeros(shape, dtype=scheme.pool) for _ in "KV"] for _ in "ab")
    scales, right_scales = (scheme.scales(12, size, heads) for _ in "ab")
    scheme.scatter(rows, pools, scales, slots)
    scheme.scatter_plainly(rows, right, right_scales, slots)
    assert all(map(same, (*pools, *scales), (*right, *right_scales)))
    back, expected = ([torch.full_like(each, 77) for each in rows] for _ in "ab")
    scheme.gather(back, pools, scales, slots)
    scheme.gather_plainly(expected, pools, scales, slots)
    assert all(map(same, back, expected))


@each_scheme
@pytest.mark.parametrize("blocks", [2**31 // 3, 2**31 // 3 + 1, 2**32 // 3 + 1])
def test_slots_beyond_2_to_the_31_are_divided_in_64_bits(blocks, scheme):
    # All blocks are the same memory: a place in its block is all that is left of a slot.
    near = torch.tensor([1, 0, 2, -1])
    far = near + 3 * torch.tensor([blocks - 1, 0, blocks - 1, -(2**33)])
    pools, right = ([torch.zeros(1, 3, 1, 8, dtype=scheme.pool) for _ in "KV"] for _ in "ab")
    rows = [contents(scheme.rows, (4, 1, 8), which) for which in range(2)]
    scales, right_scales = scheme.scales(1, 3, 1), scheme.scales(1, 3, 1)
    everywhere = [each.expand(blocks, 3, 1, 8) for each in pools]
    given = [each.expand(blocks, 3) if scheme.per_token else each for each in scales]
    scheme.scatter(rows, everywhere, given, far)
    scheme.scatter_plainly(rows, right, right_scales, near)
    assert all(map(same, (*pools, *scales), (*right, *right_scales)))
    back, expected = ([torch.zeros_like(each) for each in rows] for _ in "ab")
    scheme.gather(back, everywhere, given, far)
    scheme.gather_plainly(expected, pools, scales, near)
    assert all(map(same, back, expected))


@pytest.mark.parametrize("dtype", [E4M3, E5M2, INT8], ids=str)
def test_a_token_next_to_zero_has_the_smallest_scale(dtype):
    rows = torch.zeros(2, 2, 1, 4)
    rows[1] = 2.0**-20
    pools, scales = torch.zeros(2, 1, 2, 1, 4, dtype=dtype), torch.zeros(2, 1, 2)
    scatter_quantised_kv(*rows, *pools, *scales, torch.tensor([0, 1]), per_token=True)
    assert scales.eq(2.0**-20).all()
    assert pools[0].eq(0).all()
    assert pools[1].float().eq(1.0).all()


# By powers of two, that every format has: nothing but the scale is rounded here.
@pytest.mark.parametrize("dtype", [E4M3, E5M2, INT8], ids=str)
def test_every_head_has_its_own_scale_and_k_and_v_have_theirs(dtype):
    rows = torch.ones(2, 1, 3, 5)
    pools = torch.zeros(2, 1, 1, 3, 5, dtype=dtype)
    scales = torch.tensor([[[1.0, 0.5, 0.25]], [[0.5, 1.0, 0.125]]])
    scatter_quantised_kv(*rows, *pools, *scales, torch.tensor([0]), per_token=False)
    assert torch.equal(pools[:, 0, 0].float(), (1 / scales).transpose(1, 2).expand(2, 3, 5))
    back = torch.zeros(2, 1, 3, 5)
    doubled = 2 * scales
    gather_quantised_kv(*pools, *doubled, torch.tensor([0]), *back, per_token=False)
    assert back.eq(2.0).all()


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


@pytest.mark.parametrize("scale", ["per_tensor", "per_head"])
@pytest.mark.parametrize("pool", [E4M3, E5M2, INT8], ids=str)
@pytest.mark.parametrize("rows", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_infinities_saturate_and_a_nan_spoils_no_other_element(rows, pool, scale):
    # Without a warning of NumPy's, which the suite would make an error.
    scheme = Scheme(rows, pool, scale)
    row = torch.tensor([[[torch.inf, -torch.inf, torch.nan, 1.0]]], dtype=rows)
    pools, scales = torch.zeros(2, 1, 1, 1, 4, dtype=pool), torch.ones(2, 1, 1)
    scheme.scatter((row, row), pools, scales, torch.tensor([0]))
    largest = {E4M3: 448, E5M2: 57344, INT8: 127}[pool]
    least = -128 if pool is INT8 else -largest
    for stored in pools.float().flatten(1):
        assert stored[[0, 1, 3]].tolist() == [largest, least, 1]
        assert pool is INT8 or stored[2].isnan()


# Far offsets. Triton's interpreter works on a CPU tensor's own memory, without a copy, so that the
# memory can be a sparse file of which a few pages are ever touched. The tensors begin in its
# middle: an offset of 2**31 that has become a 32-bit -2**31 hits the file too, and the test fails
# instead of the process.

FAR = 2**31
MIDDLE = FAR + 4096
FAR_BLOCKS, FAR_SIZE, FAR_HEADS = 3, 3, 3
FAR_POOL = (FAR_BLOCKS, FAR_SIZE, FAR_HEADS, 3)
FAR_PACKED = (*FAR_POOL, 3)
LAST_SLOTS = torch.tensor([8, 0, 5])


@pytest.fixture
def far_memory(tmp_path):
    """Room for 2**31 elements of 4 bytes on either side of the middle."""
    path = tmp_path / "sparse"
    memory = torch.from_file(str(path), shared=True, size=8 * MIDDLE, dtype=torch.uint8)
    yield memory
    touched = path.stat().st_blocks * 512
    path.unlink()
    assert touched < 2**20


def far_along(memory, dtype, shape, dim, first):
    """A tensor in `memory` whose last element along `dim` lies 2**31 elements from its first."""
    strides = [0] * len(shape)
    near = 1
    for other in reversed(range(len(shape))):
        if other != dim:
            strides[other] = near
            near *= shape[other]
    strides[dim] = FAR // (shape[dim] - 1)
    return memory.view(dtype).as_strided(shape, strides, MIDDLE + first)


def far_pair(memory, dtype, shape, dim):
    return [far_along(memory, dtype, shape, dim, first) for first in (0, 1000)]


def filled(dtype, shape, first, device):
    return [contents(dtype, shape, first + which).to(device) for which in range(2)]


def on_cpu(tensors):
    return [tensor.contiguous().cpu() for tensor in tensors]


def check_far(scheme, rows, pools, scales):
    """Both operations on operands of which one pair is far: each is filled by torch."""
    slots = LAST_SLOTS.to(rows[0].device)

    def fill(first, tensors):
        for which, tensor in enumerate(tensors):
            values = contents(tensor.dtype, tensor.shape, first + which)
            if tensor.dtype is torch.float32:
                values = values.abs() + 2.0**-6
            tensor.copy_(values)

    fill(2, scales)
    fill(0, rows)
    fill(2, pools)
    right = on_cpu(pools), on_cpu(scales)
    right = [each.clone() for each in right[0]], [each.clone() for each in right[1]]
    scheme.scatter_plainly(on_cpu(rows), *right, LAST_SLOTS)
    scheme.scatter(rows, pools, scales, slots)
    assert all(map(same, (*pools, *scales), (*right[0], *right[1])))

    fill(0, pools)
    fill(2, scales)
    fill(2, rows)
    right = [each.clone() for each in on_cpu(rows)]
    scheme.gather_plainly(right, on_cpu(pools), on_cpu(scales), LAST_SLOTS)
    scheme.gather(rows, pools, scales, slots)
    assert all(map(same, rows, right))


def far_scales(scheme, device):
    scales = scheme.scales(FAR_BLOCKS, FAR_SIZE, FAR_HEADS)
    return [scale.to(device) for scale in scales]


def row_of(pool_shape):
    return (3, FAR_HEADS, torch.Size(pool_shape[3:]).numel())


def check_far_pools(memory, scheme, shape, dim):
    device = memory.device
    pools = far_pair(memory, scheme.pool, shape, dim)
    check_far(
        scheme, filled(scheme.rows, row_of(shape), 0, device), pools, far_scales(scheme, device)
    )


def check_far_rows(memory, scheme, dim):
    device = memory.device
    rows = far_pair(memory, scheme.rows, row_of(FAR_POOL), dim)
    pools = filled(scheme.pool, FAR_POOL, 2, device)
    check_far(scheme, rows, pools, far_scales(scheme, device))


def check_far_scales(memory, scale, dim):
    scheme = Scheme(torch.bfloat16, E4M3, scale)
    shape = scheme.scale_shape(FAR_BLOCKS, FAR_SIZE, FAR_HEADS)
    scales = far_pair(memory, torch.float32, shape, dim)
    rows = filled(scheme.rows, row_of(FAR_POOL), 0, memory.device)
    check_far(scheme, rows, filled(scheme.pool, FAR_POOL, 2, memory.device), scales)


each_pool_dim = pytest.mark.parametrize(
    ("shape", "dim"),
    [(FAR_POOL, 0), (FAR_POOL, 1), (FAR_POOL, 2), (FAR_POOL, 3), (FAR_PACKED, 3), (FAR_PACKED, 4)],
    ids=["block", "slot in the block", "head", "element of the head", "pack", "element of a pack"],
)
each_row_dim = pytest.mark.parametrize("dim", [0, 1, 2], ids=["token", "head", "element"])
each_scale_dim = pytest.mark.parametrize(
    ("scale", "dim"),
    [("per_token", 0), ("per_token", 1), ("per_head", 1)],
    ids=["block", "slot in the block", "head"],
)


@each_scheme
@each_pool_dim
def test_pools_reach_beyond_2_to_the_31_elements_along(shape, dim, scheme, far_memory):
    check_far_pools(far_memory, scheme, shape, dim)


@each_scheme
@each_row_dim
def test_rows_reach_beyond_2_to_the_31_elements_along(dim, scheme, far_memory):
    check_far_rows(far_memory, scheme, dim)


@each_scale_dim
def test_scales_reach_beyond_2_to_the_31_elements_along(scale, dim, far_memory):
    check_far_scales(far_memory, scale, dim)


@pytest.fixture
def far_gpu_memory(gpu):
    try:
        return torch.zeros(8 * MIDDLE, dtype=torch.uint8, device=gpu)
    except torch.OutOfMemoryError:
        pytest.skip("needs 18 GB of GPU memory")


far_on_a_gpu = pytest.mark.xdist_group("GPU memory")  # one at a time: each takes 18 GB


@pytest.mark.gpu
@far_on_a_gpu
@each_scheme
@each_pool_dim
def test_on_a_gpu_pools_reach_beyond_2_to_the_31_elements_along(shape, dim, scheme, far_gpu_memory):
    check_far_pools(far_gpu_memory, scheme, shape, dim)


@pytest.mark.gpu
@far_on_a_gpu
@each_scheme
@each_row_dim
def test_on_a_gpu_rows_reach_beyond_2_to_the_31_elements_along(dim, scheme, far_gpu_memory):
    check_far_rows(far_gpu_memory, scheme, dim)


@pytest.mark.gpu
@far_on_a_gpu
@each_scale_dim
def test_on_a_gpu_scales_reach_beyond_2_to_the_31_elements_along(scale, dim, far_gpu_memory):
    check_far_scales(far_gpu_memory, scale, dim)


# Compiled for a GPU that is not here.

KERNELS = {
    ("scatter", False): scatter_kv_kernel,
    ("gather", False): gather_kv_kernel,
    ("scatter", True): scatter_quantised_kv_kernel,
    ("gather", True): gather_quantised_kv_kernel,
}
BF16 = Scheme(torch.bfloat16, torch.bfloat16)


def operands(scheme, shape):
    """K, V and their pools [3, 16, ...] of 5 tokens: heads x elements, of MLA, or x-packed."""
    if shape == "MLA":
        latent = torch.empty(3, 16, 1, 576, dtype=scheme.pool)
        rows = [torch.empty(5, 1, dim, dtype=scheme.rows) for dim in (512, 64)]
        return rows, [latent[..., :512], latent[..., 512:]]
    heads, dim = (8, 128) if shape in {"x-packed", "odd strides"} else map(int, shape.split(" x "))
    rows = [torch.empty(5, heads, dim, dtype=scheme.rows) for _ in "KV"]
    if shape == "odd strides":
        rows = [torch.empty(5, 8 * 128 + 1, dtype=scheme.rows)[:, 1:].view(5, 8, 128) for _ in "KV"]
        pools = [torch.empty(3, 16, 8, 129, dtype=scheme.pool)[..., :128] for _ in "KV"]
        return rows, pools
    if shape == "x-packed":
        pack = 16 // scheme.pool.itemsize
        key_pool = x_packed((3, 16, 8, 128), scheme.pool, pack)
        return rows, [key_pool, dims_before_slots((3, 16, 8, 128), scheme.pool)]
    return rows, [torch.empty(3, 16, heads, dim, dtype=scheme.pool) for _ in "KV"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function that gives the kernel compiled for a call; once each."""
    folder = tmp_path_factory.mktemp("triton")

    @functools.cache
    def kernel_of(op, scheme, shape, target):
        rows, pools = operands(scheme, shape)
        scales = scheme.scales(3, 16, rows[0].shape[1])
        with simulated_gpu(folder, TARGETS[target]) as gpu:
            KERNELS[op, scheme.scale is not None].compiled.device_caches.clear()
            scheme.move(op, rows, pools, scales, torch.zeros(5, dtype=torch.int64))
        (kernel,) = gpu.compiled
        return kernel

    return kernel_of


def accesses(ptx):
    return Counter(word for word in ptx.split() if word.startswith(("ld.global", "st.global")))


each_op = pytest.mark.parametrize("op", ["scatter", "gather"])
each_nvidia = pytest.mark.parametrize("target", ["sm_80", "sm_90"])
# Every format, and every way to have scales.
COMPILED = [
    *SCHEMES[1:],
    Scheme(torch.bfloat16, E4M3, "per_token"),
    Scheme(torch.bfloat16, E5M2, "per_tensor"),
    Scheme(torch.bfloat16, INT8, "per_head"),
]
SHAPED = [BF16, *SCHEMES[1:]]  # those also compiled in other shapes
each_compiled = pytest.mark.parametrize("scheme", COMPILED, ids=str)


@each_op
@each_nvidia
@pytest.mark.parametrize("scheme", [BF16, SCHEMES[1]], ids=str)
def test_compiled_rows_and_slots_at_odd_places_are_moved_an_element_at_a_time(
    op, target, scheme, compiled
):
    # Two bytes or one: a wider access to an odd place is an error on a GPU.
    moves = accesses(compiled(op, scheme, "odd strides", target).asm["ptx"])
    assert {word.rpartition(".")[2] for word in moves} <= {"b16", "b8", "b32", "b64"}
    assert not [word for word in moves if ".v" in word]
    # The wider words are the slot and scales.
    assert (moves["ld.global.b64"], bool(moves["ld.global.b32"])) == (1, bool(scheme.scale))
    assert moves["st.global.b32"] == moves["st.global.b64"] == 0


@given(st.lists(st.integers(0, 3 * 16), min_size=3, max_size=6), st.sampled_from([1, 2, 4, 8, 16]))
def test_every_stride_but_the_last_is_a_multiple_of_the_step_that_is_told(strides, width):
    tensor = torch.empty(1).expand(1).as_strided([1] * len(strides), strides)
    step = stride_step(tensor, width)
    assert width % step == 0
    assert all(stride % step == 0 for stride in strides[:-1])
    assert step == width or any(stride % (2 * step) for stride in strides[:-1])


@each_nvidia
@pytest.mark.parametrize("shape", ["8 x 128", "1 x 64"])
def test_compiled_rows_with_scales_of_their_own_are_read_once(target, shape, compiled):
    # Though the scale is known after all of a row was seen: 16 bytes of K, and of V.
    scheme = Scheme(torch.bfloat16, E4M3, "per_token")
    moves = accesses(compiled("scatter", scheme, shape, target).asm["ptx"])
    assert moves["ld.global.v4.b32"] == 2
    # A scale is stored once for each token, by threads that look at its slot once more.
    assert moves["st.global.b32"] == 2
    assert moves["ld.global.b64"] in {1, 2}


@each_nvidia
@each_compiled
def test_compiled_division_is_ieee_s(target, scheme, compiled):
    ptx = compiled("scatter", scheme, "8 x 128", target).asm["ptx"]
    divisions = Counter(re.findall(r"\b(?:div|rcp)\.\S*f32", ptx))
    # One for each of a thread's 8 elements of K and of V, and one for each token's scale.
    assert divisions == {"div.rn.f32": 18 if scheme.per_token else 16}
    assert ".ftz" not in ptx  # below the normal numbers too


@each_nvidia
@each_compiled
def test_compiled_reads_round_to_bf16_by_the_gpu_s_own_instruction(target, scheme, compiled):
    ptx = compiled("gather", scheme, "8 x 128", target).asm["ptx"]
    assert Counter(re.findall(r"\bcvt\.\S*bf16\S*", ptx)) == {"cvt.rn.bf16x2.f32": 8}
    assert ".ftz" not in ptx


@each_nvidia
def test_compiled_int8_is_rounded_by_an_addition_that_is_not_optimised_away(target, compiled):
    ptx = compiled("scatter", Scheme(torch.bfloat16, INT8, "per_head"), "8 x 128", target).asm[
        "ptx"
    ]
    # 1.5 * 2**23, and its negative: once for each of 16 elements.
    assert len(re.findall(r"add\.\S*f32 .*0f4B400000", ptx)) == 16
    assert len(re.findall(r"add\.\S*f32 .*0fCB400000", ptx)) == 16


# Two forms of a kernel and its helpers.


def _outer(source, target, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tripled_and_one(tl.load(source + at)))


def tripled_and_one(x):
    return tripled(x) + 1


def tripled(x):
    return 3 * x


@pytest.mark.parametrize("helpers", list(itertools.permutations([tripled_and_one, tripled])))
def test_helpers_may_call_each_other_in_whatever_order_they_are_given(helpers):
    kernel = jit.Kernel(_outer, *helpers)
    source, target = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    kernel.on(CPU)[1,](source, target, BLOCK=8)
    assert torch.equal(target, 3 * source + 1)


def functions_of(form):
    """Every function that a form of a kernel calls, and those call, by name; and what it is."""
    found, pending = {}, [form.fn]
    while pending:
        fn = pending.pop()
        for name in fn.__code__.co_names:
            each = fn.__globals__.get(name)
            if isinstance(each, FunctionType | JITFunction | InterpretedFunction):
                if name not in found:
                    pending.append(getattr(each, "fn", each))
                found[name] = each
    return found


OFFSETS = {"slots_of_tokens", "pieces_of_row", "row_pointers", "slot_pointers"}
SCALED = {"tile_mask", "load_scales", "token_scale_pointers"}


@pytest.mark.parametrize(
    ("kernel", "least"),
    [
        (scatter_kv_kernel, {"tile_mask"} | OFFSETS),
        (gather_kv_kernel, {"tile_mask"} | OFFSETS),
        (
            scatter_quantised_kv_kernel,
            {"store_codes", "load_part", "store_part", "encode"} | OFFSETS | SCALED,
        ),
        (gather_quantised_kv_kernel, {"load_codes", "decode", "round_to_bf16"} | OFFSETS | SCALED),
        (jit.Kernel(_outer, tripled, tripled_and_one), {"tripled", "tripled_and_one"}),
    ],
    ids=lambda each: each.fn.__name__ if isinstance(each, jit.Kernel) else "",
)
def test_each_form_of_a_kernel_calls_helpers_of_its_own_form_alone(kernel, least):
    compiled_form = InterpretedFunction if jit.interpreting() else JITFunction
    for form, kind in (
        (kernel.interpreted, InterpretedFunction),
        (kernel.compiled, compiled_form),
    ):
        assert isinstance(form, kind)
        functions = functions_of(form)
        assert set(functions) == least
        assert {type(each) for each in functions.values()} == {kind}


def test_a_kernel_s_forms_and_kernels_share_no_helper():
    one, other = (jit.Kernel(_outer, tripled, tripled_and_one) for _ in "ab")
    forms = [one.interpreted, one.compiled, other.interpreted, other.compiled]
    helpers = [each for form in forms for each in functions_of(form).values()]
    assert len({id(each) for each in helpers}) == len(helpers) == 8


def test_a_helper_stays_a_plain_function_where_it_was_defined():
    jit.Kernel(_outer, tripled, tripled_and_one)
    assert isinstance(tripled, FunctionType)
    assert tripled(2) == 6


def test_a_function_that_is_no_helper_is_seen_to_be_missing():
    # What the test of all kernels would find: a form that calls plain Python.
    functions = functions_of(jit.Kernel(_outer, tripled_and_one).interpreted)
    assert isinstance(functions["tripled"], FunctionType)


# Launches, predicted.


@each_op
@each_scheme
@pytest.mark.parametrize("shape", ["8 x 128", "MLA", "x-packed"])
def test_an_operation_is_predicted_to_be_one_launch(op, scheme, shape):
    with fake_cuda():
        rows, pools = ([t.to("cuda") for t in group] for group in operands(scheme, shape))
        scales = [
            torch.empty(scheme.scale_shape(3, 16, rows[0].shape[1]), device="cuda")
            for _ in ("KV" if scheme.scale else "")
        ]
        slots = torch.empty(5, dtype=torch.int64, device="cuda")
        found = predict_launches(lambda: scheme.move(op, rows, pools, scales, slots))
    assert (found.kernels, found.memcpys, found.synchronizations) == (1, 0, 0)


# What is refused.


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"value": (2, 2, 4)}, "value's heads is (2, 2); expected (3, 2)"),
        ({"value": (3, 1, 4)}, "value's heads is (3, 1); expected (3, 2)"),
        ({"value": (3, 2, 5)}, "value_pool's row is (2, 4); expected (2, 5)"),
        ({"key": (3, 2, 5)}, "key_pool's row is (2, 4); expected (2, 5)"),
        ({"key": (3, 2, 2, 3)}, "key_pool's row is (2, 4); expected (2, 6)"),
        ({"key_pool": (2, 4, 3, 4)}, "key_pool's row is (3, 4); expected (2, 4)"),
        ({"key_pool": (2, 4, 2, 3, 2)}, "key_pool's row is (2, 6); expected (2, 4)"),
        ({"key_pool": (2, 5, 2, 4)}, "value_pool's slots is (2, 4); expected (2, 5)"),
        ({"value_pool": (3, 4, 2, 4)}, "value_pool's slots is (3, 4); expected (2, 4)"),
        ({"slot_mapping": (4,)}, "slot_mapping has 4 slots; expected up to 3"),
    ],
    ids=str,
)
@each_op
@each_scheme
def test_operands_that_do_not_go_together_are_refused(op, scheme, broken, message):
    shapes = {
        "key": (3, 2, 4),
        "value": (3, 2, 4),
        "key_pool": (2, 4, 2, 4),
        "value_pool": (2, 4, 2, 4),
        "slot_mapping": (3,),
    } | broken
    rows = [torch.zeros(shapes[name], dtype=scheme.rows) for name in ("key", "value")]
    pools = [torch.zeros(shapes[name], dtype=scheme.pool) for name in ("key_pool", "value_pool")]
    slots = torch.zeros(shapes["slot_mapping"], dtype=torch.int64)
    scales = scheme.scales(2, 4, 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        scheme.move(op, rows, pools, scales, slots)


@pytest.mark.parametrize(
    ("scheme", "dtypes", "message"),
    [
        (PLAIN, "hhff", "key_pool's dtype is torch.float32; expected torch.float16"),
        (PLAIN, "hfff", "value's dtype is torch.float32; expected torch.float16"),
        (PLAIN, "fffh", "value_pool's dtype is torch.float16; expected torch.float32"),
        (SCHEMES[1], "hf45", "value's dtype is torch.float32; expected torch.float16"),
        (SCHEMES[1], "ff54", "key_pool's dtype is torch.float8_e5m2; expected torch.float8_e4m"),
        (SCHEMES[2], "ff8f", "key_pool's dtype is torch.int8; expected torch.float32"),
    ],
    ids=str,
)
@each_op
def test_dtypes_that_do_not_go_together_are_refused(op, scheme, dtypes, message):
    letters = {"h": torch.float16, "f": torch.float32, "4": E4M3, "5": E5M2, "8": INT8}
    shapes = [(3, 2, 4)] * 2 + [(2, 4, 2, 4)] * 2
    operands = [
        torch.zeros(shape, dtype=letters[letter])
        for shape, letter in zip(shapes, dtypes, strict=True)
    ]
    rows, pools, slots = operands[:2], operands[2:], torch.arange(3)
    scales = scheme.scales(2, 4, 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        scheme.move(op, rows, pools, scales, slots)


@each_scheme
def test_a_slot_mapping_with_a_stride_is_read_by_it(scheme):
    slots = torch.tensor([6, 0, 1, 0, 3, 0])[::2]
    rows = [contents(scheme.rows, (3, 1, 4), which) for which in range(2)]
    pools, right = ([torch.zeros(2, 4, 1, 4, dtype=scheme.pool) for _ in "KV"] for _ in "ab")
    scales, right_scales = scheme.scales(2, 4, 1), scheme.scales(2, 4, 1)
    scheme.scatter(rows, pools, scales, slots)
    scheme.scatter_plainly(rows, right, right_scales, slots.clone())
    assert all(map(same, (*pools, *scales), (*right, *right_scales)))
    back, expected = ([torch.zeros_like(each) for each in rows] for _ in "ab")
    scheme.gather(back, pools, scales, slots)
    scheme.gather_plainly(expected, pools, scales, slots.clone())
    assert all(map(same, back, expected))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"key_scale": torch.ones(1, 3)}, "key_scale's shape is (1, 3); expected (1, 1) or (1, 2)"),
        ({"value_scale": torch.ones(2, 4)}, "value_scale's shape is (2, 4); expected (1, 1) or"),
        ({"per_token": True}, "key_scale's shape is (1, 1); expected (2, 4)"),
        ({"key_scale": torch.ones(1, 1).double()}, "key_scale's dtype is torch.float64; expected"),
        (
            {"key_pool": torch.zeros(2, 4, 2, 4), "value_pool": torch.zeros(2, 4, 2, 4)},
            "key_pool's dtype is torch.float32; expected one of torch.float8_e4m3fn",
        ),
    ],
)
def test_scales_and_pools_that_hold_no_codes_are_refused(broken, message):
    rows = {"key": torch.zeros(3, 2, 4), "value": torch.zeros(3, 2, 4)}
    pool = torch.zeros(2, 4, 2, 4, dtype=torch.int8)
    operands = {
        "key_pool": pool,
        "value_pool": pool.clone(),
        "key_scale": torch.ones(1, 1),
        "value_scale": torch.ones(1, 1),
        "slot_mapping": torch.arange(3),
        "per_token": False,
        **rows,
        **broken,
    }
    for launcher in (scatter_quantised_kv, gather_quantised_kv):
        with pytest.raises(ValueError, match=re.escape(message)):
            launcher(**operands)
