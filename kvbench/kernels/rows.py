"""How a token's row of num_kv_heads x head_dim elements is cut into programs."""

_MOST_ELEMENTS = 1024
"""Elements of one program: at 4 warps and 16 bits, 16-byte accesses for each of 128 threads."""


def row_block(elements: int) -> tuple[int, int]:
    """The elements of a program (a power of two) and the programs that cover a row."""
    block = min(1 << max(elements - 1, 0).bit_length(), _MOST_ELEMENTS)
    return block, -(-elements // block)
