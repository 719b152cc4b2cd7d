"""Runs files of Python tests and says of each test that skipped why; scripts/test collects these lines.

    run.py [--import MODULE,...] FILE_test.py...

Several files run one after the other, each in a process forked from this one, which has imported PyTorch and the modules of --import:
that takes 3 s of a processor (transformers and diffusers 7 s more), as long as many files themselves.

Every test draws the same random numbers in every run, whatever ran before it: a failure comes again.

Exit code: 0 passed, 1 failed, 77 when every test skipped (CTest's SKIP_RETURN_CODE): a file, or all of them, is skipped only if nothing
in it ran.
"""

import argparse
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import os
import random
import sys
import unittest
from pathlib import Path

ALL_SKIPPED = 77


def take_a_processor():
    """Binds this process to a processor that no other test holds, as tests/own_processor.hpp does, until it ends; else nothing changes.

    @returns the locked file, which must stay open; None without one
    """
    for processor in sorted(os.sched_getaffinity(0)):
        try:
            file = open(f"/tmp/heed-test-processor-{os.getuid()}-{processor}", "a", encoding="utf-8")
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        os.sched_setaffinity(0, {processor})
        return file
    return None


class SeededResult(unittest.TextTestResult):
    """Seeds the generators of Python and, where a test has imported it, PyTorch before every test."""

    def startTest(self, test):
        random.seed(0)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(0)
        super().startTest(test)


def exit_code(result):
    """What a finished run ends with."""
    # setUpModule skips a file as one, before any test of it counts as run, and a part of a test (subTest) skips beside parts that ran.
    whole = [test for test, _ in result.skipped if isinstance(test, unittest.TestCase) and not hasattr(test, "test_case")]
    if not result.wasSuccessful() or (result.testsRun == 0 and not result.skipped):
        return 1
    return ALL_SKIPPED if result.skipped and len(whole) == result.testsRun else 0


def run_file(path):
    """The exit code of one file, whose tests run in this process."""
    file = Path(path).resolve()
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(f"skipped: {file.stem}: PyTorch is not installed")
        return ALL_SKIPPED
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=1, resultclass=SeededResult).run(unittest.defaultTestLoader.loadTestsFromModule(module))
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    return exit_code(result)


def run_forked(path):
    """The exit code of one file, whose tests run in a process of their own; minus a signal's number where one ended it."""
    print(f"=== {Path(path).stem}", flush=True)
    child = os.fork()
    if child == 0:
        sys.exit(run_file(path))  # as any program ends, with what atexit has to do
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"=== {Path(path).stem}: {f'ended by signal {-code}' if code < 0 else f'exit {code}'}", flush=True)
    return code


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--import", dest="modules", default="", help="imported before the first of several files, where installed; separated by commas")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    if len(options.files) == 1:
        return run_file(options.files[0])
    for name in ["torch", *filter(None, options.modules.split(","))]:
        with contextlib.suppress(ModuleNotFoundError):  # files that need it say so
            importlib.import_module(name)
    gc.freeze()  # else a child's first collection copies every page of what was imported
    codes = {run_forked(file) for file in options.files}
    return ALL_SKIPPED if codes == {ALL_SKIPPED} else int(not codes <= {0, ALL_SKIPPED})


if __name__ == "__main__":
    held = take_a_processor() if "HEED_TEST_ON_ONE_PROCESSOR" in os.environ else None
    sys.exit(main(sys.argv[1:]))
