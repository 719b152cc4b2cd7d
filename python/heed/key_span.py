"""The keys that a query sees: kernels/attention/mask.hpp for Python, and all that Python knows of it."""

ALL = -1  # a bound that hides nothing, as FlashAttention's window_size has it


def own_offset(is_aligned_to_end, len_q, len_k):
    """Query i's own key is i + own_offset: masks are aligned to the top left, or with the last keys to the bottom right."""
    return len_k - len_q if is_aligned_to_end else 0


def sees(own, key, left, right, prefix=None):
    """Whether a query sees a key. `own`, `key` and `prefix` are numbers, or tensors of integers that broadcast; True where nothing bounds.

    left, right  how many keys before the own key and after it are seen, ALL for all; 0 on the right is a causal mask
    prefix       how many first keys are seen whatever the right bound is
    """
    seen = True
    if left != ALL:
        seen = key >= own - left
    if right != ALL:
        shown = key <= own + right
        seen = seen & (shown if prefix is None else shown | (key < prefix))
    return seen
