"""Heed in the place of PyTorch's scaled_dot_product_attention, for code that knows nothing of Heed.

The override is a kernel of aten::scaled_dot_product_attention for the keys CPU, CUDA and their autograd keys, so that every caller is
served: torch.nn.functional, torch.nn.MultiheadAttention, torch.compile, C++. It holds for the whole process, whatever thread installs
it. Calls that Heed does not serve go on to PyTorch's own kernel unchanged; heed.report() counts them by reason. A function that
torch.compile compiled before keeps what it was compiled to.
"""

import contextlib
import threading

import torch
import torch.nn.attention

from heed import compile_caches, forms, functional, multi_head, operators, routing
from heed import precision as precisions
from heed.libraries import check


class NotServed(RuntimeError):
    """A call that Heed hands back to PyTorch, where strict mode forbids that; the message names the reason and the tensors."""


_lock = threading.Lock()
_aten = None  # torch.library.Library while installed by Python
_multi_head = None  # the same of multi_head, while installed
_installed = 0
_strict = 0


def _describe(tensor):
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} {tensor.device}"


def _refuse(reason, query, key, value):
    if isinstance(reason, int):
        if reason == operators.UNSUPPORTED:
            enable_gqa = query.dim() > 2
            form = forms.plain(query, key, value, None, None, enable_gqa)
            raise NotServed(f"Heed does not serve this call: {functional.refusal(*routing.lifted(form.query, form.key, form.value, None, enable_gqa))}")
        reason = operators.phrase(reason)
    raise NotServed(f"Heed does not serve this call because of {reason}: query {_describe(query)}, key {_describe(key)}, value {_describe(value)}")


def install(*, strict=False, precision=None, model=None):
    """Puts Heed in the place of aten::scaled_dot_product_attention until `uninstall` was called as often.

    strict: raise NotServed instead of handing a call back, until then.
    precision: what quantises Q, K and V of calls that want no gradient, until then: the name of a mode, a file of `heed calibrate
        --choices`, or a heed.Precision; None for what holds already, at first nothing. heed.report() names the mode of each call that one
        served; calls that a mode does not serve are served as they are. What torch.compile traces meanwhile keeps the mode of all calls for good.
    model: whose modules `precision` names, where it does: what they call, on whichever thread, gets their mode, but in a trace, which is served as it is
        where modules are named.
    Raises TypeError, ValueError and OSError for a `precision` that is none, and installs nothing then.

    The fast path of torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer, which computes attention by itself, is served too
    (heed.multi_head), but for nested tensors.
    """
    _install("heed.install()", strict, precision, model)


def _install(name, strict, precision, model):
    """`install`, whose sentences begin with `name`."""
    global _installed, _strict, _aten, _multi_head
    if precision is not None:
        precisions.Installed(name, precision, model)
    elif model is not None:
        raise ValueError(f"{name}: model is given without precision, whose layers are its modules")
    with _lock:
        if _installed == 0:
            routing.usual_backends = routing.selected_backends()
            if routing.HAS_SYMBOLS:
                check(operators.native.heed_torch_install(torch.cuda.is_available()))
            else:
                _aten = torch.library.Library("aten", "IMPL")
                routing.register(_aten, torch.ops.aten.scaled_dot_product_attention.default, ("CPU", "CUDA", *routing.AUTOGRAD_KEYS))
            _multi_head = multi_head.install(torch.cuda.is_available())
        _installed += 1
        _strict += strict
        _apply_strictness()
        _mark_caches()


def uninstall(*, strict=False, precision=None):
    """Takes back one `install` of the same `strict` and `precision`. Raises RuntimeError where there is none to take back."""
    global _installed, _strict, _aten, _multi_head
    with _lock:
        if _installed == 0 or _strict < strict:
            raise RuntimeError("heed.uninstall() without a heed.install() before it" + (" that was strict" if strict else ""))
        if precision is not None:
            asked = precisions.last_of(precision)
            if asked is None:
                raise RuntimeError(f"heed.uninstall() without a heed.install() before it with precision={precision!r}")
            asked.remove()
        _installed -= 1
        _strict -= strict
        _apply_strictness()
        if _installed == 0:
            if _aten is None:
                check(operators.native.heed_torch_remove())
            else:
                _aten._destroy()
                _aten = None
            routing.usual_backends = None
            _multi_head._destroy()
            _multi_head = None
        _mark_caches()


class FlashAttention:
    """Heed as an implementation that torch.nn.attention.activate_flash_attention_impl("Heed") chooses (PyTorch 2.11 and newer): installed
    as by `install`, and served also where sdpa_kernel selects FLASH_ATTENTION."""

    def __init__(self):
        install()
        self._set(True)

    def remove(self):
        """For torch.nn.attention.restore_flash_attention_impl."""
        self._set(False)
        uninstall()

    @staticmethod
    def _set(is_flash):
        operators.native.heed_torch_set_flash(is_flash)
        routing.is_flash = is_flash
        with _lock:
            _mark_caches()


if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    torch.nn.attention.register_flash_attention_impl("Heed", register_fn=FlashAttention)


def _mark_caches():
    """After each change of what decides how a call is traced."""
    compile_caches.mark(*(("installed", precisions.in_traces(), _strict > 0, bool(routing.is_flash)) if _installed else ()))


def _apply_strictness():
    operators.refuse = _refuse if _strict else None
    operators.native.heed_torch_set_strict(_strict > 0)


@contextlib.contextmanager
def sdpa(*, strict=False, precision=None, model=None):
    """`install` for the time of a `with` statement. Such statements nest."""
    _install("heed.sdpa()", strict, precision, model)
    try:
        yield
    finally:
        uninstall(strict=strict, precision=precision)
