"""The mask function of attn_implementation="heed": positions in place of a mask tensor, wherever a kernel can do with them.

A mask function of Transformers makes the mask that the attention function of every layer is then given, once a forward pass and kind of
layer.
https://huggingface.co/docs/transformers/attention_interface
"""

import sys
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel, masking_utils
from transformers.utils.import_utils import is_tracing


# Models that join numbers to a mask, which only "eager" makes of numbers.
_ADD_TO_MASKS = {"deepseek_v4"}


def _subclasses(kind):
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


@torch.compiler.assume_constant_result
def computes_attention_itself(model_type):
    """Whether the models of a type have attention of their own, as Bloom: their modules know nothing of the attention interface, and they
    add the mask of "eager" to scores whatever the implementation is called. A type without a class of a model is none."""
    if model_type not in _COMPUTES_ITSELF:
        modules = {one.__module__ for one in _subclasses(PreTrainedModel) if getattr(getattr(one, "config_class", None), "model_type", None) == model_type}
        if not modules:
            return False
        _COMPUTES_ITSELF[model_type] = not any(hasattr(sys.modules[name], "ALL_ATTENTION_FUNCTIONS") for name in modules)
    return _COMPUTES_ITSELF[model_type]


# By type, once a class of it was there. The decoder of BigBirdPegasus asks the interface, its encoder does not.
_COMPUTES_ITSELF = {"bigbird_pegasus": True}


class Visible(NamedTuple):
    """Which of `len_k` keys each of `len_q` queries sees, by index: query i's own key is `own` + i, and it sees `left` keys before that one
    and `right` keys after it; None for all."""

    len_q: int
    len_k: int
    own: int
    left: int | None
    right: int | None

    def interval(self):
        """(begin, end) of the keys that any query sees."""
        begin = 0 if self.left is None else max(0, self.own - self.left)
        end = self.len_k if self.right is None else min(self.len_k, self.own + self.len_q + self.right)
        return begin, end

    def narrowed(self):
        """The same among the keys of `interval` alone."""
        begin, end = self.interval()
        return self._replace(len_k=end - begin, own=self.own - begin)

    def is_all(self):
        """Whether each query sees all keys."""
        reaches_first = self.left is None or self.left >= self.own + self.len_q - 1
        return reaches_first and (self.right is None or self.right >= self.len_k - 1 - self.own)

    def is_causal(self):
        """Whether query i sees the keys up to key i, as is_causal has it in PyTorch."""
        return self.own == 0 and self.left is None and self.right == 0

    def dense(self, device):
        """Booleans (len_q, len_k), True for a visible key."""
        own = torch.arange(self.len_q, device=device).unsqueeze(1) + self.own
        key = torch.arange(self.len_k, device=device).unsqueeze(0)
        seen = torch.ones(self.len_q, self.len_k, dtype=torch.bool, device=device)
        if self.left is not None:
            seen = seen & (key >= own - self.left)
        if self.right is not None:
            seen = seen & (key <= own + self.right)
        return seen


class PositionMask(torch.Tensor):
    """A mask (batch, 1, len_q, len_k) of booleans, True for a visible key, that takes no memory until an operator reads it.

    A model may slice, join or move a mask before its layers see it. Any operator gets the whole tensor, and from then on `visible` is
    None, since an operator may have changed it.
    """

    visible: Visible | None

    @staticmethod
    def __new__(cls, batch, visible, device):
        mask = torch.Tensor._make_wrapper_subclass(cls, (batch, 1, visible.len_q, visible.len_k), dtype=torch.bool, device=device)
        mask.visible = visible
        mask._dense = None
        return mask

    def dense(self):
        """The mask as a plain tensor, made when first asked for and not to be changed."""
        if self._dense is None:
            self._dense = self.visible.dense(self.device).expand(self.shape)
        return self._dense

    # Subclasses of Tensor that compute in __torch_dispatch__ leave this one out: https://docs.pytorch.org/docs/stable/notes/extending.html
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default and args[0].visible is not None:
            # Activation checkpointing detaches what it keeps.
            return cls(args[0].shape[0], args[0].visible, args[0].device)

        def read(one):
            if not isinstance(one, cls):
                return one
            tensor, one.visible = one.dense(), None
            return tensor

        args, kwargs = tree_map(read, (args, kwargs or {}))
        return function(*args, **kwargs)

    def __deepcopy__(self, memo):
        return self.dense().clone() if self.visible is None else type(self)(self.shape[0], self.visible, self.device)

    def __repr__(self, *, tensor_contents=None):
        return f"PositionMask({tuple(self.shape)}, {self.visible})"


def mask(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=masking_utils.causal_mask_function,
    attention_mask=None,
    local_size=None,
    allow_is_causal_skip=True,
    allow_is_bidirectional_skip=False,
    device="cpu",
    **others,
):
    """The mask of a call: a PositionMask where each query sees the keys of an interval around its own, None where that is all of them for
    the only query, else the bool tensor of Transformers' "sdpa".

    Arguments are those of transformers.masking_utils.sdpa_mask. Whether there is padding is read from `attention_mask` (batch, length),
    which waits for the device once a call as "sdpa" does; nothing is read while a graph is traced or captured. While torch.compile traces,
    a Visible stands in for a PositionMask.

    A model with attention of its own gets the mask of "eager", numbers of `dtype` that it adds to its scores, and computes what it does then.

    Raises NotImplementedError for a model that needs the mask of "eager", which is of numbers.

    No result is None for several queries: None would hide keys or not by a module's attribute is_causal, which models for "eager" alone lack.
    """
    model_type = getattr(others.get("config"), "model_type", None)
    if model_type in _ADD_TO_MASKS:
        raise NotImplementedError(f'{model_type} joins numbers to masks, and attn_implementation="heed" makes masks of booleans; use "eager" for this model')
    arguments = {
        **{"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset},
        **{"mask_function": mask_function, "attention_mask": attention_mask, "local_size": local_size, "device": device},
        **others,
    }
    if model_type is not None and computes_attention_itself(model_type):
        return masking_utils.eager_mask(**arguments, allow_is_bidirectional_skip=allow_is_bidirectional_skip)
    skips = {"allow_is_causal_skip": allow_is_causal_skip, "allow_is_bidirectional_skip": allow_is_bidirectional_skip}
    is_traced = is_tracing(attention_mask)
    # torch.compile traces neither reads of padding nor a comparison of closures.
    is_readable = not is_traced or (torch.compiler.is_compiling() and attention_mask is None and local_size is None)
    visible = None
    # A static cache has its length on the device: q_offset is a tensor then.
    if is_readable and not isinstance(q_offset, torch.Tensor):
        visible = _visible(q_length, kv_length, q_offset - kv_offset, mask_function, local_size, **skips)
    if visible is None:
        # sdpa_mask takes any function for the plain one where there is no local size.
        skips["allow_is_causal_skip"] &= local_size is not None or mask_function is masking_utils.causal_mask_function
        skips["allow_is_bidirectional_skip"] &= local_size is not None or mask_function is masking_utils.bidirectional_mask_function
        made = masking_utils.sdpa_mask(**arguments, **skips)
        if made is not None or q_length == 1:
            return made
        # None is a causal mask or no mask to the attention function of "sdpa".
        visible = Visible(q_length, kv_length, 0, None, 0 if allow_is_causal_skip else None)
    else:
        begin, end = visible.interval()
        if attention_mask is not None and not _are_all_there(attention_mask, kv_offset + begin, kv_offset + end):
            return masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        if q_length == 1 and (begin, end) == (0, kv_length):
            return None
    return visible if is_traced else PositionMask(batch_size, visible, device)


def _visible(len_q, len_k, own, mask_function, local_size, allow_is_causal_skip, allow_is_bidirectional_skip):
    """The Visible of a mask function, or None where it is not one of the four that are known or the caller wants a tensor."""
    if allow_is_causal_skip:
        if local_size is None and is_same(mask_function, masking_utils.causal_mask_function):
            left = None
        # local_size is also what a chunked mask is given.
        elif local_size is not None and is_same(mask_function, masking_utils.sliding_window_causal_mask_function(local_size)):
            left = local_size - 1
        else:
            return None
        return Visible(len_q, len_k, own, left, 0) if 0 <= own and own + len_q <= len_k else None
    if allow_is_bidirectional_skip:
        if local_size is None and is_same(mask_function, masking_utils.bidirectional_mask_function):
            return Visible(len_q, len_k, 0, None, None)
        if local_size is not None and is_same(mask_function, masking_utils.sliding_window_bidirectional_mask_function(local_size)):
            return Visible(len_q, len_k, 0, local_size, local_size) if own == 0 and len_q == len_k else None
    return None


def is_same(function, other):
    """Whether two functions have one code and enclose the same: a mask function that Transformers' factory made with the same arguments."""
    if function is other:
        return True
    if not hasattr(function, "__code__") or not hasattr(other, "__code__") or function.__code__ is not other.__code__:
        return False
    one, two = ([cell.cell_contents for cell in each.__closure__ or ()] for each in (function, other))
    return len(one) == len(two) and all(_is_same_value(*pair) for pair in zip(one, two))


def _is_same_value(one, two):
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(_is_same_value(*pair) for pair in zip(one, two))
    if callable(one) and callable(two):
        return is_same(one, two)
    return isinstance(one, (int, type(None))) and type(one) is type(two) and one == two


def _are_all_there(attention_mask, begin, end):
    """Whether the 2-D mask (batch, length) of booleans has all keys from `begin` to `end` and hides none."""
    return end <= attention_mask.shape[-1] and bool(attention_mask[:, begin:end].all())
