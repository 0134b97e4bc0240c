"""Data for attention that makes each token count: what is left out, doubled or misplaced shows.

With random K and V alone a token among thousands changes the output by less than its rounding. So
there are two kinds of data, by turns.

Even versions: a token's V has one element that is not zero, in a place drawn for the token and the
head. An element of the output is then the sum of few tokens, each of them a large part of it, while
its error is in proportion to these tokens alone. All K of a head have a query of it added, so that
its scores are about 100, and alike still: a softmax that does not take off the largest overflows.
(Not where K is quantised or scores are capped: rounding would be as large as what is to be seen.)

Odd versions: all of V is random, and some tokens have a K along a query, for a score far above all
others. They stand where kernels go wrong, on either side of it: the window's first position, the
borders of blocks, the queries' own positions, the last of the context.

Slots of no token, and those behind a context's end, hold NaN: in fp8 as a code, in int8, which has
none, as the token's scale where it has one of its own. Blocks that are behind every window have
been freed. What is behind a query's window otherwise, or after its own position, is a number.
"""

import torch

from kvbench.cases import VOCABULARY, Case
from kvbench.pool import slot_mapping
from kvbench.workload import Workload, largest

_BASE_SCALES = {"fp8_e4m3": 1 / 8, "fp8_e5m2": 1 / 8, "int8": 1 / 32}
"""Of codes, so that most numbers up to 4 have one, and the largest saturate."""
_FP8_NAN = 0x7F
"""Of either format."""
_INT8_POISON = 127
_STANDING_OUT = 12.0
"""The score of a token that stands out; others have about 1. exp(12) is 160,000."""
_LARGEST_FACTOR = 8.0
_SHIFT = 100.0
"""What is added to the scores of one query of each head; exp(89) is no float32."""
_LARGEST_SHIFT = 16.0
"""The most that a query is multiplied by for it."""
_DRAWN = 8
"""Tokens of each sequence that stand out wherever they are."""


def fill_attention(workload: Workload, generator: torch.Generator, version: int) -> None:
    """Fill queries, pools and scales. See above.

    Args:
        workload: Of an attend.
        generator: Decides all of it, on the workload's device.
        version: Even or odd.
    """
    w = workload
    w.query.normal_(generator=generator)
    for storage in w.storages:
        _poison(storage)
    for scale in (w.key_scale, w.value_scale):
        if scale is not None and w.case.kv_scale == "per_token":
            scale.fill_(torch.nan)
        elif scale is not None:
            scale.copy_(_scales(scale.shape, w.case, generator))
    for sequence, length in enumerate(w.lengths):
        _fill_context(w, sequence, length, generator, stands_out=version % 2 == 1)


def fill_step(workload: Workload, generator: torch.Generator) -> None:
    """Fill tokens and pools of a step, and the rows that its parts have where they run alone.

    The contexts are those of even versions, but for each sequence's last slot: its K and V are the
    step's own to write, and until then it holds NaN, as the slots of no token do. Layers hold the
    same numbers in other places of each head: random ones take longest.

    Args:
        workload: Of a step.
        generator: Decides all of it, on the workload's device.
    """
    w = workload
    if w.tokens is not None:
        w.tokens.random_(0, VOCABULARY, generator=generator)
    for rows in (w.query, w.key, w.value):
        rows.normal_(generator=generator)
    for storage in w.storages:
        _poison(storage)
    before = [length - 1 for length in w.lengths]
    slots = torch.from_numpy(slot_mapping(w.block_tables, w.starts, before, w.block_size))
    slots = slots.to(w.device)
    at = slots // w.block_size, slots % w.block_size
    key, value = (
        torch.empty((len(slots), *rows.shape[1:]), device=w.device).normal_(generator=generator)
        for rows in (w.key.flatten(2), w.value)
    )
    _leave_one(value, generator)
    for number, layer in enumerate(w.layers):
        for pool, rows in ((layer.key, key), (layer.value, value)):
            own = rows.roll(number, -1)
            pool[at] = own.view(len(own), *pool.shape[2:]).to(pool.dtype)


def _poison(storage: torch.Tensor) -> None:
    if storage.dtype == torch.int8:
        storage.fill_(_INT8_POISON)
    elif storage.element_size() == 1:
        storage.view(torch.uint8).fill_(_FP8_NAN)
    else:
        storage.fill_(torch.nan)


def _fill_context(
    w: Workload, sequence: int, length: int, generator: torch.Generator, *, stands_out: bool
) -> None:
    """One sequence's tokens, from the first block on that has not been freed."""
    case, device = w.case, w.device
    first = case.first_visible(length) // case.block_size * case.block_size
    count = length - first
    if count <= 0:
        return
    table = torch.tensor(w.block_tables[sequence], device=device)
    positions = torch.arange(first, length, device=device)
    at = table[positions // case.block_size], positions % case.block_size
    key, value = (
        torch.empty((count, case.num_kv_heads, dim), device=device).normal_(generator=generator)
        for dim in (case.key_dim, case.value_dim)
    )
    is_latent = case.layout == "MLA"
    if not stands_out:
        _leave_one(key if is_latent else value, generator)
        if not (is_latent or case.quantised or case.soft_cap):
            _shift(key, w, sequence)
    else:
        whole = torch.cat((key, value), -1) if is_latent else key
        _let_stand_out(whole, w, sequence, first, length, generator)
        if is_latent:
            key, value = whole[..., : case.key_dim], whole[..., case.key_dim :]
    _store(w.key_pool, w.key_scale, key, at, case, generator)
    _store(w.value_pool, w.value_scale, value, at, case, generator)


def _leave_one(rows: torch.Tensor, generator: torch.Generator) -> None:
    """All but one element of each head becomes 0; that one has a magnitude of 1/2 to 2."""
    count, heads, dim = rows.shape
    kept = torch.empty((count, heads, 1), device=rows.device).uniform_(0, dim, generator=generator)
    kept = kept.long().clamp_(max=dim - 1)  # float32 may round up to the end
    magnitudes = torch.empty(kept.shape, device=rows.device).uniform_(-1, 1, generator=generator)
    numbers = torch.exp2(magnitudes).copysign_(rows.gather(-1, kept))
    rows.zero_().scatter_(-1, kept, numbers)


def _shift(key: torch.Tensor, w: Workload, sequence: int) -> None:
    """Add to the K of every token the same: the last query of each KV head, several times."""
    case = w.case
    last = w.query[(sequence + 1) * case.query_len - 1]
    query = last[:: case.num_heads // case.num_kv_heads].float()
    factor = _SHIFT / (case.softmax_scale * query.square().sum(-1, keepdim=True))
    key += query * factor.clamp(max=_LARGEST_SHIFT)


def _let_stand_out(
    key: torch.Tensor,
    w: Workload,
    sequence: int,
    first: int,
    length: int,
    generator: torch.Generator,
) -> None:
    """Turn the K of some tokens towards a query of each KV head."""
    case = w.case
    places = _places(case, first, length, generator)
    group = case.num_heads // case.num_kv_heads
    # Whose query: any of the sequence's, any head of the group.
    shape = (len(places), case.num_kv_heads)
    chosen = torch.empty((2, *shape), device=w.device).uniform_(0, 1, generator=generator)
    token = (chosen[0] * case.query_len).long().clamp_(max=case.query_len - 1)
    head = (chosen[1] * group).long().clamp_(max=group - 1)
    head += torch.arange(case.num_kv_heads, device=w.device) * group
    query = w.query[sequence * case.query_len + token, head].float()
    factor = _STANDING_OUT / (case.softmax_scale * query.square().sum(-1, keepdim=True))
    key[places - first] = query * factor.clamp(max=_LARGEST_FACTOR)


def _places(case: Case, first: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Positions of a context where kernels go wrong, and some at random."""
    visible, query = case.first_visible(length), length - case.query_len
    wrong = [visible - 1, visible, query - 1, query, query + 1, length - 1, length - 2]
    wrong += [border for at in (visible, length) for border in _borders(at, case.block_size)]
    found = {position for position in wrong if first <= position < length}
    drawn = torch.empty(_DRAWN, device=generator.device).uniform_(0, 1, generator=generator)
    found |= {min(first + int(d * (length - first)), length - 1) for d in drawn.tolist()}
    return torch.tensor(sorted(found), device=generator.device)


def _borders(position: int, block_size: int) -> tuple[int, ...]:
    """The positions on both sides of the borders of blocks around one."""
    border = position // block_size * block_size
    return border - 1, border, border + block_size - 1, border + block_size


def _store(
    pool: torch.Tensor,
    scale: torch.Tensor | None,
    rows: torch.Tensor,
    at: tuple[torch.Tensor, torch.Tensor],
    case: Case,
    generator: torch.Generator,
) -> None:
    if scale is None:
        pool[at] = rows.view(len(rows), *pool.shape[2:]).to(pool.dtype)
        return
    if case.kv_scale == "per_token":
        own = _scales((len(rows), 1), case, generator)
        scale[at] = own[:, 0]
        rows = rows / own.unsqueeze(-1)
    else:
        rows = rows / scale.unsqueeze(-1)
    if pool.dtype == torch.int8:
        codes = rows.round().clamp(-128, 127).to(torch.int8)
    else:
        most = largest(pool.dtype)
        codes = rows.clamp(-most, most).to(pool.dtype)
    # Not every device moves fp8 by an index.
    pool.view(torch.uint8)[at] = codes.view(len(rows), *pool.shape[2:]).view(torch.uint8)


def _scales(shape: tuple[int, ...], case: Case, generator: torch.Generator) -> torch.Tensor:
    """Scales from half to twice a format's usual one."""
    exponents = torch.empty(shape, device=generator.device).uniform_(-1, 1, generator=generator)
    return torch.exp2(exponents) * _BASE_SCALES[case.cache_dtype]
