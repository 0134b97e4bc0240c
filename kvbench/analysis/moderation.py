"""Variances of a few values each, made steadier by what many such variances have in common.

Smyth, "Linear models and empirical Bayes methods for assessing differential expression" (2004): of
the spread of five values little is known, but a hundred cells tell how spreads are spread. Each
cell's is drawn towards the typical one, the more so the more alike they are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

Array = npt.NDArray[np.float64]

_LEAST = 1e-12
"""Of a variance of logarithms: a part in a million is less than any clock tells apart."""
_LARGEST_DF = 1e6
"""Where variances are as alike as if there were one: then the prior is all there is."""


@dataclass(frozen=True, slots=True)
class Moderated:
    """Variances, and how much is known of each."""

    variances: Array
    df: Array
    """Degrees of freedom."""
    typical: float
    """The variance that they are drawn towards."""


def moderate(variances: Array, df: Array) -> Moderated:
    """Draw sample variances towards the typical one.

    Args:
        variances: Sample variances; those with no degree of freedom are passed over.
        df: Their degrees of freedom, 0 where there was one value. At least one is more.
    """
    own = np.maximum(variances, _LEAST)
    known = df > 0
    half = df[known] / 2
    # If all had one true variance, this would scatter about its logarithm by trigamma(df / 2).
    logs = np.log(own[known]) - special.digamma(half) + np.log(half)
    excess = 0.0
    if len(logs) > 1:
        excess = float(np.var(logs, ddof=1) - np.mean(special.polygamma(1, half)))
    prior_df = _LARGEST_DF
    if excess > float(special.polygamma(1, _LARGEST_DF / 2)):
        prior_df = 2 * float(
            optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-8, _LARGEST_DF)
        )
    typical = float(np.exp(np.mean(logs) + special.digamma(prior_df / 2) - np.log(prior_df / 2)))
    weights = np.where(known, df, 0.0)
    total = prior_df + weights
    drawn = (prior_df * typical + weights * np.where(known, own, 0.0)) / total
    # What several cells tell together is no more than all their values.
    return Moderated(drawn, np.minimum(total, max(float(weights.sum()), 1.0)), typical)
