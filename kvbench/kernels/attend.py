"""Attention that reads a paged cache in place: a program's rows against a part of a context."""

import triton.language as tl

from kvbench.kernels.attend_parts import (
    as_numbers,
    as_operand,
    element_offsets,
    head_scale,
    load_head,
    load_queries,
    rows_of_program,
    slots_of_positions,
    store_part,
    store_rows,
    token_pointers,
    token_scales,
)
from kvbench.kernels.attend_softmax import cap_scores, fold_tile, seen_scores
from kvbench.kernels.codes import decode, round_to_bf16
from kvbench.kernels.jit import Kernel


def key_scores(
    rows,
    whole,
    pool,
    kv_head,
    slots,
    span,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    PADDED: tl.constexpr,
    PIECE: tl.constexpr,
    STEP: tl.constexpr,
    ADJACENT: tl.constexpr,
    CODE: tl.constexpr,
    OPERAND: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Products of queries with a tile's keys, [ROWS, TOKENS], without scales; and the last codes.

    `rows` is where the rows' heads begin, the stride of their elements, and which rows are real;
    `whole` the first PIECE elements of each, all if PIECE is PADDED. Others are as in `load_head`.
    """
    at, stride, real = rows
    scores = tl.full((ROWS, TOKENS), 0.0, tl.float32)
    for piece in tl.static_range(0, PADDED, PIECE):
        element = piece + tl.arange(0, PIECE)
        queries = whole
        if piece > 0:
            queries = load_queries(at, stride, element, real, DIM, OPERAND)
        codes = load_head(
            pool, kv_head, slots, span, element, DIM, PACK, STEP, ADJACENT, RUN, TOKENS
        )
        keys = tl.trans(as_numbers(codes, OPERAND, CODE))
        scores = tl.dot(queries, keys, scores, input_precision="ieee")
    return scores, codes


def _attend(  # noqa: C901, PLR0912, PLR0915 - its branches are taken when it is compiled
    query,
    key_pool,
    value_pool,
    output,
    key_scale,
    value_scale,
    block_table,
    lengths,
    partial,
    extent,
    score_scale,
    query_tokens,
    window_tokens,
    part_tokens,
    splits,
    query_token_stride,
    query_head_stride,
    query_dim_stride,
    output_token_stride,
    output_head_stride,
    output_dim_stride,
    key_pool_block_stride,
    key_pool_slot_stride,
    key_pool_head_stride,
    key_pool_pack_stride,
    key_pool_dim_stride,
    value_pool_block_stride,
    value_pool_slot_stride,
    value_pool_head_stride,
    value_pool_pack_stride,
    value_pool_dim_stride,
    key_scale_block_stride,
    key_scale_slot_stride,
    key_scale_head_stride,
    value_scale_block_stride,
    value_scale_slot_stride,
    value_scale_head_stride,
    block_table_sequence_stride,
    block_table_entry_stride,
    lengths_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PACK: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PACK: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    OUT_DIM: tl.constexpr,
    OUT_PADDED: tl.constexpr,
    LATENT: tl.constexpr,
    QUERY_STEP: tl.constexpr,
    KEY_POOL_STEP: tl.constexpr,
    VALUE_POOL_STEP: tl.constexpr,
    KEY_ADJACENT: tl.constexpr,
    VALUE_ADJACENT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    CODE: tl.constexpr,
    SCALE: tl.constexpr,
    OPERAND: tl.constexpr,
    ROUND_BF16: tl.constexpr,
    RUN: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    PIECE: tl.constexpr,
):
    kv_head, split, sequence, token, head, before, first_token, last_token = rows_of_program(
        (lengths, lengths_stride), query_tokens, splits, KV_HEADS, GROUP, ROWS
    )
    real = token < query_tokens
    place = before + token
    first = 0
    if WINDOWED:
        first = tl.maximum(before + first_token - window_tokens + 1, 0)
    begin = first // TOKENS * TOKENS + tl.multiple_of(split * part_tokens, TOKENS)
    end = tl.minimum(before + last_token + 1, begin + part_tokens)

    out_row = sequence * query_tokens + token
    at_query = query + tl.multiple_of(out_row * query_token_stride, QUERY_STEP)
    at_query += tl.multiple_of(head * query_head_stride, QUERY_STEP)
    rows = (at_query, query_dim_stride, real)
    queries = load_queries(at_query, query_dim_stride, tl.arange(0, PIECE), real, KEY_DIM, OPERAND)
    value_element = tl.arange(0, VALUE_PADDED)
    out_element = tl.arange(0, OUT_PADDED)
    key_pool = (
        key_pool,
        key_pool_block_stride,
        key_pool_slot_stride,
        key_pool_head_stride,
        key_pool_pack_stride,
        key_pool_dim_stride,
    )
    value_pool = (
        value_pool,
        value_pool_block_stride,
        value_pool_slot_stride,
        value_pool_head_stride,
        value_pool_pack_stride,
        value_pool_dim_stride,
    )
    key_scale = (key_scale, key_scale_block_stride, key_scale_slot_stride, key_scale_head_stride)
    value_scale = (
        value_scale,
        value_scale_block_stride,
        value_scale_slot_stride,
        value_scale_head_stride,
    )
    output_scale = key_scale if LATENT else value_scale
    if LATENT:
        # The last elements of a query's head are for k_pe, which is where V is elsewhere.
        dim: tl.constexpr = KEY_DIM + VALUE_DIM
        rest = load_queries(at_query, query_dim_stride, KEY_DIM + value_element, real, dim, OPERAND)
    table = (block_table + sequence * block_table_sequence_stride, block_table_entry_stride)

    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    summed = tl.full((ROWS, OUT_PADDED), 0.0, tl.float32)
    for start in range(begin, end, TOKENS):
        position = start + tl.arange(0, TOKENS)
        # Slots past the end hold anything, NaN too; an entry of the table before `first` may be
        # that of no block.
        inside = (position >= first) & (position < end)
        span = (position, first, end)
        slots = slots_of_positions(table, start, inside, BLOCK_SIZE, RUN, TOKENS)
        scores, codes = key_scores(
            rows,
            queries,
            key_pool,
            kv_head,
            slots,
            span,
            KEY_DIM,
            KEY_PACK,
            KEY_PADDED,
            PIECE,
            KEY_POOL_STEP,
            KEY_ADJACENT,
            CODE,
            OPERAND,
            RUN,
            ROWS,
            TOKENS,
        )
        if CODE is not None:
            scores *= token_scales(key_scale, kv_head, slots, inside, SCALE)[None, :]
        if LATENT:
            others, _ = key_scores(
                rows,
                rest,
                value_pool,
                kv_head,
                slots,
                span,
                VALUE_DIM,
                VALUE_PACK,
                VALUE_PADDED,
                VALUE_PADDED,
                VALUE_POOL_STEP,
                VALUE_ADJACENT,
                CODE,
                OPERAND,
                RUN,
                ROWS,
                TOKENS,
            )
            if CODE is not None:
                others *= token_scales(value_scale, kv_head, slots, inside, SCALE)[None, :]
            scores += others
        scores = seen_scores(
            scores * score_scale, position, place, inside, window_tokens, SOFT_CAP, WINDOWED
        )
        most, total, kept, weights = fold_tile(most, total, scores)

        if not LATENT:
            codes = load_head(
                value_pool,
                kv_head,
                slots,
                span,
                value_element,
                VALUE_DIM,
                VALUE_PACK,
                VALUE_POOL_STEP,
                VALUE_ADJACENT,
                RUN,
                TOKENS,
            )
        elif PIECE != KEY_PADDED:  # else V is what was loaded as K
            codes = load_head(
                key_pool,
                kv_head,
                slots,
                span,
                out_element,
                KEY_DIM,
                KEY_PACK,
                KEY_POOL_STEP,
                KEY_ADJACENT,
                RUN,
                TOKENS,
            )
        if SCALE == "per_token":
            scales = token_scales(output_scale, kv_head, slots, inside, SCALE)
            values = as_operand(decode(codes, CODE) * scales[:, None], OPERAND, ROUND_BF16)
        else:
            values = as_numbers(codes, OPERAND, CODE)
        weights = as_operand(weights, OPERAND, ROUND_BF16)
        summed = tl.dot(weights, values, summed * kept[:, None], input_precision="ieee")

    if CODE is not None and SCALE != "per_token":
        summed *= head_scale(output_scale, kv_head)
    here = real[:, None] & (out_element < OUT_DIM)[None, :]
    if SPLIT:
        part = (out_row * KV_HEADS * GROUP + head) * splits + split
        store_part(partial, extent, part, most, total, summed, real, here, OUT_DIM, OUT_PADDED)
    else:
        at = (output, output_token_stride, output_head_stride, output_dim_stride)
        store_rows(at, out_row, head, out_element, total, summed, here, ROUND_BF16)


attend_kernel = Kernel(
    _attend,
    key_scores,
    rows_of_program,
    slots_of_positions,
    token_pointers,
    element_offsets,
    load_queries,
    load_head,
    as_numbers,
    as_operand,
    head_scale,
    token_scales,
    seen_scores,
    cap_scores,
    fold_tile,
    store_part,
    store_rows,
    decode,
    round_to_bf16,
)
