"""Low precision where it is asked for: modes that quantise Q, K and V, and which layer of a model gets which.

    with heed.sdpa(precision="fp8_smooth"): ...                       # every call that the mode serves
    with heed.sdpa(precision="choices.json", model=model): ...        # each layer its own, as `heed calibrate --choices` wrote it

Without `precision` nothing is quantised.
"""

import json
import os
import threading
import weakref
from pathlib import Path

from heed import libraries

ALL = "*"  # the layer that stands for every call
_KEYS = {"mode", "workload", "rel_rms", "most", "tensors_digest", "heed"}


_modes = ()


def modes():
    """The modes' names: those of heed_precision_name (include/heed/heed.h)."""
    return _modes or _read_modes()


def _read_modes():
    import ctypes

    from heed import c_api

    global _modes
    library = c_api.library(str(libraries.folder() / "libheed.so")).lib
    library.heed_precision_name.restype = ctypes.c_char_p
    library.heed_precision_name.argtypes = [ctypes.c_size_t]
    names = []
    while (name := library.heed_precision_name(len(names))) is not None:
        names.append(name.decode())
    _modes = tuple(names)
    return _modes


def number_of(name, mode):
    """What an operator takes for a mode: 0 for None. Raises TypeError and ValueError, whose sentences begin with `name`."""
    if mode is None:
        return 0
    if not isinstance(mode, str):
        raise TypeError(f"{name}: precision must be the name of a mode, not {type(mode).__name__}")
    if mode not in modes():
        raise ValueError(f"{name}: there is no precision {mode!r}; there are {', '.join(modes())}")
    return modes().index(mode) + 1


class Precision:
    """A mode for each layer of a model.

    layers: {name of a module, as model.named_modules() has it: mode, or None for inputs as they are}; "*" stands for all calls that
    no named module makes. Raises TypeError and ValueError.
    """

    def __init__(self, layers):
        if not isinstance(layers, dict):
            raise TypeError(f"heed.Precision(): layers must be a dict of names and modes, not {type(layers).__name__}")
        for layer, mode in layers.items():
            if not isinstance(layer, str):
                raise TypeError(f"heed.Precision(): {layer!r} is no name of a layer")
            number_of(f"heed.Precision(): layer {layer!r}", mode)
        self.layers = dict(layers)

    @classmethod
    def load(cls, path):
        """From a file that `heed calibrate --choices` wrote. Raises ValueError where it is none, and OSError."""
        try:
            file = json.loads(Path(path).read_text())
            layers = {name: layer["mode"] for name, layer in file["layers"].items()}
            unknown = {key for layer in file["layers"].values() for key in layer} - _KEYS
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no file of `heed calibrate --choices`: {type(error).__name__}: {error}") from error
        if unknown:
            raise ValueError(f"{path} says of layers what this version does not know: {', '.join(sorted(unknown))}")
        return cls(layers)

    def __repr__(self):
        return f"heed.Precision({self.layers!r})"

    def __eq__(self, other):
        return isinstance(other, Precision) and self.layers == other.layers

    __hash__ = None


def read(name, given):
    """A Precision of what `heed.sdpa(precision=...)` takes: a mode, a path, or a Precision. Raises TypeError, ValueError and OSError."""
    if isinstance(given, Precision):
        return given
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given not in modes() and (os.sep in given or given.endswith(".json"))):
        return Precision.load(given)
    number_of(name, given)
    return Precision({ALL: given})


# ---------------------------------------------------------------------------------------------- in the place of PyTorch's function

_lock = threading.Lock()
_installed = []  # of Installed, the last one holds
_in_traces = 0
_thread = threading.local()


class _Hook:
    """A hook of one module. That of a copy of the module, and of one that was read from a file, does nothing: no Installed would take it back."""

    def __init__(self, module=None, number=0):
        self.owner = None if module is None else weakref.ref(module)
        self.number = number

    def __deepcopy__(self, memo):
        return type(self)()

    def __reduce__(self):
        return type(self), ()

    def acts_on(self, module):
        return self.owner is not None and self.owner() is module


class _Enter(_Hook):
    def __call__(self, module, arguments):
        if self.acts_on(module):
            _push(self.number)


class _Leave(_Hook):
    def __call__(self, module, arguments, result):
        if self.acts_on(module):
            _pop()


class Installed:
    """A Precision that holds until `remove`."""

    def __init__(self, name, given, model):
        self.given = given
        precision = read(name, given)
        named = [layer for layer in precision.layers if layer != ALL]
        if named and model is None:
            raise ValueError(f"{name}: precision names the layers {', '.join(named)}; give the model whose modules they are, model=...")
        modules = dict(model.named_modules()) if named else {}
        for layer in named:
            if layer not in modules:
                raise ValueError(f"{name}: the model has no module {layer!r}, which precision names")
        self.everywhere = number_of(name, precision.layers.get(ALL))
        self.in_traces = 0 if named else self.everywhere
        self.handles = []
        for layer in named:
            number = number_of(name, precision.layers[layer])
            self.handles.append(modules[layer].register_forward_pre_hook(_Enter(modules[layer], number), prepend=True))
            self.handles.append(modules[layer].register_forward_hook(_Leave(modules[layer], number), always_call=True))
        with _lock:
            _installed.append(self)
            _apply()

    def remove(self):
        for handle in self.handles:
            handle.remove()
        with _lock:
            _installed.remove(self)
            _apply()


def in_traces():
    """What an operator takes for the mode of a call in a trace (number_of): that of all calls. 0 where modules have modes of their own, for a trace does not
    say which of them a call is from."""
    return _in_traces


def last_of(given):
    """The last Installed of this `given` that is left, or None."""
    return next((one for one in reversed(_installed) if one.given is given or one.given == given), None)


def _apply():
    global _in_traces
    _in_traces = _installed[-1].in_traces if _installed else 0
    libraries.operator_library().heed_torch_set_precision(_installed[-1].everywhere if _installed else 0)


def _push(number):
    stack = _thread.__dict__.setdefault("stack", [])
    stack.append(number)
    libraries.operator_library().heed_torch_set_thread_precision(number)


def _pop():
    stack = _thread.__dict__.setdefault("stack", [])
    if stack:
        stack.pop()
    libraries.operator_library().heed_torch_set_thread_precision(stack[-1] if stack else -1)
