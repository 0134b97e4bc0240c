"""Where the elements of a row lie, as Triton functions: what the kernels share.

Every factor of a stride is 64-bit: a pool on a large GPU has more than 2**31 elements, and any
dimension may be the outermost.
"""

import triton.language as tl


def row_offsets(element, head_stride, dim_stride, DIM: tl.constexpr):
    """Offsets of elements of a row [heads, DIM], numbered head after head."""
    head = (element // DIM).to(tl.int64)
    return head * head_stride + (element % DIM).to(tl.int64) * dim_stride


def slot_offsets(
    element, head_stride, pack_stride, dim_stride, DIM: tl.constexpr, PACK: tl.constexpr
):
    """Offsets of the same elements in a slot, whose heads are packs of PACK elements."""
    head = (element // DIM).to(tl.int64)
    dim = (element % DIM).to(tl.int64)
    if PACK == DIM:
        offsets = head * head_stride + dim * dim_stride
    else:
        offsets = head * head_stride + dim // PACK * pack_stride + dim % PACK * dim_stride
    return offsets
