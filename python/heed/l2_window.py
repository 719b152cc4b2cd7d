"""What an L2 access-policy window over K and V gains a loop that decodes over one prefix, with other kernels in between (heed_options.l2).

    python -m heed.l2_window -o evidence/h200/l2_window.json
    python -m heed.l2_window --lengths 4096 --between 64

A step is attention of one query over the same K and V as in every step, then a product of a vector with a matrix of its own that is read from
memory, as weights of a model are. Steps are a CUDA graph. The loop runs in two ways, by turns: as it is, and with as much of the L2 set aside
as the GPU allows (cuCtxSetLimit) and plans made with HEED_L2_KEEP_KV. "CUDA C++ Programming Guide", L2 Cache Control.

A ratio is the time of the loop as it is over that with windows: above 1 the windows gain. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
interrupted.
"""

import argparse
import ctypes
import datetime
import json
import sys
import tempfile
from pathlib import Path

from heed import __version__, c_api, launch, measure
from heed.arena_files import Failure, check_writable, usage, write
from heed.suites import parse_workload

LENGTHS = (2048, 4096, 8192)
BETWEEN_MB = (0, 32, 128)
SHAPE = "b1h32hkv8l1k{}d128:bf16"
COLUMNS = 8192  # of a matrix in between
STEPS = 16  # of one graph; each has a matrix of its own
REPLAYS = 20  # of a block
QUADS = 15
PERSISTING_L2_CACHE_SIZE = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
MAX_PERSISTING_L2_CACHE_SIZE = 108  # CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE
L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
KEEP_KV = 1  # HEED_L2_KEEP_KV


class Driver:
    """The CUDA driver, in the context that PyTorch made current. Raises Failure where a call fails."""

    def __init__(self):
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Failure(f"no CUDA driver can be loaded: {error}") from error

    def check(self, status, what):
        """Raises Failure unless a call's status is 0."""
        if status:
            raise Failure(f"{what} failed: CUDA error {status}")

    def attribute(self, number):
        """An attribute of device 0."""
        value = ctypes.c_int()
        self.check(self.lib.cuDeviceGetAttribute(ctypes.byref(value), number, 0), "asking the GPU for an attribute")
        return value.value

    def set_aside(self, size):
        """Sets `size` bytes of the L2 aside, and releases lines that stayed before; returns how many bytes the GPU took."""
        self.check(self.lib.cuCtxResetPersistingL2Cache(), "releasing lines of the L2")
        self.check(self.lib.cuCtxSetLimit(PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(size)), f"setting {size} bytes of the L2 aside")
        found = ctypes.c_size_t()
        self.check(self.lib.cuCtxGetLimit(ctypes.byref(found), PERSISTING_L2_CACHE_SIZE), "asking how much of the L2 is set aside")
        return found.value


def captured(torch, step, steps):
    """A CUDA graph of step(0), step(1) ..."""
    for n in range(steps):
        step(n)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for n in range(steps):
            step(n)
    return graph


def block_of(torch, graph, before):
    """A function that times replays of a graph: us of one. The first one after `before` is not timed."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def block():
        before()
        graph.replay()
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000 / REPLAYS

    return block


def row_of(torch, driver, binary, workload, between_mb, most, quads):
    """The loop's times for one workload and so many megabytes read in between; times are of one step."""
    generator = torch.Generator("cuda").manual_seed(1)

    def make(heads, length):
        return torch.randn(1, heads, length, workload.dim, generator=generator, device="cuda").to(torch.bfloat16)

    q, k, v = make(workload.heads, 1), make(workload.heads_kv, workload.len_k), make(workload.heads_kv, workload.len_k)
    rows = between_mb * 1_000_000 // (2 * COLUMNS)
    matrices = [torch.randn(rows, COLUMNS, device="cuda").to(torch.bfloat16) for _ in range(STEPS if rows else 0)]
    vector = torch.randn(COLUMNS, device="cuda").to(torch.bfloat16)
    blocks, outputs, kept = {}, {}, 0
    for way, size, l2 in (("default", 0, 0), ("window", most, KEEP_KV)):
        aside = driver.set_aside(size)
        kept = kept or aside
        attention = launch.HeedAttention(binary, workload, l2=l2)
        outputs[way] = torch.empty_like(q)

        def step(n, attention=attention, o=outputs[way]):
            attention.into(q, k, v, o)
            if matrices:
                torch.mv(matrices[n], vector)

        graph = captured(torch, step, STEPS)
        blocks[way] = block_of(torch, graph, lambda size=size: driver.set_aside(size))
    pair = measure.measure_pair(blocks["window"], blocks["default"], quads, limit_s=10)
    if not torch.equal(outputs["default"], outputs["window"]):
        raise Failure(f"{workload}: a window over the L2 changed the output")
    driver.set_aside(0)
    others = block_of(torch, captured(torch, lambda n: torch.mv(matrices[n], vector), STEPS), lambda: None)() / STEPS if matrices else 0.0
    return {
        "workload": str(workload),
        "kv_bytes": workload.heads_kv * workload.len_k * workload.dim * 2 * 2,
        "between_bytes": rows * COLUMNS * 2,
        "set_aside_bytes": kept,
        "default_us": pair["other_us"] / STEPS,
        "window_us": pair["base_us"] / STEPS,
        "between_us": others,
        "ratio": pair["ratio"],
    }


def table_of(rows):
    """The rows as text."""
    lines = [f"{'workload':<30}  {'K and V':>8}  {'between':>8}  {'set aside':>9}  {'default us':>10}  {'window us':>9}  {'between us':>10}  ratio  95% interval"]
    for row in rows:
        sizes = [f"{row[key] / 1e6:.1f} MB" for key in ("kv_bytes", "between_bytes", "set_aside_bytes")]
        ratio = row["ratio"]
        lines.append(
            f"{row['workload']:<30}  {sizes[0]:>8}  {sizes[1]:>8}  {sizes[2]:>9}  {row['default_us']:10.2f}  {row['window_us']:9.2f}  {row['between_us']:10.2f}  "
            f"{ratio['value']:.3f}  [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        )
    return "\n".join(lines) + "\n"


def measure_all(options):
    """Measures each row; returns the evidence. Raises Failure."""
    try:
        import torch
    except ImportError as error:
        raise Failure(f"PyTorch cannot be imported ({error}); measuring needs it") from error
    if not torch.cuda.is_available():
        raise Failure("this PyTorch sees no GPU, and a CPU has no access-policy windows")
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    driver = Driver()
    most = driver.attribute(MAX_PERSISTING_L2_CACHE_SIZE)
    if most <= 0:
        raise Failure("this GPU sets nothing of the L2 aside")
    measure.use_one_stream(torch)
    workloads = [parse_workload(SHAPE.format(length)) for length in options.lengths]
    clocks = measure.Clocks(True)
    before, rows = clocks.mhz(), []
    with tempfile.TemporaryDirectory() as folder:
        built = launch.build(launch.find_heed(options.heed), [(str(w), "auto") for w in workloads], folder, "cuda", options.cache)
        for workload, binary in zip(workloads, built["builds"]):
            if "refused" in binary:
                raise Failure(f"{workload}: {binary['refused']}")
            for between in options.between:
                rows.append(row_of(torch, driver, binary, workload, between, most, options.quads))
                print(table_of(rows[-1:]).splitlines()[-1], flush=True)
    device = built["device"]
    return {
        "schema": 1,
        "what": "l2_window",
        "device": device["name"],
        "arch": device["arch"],
        "driver": device["driver"],
        "clocks_mhz": {"before": before, "after": clocks.mhz()},
        "heed": __version__,
        "source_digest": built["source_digest"],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "peer": {"torch": torch.__version__},
        "l2_bytes": driver.attribute(L2_CACHE_SIZE),
        "most_set_aside_bytes": most,
        "steps": STEPS,
        "rows": rows,
        "table": table_of(rows),
    }


def numbers(text):
    """Whole numbers of a comma list. Raises argparse.ArgumentTypeError."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is no list of whole numbers, as 2048,4096') from None
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f'"{text}" holds a negative number')
    return found


def main(arguments=None):
    """Runs the command line; returns the exit code."""
    p = argparse.ArgumentParser(prog="python -m heed.l2_window", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lengths", type=numbers, default=list(LENGTHS), metavar="N,...", help="keys of the prefix [2048,4096,8192]: 8, 17 and 34 MB of K and V")
    p.add_argument("--between", type=numbers, default=list(BETWEEN_MB), metavar="MB,...", help="megabytes read between two calls [0,32,128]")
    p.add_argument("--quads", type=int, default=QUADS, help="interleaved quadruples of blocks of a row [15]")
    p.add_argument("--heed", metavar="PATH", help="the heed program [of this package, of a checkout's release build, or that on PATH]")
    p.add_argument("--cache", metavar="FOLDER", help="Heed's folder for built kernels")
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help="the evidence as JSON [none]")
    options = p.parse_args(arguments)
    try:
        if options.quads < 1 or min(options.lengths) < 1:
            raise usage("--quads and each of --lengths must be at least 1")
        if options.output:
            check_writable(options.output)
        evidence = measure_all(options)
        print(evidence["table"], end="")
        if options.output:
            write(options.output, json.dumps(evidence, indent=1) + "\n")
        return 0
    except (Failure, launch.HeedError) as error:
        print(f"heed.l2_window: {error}", file=sys.stderr)
        return getattr(error, "code", 1)
    except KeyboardInterrupt:
        print("heed.l2_window: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
