"""Timing: calls over rotating inputs, interleaved pairs, the bootstrap, clocks.

On a GPU the calls of a block are one CUDA graph, replayed between events; on a CPU a steady clock is read around them.
"""

import ctypes
import math
import random
import statistics
import time

RESAMPLES = 2000
WARM_SHARE = 0.5  # of the L2: what warm input sets fill at most
FILL_MULTIPLE = 2  # of the L2: what a cache_filler writes
COLD_MULTIPLE = 3  # of the L2: what cold input sets exceed, so that a call reads inputs that are no longer there
MOST_WARM_SETS = 10
MOST_CALLS = 400
PROBED_CALLS = (2, 40)  # of the graphs from which a call's time is first guessed
LEAST_QUADS = 5
PAIR_LIMIT_S = 0.3
CPU_BLOCK_US = 8000  # at least, of a block on a CPU: waking its threads takes up to 50 us, less than 1% of that
LONG_REPLAY_US = 20000  # of which the host time between two calls is less than 0.1%
SPIN_S = 0.02  # PyTorch's CPU threads spin for a while after a call; whoever is next must not share the processors with them


def percentile(ordered, share):
    """Linear interpolation between order statistics."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def bootstrap(ratios, seed=1):
    """Median and 95% interval of paired ratios: {"value", "low", "high"}. Percentile bootstrap of the median."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return {"value": statistics.median(ratios), "low": percentile(medians, 0.025), "high": percentile(medians, 0.975)}


def measure_pair(base, other, quads, seed=1, least=LEAST_QUADS, limit_s=PAIR_LIMIT_S):
    """Blocks in the order base, other, other, base, so that a drift hits both alike. Each is a function that returns us.

    Up to `quads` of them; from `least` on, no more once `limit_s` of wall clock have passed. Returns {"base_us", "other_us", "ratio"}: medians, and other time / base time (above 1: the base is faster).
    """
    base_us, other_us, ratios = [], [], []
    begin = time.perf_counter()
    for quad in range(quads):
        if quad >= least and time.perf_counter() - begin > limit_s:
            break
        a1, b1, b2, a2 = base(), other(), other(), base()
        base_us += [a1, a2]
        other_us += [b1, b2]
        ratios.append((b1 + b2) / (a1 + a2))
    return {"base_us": statistics.median(base_us), "other_us": statistics.median(other_us), "ratio": bootstrap(ratios, seed)}


def sets_for(w, mode, cache_bytes, memory_bytes):
    """How many input sets a mode rotates over."""
    cache = cache_bytes or 32e6
    if mode == "graph_cold":
        most = max(2, int(memory_bytes / 8 / w.set_bytes))
        return min(most, max(2, math.ceil(COLD_MULTIPLE * cache / w.input_bytes)))
    return min(MOST_WARM_SETS, max(2, int(WARM_SHARE * cache / w.set_bytes)))


def calls_for(mode, sets, one_us, block_us):
    """How many calls make a block of about `block_us`: a cold block visits every set, so that none stays in the L2."""
    least, most = (sets, max(sets, MOST_CALLS)) if mode == "graph_cold" else (2, MOST_CALLS)
    return min(most, max(least, round(block_us / max(one_us, 0.1))))


def arguments_of(sets, n):
    """Call n of a block: other combinations of Q, K and V each time round, for as many rounds as there are sets."""
    count = len(sets)
    turn = n // count
    return sets[n % count][0], sets[(n + turn) % count][1], sets[(n + 2 * turn) % count][2]


def use_one_stream(torch):
    """Makes a stream of its own the current one, for everything from here on: the default stream cannot be captured.

    Once a process has worked in more than a few streams, each later node of each graph takes 0.18 us longer (H200: 3.49 and 3.67 us at
    b1h8l512d64, whatever the graph, freed or not). A graph captured in one stream and replayed in another soon brings that about.
    """
    torch.cuda.set_stream(torch.cuda.Stream())


def cache_filler(torch, cache_bytes):
    """A function that fills the L2 with lines of nobody's: a reading then finds it as another operator leaves it.

    In a cache that nothing else uses, inputs that a kernel marks to be evicted first stay for its next call: b1h8l1024d64 by
    fwd_sm90_persistent with evict_first=q_kv took 6.2 us, and 7.2 us where another process worked between its readings (H200).
    """
    lines = torch.empty(FILL_MULTIPLE * cache_bytes, dtype=torch.uint8, device="cuda")
    return lines.zero_


class CudaTimer:
    """A contender's calls as one captured graph, of the current stream (use_one_stream). `context` gives the context in which it must
    be called, `fill` is a cache_filler.

    How many calls a graph holds is found from graphs: between the first and the last event of a replay lie 4 us (H200) that are no
    call's, and eager calls take as long as the host needs. A graph of 16 calls, as 25 us of host time suggest, adds 0.27 us to each.
    """

    def __init__(self, torch, call, sets, mode, block_us, context, fill):
        self.torch, self.fill = torch, fill
        stream = torch.cuda.current_stream()
        with context():
            for n in range(2):
                call(*arguments_of(sets, n))
            torch.cuda.synchronize()
        for probed in PROBED_CALLS:
            self.capture(call, sets, probed, context, stream)
            one_us = self.block()
            if one_us * probed > block_us:
                break
        self.capture(call, sets, calls_for(mode, len(sets), one_us, block_us), context, stream)

    def capture(self, call, sets, calls, context, stream):
        self.calls = calls
        self.graph = self.torch.cuda.CUDAGraph()
        with context(), self.torch.cuda.graph(self.graph, stream=stream):
            for n in range(calls):
                self.output = call(*arguments_of(sets, n))
        self.replay()
        self.replay_us = self.replay()

    def replay(self):
        """One replay, to its end; returns the host's us."""
        begin = time.perf_counter()
        self.graph.replay()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6

    def block(self):
        """us per call of one replay. Behind the filled L2 a replay before it warms that again and keeps the stream busy, so that no host
        time is measured; both are left out where a replay is so long that they are nothing."""
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        if self.replay_us < LONG_REPLAY_US:
            self.fill()
            self.graph.replay()
        begin.record()
        self.graph.replay()
        end.record()
        cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.calls

    def poison(self):
        """Fills the last call's output with NaN: the next replay must write it anew."""
        self.output.fill_(math.nan)


class CpuTimer:
    """The same interface with a steady clock. Heed's calls of a block are one chain of launches (HeedAttention.chain), as in its own
    worker; PyTorch's are calls from Python, for it has no other way on a CPU."""

    def __init__(self, torch, call, sets, mode, block_us, context, fill):
        self.call, self.sets, self.context = call, sets, context
        with context():
            call(*arguments_of(sets, 0))
            begin = time.perf_counter()
            call(*arguments_of(sets, 1))
        self.calls = calls_for(mode, len(sets), (time.perf_counter() - begin) * 1e6, max(block_us, CPU_BLOCK_US))
        chain = getattr(call, "chain", None)
        self.chain = chain([arguments_of(sets, n) for n in range(self.calls)]) if chain else None
        self.output = None

    def replay(self):
        return self.block() * self.calls

    def once(self):
        """us per call of one pass over the sets' calls."""
        if self.chain:
            us, self.output = self.chain()
            return us / self.calls
        begin = time.perf_counter()
        for n in range(self.calls):
            self.output = self.call(*arguments_of(self.sets, n))
        return (time.perf_counter() - begin) * 1e6 / self.calls

    def block(self):
        """us per call, behind a pass that is not timed: it wakes the threads and finds the caches as another contender left them."""
        with self.context():
            self.once()
            each = self.once()
        time.sleep(SPIN_S)
        return each

    def poison(self):
        """Fills the last call's output with NaN where it is kept: the next replay must write it anew."""
        if self.chain and self.output is not None:
            self.output.fill_(math.nan)
        self.output = None


def warm_up(timer, ms):
    """Replays for at least `ms`: an idle GPU reads high at first."""
    begin = time.perf_counter()
    timer.replay()
    while (time.perf_counter() - begin) * 1e3 < ms:
        timer.replay()


def time_eager(call, sets, calls, context, synchronize):
    """Host us per call: (back to back, waiting for each)."""
    with context():
        for n in range(3):
            call(*arguments_of(sets, n))
        synchronize()
        begin = time.perf_counter()
        for n in range(calls):
            call(*arguments_of(sets, n))
        synchronize()
        back_to_back = (time.perf_counter() - begin) * 1e6 / calls
        begin = time.perf_counter()
        for n in range(calls):
            call(*arguments_of(sets, n))
            synchronize()
        return back_to_back, (time.perf_counter() - begin) * 1e6 / calls


def launch_floor_us(torch, nodes=200):
    """us of a kernel that does nothing, as a node of a CUDA graph; 0 where it cannot be had."""
    if not torch.cuda.is_available() or not hasattr(torch.cuda, "_sleep"):
        return 0.0
    torch.cuda._sleep(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(nodes):
            torch.cuda._sleep(0)
    times = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / nodes)
    return min(times)


class Clocks:
    """SM clock through NVML (https://docs.nvidia.com/deploy/nvml-api/); 0 where it cannot be read."""

    SM = 1

    def __init__(self, enabled, pci_bus_id=""):
        self.handle = None
        if not enabled:
            return
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            handle = ctypes.c_void_p()
            if self.nvml.nvmlInit_v2() == 0:
                found = 1
                if pci_bus_id:
                    found = self.nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle))
                if found == 0 or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0:
                    self.handle = handle
        except (OSError, AttributeError):
            pass

    def mhz(self):
        """SM clock at this moment."""
        value = ctypes.c_uint()
        if self.handle is None or self.nvml.nvmlDeviceGetClockInfo(self.handle, self.SM, ctypes.byref(value)) != 0:
            return 0
        return value.value
