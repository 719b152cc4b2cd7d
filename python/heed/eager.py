"""Host time of a call: Heed in the ways that users call it, beside torch.nn.functional.scaled_dot_product_attention.

    python -m heed.eager                          print a table
    python -m heed.eager -o evidence/h100/calls.json
    python -m heed.eager --show evidence/h100/calls.json

A time is that of calls back to back without a wait between them, divided by their number: what the host takes, or the GPU where that
takes longer. Ways are interleaved, and the median of rounds is taken.
"""

import contextlib
import statistics
import sys
import time

from heed import stored_times
from heed.suites import LATENCY, BadWorkload, parse_workload

WORKLOADS = (*LATENCY, "b1h32hkv8l1k4096d128:bf16", "b1h32hkv8l2048d128:bf16:causal_top_left", "b1h1l16d64")
SECONDS = 0.02  # of one way in one round


def ways(torch, heed, q, k, v, causal, gqa):
    """{name: (context, function)}; a context is entered for the time of a round. Needs gradients in the ways named so."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    learned = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    named = {"is_causal": causal, "enable_gqa": gqa}
    compiled = torch.compile(lambda q, k, v: heed.scaled_dot_product_attention(q, k, v, **named), fullgraph=True)

    @contextlib.contextmanager
    def overridden(mode):
        with mode(), heed.sdpa(strict=True):
            yield

    def train(function):
        def step():
            function(*learned, **named).backward(q)

        return step

    no_grad, inference = torch.no_grad, torch.inference_mode
    return {
        "sdpa, no_grad": (no_grad, lambda: sdpa(q, k, v, **named)),
        "sdpa, inference_mode": (inference, lambda: sdpa(q, k, v, **named)),
        "sdpa, forward and backward": (contextlib.nullcontext, train(sdpa)),
        "heed.scaled_dot_product_attention, no_grad": (no_grad, lambda: heed.scaled_dot_product_attention(q, k, v, **named)),
        "heed.scaled_dot_product_attention, inference_mode": (inference, lambda: heed.scaled_dot_product_attention(q, k, v, **named)),
        "heed.attention, no_grad": (no_grad, lambda: heed.attention(q, k, v, causal=causal)),
        "heed.sdpa() in place of sdpa, no_grad": (lambda: overridden(no_grad), lambda: sdpa(q, k, v, **named)),
        "heed.sdpa() in place of sdpa, inference_mode": (lambda: overridden(inference), lambda: sdpa(q, k, v, **named)),
        "heed, forward and backward": (contextlib.nullcontext, train(heed.scaled_dot_product_attention)),
        "heed, compiled, no_grad": (no_grad, lambda: compiled(q, k, v)),
    }


def microseconds(function, count, synchronize):
    """A call's time, of `count` back to back."""
    synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        function()
    synchronize()
    return (time.perf_counter() - begin) / count * 1e6


def graph_microseconds(torch, function, calls=200):
    """A call's time on the GPU, within a CUDA graph of many."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    graph.replay()
    return statistics.median(microseconds(graph.replay, 3, torch.cuda.synchronize) for _ in range(7)) / calls


def measure(torch, heed, text, device, rounds):
    """A row: us by way, and on a GPU by graph."""
    w = parse_workload(text)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[w.dtype]
    q = torch.randn(w.batch, w.heads, w.len_q, w.dim, dtype=dtype, device=device)
    k, v = (torch.randn(w.batch, w.heads_kv, w.len_k, w.dim, dtype=dtype, device=device) for _ in range(2))
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    all_ways = ways(torch, heed, q, k, v, w.mask != "none", w.heads != w.heads_kv)
    counts = {}
    for name, (context, function) in all_ways.items():
        with context():
            for _ in range(5):
                function()
            counts[name] = max(5, min(2000, int(SECONDS * 1e6 / microseconds(function, 10, synchronize))))
    times = {name: [] for name in all_ways}
    for _ in range(rounds):
        for name, (context, function) in all_ways.items():
            with context():
                times[name].append(microseconds(function, counts[name], synchronize))
    row = {"workload": str(w), "us": {name: round(statistics.median(many), 3) for name, many in times.items()}}
    if device == "cuda":
        with torch.no_grad():
            row["graph_us"] = {name: round(graph_microseconds(torch, all_ways[f"{name}, no_grad"][1]), 3) for name in ("sdpa", "heed.scaled_dot_product_attention")}
    return row


def new_lengths(torch, heed, device):
    """us of a first call with each of 64 lengths of a cache whose program is loaded: a decoder plans anew for every token."""
    dtype = torch.bfloat16
    q = torch.randn(1, 32, 1, 128, dtype=dtype, device=device)
    k, v = (torch.randn(1, 8, 5000, 128, dtype=dtype, device=device) for _ in range(2))
    heed.attention(q, k[:, :, :4000], v[:, :, :4000])
    times = []
    for length in range(4001, 4065):
        begin = time.perf_counter()
        heed.attention(q, k[:, :, :length], v[:, :, :length])
        times.append((time.perf_counter() - begin) * 1e6)
    return round(statistics.median(times), 3)


COLUMNS = {  # of a table: heading, way
    "sdpa": "sdpa, no_grad",
    "heed.sdpa()": "heed.sdpa() in place of sdpa, no_grad",
    "heed's function": "heed.scaled_dot_product_attention, no_grad",
    "sdpa, trained": "sdpa, forward and backward",
    "heed, trained": "heed, forward and backward",
}
GRAPHS = {"sdpa, graph": "sdpa", "heed, graph": "heed.scaled_dot_product_attention"}


def table(evidence):
    """Text: a line for each workload."""
    width = max(len(row["workload"]) for row in evidence["rows"])
    lines = [f"{evidence['device']}, PyTorch {evidence['torch']}; us a call", ""]
    lines.append(f"{'':<{width}}" + "".join(f"{heading:>17}" for heading in (*COLUMNS, *GRAPHS)))
    for row in evidence["rows"]:
        times = [row["us"][way] for way in COLUMNS.values()] + [row.get("graph_us", {}).get(way) for way in GRAPHS.values()]
        lines.append(f"{row['workload']:<{width}}" + "".join(f"{'-':>17}" if us is None else f"{us:>17.2f}" for us in times))
    lines += ["", f"a plan for a new length, its program loaded: {evidence['new_length_us']:.1f} us"]
    return "\n".join(lines)


def main(arguments=None):
    """Exit code: 0, or 2 for a wrong argument."""
    parser = stored_times.parser("heed.eager", __doc__.split("\n")[0], rounds=9)
    parser.add_argument("--shapes", default=",".join(WORKLOADS), metavar="W,...", help="workloads [those of the latency suite and three more]")
    options = parser.parse_args(arguments)
    if options.show:
        return stored_times.shown(options.show, table)
    try:
        texts = [str(parse_workload(text)) for text in options.shapes.split(",")]
    except BadWorkload as error:
        parser.error(str(error))
    import torch

    import heed

    device, evidence = stored_times.head("eager", options)
    for text in texts:
        evidence["rows"].append(measure(torch, heed, text, device, options.rounds))
        print(text, file=sys.stderr, flush=True)
    evidence["new_length_us"] = new_lengths(torch, heed, device)
    return stored_times.store(evidence, options, table)


if __name__ == "__main__":
    sys.exit(main())
