"""What a generation says and what it took, in words and tables."""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kvbench.analysis.statistics import median_interval
from kvbench.engine.timeline import Setting, Timeline
from kvbench.report.tables import MISSING, Table
from kvbench.units import (
    MICROSECONDS_PER_SECOND,
    format_seconds,
    format_seconds_interval,
    significant,
)

_PARTS = {"index": "index preparation", "write": "KV write", "attend": "attention"}
_ENOUGH = 6
"""Samples from which an interval of their median is given; of fewer, all that they span."""


class Saying:
    """Prints text as it comes: of one prompt at once, of several when all is said.

    Args:
        prompts: How many there are.
    """

    def __init__(self, prompts: int) -> None:
        self._said = [""] * prompts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Where Ctrl-C ended it, too: what was said so far.
        texts = self._said if len(self._said) > 1 else []
        sys.stdout.write("".join(f"[{n}] {text}\n" for n, text in enumerate(texts, 1)) or "\n")
        sys.stdout.flush()

    def hear(self, prompt: int, text: str) -> None:
        """A piece of what is said to a prompt."""
        piece = printable(text)
        self._said[prompt] += piece
        if len(self._said) == 1:
            sys.stdout.write(piece)
            sys.stdout.flush()


def printable(text: str) -> str:
    """A model's text without what would command the terminal: U+FFFD stands for that."""
    return "".join("�" if _commands(letter) else letter for letter in text)


def _commands(letter: str) -> bool:
    return letter not in "\n\t" and (letter < " " or "\x7f" <= letter < "\xa0")


def describe(setting: Setting) -> str:
    """What generated, and how long it took to get ready."""
    sizes = setting.config
    threads = f" ({_count(setting.threads, 'thread')})" if setting.device == "cpu" else ""
    warm = "not warmed up"
    if setting.warm_s is not None:
        warm = f"warming up {format_seconds(setting.warm_s)}"
    return (
        f"{setting.model}: {_count(sizes.num_layers, 'layer')}, "
        f"{_count(sizes.num_heads, 'head')} over {_count(sizes.num_kv_heads, 'KV head')} of "
        f"{sizes.head_dim}, {setting.dtype} on {setting.device}{threads}; {setting.write} and "
        f"{setting.attend}, {_count(setting.blocks, 'block')} of {setting.block_size}, "
        f"{setting.layout}. Loading took {format_seconds(setting.load_s)}, {warm}."
    )


def times_table(timeline: Timeline) -> Table:
    """How long tokens took. Each row says of how many samples it is."""
    first_s = max(timeline.firsts_s)
    computed = timeline.prompt_tokens - timeline.shared_tokens
    steps = timeline.undisturbed
    decoding_s = sum(step.duration_s for step in steps)
    rows = (
        ("time to first token", *_estimate(timeline.firsts_s, "request")),
        ("time per output token", *_estimate(timeline.gaps_s, "token")),
        (
            "prompt tokens per second",
            significant(computed / first_s),
            f"{computed} tokens until the last first token",
        ),
        (
            "output tokens per second",
            significant(sum(step.said for step in steps) / decoding_s) if steps else MISSING,
            _count(len(steps), "decode step"),
        ),
        ("tokens generated", str(timeline.generated_tokens), _count(len(timeline.steps), "step")),
        (
            "prompt tokens shared",
            str(timeline.shared_tokens),
            f"of {timeline.prompt_tokens}: found in the cache",
        ),
        ("preemptions", str(timeline.preemptions), "each computes its tokens again"),
    )
    return Table("What it took", ("", "value", "of"), rows)


def split_table(timeline: Timeline, *, on_gpu: bool) -> Table:
    """What a decode step is made of. Means, so that the parts add up.

    Args:
        timeline: Of the generation.
        on_gpu: Whether parts were timed by waiting for a device.
    """
    apart, whole = timeline.taken_apart, timeline.undisturbed
    title = f"A decode step (mean of {_count(len(apart), 'step')})"
    header = ("part, in all layers", "µs", "share")
    if not apart:
        missing = tuple((name, MISSING, MISSING) for name in (*_PARTS.values(), "the rest"))
        return Table(title, header, missing, "No decode step was taken apart: every second one is.")
    total_s = sum(step.duration_s for step in apart) / len(apart)
    parts_s = {
        name: sum((step.parts_s or {}).get(part, 0.0) for step in apart) / len(apart)
        for part, name in _PARTS.items()
    }
    parts_s["the rest"] = total_s - sum(parts_s.values())
    parts_s["a step"] = total_s
    rows = tuple(
        (name, significant(s * MICROSECONDS_PER_SECOND), f"{100 * s / total_s:.1f} %")
        for name, s in parts_s.items()
    )
    whole_s = sum(step.duration_s for step in whole) / len(whole) if whole else None
    note = "Every second step is taken apart"
    if on_gpu:
        note += ", which waits for the GPU before and after each part"
    if whole_s is not None:
        note += f"; the other {len(whole)} took {format_seconds(whole_s)} on average"
    return Table(title, header, rows, f"{note}.")


def _estimate(samples: Sequence[float], kind: str) -> tuple[str, str]:
    """Samples in seconds: the median with an interval, and of what it is."""
    count = len(samples)
    if not count:
        return MISSING, _count(0, kind)
    if count == 1:
        return format_seconds(samples[0]), _count(1, kind)
    if count < _ENOUGH:
        middle = median_interval(samples).median
        text = format_seconds_interval(middle, min(samples), max(samples))
        return text, f"median, least and most of {_count(count, kind)}"
    estimate = median_interval(samples)
    text = format_seconds_interval(estimate.median, estimate.low, estimate.high)
    return text, f"median and its 95 % interval, {_count(count, kind)}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
