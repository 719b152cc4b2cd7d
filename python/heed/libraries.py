"""Where Heed's compiled libraries lie, and the functions that Python calls in them."""

import ctypes
import functools
import os
from pathlib import Path

FOLDER_VARIABLE = "HEED_LIBRARIES"


class LibraryMissing(ImportError):
    """A compiled library is not where it should be, or cannot be loaded; the message is a whole sentence."""


def folder():
    """The folder that holds libheed.so and libheed_torch.so: the one that HEED_LIBRARIES names, else that of an installed package,
    else the release build of a source tree. Raises LibraryMissing."""
    package = Path(__file__).resolve().parent
    named = os.environ.get(FOLDER_VARIABLE)
    candidates = [Path(named)] if named else [package / "lib", package.parent.parent / "build" / "release"]
    for candidate in candidates:
        if (candidate / "libheed_torch.so").is_file():
            return candidate
    looked = " and ".join(str(candidate) for candidate in candidates)
    raise LibraryMissing(f"libheed_torch.so is not in {looked}; install Heed with pip, or build it with `make` and name the folder in {FOLDER_VARIABLE}")


def loaded(name):
    """A library of that folder. Raises LibraryMissing."""
    path = folder() / name
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryMissing(f"{path} cannot be loaded: {error}") from error


VISIT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, *([ctypes.c_char_p] * 5), ctypes.c_uint64, ctypes.c_uint64)


@functools.cache
def operator_library():
    """libheed_torch.so, with the types of its functions set (bindings/torch/operator.cpp)."""
    library = loaded("libheed_torch.so")
    library.heed_torch_last_error.restype = ctypes.c_char_p
    library.heed_torch_register.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    library.heed_torch_install.argtypes = [ctypes.c_int]
    library.heed_torch_note_exception.argtypes = [ctypes.c_char_p]
    library.heed_torch_note_exception.restype = None
    library.heed_torch_count.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p]
    library.heed_torch_count.restype = None
    library.heed_torch_set_flash.argtypes = [ctypes.c_int]
    library.heed_torch_set_flash.restype = None
    for function in (library.heed_torch_set_precision, library.heed_torch_set_thread_precision):
        function.argtypes = [ctypes.c_int]
        function.restype = None
    library.heed_torch_set_strict.argtypes = [ctypes.c_int]
    library.heed_torch_set_strict.restype = None
    library.heed_torch_refusal.argtypes = [ctypes.c_int]
    library.heed_torch_refusal.restype = ctypes.c_char_p
    library.heed_torch_report.argtypes = [ctypes.c_void_p, VISIT]
    return library


def check(status):
    """Raises RuntimeError with the library's sentence unless `status` is 0."""
    if status:
        raise RuntimeError(operator_library().heed_torch_last_error().decode())
