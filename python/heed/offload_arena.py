"""The suite *offload*: attention over contexts of several times the granted memory of a GPU, beside the other ways to have them.

    python -m heed.offload_arena --device cuda -o offload.json        32k to 256k tokens, a quarter of them granted
    python -m heed.offload_arena --device cpu --quick                 a simulated GPU: whether it runs, not how fast it is
    python -m heed.offload_arena --tokens 65536 --granted 16384 --layers 4
    python -m heed.offload_arena --tokens 262144 --limit 420 -o evidence/h200/offload.json

| contender | keys and values |
| --- | --- |
| heed | in host memory but the granted ones; the link and the processors share the others (heed.HostKV) |
| heed_streamed | the same, all others over the link |
| heed_resident | all on the GPU, in pages |
| heed_fp8_e4m3 | as heed, with pages of 8 bits: with --kv-dtype fp8_e4m3; max_difference is what rounding them costs |
| torch_resident | all on the GPU in one tensor, scaled_dot_product_attention |
| transformers_offloaded | DynamicCache(offloading=True) of Transformers, scaled_dot_product_attention |

A step is one token that comes behind the others, or the rows of a chunk of a prompt whose keys are there, through every layer. Times are of a step on the host's clock, from an idle device to an idle device:
medians of interleaved pairs, with 95% intervals of the ratio to "heed". Beside them, of "heed": bytes over the link and the share of its rate that they are, how busy link, kernels and processors
were and how much of the link's time a kernel ran (heed.offload_activity), and the share of the least time that link and kernels allow: all on the GPU, or the bytes at the link's rate, whichever
takes longer. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

import argparse
import datetime
import json
import sys
import textwrap
import time
from pathlib import Path

from heed import __version__, offload_activity
from heed.arena_files import Failure, check_writable, usage, write
from heed.measure import measure_pair

HEADS, HEADS_KV, DIM = 32, 8, 128
DTYPES = {"float16": "fp16", "bfloat16": "bf16"}  # as workloads name them
# Largest elements of pages of 8 bits, of which keys and values of N(0, 1) are up to: 5.6 times their deviation saturates.
LARGEST = {"fp8_e4m3": 448, "fp8_e5m2": 57344, "int8": 127}
MOST_SIGMAS = 5.6
TOKENS = (32768, 131072, 262144)
CHUNK = 16384  # rows of a step of prefill
STEPS = 3  # of one block of a pair
MOST_REASON = 150  # characters of a refusal in the table; the evidence has all of it


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="python -m heed.offload_arena", description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a simulated GPU")
    parser.add_argument("--tokens", type=int, action="append", help="tokens of a context; may be given several times")
    parser.add_argument("--granted", type=int, help="tokens of it that the GPU may hold; a quarter by default")
    parser.add_argument("--layers", type=int, default=4, help="layers of a step")
    parser.add_argument("--rows", type=int, default=CHUNK, help="rows of a step of prefill")
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(DTYPES))
    parser.add_argument("--kv-dtype", choices=tuple(LARGEST), help="pages of 8 bits, measured beside those of --dtype")
    parser.add_argument("--link-bandwidth", type=float, default=0.0, help="of a simulated GPU, bytes per second")
    parser.add_argument("--quads", type=int, default=10, help="interleaved quadruples of blocks of a pair")
    parser.add_argument("--limit", type=float, help="seconds after which no other contender begins; what was left out is said in the evidence")
    parser.add_argument("--quick", action="store_true", help="small contexts and few steps: whether it runs")
    parser.add_argument("-o", "--output", type=Path, help="the evidence as JSON; standard output by default")
    options = parser.parse_args(arguments)
    for name in ("layers", "rows", "quads"):
        if getattr(options, name) < 1:
            raise usage(f"--{name} is {getattr(options, name)}; it must be at least 1")
    if options.limit is not None and not options.limit > 0:
        raise usage(f"--limit is {options.limit}; it must be a positive number of seconds")
    options.end = None if options.limit is None else time.monotonic() + options.limit
    options.heads, options.heads_kv, options.dim = HEADS, HEADS_KV, DIM
    if options.quick:
        options.tokens, options.rows, options.quads, options.layers = options.tokens or [1024], min(options.rows, 128), 2, min(options.layers, 2)
        options.heads, options.heads_kv, options.dim = 4, 2, 64
    options.tokens = options.tokens or list(TOKENS)
    for tokens in options.tokens:
        if tokens < 64 or not 0 <= (options.granted or 0) <= tokens:
            raise usage(f"--tokens is {tokens} and --granted {options.granted}; a context has 64 tokens or more, and at most all of them are granted")
    return options


def offloaded_cache(device):
    """Transformers' own. On processors it is the same without the stream that it copies on."""
    from transformers import DynamicCache

    if device == "cuda":
        return DynamicCache(offloading=True)

    class OnProcessors(DynamicCache):
        def prefetch(self, index, only_non_sliding=True):
            self.layers[index % len(self.layers)].prefetch()

        def update(self, keys, values, index, *arguments, **options):
            self.prefetch(index + 1)
            both = self.layers[index].update(keys, values, *arguments, **options)
            self.layers[index].offload()
            return both

    return OnProcessors()


class Context:
    """One context, and what has attended to it: functions of a step, by their contenders' names."""

    def __init__(self, torch, options, tokens, rows):
        self.torch, self.o, self.tokens, self.rows = torch, options, tokens, rows
        self.dtype = getattr(torch, options.dtype)
        self.generator = torch.Generator(options.device).manual_seed(1)
        self.q = self.draw(options.heads, rows)
        self.added = 1 if rows == 1 else 0  # new keys of a step
        self.new = [(self.draw(options.heads_kv, self.added), self.draw(options.heads_kv, self.added)) for _ in range(options.layers)]

    def draw(self, heads, rows):
        return self.torch.randn(1, heads, rows, self.o.dim, generator=self.generator, device=self.o.device).to(self.dtype)

    def past(self):
        """Keys and values of each layer, drawn anew: the same each time."""
        generator = self.torch.Generator(self.o.device).manual_seed(2)
        for _ in range(self.o.layers):
            yield tuple(self.torch.randn(1, self.o.heads_kv, self.tokens, self.o.dim, generator=generator, device=self.o.device).to(self.dtype) for _ in "kv")

    def room(self, steps):
        return self.tokens + steps * self.added

    def pool(self, device_tokens, steps, **options):
        import heed

        o = self.o
        kv = heed.HostKV(
            heads=o.heads, heads_kv=o.heads_kv, dim=o.dim, layers=o.layers, host_tokens=self.room(steps), device_tokens=device_tokens, dtype=self.dtype, device=o.device,
            link_bandwidth=o.link_bandwidth, **options,
        )  # fmt: skip
        for layer, (k, v) in enumerate(self.past()):
            kv.attend(self.q[:, :, :1], k, v, layer=layer)

        def step():
            return [kv.attend(self.q, k, v, layer=layer) for layer, (k, v) in enumerate(self.new)]

        step.kv = kv
        return step

    def sdpa(self, k, v):
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(self.rows, k.shape[2]) if self.rows > 1 else None
        return self.torch.nn.functional.scaled_dot_product_attention(self.q, k, v, attn_mask=mask, enable_gqa=True)

    def torch_resident(self, steps):
        torch, length = self.torch, self.tokens
        caches = []
        for past in self.past():
            caches.append([torch.empty(1, self.o.heads_kv, self.room(steps), self.o.dim, dtype=self.dtype, device=self.o.device) for _ in "kv"])
            for cache, tensor in zip(caches[-1], past):
                cache[:, :, : self.tokens] = tensor

        def step():
            nonlocal length
            outputs = []
            for (k, v), (new_k, new_v) in zip(caches, self.new):
                k[:, :, length : length + self.added], v[:, :, length : length + self.added] = new_k, new_v
                outputs.append(self.sdpa(k[:, :, : length + self.added], v[:, :, : length + self.added]))
            length += self.added
            return outputs

        return step

    def transformers_offloaded(self, _steps):
        cache = offloaded_cache(self.o.device)
        # Layers are there before the first one is fetched ahead.
        for _ in range(self.o.layers):
            cache.layers.append(cache.layer_class_to_replicate())
        for layer, (k, v) in enumerate(self.past()):
            cache.layers[layer].update(k, v)
            cache.layers[layer].offload()
        cache.prefetch(0)  # a step fetches the layer behind each, and its last one the first

        def step():
            return [self.sdpa(*cache.update(k, v, layer)) for layer, (k, v) in enumerate(self.new)]

        return step

    def makers(self, granted):
        """Functions of a number of steps that make a contender's step."""
        makers = {
            "heed": lambda steps: self.pool(granted, steps),
            "heed_streamed": lambda steps: self.pool(granted, steps, streamed_share=1.0),
            "transformers_offloaded": self.transformers_offloaded,
            "heed_resident": lambda steps: self.pool(self.room(steps), steps),
            "torch_resident": self.torch_resident,
        }
        if self.o.kv_dtype:
            scale = MOST_SIGMAS / LARGEST[self.o.kv_dtype]
            makers[f"heed_{self.o.kv_dtype}"] = lambda steps: self.pool(granted, steps, kv_dtype=self.o.kv_dtype, k_scale=scale, v_scale=scale)
        return makers


def us_of(torch, device, step, count):
    """Microseconds of a step, of `count` in a row."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - begin) * 1e6 / count


def row_of(torch, options, tokens, rows):
    """One row of the suite. Contenders are there two at a time, for two of them may take all memory of the GPU."""
    granted = tokens // 4 if options.granted is None else options.granted
    context = Context(torch, options, tokens, rows)
    mode = "decode" if rows == 1 else "prefill"
    text = f"b1h{options.heads}hkv{options.heads_kv}l{rows}k{tokens + context.added}d{options.dim}:{DTYPES[options.dtype]}:causal_bottom_right"
    row = {"suite": "offload", "workload": text, "mode": mode, "layers": options.layers, "granted_tokens": granted, "contenders": {}, "refused": {}}
    makers = context.makers(granted)
    count = STEPS if rows == 1 else 1
    # Steps of a contender: one before, two blocks of each quadruple of each pair, and two blocks of "heed" alone.
    steps = 1 + 2 * count * options.quads * len(makers) + 2 * count
    began = time.perf_counter()
    try:
        base = makers.pop("heed")(steps)
        expected = base()
    except (RuntimeError, MemoryError, NotImplementedError) as refusal:
        raise Failure(f"{text}: {refusal}") from refusal
    for name, make in makers.items():
        if options.end is not None and time.monotonic() > options.end:
            row["refused"][name] = f"left out: the {options.limit:g} seconds of --limit were over"
            continue
        print(f"  {text}: heed beside {name}", file=sys.stderr, flush=True)
        try:
            other = make(steps)
            error = max((one.double() - two.double()).abs().max().item() for one, two in zip(other(), expected))
            pair = measure_pair(lambda: us_of(torch, options.device, base, count), lambda other=other: us_of(torch, options.device, other, count), options.quads)
            row["contenders"][name] = {"us": pair["other_us"], "heed_us": pair["base_us"], "ratio": pair["ratio"], "max_difference": error}
        except (RuntimeError, MemoryError, NotImplementedError, ImportError) as refusal:
            row["refused"][name] = str(refusal).splitlines()[0]
        other = None
        if options.device == "cuda":
            torch.cuda.empty_cache()
    row["seconds"] = time.perf_counter() - began
    return row | of_base(torch, options, base, count, row["contenders"])


def of_base(torch, options, step, count, contenders):
    """What only "heed" is asked: its time, bytes over the link, who was busy, the least time that there could be."""
    before = step.kv.info()
    us = us_of(torch, options.device, step, count)
    after = step.kv.info()
    found = {"heed_us": us, "bytes_in": (after["bytes_in"] - before["bytes_in"]) / count}
    link_us = found["bytes_in"] / after["link_rate"] * 1e6
    found["link_utilisation"] = link_us / us
    kernel_us = contenders["heed_resident"]["us"] if "heed_resident" in contenders else None
    found["least"] = {"link_us": link_us, "resident_us": kernel_us, "share": max(link_us, kernel_us or 0.0) / us}
    try:
        found["activity"] = offload_activity.of_steps(torch, step.kv, step, count)
    except (RuntimeError, ImportError, AttributeError) as refusal:
        found["activity"] = {"refused": str(refusal).splitlines()[0]}
    found["rates"] = {name: after[name] for name in ("link_rate", "host_rate", "device_rate", "device_flops")}
    found["explain"] = step.kv.explain()
    return found


def table(evidence):
    """Lines that a person reads."""
    lines = [f"{'workload':52} {'granted':>8} {'':22} {'us':>10}  time / heed's      95% interval  max difference"]
    for row in evidence["rows"]:
        lines.append(f"{row['workload']:52} {row['granted_tokens']:8} {'heed':22} {row['heed_us']:10.0f}")
        for name, c in row["contenders"].items():
            lines.append(f"{'':61} {name:22} {c['us']:10.0f}  {c['ratio']['value']:13.2f}  {'[%.2f, %.2f]' % (c['ratio']['low'], c['ratio']['high']):>16}  {c['max_difference']:14.1e}")
        lines.append(f"  over the link {row['bytes_in'] / 1e9:.3f} GB a step, {100 * row['link_utilisation']:.0f}% of its rate; {100 * row['least']['share']:.0f}% of the least time of link and kernels")
        activity = row["activity"]
        if "refused" in activity:
            lines.append(f"  busy: not known: {activity['refused']}")
        else:
            overlap = "no copies" if activity["overlap"] is None else f"a kernel ran during {100 * activity['overlap']:.0f}% of the link's time"
            lines.append(f"  busy: link {100 * activity['link_busy']:.0f}%, kernels {100 * activity['kernel_busy']:.0f}%, processors {100 * activity['processors_busy']:.0f}%; {overlap} ({activity['from']})")
        lines += [f"  no {name}: {textwrap.shorten(why, MOST_REASON, placeholder=' ..')}" for name, why in row["refused"].items()]
    return "\n".join(lines)


def measure(options):
    """The evidence."""
    import torch

    from heed import c_api

    if options.device == "cuda" and not torch.cuda.is_available():
        raise Failure("there is no GPU; --device cpu simulates one")
    evidence = {"schema": 1, "what": "offload", "heed": __version__, "torch": torch.__version__, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), **c_api.of_this_machine(options.device), "suites": ["offload"], "rows": []}
    if options.limit is not None:
        evidence["limit_s"] = options.limit
    with torch.no_grad():
        for tokens in options.tokens:
            for rows in (1, min(options.rows, tokens)):
                evidence["rows"].append(row_of(torch, options, tokens, rows))
                evidence["table"] = table(evidence)
                if options.output:  # a run that is stopped leaves the rows that it had
                    write(options.output, json.dumps(evidence, indent=1) + "\n")
    return evidence


def main(arguments=None):
    try:
        options = options_of(arguments)
        if options.output:
            check_writable(options.output)
        evidence = measure(options)
        print(evidence["table"], file=sys.stderr)
        if not options.output:
            print(json.dumps(evidence, indent=1))
        return 0
    except Failure as failure:
        print(f"heed.offload_arena: {failure}", file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
