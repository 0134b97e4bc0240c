"""The tensors of a case on a device, rebuilt from the case alone."""

from dataclasses import dataclass

import torch

from kvbench.blocks import Placement, place
from kvbench.cases import Case

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What an engine hands to its KV-cache code in one step.

    The three lists are the scheduler's own, one entry per sequence: see `blocks.Placement`.
    """

    case: Case
    device: torch.device
    key: torch.Tensor
    """New tokens' K, [tokens + padding, num_kv_heads, head_dim], sequence after sequence, the
    padding last. Its token stride is larger than a row if `kv_input` is "fused_qkv". No rows if
    the op is a read."""
    value: torch.Tensor
    """New tokens' V, as `key`."""
    key_pool: torch.Tensor
    """K of every block, [num_blocks, block_size, num_kv_heads, head_dim] ("NHD")."""
    value_pool: torch.Tensor
    """V of every block, as `key_pool`."""
    starts: list[int]
    lengths: list[int]
    block_tables: list[list[int]]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.case.block_size

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that own this workload's memory."""
        return (self.key, self.value, self.key_pool, self.value_pool)


def required_bytes(case: Case, placement: Placement) -> int:
    """Bytes that a case's tensors, a read's outputs and the check's copies take at once."""
    pools = 2 * placement.num_blocks * case.block_size * case.row_bytes
    rows = (case.tokens + case.padding) * case.row_bytes
    inputs = 2 * rows
    if case.kv_input == "fused_qkv":
        inputs += rows * case.num_heads // case.num_kv_heads
    # The check holds the pools as they were and as they should be, and one op's outputs.
    return 3 * pools + 3 * inputs


def build(case: Case, device: torch.device, placement: Placement | None = None) -> Workload:
    """Allocate a case's tensors. Their contents are undefined until `fill` is called.

    Args:
        case: The case.
        device: Where the tensors go.
        placement: Sequences and blocks to use instead of the case's own.

    Raises:
        MemoryError, torch.OutOfMemoryError: The tensors don't fit.
    """
    at = placement if placement is not None else place(case)
    dtype = TORCH_DTYPES[case.dtype]
    pool_shape = (at.num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    rows = sum(at.lengths) + case.padding if case.op == "write" else 0
    if case.kv_input == "fused_qkv":
        # Engines project Q, K and V in one matrix product and pass slices of it on.
        split = [case.num_heads, case.num_kv_heads, case.num_kv_heads]
        qkv = torch.empty((rows, sum(split), case.head_dim), dtype=dtype, device=device)
        _, key, value = torch.split(qkv, split, dim=1)
    else:
        row_shape = (rows, case.num_kv_heads, case.head_dim)
        key = torch.empty(row_shape, dtype=dtype, device=device)
        value = torch.empty(row_shape, dtype=dtype, device=device)
    return Workload(
        case=case,
        device=device,
        key=key,
        value=value,
        key_pool=torch.empty(pool_shape, dtype=dtype, device=device),
        value_pool=torch.empty(pool_shape, dtype=dtype, device=device),
        starts=at.starts,
        lengths=at.lengths,
        block_tables=at.block_tables,
    )


def fill(workload: Workload, version: int = 0) -> None:
    """Fill every tensor with random bits that depend on the case's seed and on `version`.

    Random bits poison: each slot is unlike every other, NaN payloads and infinities included, so
    that a slot that moved, or one that should not have been touched, shows.
    """
    generator = torch.Generator(device=workload.device)
    generator.manual_seed((workload.case.seed * 1009 + version) % 2**63)  # any seed of a case fits
    for tensor in workload.tensors():
        size = tensor.numel() * tensor.element_size()
        words = torch.empty(-(-size // 8), dtype=torch.int64, device=workload.device)
        words.random_(-(2**63), None, generator=generator)
        bits = words.view(torch.uint8)[:size].view(tensor.dtype)
        tensor.copy_(bits.view(tensor.shape))
