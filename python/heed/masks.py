"""Which keys a query sees, as heed::forward is told it."""

import math
import operator

import torch

from heed import unfused


def window_of(name, window):
    """The two numbers of keys of a window, -1 for all. Raises TypeError and ValueError."""
    if window is None:
        return -1, -1
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"{name}: window is {window!r}; it must be (left, right), how many keys before a query's own and after it are seen, None for all of them")
    return tuple(_bound(name, window, -1 if bound is None else bound) for bound in window)


def _bound(name, window, bound):
    if not isinstance(bound, (int, torch.SymInt)):
        try:
            bound = operator.index(bound)
        except (TypeError, RuntimeError):
            bound = None
    if bound is None or not -1 <= bound < 1 << 63:
        raise ValueError(f"{name}: window is {window}; both numbers of keys must be whole, 0 or more and below 2^63, or None for all")
    return bound


def check_scale(name, scale):
    """Raises ValueError for a scale that checks.of_positive_scale could not make positive and finite."""
    if scale is not None and not 0 < scale < math.inf:
        raise ValueError(f"{name}: the scale is {scale}; it must be finite, above zero beside queries of 8 bits, or None for 1 / sqrt(dim)")


def masking(name, len_q, len_k, same_lengths, causal, window, alignment, scale):
    """(mask, window_left, window_right, scale) of heed::forward. Raises ValueError."""
    check_scale(name, scale)
    if isinstance(causal, (str, torch.Tensor)):
        given = "a Tensor" if isinstance(causal, torch.Tensor) else repr(causal)
        raise TypeError(f'{name}: causal is {given}; it must be True or False, and alignment says "top_left" or "bottom_right"')
    left, right = window_of(name, window)
    if alignment not in (None, "top_left", "bottom_right"):
        raise ValueError(f'{name}: alignment is {alignment!r}; it must be "top_left" or "bottom_right"')
    if causal and right > 0:
        raise ValueError(f"{name}: a causal mask ends with a query's own key, so that a window cannot show {right} keys after it; give 0 or None")
    if not causal and left < 0 and right < 0:
        return unfused.NONE, -1, -1, scale
    if alignment is None:
        if not same_lengths:
            raise ValueError(f'{name}: with {len_q} queries and {len_k} keys a mask needs alignment="top_left" (PyTorch\'s is_causal) or "bottom_right" (FlashAttention\'s)')
        alignment = "top_left"
    if causal:
        return (unfused.CAUSAL_TOP_LEFT if alignment == "top_left" else unfused.CAUSAL_BOTTOM_RIGHT), left, -1, scale
    return (unfused.WINDOW_TOP_LEFT if alignment == "top_left" else unfused.WINDOW_BOTTOM_RIGHT), left, right, scale
