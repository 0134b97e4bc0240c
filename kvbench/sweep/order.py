"""The order in which cases are measured: random, and each tenth of it like the whole.

In random order a drift of the machine doesn't pass for an effect of an axis. Dealt out like cards
that were sorted by size, each tenth has its share of small and large cases, so that the first one
tells how long the rest will take, and shards of a sweep take equally long.
"""

import random
from collections.abc import Sequence

from kvbench.cases import Case

_HANDS = 10


def deal(cases: Sequence[Case], hands: int, seed: int) -> list[list[Case]]:
    """Share cases out at random, so that each hand has as many of every size as another.

    Cases of one shape stay together, one after the other: they share their buffers.

    Args:
        cases: In any order; the result depends on which they are, and on the seed.
        hands: How many parts.
        seed: Of every random choice.
    """
    order = random.Random(seed)  # noqa: S311 - reproducible, not secret
    shapes: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        shapes.setdefault(case.shape(), []).append(case)
    groups = list(shapes.values())
    order.shuffle(groups)  # of those of one size, any may come first
    groups.sort(key=_nbytes, reverse=True)
    dealt: list[list[list[Case]]] = [[] for _ in range(hands)]
    held = [0] * hands
    for row in range(0, len(groups), hands):
        # Each has one of the next largest; who has least so far has the largest of them.
        whose = sorted(range(hands), key=lambda hand: (held[hand], order.random()))
        for hand, group in zip(whose, groups[row : row + hands], strict=False):
            dealt[hand].append(group)
            held[hand] += _nbytes(group)
    for hand_of in dealt:
        order.shuffle(hand_of)
        for group in hand_of:
            order.shuffle(group)
    return [[case for group in hand_of for case in group] for hand_of in dealt]


def _nbytes(group: Sequence[Case]) -> int:
    return sum(case.nbytes for case in group)


def in_order(cases: Sequence[Case], seed: int) -> list[Case]:
    """The cases in the order in which they are measured."""
    return [case for hand in deal(cases, _HANDS, seed) for case in hand]


def shard_of(cases: Sequence[Case], seed: int, number: int, count: int) -> tuple[Case, ...]:
    """One of so many shards of a sweep, numbered from 1: every case is in one of them."""
    return tuple(deal(cases, count, seed)[number - 1])
