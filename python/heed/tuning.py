"""From a model to kernels: record the calls that it makes, evolve kernels for them, and measure the model with them."""

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from heed import operators, override, program, recording

STEPS = 7  # of the model, timed before and after
LAST_LINES = 3  # of a command that failed, in the error


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What `tune` returns. Rows are (workload, form, calls, seconds before, seconds after), of one step of the model; `str()` is a table."""

    rows: tuple
    step_before: float
    step_after: float
    results: dict  # what `heed evolve --workloads --json` printed

    def __str__(self):
        width = max([len("whole step"), *(len(f"{row[0] or 'no form of attention'} {row[1]}".strip()) for row in self.rows)])
        lines = [f"{'':<{width}}  {'calls':>7}  {'before, ms':>11}  {'after, ms':>11}  {'ratio':>6}"]
        for workload, form, calls, before, after in self.rows:
            name = f"{workload or 'no form of attention'} {form}".strip()
            lines.append(f"{name:<{width}}  {calls:>7}  {1e3 * before:>11.3f}  {1e3 * after:>11.3f}  {before / after if after else 0:>6.2f}")
        lines.append(f"{'whole step':<{width}}  {'':>7}  {1e3 * self.step_before:>11.3f}  {1e3 * self.step_after:>11.3f}  {self.step_before / self.step_after:>6.2f}")
        return "\n".join(lines)


def _wait():
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _step_seconds(model_fn, context):
    """The median time of a step."""
    times = []
    with context():
        model_fn()
        for _ in range(STEPS):
            _wait()
            begin = time.perf_counter()
            model_fn()
            _wait()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _recorded(model_fn, by):
    """The calls of a step, and their times: means of STEPS steps behind one that loads programs."""
    with recording.record(by=by) as recorded:
        model_fn()
        recorded.reset()
        for _ in range(STEPS):
            model_fn()
    for row in recorded.rows.values():
        row.calls //= STEPS
        row.seconds /= STEPS
    return recorded


def evolve(calls, *, trials=45, book=None, device="auto", extra=(), quiet=False):
    """Runs `heed evolve --workloads CALLS`; its progress goes to stderr. Returns what it printed as JSON.

    calls    a file that heed.record wrote
    trials   for all workloads together
    book     the book that champions go to; None for the user's own (`heed book --help`)
    device   auto, cpu or cuda
    extra    more arguments of the command line

    Raises RuntimeError with its last lines where it fails, and KeyboardInterrupt, which names the command that goes on, where it was interrupted: what had ended by then is
    kept, for it is waited for. A second Ctrl-C ends it at once. The search is in a session of its own, and ends with the thread that called this, keeping the same:
    where its terminal is closed, or the process is killed.
    """
    command = [program.path(), "evolve", "--workloads", str(calls), "--trials", str(trials), "--device", device, "--json", "--book", *([str(book)] if book else []), *extra]
    # A session of its own: a terminal sends Ctrl-C to all of a group, and of two signals the second would end the program before its run is stored.
    # SIGHUP of the terminal does not reach it either, which is why it ends with its parent.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None, text=True, start_new_session=True,
                               preexec_fn=program.ending_with_parent())  # fmt: skip
    stdout, stderr = _ended(process)
    if process.returncode in (130, -signal.SIGINT):
        raise KeyboardInterrupt(f"interrupted; what had ended is kept, and this goes on: {shlex.join(part for part in command if part != '--json')}")
    if process.returncode != 0:
        lines = (stderr or stdout or "").strip().splitlines()
        # Wrong arguments are said in front of a hint at --help.
        said = " ".join(lines[-LAST_LINES:]) or "it says above why"
        raise RuntimeError(f"heed evolve ended with {process.returncode}: {said}")
    return json.loads(stdout)


def _ended(process):
    """What a process that has ended has written to stdout and stderr. Each Ctrl-C meanwhile is one for the process."""
    while True:
        try:
            return process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)


def tune(model_fn, *, trials=45, calls=None, book=None, device=None, extra=(), quiet=False):
    """Evolves kernels for the attention calls of a model, puts them into a book, and measures the model before and after.

    model_fn   a function without arguments that runs one step of the model, on inputs as they will be. It is called about 35 times.
    trials     of the search, for all workloads together; each workload gets a share by what it could gain
    calls      a file for the recorded calls, to be kept; None for a temporary one, which is kept where the search is interrupted
    book       the book; None for the user's own, from which every later process takes its kernels
    device     "cpu" or "cuda"; None for that of the recorded calls
    extra      more arguments for `heed evolve`

    Returns a Tuned, whose `str()` is a table: calls, time before, time after, the whole step before and after. "Before" is PyTorch's own
    scaled_dot_product_attention. Raises RuntimeError where the model makes no call that a kernel of Heed has the form of, and KeyboardInterrupt as `evolve` does.
    """
    folder = tempfile.mkdtemp(prefix="heed-tune-") if calls is None else None
    path = Path(calls) if calls is not None else Path(folder) / "calls.json"
    is_interrupted = False
    try:
        model_fn()  # what is compiled or loaded first is no time of a step
        step_before = _step_seconds(model_fn, contextlib.nullcontext)
        before = _recorded(model_fn, "torch")
        before.save(path)
        if not any(row.workload and not row.form for row in before.rows.values()):
            raise RuntimeError("heed.tune(): the model makes no call that Heed has a kernel for; heed.record() shows what calls it makes")
        device = device or ("cpu" if before.device == "cpu" else "cuda")
        try:
            results = evolve(path, trials=trials, book=book, device=device, extra=extra, quiet=quiet)
        except KeyboardInterrupt:
            is_interrupted = True
            raise
    finally:
        if folder is not None and not is_interrupted:  # the command that goes on reads the file
            shutil.rmtree(folder, ignore_errors=True)
    # Where nothing won there may be no book, and libheed refuses every plan for one that is named and missing.
    if book is not None and Path(book).is_file():
        os.environ["HEED_BOOK"] = str(book)
    operators.native.heed_torch_forget()  # plans are made anew, with the book
    step_after = _step_seconds(model_fn, override.sdpa)
    after = _recorded(model_fn, "heed")
    rows = tuple(
        (row.workload, row.form, row.calls, row.seconds, after.rows[key].seconds if key in after.rows else 0.0)
        for key, row in sorted(before.rows.items(), key=lambda item: -item[1].seconds)
    )
    return Tuned(rows, step_before, step_after, results)
