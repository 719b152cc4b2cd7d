"""Relative-position biases as T5 has them: a table of biases by the bucket of a distance."""

import math
from dataclasses import dataclass

import torch

MOST_BUCKETS, MOST_DISTANCE = 1024, 1 << 16


@dataclass(frozen=True)
class RelativeBias:
    """A table (heads, buckets) of biases, of floating point, and how distances are divided among its buckets.

    bidirectional  keys after a query's own have half of the buckets, as in T5's encoder; else they count as it, as in its decoder
    max_distance   at which logarithmic buckets would end: the last one has all that is beyond

    The weight of T5's Embedding is (buckets, heads): give `embedding.weight.T`.
    Raffel et al., arXiv 1910.10683; Transformers' T5Attention._relative_position_bucket.
    """

    table: torch.Tensor
    bidirectional: bool = True
    max_distance: int = 128


def check(name, f):
    """Raises TypeError and ValueError for a table, or numbers, that cannot be."""
    table, distance = f.relative_bias, f.relative_max_distance
    if not isinstance(table, torch.Tensor):
        raise TypeError(f"{name}: relative_bias must have a Tensor as its table, not {type(table).__name__}")
    if table.dim() != 2:
        raise ValueError(f"{name}: the table of relative_bias is {tuple(table.shape)}; it must be (heads, buckets)")
    buckets = table.shape[1]
    least = 4 if f.relative_bidirectional else 2
    if not least <= buckets <= MOST_BUCKETS or (f.relative_bidirectional and buckets % 2):
        raise ValueError(f"{name}: the table of relative_bias has {buckets} buckets; it must have {least} to {MOST_BUCKETS}{', an even number where it is bidirectional' * f.relative_bidirectional}")
    exact = buckets // (4 if f.relative_bidirectional else 2)
    if not isinstance(distance, int) or not exact < distance <= MOST_DISTANCE:
        raise ValueError(f"{name}: max_distance of relative_bias is {distance}; with {buckets} buckets it must be {exact + 1} to {MOST_DISTANCE}")


def relative_buckets(ahead, bidirectional, buckets, max_distance):
    """The buckets of keys that lie `ahead` (integers) of a query's own key."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = (ahead > 0).long() * buckets
        distance = ahead.abs()
    else:
        distance = (-ahead).clamp(min=0)
    exact = buckets // 2
    logarithm = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (logarithm * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distance < exact, distance, far)
