"""What cases have in common, in words: nothing unusual is left out of a title."""

import numbers
from collections.abc import Mapping

from kvbench.cases import DEFAULTS, OF_POOLS

_WORDS = {
    "head_dim": "head_dim {}",
    "block_order": "{} blocks",
    "queries_per_kv_head": "{} query heads per KV head",
    "padding": "{} padding rows",
    "kv_input": "{} input",
    "output": "{} output",
    "layout": "{} layout",
    "slot_dtype": "{} slots",
    "lengths": "{} lengths",
    "query_len": "{} query tokens",
    "sliding_window": "window of {}",
    "soft_cap": "soft cap {}",
    "num_layers": "{} layers",
}
_SAID = {"op", "block_size", "num_kv_heads", "dtype", "batch", "cache_dtype", "kv_scale"}
"""Fields that have a place of their own, or are said elsewhere."""
_USUAL = {**DEFAULTS, "queries_per_kv_head": 1}


def kv_heads(count: object) -> str:
    """So many KV heads: "1 KV head", "8 KV heads"."""
    return f"{count} KV head{'' if count == 1 else 's'}"


def describe(shared: Mapping[str, object], always: tuple[str, ...] = ()) -> str:
    """Every field that rows share and that a reader has to know, as "bf16, batch 1, HND layout".

    Rows of an index have no K and V whose kind could be said.

    Args:
        shared: The fields, as `analysis.frame.groups` gives them.
        always: Fields to name even where they have their default.
    """
    parts = []
    if "block_size" in shared:
        parts.append(f"block size {shared['block_size']}")
    silent = {*OF_POOLS, "queries_per_kv_head"} if shared.get("op") == "index" else set()
    if "num_kv_heads" in shared and "num_kv_heads" not in silent:
        parts.append(kv_heads(shared["num_kv_heads"]))
    if "dtype" not in silent:
        parts.append(str(shared["dtype"]))
    if shared["cache_dtype"] != "auto":
        scaled = str(shared["kv_scale"]).replace("_", " ")
        parts.append(f"{shared['cache_dtype']} pool scaled {scaled}")
    if "batch" in shared:
        parts.append(f"batch {shared['batch']}")
    for name, value in shared.items():
        if name in _SAID | silent or (name == "lengths" and shared.get("batch") == 1):
            continue
        if name in always or value != _USUAL[name]:
            said = f"{value:,}" if isinstance(value, numbers.Integral) else value
            parts.append(_WORDS.get(name, f"{name} {{}}").format(said))
    return ", ".join(parts)
