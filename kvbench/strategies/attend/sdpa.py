"""Gather K and V as a read does, then torch's scaled_dot_product_attention: one for every read.

The query heads that share a head of K and V are folded into the queries: [batch, num_kv_heads,
group * query_len, head_dim]. So each row of K and V is read once, where `enable_gqa` reads it once
for each query head (on a CPU; see `attend.enable_gqa`).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvbench.cases import ATTEND_ONLY, DEFAULTS, Case
from kvbench.results import Part
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.workload import Workload


@dataclass(frozen=True, slots=True)
class Call:
    """One call of attention: sequences whose contexts are equally long."""

    sequences: int
    context: int
    """Tokens gathered for each of them."""
    mask: torch.Tensor | None
    """bool [group * query_len, context], or None where every query sees all."""
    causal: bool
    """Whether the queries are the whole context, so that torch need not be told what they see."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The read that goes before, and the calls that follow it."""

    workload: Workload
    """The step's tables, as a read of what the queries see."""
    read: Any
    calls: tuple[Call, ...]

    def of_layer(self, workload: Workload) -> Workload:
        """The read of a layer's pools."""
        own, w = self.workload, workload
        if own.key_pool is w.key_pool and own.value_pool is w.value_pool:
            return own  # as replacing takes some microseconds
        return dataclasses.replace(
            own,
            key_pool=w.key_pool,
            value_pool=w.value_pool,
            storages=w.storages,
            key_scale=w.key_scale,
            value_scale=w.value_scale,
        )


class GatherSdpa(Strategy):
    """A gather, then attention over what it has copied, in one call if contexts are equally long.

    Otherwise each sequence has a call of its own. Subclasses have the read.
    """

    op: ClassVar[str] = "attend"
    parts: ClassVar[tuple[Part, ...]] = ("gather",)
    reading: ClassVar[Strategy]

    def __reduce__(self) -> tuple[object, ...]:
        """Another process makes the class anew: it is no module's attribute."""
        return _over, (self.reading,)

    def supports(self, case: Case, device: torch.device) -> str | None:
        """What the read does, without a soft cap, which torch's attention has not."""
        if case.soft_cap:
            return "scaled_dot_product_attention has no soft cap"
        return self.reading.supports(_reading(case), device)

    def untimed(self, device: torch.device) -> str | None:
        """As the read."""
        return self.reading.untimed(device)

    def prepare(self, workload: Workload) -> Prepared:
        """What the read prepares, and the masks of queries that don't see all that is gathered."""
        w, case = workload, workload.case
        firsts = [case.first_visible(length) for length in w.lengths]
        reading = dataclasses.replace(
            w,
            case=_reading(case),
            starts=firsts,
            lengths=[length - first for first, length in zip(firsts, w.lengths, strict=True)],
        )
        counts = reading.lengths
        if len(set(counts)) == 1:
            calls = [_call(case, len(counts), counts[0], w.lengths[0], w.device)]
        else:
            calls = [
                _call(case, 1, *sizes, w.device) for sizes in zip(counts, w.lengths, strict=True)
            ]
        return Prepared(reading, self.reading.prepare(reading), tuple(calls))

    def gather(self, workload: Workload, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """The read, of this layer's pools."""
        reading = prepared.of_layer(workload)
        return self.reading.run(reading, prepared.read)  # type: ignore[return-value]

    def run_part(self, part: Part, workload: Workload, prepared: Prepared) -> object:  # noqa: ARG002
        """The gather."""
        return self.gather(workload, prepared)

    def run(self, workload: Workload, prepared: Prepared) -> torch.Tensor:
        """Gather, then attend over copies."""
        key, value = self.gather(workload, prepared)
        return _attend_over_copies(workload, prepared.calls, key.flatten(2), value.flatten(2))


def _reading(case: Case) -> Case:
    """The read of what an attend gathers."""
    others = {name: DEFAULTS[name] for name in (*ATTEND_ONLY, "kv_input")}
    return dataclasses.replace(case, op="read", **others)


def _call(case: Case, sequences: int, context: int, length: int, device: torch.device) -> Call:
    """The call for sequences of so many tokens, the last `context` of which are gathered."""
    causal = case.query_len == length and context == length and not case.sliding_window
    if case.query_len == 1 or causal or not context:
        return Call(sequences, context, None, causal and case.query_len > 1)
    own = torch.arange(length - case.query_len, length, device=device).unsqueeze(1)
    at = torch.arange(length - context, length, device=device)
    seen = at <= own
    if case.sliding_window:
        seen &= at > own - case.sliding_window
    return Call(sequences, context, seen.repeat(case.num_heads // case.num_kv_heads, 1), causal)


def _attend_over_copies(
    workload: Workload, calls: tuple[Call, ...], key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Attention of each call's sequences over their part of the gathered rows.

    Args:
        workload: Has the query.
        calls: In the order of the sequences.
        key: Gathered K, [tokens, num_kv_heads, key_dim].
        value: Gathered V, [tokens, num_kv_heads, value_dim].
    """
    w, case = workload, workload.case
    if case.layout == "MLA":
        # The latent row is K, and its first part V: torch gives all of it, in one kernel.
        key = value = torch.cat((key, value), -1)
    outputs, row, token = [], 0, 0
    for call in calls:
        rows, tokens = call.sequences * case.query_len, call.sequences * call.context
        outputs.append(
            _attend(
                case,
                call,
                w.query[row : row + rows],
                key[token : token + tokens],
                value[token : token + tokens],
            )
        )
        row, token = row + rows, token + tokens
    if not outputs:
        return w.query.new_empty((0, case.num_heads, case.value_head_dim))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend(
    case: Case, call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    sequences, count, heads = call.sequences, case.query_len, case.num_heads
    kv_heads, group = case.num_kv_heads, heads // case.num_kv_heads
    if not call.context:
        return query.new_zeros((sequences * count, heads, case.value_head_dim))
    shape = (sequences, call.context, kv_heads, -1)
    key, value = key.view(shape).transpose(1, 2), value.view(shape).transpose(1, 2)
    query = query.view(sequences, count, heads, -1).transpose(1, 2)
    if call.causal:
        # Half of the scores are left out, which is worth more than what folding saves.
        output = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=case.softmax_scale, enable_gqa=group > 1
        )
    else:
        folded = query.reshape(sequences, kv_heads, group * count, -1)
        output = scaled_dot_product_attention(
            folded, key, value, attn_mask=call.mask, scale=case.softmax_scale
        )
    output = output[..., : case.value_head_dim].reshape(sequences, heads, count, -1)
    return output.transpose(1, 2).reshape(sequences * count, heads, -1).contiguous()


def over(reading: Strategy) -> type[GatherSdpa]:
    """The attention over a read's copies, as a class of its own."""
    way = reading.name.partition(".")[2]
    summary = f"{reading.name}, then torch's attention over the copies"
    fields = {"name": f"attend.sdpa_{way}", "reading": reading, "summary": summary}
    fields["__doc__"] = f"{summary}."
    fields["__module__"] = __name__  # else that of ABCMeta
    return type(f"AttendSdpa_{way}", (GatherSdpa,), fields)


def _over(reading: Strategy) -> GatherSdpa:
    return over(reading)()


def register_over_reads() -> None:
    """Register one for every registered read that has none yet."""
    known = {strategy.name for strategy in registry.all_strategies()}
    for reading in registry.all_strategies():
        if reading.op == "read" and over(reading).name not in known:
            registry.register(over(reading))
