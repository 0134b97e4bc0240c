"""Attention that reads a paged cache in place: a program's rows against a part of a context."""

import triton.language as tl

from kvbench.kernels.attend_parts import (
    as_numbers,
    as_operand,
    cap_scores,
    element_offsets,
    fold_tile,
    head_scale,
    load_queries,
    load_tile,
    slots_of_positions,
    token_pointers,
    token_scales,
)
from kvbench.kernels.codes import decode, round_to_bf16
from kvbench.kernels.jit import Kernel


def _attend(
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
    # Programs that begin together share what they read: first come the heads of a token, whose slots
    # lie side by side, then the parts of a context, then the tiles of rows, those that see most
    # before the others.
    program = tl.program_id(0)
    kv_head = (program % KV_HEADS).to(tl.int64)
    split = program // KV_HEADS % splits
    tiles = (query_tokens * GROUP + ROWS - 1) // ROWS
    tile = tiles - 1 - program // KV_HEADS // splits % tiles
    sequence = (program // KV_HEADS // splits // tiles).to(tl.int64)

    length = tl.load(lengths + sequence * lengths_stride).to(tl.int32)
    row = tile * ROWS + tl.arange(0, ROWS)
    token = row // GROUP
    real = token < query_tokens
    before = length - query_tokens
    place = before + token  # may be negative: of a query that sees nothing
    last = before + tl.minimum((tile * ROWS + ROWS - 1) // GROUP, query_tokens - 1)
    first = 0
    if WINDOWED:
        first = tl.maximum(before + tile * ROWS // GROUP - window_tokens + 1, 0)
    begin = first // TOKENS * TOKENS + tl.multiple_of(split * part_tokens, TOKENS)
    end = tl.minimum(last + 1, begin + part_tokens)

    out_row = sequence * query_tokens + token
    head = kv_head * GROUP + row % GROUP
    at_query = query + tl.multiple_of(
        out_row * query_token_stride + head * query_head_stride, QUERY_STEP
    )
    element = tl.arange(0, PIECE)
    if PIECE == KEY_PADDED:
        queries = load_queries(at_query, query_dim_stride, element, real, KEY_DIM, OPERAND)
    value_element = tl.arange(0, VALUE_PADDED)
    if LATENT:
        # The last elements of a query's head are for k_pe, which is where V is elsewhere.
        rest = load_queries(
            at_query,
            query_dim_stride,
            KEY_DIM + value_element,
            real,
            KEY_DIM + VALUE_DIM,
            OPERAND,
        )

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
    table = (block_table + sequence * block_table_sequence_stride, block_table_entry_stride)

    value_offsets = element_offsets(
        value_pool, value_element, VALUE_DIM, VALUE_PACK, VALUE_POOL_STEP, VALUE_ADJACENT
    )
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    summed = tl.full((ROWS, OUT_PADDED), 0.0, tl.float32)
    for start in range(begin, end, TOKENS):
        position = start + tl.arange(0, TOKENS)
        # Slots past the end hold anything, NaN too; an entry of the table before `first` may be
        # that of no block.
        inside = (position >= first) & (position < end)
        block, offset = slots_of_positions(table, start, inside, BLOCK_SIZE, RUN, TOKENS)

        at_key = token_pointers(key_pool, kv_head, block, offset, KEY_POOL_STEP, KEY_ADJACENT)
        scores = tl.full((ROWS, TOKENS), 0.0, tl.float32)
        for piece in tl.static_range(0, KEY_PADDED, PIECE):
            there = piece + element < KEY_DIM
            if PIECE != KEY_PADDED:
                queries = load_queries(
                    at_query, query_dim_stride, piece + element, real, KEY_DIM, OPERAND
                )
            offsets = element_offsets(
                key_pool, piece + element, KEY_DIM, KEY_PACK, KEY_POOL_STEP, KEY_ADJACENT
            )
            at = at_key[:, None] + offsets[None, :]
            codes = load_tile(at, position, first, end, there, RUN, TOKENS, KEY_ADJACENT)
            keys = tl.trans(as_numbers(codes, OPERAND, CODE))
            scores = tl.dot(queries, keys, scores, input_precision="ieee")
        at_value = token_pointers(
            value_pool, kv_head, block, offset, VALUE_POOL_STEP, VALUE_ADJACENT
        )
        at_value = at_value[:, None] + value_offsets[None, :]
        value_there = value_element < VALUE_DIM
        if CODE is not None:
            scales = token_scales(key_scale, kv_head, block, offset, inside, SCALE)
            scores *= scales[None, :]
        if LATENT:
            latent = codes  # V is the same row, which is loaded once
            if PIECE != KEY_PADDED:
                whole = tl.arange(0, OUT_PADDED)
                offsets = element_offsets(
                    key_pool, whole, KEY_DIM, KEY_PACK, KEY_POOL_STEP, KEY_ADJACENT
                )
                at = at_key[:, None] + offsets[None, :]
                latent = load_tile(
                    at, position, first, end, whole < KEY_DIM, RUN, TOKENS, KEY_ADJACENT
                )
            codes = load_tile(
                at_value, position, first, end, value_there, RUN, TOKENS, VALUE_ADJACENT
            )
            keys = tl.trans(as_numbers(codes, OPERAND, CODE))
            if CODE is None:
                scores = tl.dot(rest, keys, scores, input_precision="ieee")
            else:
                others = token_scales(value_scale, kv_head, block, offset, inside, SCALE)
                scores += tl.dot(rest, keys, input_precision="ieee") * others[None, :]
        scores *= score_scale
        if SOFT_CAP:
            scores = cap_scores(scores, SOFT_CAP)
        seen = inside[None, :] & (position[None, :] <= place[:, None])
        if WINDOWED:
            seen &= position[None, :] > place[:, None] - window_tokens
        scores = tl.where(seen, scores, float("-inf"))
        most, total, kept, weights = fold_tile(most, total, scores)

        if LATENT:
            codes = latent
        else:
            codes = load_tile(
                at_value, position, first, end, value_there, RUN, TOKENS, VALUE_ADJACENT
            )
            if SCALE == "per_token":
                scales = token_scales(value_scale, kv_head, block, offset, inside, SCALE)
        if SCALE == "per_token":
            values = as_operand(decode(codes, CODE) * scales[:, None], OPERAND, ROUND_BF16)
        else:
            values = as_numbers(codes, OPERAND, CODE)
        weights = as_operand(weights, OPERAND, ROUND_BF16)
        summed = tl.dot(weights, values, summed * kept[:, None], input_precision="ieee")

    if CODE is not None and SCALE != "per_token":
        summed *= head_scale(key_scale if LATENT else value_scale, kv_head)
    out_element = tl.arange(0, OUT_PADDED)
    here = real[:, None] & (out_element < OUT_DIM)[None, :]
    if SPLIT:
        part = (out_row * KV_HEADS * GROUP + head) * splits + split
        at = partial + (part * OUT_DIM)[:, None] + out_element[None, :]
        tl.store(at, summed, mask=here & (total > 0)[:, None])
        tl.store(extent + part * 2, most, mask=real)
        tl.store(extent + part * 2 + 1, total, mask=real)
    else:
        numbers = summed / tl.where(total > 0, total, 1.0)[:, None]
        if ROUND_BF16:
            numbers = round_to_bf16(numbers)
        at = output + (out_row * output_token_stride + head * output_head_stride)[:, None]
        at += out_element.to(tl.int64)[None, :] * output_dim_stride
        tl.store(at, numbers.to(output.dtype.element_ty), mask=here)


attend_kernel = Kernel(
    _attend,
    slots_of_positions,
    token_pointers,
    element_offsets,
    load_queries,
    load_tile,
    as_numbers,
    as_operand,
    head_scale,
    token_scales,
    cap_scores,
    fold_tile,
    decode,
    round_to_bf16,
)
