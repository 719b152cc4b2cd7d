"""The program `heed` of an installed package: the search, the referee and the tools (`heed --help`)."""

import os
import shutil
import signal
import sys
from pathlib import Path


def path():
    """The program that $HEED_PROGRAM names, else the one of this package, else of a source tree's release build, else the one on PATH.
    Raises FileNotFoundError."""
    named = os.environ.get("HEED_PROGRAM")
    if named:
        if not os.access(named, os.X_OK):
            raise FileNotFoundError(f"HEED_PROGRAM is {named}, which is no program that can be run; name the program heed, or unset the variable")
        return named
    package = Path(__file__).resolve().parent
    for candidate in (package / "bin" / "heed", package.parent.parent / "build" / "release" / "heed"):
        if os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which("heed")
    if found is None:
        raise FileNotFoundError("the program heed is neither in this package nor on PATH; install Heed with pip, or build it with `make`")
    return found


def ending_with_parent():
    """A function for subprocess's `preexec_fn`: SIGTERM for the child when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), however that ends, so
    that no search outlives what waits for it; heed stores what it has then."""
    import ctypes  # 10 ms that the command line does without

    prctl, pr_set_pdeathsig = ctypes.CDLL(None).prctl, 1  # loaded here: a child of a process with threads should load nothing
    return lambda: prctl(pr_set_pdeathsig, signal.SIGTERM)


def main():
    """Becomes the program."""
    try:
        program = path()
    except FileNotFoundError as error:
        print(f"heed: {error}", file=sys.stderr)
        return 1
    os.execv(program, [program, *sys.argv[1:]])
