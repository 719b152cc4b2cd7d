"""PyTorch's scaled_dot_product_attention as something to be measured against.

Runs as a helper process of `heed`: one JSON request a line on stdin, one JSON answer a line on stdout.

    {"op": "hello", "workload": {...}, "sets": S, "launches": N, "threads": T, "cache_bytes": C, "hybrid": false}
        -> {"torch": "2.11.0", "cudnn": "9.19", "device": "...", "backends": {"flash": {"kernels": [...]}, "math": {"refused": "why"}}}
    {"op": "time", "backend": "flash", "replays": R, "warm_up_ms": 5}
        -> {"us": [per launch, one entry a replay]}
    {"op": "error", "backend": "flash"}
        -> {"max_abs": ...}  against the same attention in float64

On a GPU the N calls are captured in one CUDA graph and replays are queued back to back behind a filled L2 and one more replay, as Heed times its own kernels; call n
reads Q of set n % S, K of set (n + n // S) % S and V of set (n + 2 * (n // S)) % S. Each backend is forced with
torch.nn.attention.sdpa_kernel and reported with the names of the kernels that ran
(https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html).

A workload's mask is {"name", "left_offset", "right_offset"}: key j is visible to query i when i + left_offset <= j <= i + right_offset, null
where there is no such bound. SDPA has no windows: it gets an explicit boolean mask, and the backends are named "math_with_mask" and so on.

With "hybrid": true there is one more backend, "hybrid", which is not SDPA: scale * Q K^T (+ mask) by the matrix library, a softmax
that computes in fp32, P V by the matrix library, in three kernels (a mask adds one, which copies it).
"""

import contextlib
import json
import sys
import time


def fail(text):
    """Answers with an error and ends: the caller goes on without PyTorch."""
    print(json.dumps({"error": text}), flush=True)
    sys.exit(0)


try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
except Exception as error:  # any failure to import means: no PyTorch here
    fail(f"PyTorch cannot be imported: {error}")

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}

HYBRID = "hybrid"
WITH_MASK = "_with_mask"  # a backend that is given a boolean mask


def forced(backend):
    """Context in which scaled_dot_product_attention takes this backend; the hybrid does not call it."""
    return contextlib.nullcontext() if backend == HYBRID else sdpa_kernel(BACKENDS[backend.removesuffix(WITH_MASK)])


# OpenMP's threads spin for a while after a parallel region; whoever is measured next must not share the processors with them.
SPIN_S = 0.02


class Peer:
    """Tensors, captured graphs and timings for one workload."""

    def __init__(self, request):
        w = self.workload = request["workload"]
        self.sets = request["sets"]
        self.launches = request["launches"]
        self.cuda = request["device"] == "cuda"
        if self.cuda and not torch.cuda.is_available():
            fail("this PyTorch sees no GPU")
        self.device = torch.device("cuda" if self.cuda else "cpu")
        if self.cuda:
            # Twice the L2, to fill it before a reading (heed.measure.cache_filler).
            self.filler = torch.empty(2 * request["cache_bytes"], dtype=torch.uint8, device="cuda")
            torch.cuda.set_stream(torch.cuda.Stream())  # the only one: more make every launch longer (heed.measure.use_one_stream)
        else:
            torch.set_num_threads(request["threads"])
        generator = torch.Generator(device=self.device).manual_seed(request["seed"])
        dtype = DTYPES[w["dtype"]]

        def tensor(heads, length, dim):
            """(batch, heads, length, dim) in the workload's memory layout."""
            shape = (w["batch"], heads, length, dim) if w["layout"] == "bhld" else (w["batch"], length, heads, dim)
            x = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(dtype)
            return x if w["layout"] == "bhld" else x.transpose(1, 2)

        self.q = [tensor(w["heads"], w["len_q"], w["dim"]) for _ in range(self.sets)]
        self.k = [tensor(w["heads_kv"], w["len_k"], w["dim"]) for _ in range(self.sets)]
        self.v = [tensor(w["heads_kv"], w["len_k"], w["dim_v"]) for _ in range(self.sets)]
        self.arguments = {"scale": w["scale"], "enable_gqa": w["heads"] != w["heads_kv"]}
        mask = w["mask"]
        windowed = mask["left_offset"] is not None or mask["name"].startswith("window")
        if windowed:
            self.arguments["attn_mask"] = self.seen_keys()
        elif mask["name"] == "causal_top_left":
            self.arguments["is_causal"] = True
        elif mask["name"] == "causal_bottom_right":
            from torch.nn.attention.bias import causal_lower_right

            if w["len_q"] == w["len_k"]:
                self.arguments["is_causal"] = True
            else:
                self.arguments["attn_mask"] = causal_lower_right(w["len_q"], w["len_k"])
        self.graphs = {}
        self.backends = [name + WITH_MASK if windowed else name for name in BACKENDS]
        if request.get("hybrid"):
            self.backends.append(HYBRID)
        # Added to the scores by the first product: 0 where a key is seen, -inf where it is not.
        self.mask = None
        if mask["name"] != "none" and HYBRID in self.backends:
            added = torch.zeros(w["len_q"], w["len_k"], dtype=dtype, device=self.device).masked_fill(~self.seen_keys(), float("-inf"))
            self.mask = added.repeat(w["heads"] // w["heads_kv"], 1)[None]

    def seen_keys(self):
        """(len_q, len_k), true where a query sees a key."""
        w, mask = self.workload, self.workload["mask"]
        seen = torch.ones(w["len_q"], w["len_k"], dtype=torch.bool, device=self.device)
        if mask["right_offset"] is not None:
            seen = seen.tril(mask["right_offset"])
        return seen if mask["left_offset"] is None else seen.triu(mask["left_offset"])

    def hybrid(self, q, k, v):
        """The three steps; query heads that share a key head are rows of one product."""
        w = self.workload
        entries, rows = w["batch"] * w["heads_kv"], w["heads"] // w["heads_kv"] * w["len_q"]
        q, k, v = q.reshape(entries, rows, -1), k.reshape(entries, w["len_k"], -1), v.reshape(entries, w["len_k"], -1)
        if self.mask is None:
            scores = torch.empty(entries, rows, w["len_k"], dtype=q.dtype, device=self.device)
            scores.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=w["scale"])  # in place: nothing is copied first
        else:
            scores = torch.baddbmm(self.mask, q, k.transpose(1, 2), alpha=w["scale"])
        out = torch.bmm(torch.softmax(scores, -1), v)
        return out.reshape(w["batch"], w["heads"], w["len_q"], w["dim_v"])

    def call(self, backend, n=0):
        """Call n of a replay."""
        turn = n // self.sets
        q, k, v = self.q[n % self.sets], self.k[(n + turn) % self.sets], self.v[(n + 2 * turn) % self.sets]
        return self.hybrid(q, k, v) if backend == HYBRID else scaled_dot_product_attention(q, k, v, **self.arguments)

    def kernels(self, backend):
        """Names of the device kernels (CPU: operators) that one call runs."""
        from torch.profiler import ProfilerActivity, profile

        activity = ProfilerActivity.CUDA if self.cuda else ProfilerActivity.CPU
        with forced(backend), profile(activities=[activity]) as p:
            self.call(backend)
            if self.cuda:
                torch.cuda.synchronize()
        names = [e.name for e in p.events() if not self.cuda or str(e.device_type).endswith("CUDA")]
        return list(dict.fromkeys(names))[:8]

    def probe(self, backend):
        """Kernel names of a backend, or why it refuses the workload."""
        try:
            with forced(backend), torch.no_grad():
                self.call(backend)
                if self.cuda:
                    torch.cuda.synchronize()
            with torch.no_grad():
                return {"kernels": self.kernels(backend)}
        except Exception as error:  # a backend that refuses a shape raises RuntimeError; others have raised others
            return {"refused": str(error).split("\n")[0][:300]}

    def graph(self, backend):
        """The backend's N calls as a CUDA graph, captured once."""
        if backend not in self.graphs:
            stream = torch.cuda.current_stream()
            with forced(backend), torch.no_grad():
                for n in range(3):
                    self.call(backend, n)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for n in range(self.launches):
                        self.call(backend, n)
            self.graphs[backend] = graph
        return self.graphs[backend]

    def time(self, backend, replays, warm_up_ms):
        """Microseconds per call, one entry a replay."""
        if self.cuda:
            graph = self.graph(backend)
            begin = time.perf_counter()
            while (time.perf_counter() - begin) * 1e3 < warm_up_ms:
                graph.replay()
                torch.cuda.synchronize()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
            self.filler.zero_()
            graph.replay()
            events[0].record()
            for event in events[1:]:
                graph.replay()
                event.record()
            torch.cuda.synchronize()
            return [a.elapsed_time(b) * 1e3 / self.launches for a, b in zip(events, events[1:])]
        times = []
        with forced(backend), torch.no_grad():
            self.call(backend)  # wakes the threads
            for _ in range(replays):
                begin = time.perf_counter()
                for n in range(self.launches):
                    self.call(backend, n)
                times.append((time.perf_counter() - begin) * 1e6 / self.launches)
        time.sleep(SPIN_S)
        return times

    def error(self, backend):
        """Largest error of call 0 against the same attention in float64."""
        w = self.workload
        with torch.no_grad():
            with forced(backend):
                out = self.call(backend).double()
            q, k, v = self.q[0].double(), self.k[0].double(), self.v[0].double()
            group = w["heads"] // w["heads_kv"]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = q @ k.transpose(-1, -2) * w["scale"]
            if w["mask"]["name"] != "none":
                scores = scores.masked_fill(~self.seen_keys(), float("-inf"))
            return (out - torch.softmax(scores, -1) @ v).abs().max().item()


def main():
    """Serves requests until stdin closes."""
    peer = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "hello":
                peer = Peer(request)
                cudnn = torch.backends.cudnn.version() if peer.cuda else None
                answer = {
                    "torch": torch.__version__,
                    "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}" if cudnn else "",
                    "device": torch.cuda.get_device_name() if peer.cuda else "cpu",
                    "backends": {name: peer.probe(name) for name in peer.backends},
                }
            elif request["op"] == "time":
                answer = {"us": peer.time(request["backend"], request["replays"], request["warm_up_ms"])}
            else:
                answer = {"max_abs": peer.error(request["backend"])}
        except Exception as error:  # the caller decides; a helper must not die of one bad backend
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), flush=True)


main()
