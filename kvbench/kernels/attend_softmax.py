"""The softmax of an attention, a tile of scores at a time, as Triton functions.

Scores are kept times log2(e), so that their exponentials are powers of two: what a GPU has.
"""

import triton.language as tl


def cap_scores(scores, SOFT_CAP: tl.constexpr):
    """SOFT_CAP * tanh(scores) * log2(e), of scores that were divided by SOFT_CAP."""
    size = tl.abs(scores)
    decay = tl.exp2(-2.8853900817779268 * size)
    square = size * size
    # Near 0 the quotient below would be a difference of numbers that are almost the same.
    series = -0.05396825396825397 + square * 0.021869488536155203
    series = 1.0 + square * (-0.3333333333333333 + square * (0.13333333333333333 + square * series))
    capped = tl.where(size < 0.25, size * series, (1.0 - decay) / (1.0 + decay))
    capped *= SOFT_CAP * 1.4426950408889634
    return tl.where(scores < 0, -capped, capped)


def seen_scores(
    scores,
    position,
    place,
    inside,
    window_tokens,
    SOFT_CAP: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Scores, capped if SOFT_CAP is not 0, and -inf of what a row does not see.

    Args:
        scores: [ROWS, TOKENS], divided by SOFT_CAP, or times log2(e) if there is none.
        position: Of the tokens, [TOKENS].
        place: The positions that rows' queries stand at, [ROWS].
        inside: Which tokens are there to be seen, [TOKENS].
        window_tokens: How many positions a query sees, if WINDOWED.
        SOFT_CAP: Or 0.
        WINDOWED: Whether a query sees so many alone.
    """
    if SOFT_CAP:
        scores = cap_scores(scores, SOFT_CAP)
    seen = inside[None, :] & (position[None, :] <= place[:, None])
    if WINDOWED:
        seen &= position[None, :] > place[:, None] - window_tokens
    return tl.where(seen, scores, float("-inf"))


def fold_tile(most, total, scores):
    """Take a tile's scores into the softmax so far.

    Args:
        most: The highest score of each row, [ROWS], -inf where it has seen nothing.
        total: The sum of the powers of two of the scores less `most`, [ROWS].
        scores: [ROWS, TOKENS], -inf of what a row does not see.

    Returns:
        `most` and `total` with the tile; what a sum so far is to be multiplied with, [ROWS]; and
        the tile's weights, [ROWS, TOKENS].
    """
    highest = tl.reduce(scores, 1, tl.standard._elementwise_max)  # noqa: SLF001 - see jit
    after = tl.maximum(most, highest)
    # Of two infinities the difference would be NaN.
    reference = tl.where(after == float("-inf"), 0.0, after)
    kept = tl.exp2(most - reference)
    weights = tl.exp2(scores - reference[:, None])
    added = tl.reduce(weights, 1, tl.standard._sum_combine)  # noqa: SLF001
    return after, total * kept + added, kept, weights
