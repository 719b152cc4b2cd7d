"""Pairs, the bootstrap and how many sets and calls a mode takes; no test reads a clock."""

import contextlib
import io
import random
import runpy
import statistics
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from heed import measure
from heed.suites import parse_workload


class Bootstrap(unittest.TestCase):
    def test_interval_covers_the_truth_about_as_often_as_it_says(self):
        rng = random.Random(5)
        resamples, measure.RESAMPLES = measure.RESAMPLES, 300
        try:
            covered = 0
            for trial in range(300):
                interval = measure.bootstrap([1.2 + rng.gauss(0, 0.05) for _ in range(10)], seed=trial)
                covered += interval["low"] <= 1.2 <= interval["high"]
        finally:
            measure.RESAMPLES = resamples
        # The percentile bootstrap of a median of ten covers 93 to 97%; three standard deviations of 300 trials are 4%.
        self.assertGreaterEqual(covered, 267)
        self.assertLess(covered, 300)

    def test_is_reproducible_and_ordered(self):
        ratios = [1.0, 1.1, 0.9, 1.05, 1.2]
        one = measure.bootstrap(ratios)
        self.assertEqual(one, measure.bootstrap(ratios))
        self.assertEqual(one["value"], statistics.median(ratios))
        self.assertTrue(one["low"] <= one["value"] <= one["high"])
        self.assertEqual(measure.bootstrap([2.0]), {"value": 2.0, "low": 2.0, "high": 2.0})


class Pairs(unittest.TestCase):
    def test_blocks_alternate_so_that_drift_cancels(self):
        order, clock = [], [0.0]

        def block(name, us):
            def run():
                order.append(name)
                clock[0] += 1
                return us + 0.01 * clock[0]  # a linear drift

            return run

        pair = measure.measure_pair(block("A", 10), block("B", 20), quads=5)
        self.assertEqual("".join(order), "ABBA" * 5)
        self.assertAlmostEqual(pair["ratio"]["value"], 2, delta=0.02)

        def drifting():
            clock[0] += 1
            return 10 + 0.01 * clock[0]

        self.assertAlmostEqual(measure.measure_pair(drifting, drifting, quads=4)["ratio"]["value"], 1, delta=1e-9)


    def test_a_pair_that_takes_long_ends_early(self):
        order = []
        pair = measure.measure_pair(lambda: order.append("A") or 1.0, lambda: order.append("B") or 3.0, quads=9, least=3, limit_s=-1)
        self.assertEqual("".join(order), "ABBA" * 3)
        self.assertEqual(pair["ratio"], {"value": 3.0, "low": 3.0, "high": 3.0})


class FakeTorch:
    """As much of torch.cuda as a timer uses: a graph that holds the calls made while it is captured, a clock that counts them."""

    def __init__(self):
        fake, self.cuda = self, SimpleNamespace()
        self.now, self.captured, self.contexts, self.done = 0.0, None, 0, []

        class Event:
            def __init__(self, enable_timing):
                self.at = None

            def record(self):
                fake.done.append("record")
                self.at = fake.now

            def elapsed_time(self, later):
                return later.at - self.at

        class Graph:
            def replay(self):
                fake.done.append("replay")
                for call in self.calls:
                    call()

        @contextlib.contextmanager
        def capture(graph, stream):
            assert stream is fake.cuda.current_stream(), "captured in another stream than it is replayed in"
            fake.captured = []
            yield
            graph.calls, fake.captured = fake.captured, None

        stream = SimpleNamespace()
        self.cuda.Event, self.cuda.CUDAGraph, self.cuda.graph = Event, Graph, capture
        self.cuda.current_stream = lambda: stream  # no other: a timer that makes one fails
        self.cuda.synchronize = lambda: None

    def fill(self):
        self.done.append("fill")

    @contextlib.contextmanager
    def forced(self):
        self.contexts += 1
        yield
        self.contexts -= 1

    def call(self, q, k, v):
        assert self.contexts == 1, "called without its backend's context"
        output = SimpleNamespace(value=None)
        output.fill_ = lambda value: setattr(output, "value", value)

        def run():
            self.now += 0.01  # ms
            output.value = (q, k, v)

        run() if self.captured is None else self.captured.append(run)
        return output


class Peer(unittest.TestCase):
    """The helper process's own timer (heed/sdpa_peer.py), which runs by itself and imports nothing of heed."""

    def helper(self, torch):
        backends = SimpleNamespace(MATH=0, FLASH_ATTENTION=1, EFFICIENT_ATTENTION=2, CUDNN_ATTENTION=3)
        modules = {
            "torch": torch,
            "torch.nn": SimpleNamespace(),
            "torch.nn.attention": SimpleNamespace(SDPBackend=backends, sdpa_kernel=lambda backend: contextlib.nullcontext()),
            "torch.nn.functional": SimpleNamespace(scaled_dot_product_attention=torch.call),
        }
        with mock.patch.dict(sys.modules, modules), mock.patch("sys.stdin", io.StringIO()):
            return SimpleNamespace(**runpy.run_path(str(Path(measure.__file__).parent / "sdpa_peer.py")))

    def test_a_reading_begins_behind_a_filled_cache_and_a_replay(self):
        fake = FakeTorch()
        fake.float16 = fake.bfloat16 = fake.float32 = None
        fake.no_grad = contextlib.nullcontext
        fake.contexts = 1  # calls are forced by the fake sdpa_kernel
        peer = object.__new__(self.helper(fake).Peer)
        peer.cuda, peer.sets, peer.launches, peer.workload, peer.graphs, peer.arguments = True, 1, 3, {}, {}, {}
        peer.q, peer.k, peer.v = ["q"], ["k"], ["v"]
        peer.filler = SimpleNamespace(zero_=fake.fill)
        peer.graph("math")
        fake.done.clear()
        us = peer.time("math", 2, 0)
        self.assertEqual([f"{t:.1f}" for t in us], ["10.0", "10.0"])
        self.assertEqual(fake.done, ["fill", "replay", "record", "replay", "record", "replay", "record"])


class Streams(unittest.TestCase):
    def test_the_one_stream_is_not_the_default_one(self):
        current = []
        cuda = SimpleNamespace(Stream=lambda: "its own", set_stream=current.append)
        measure.use_one_stream(SimpleNamespace(cuda=cuda))
        self.assertEqual(current, ["its own"])


class Timer(unittest.TestCase):
    def test_graph_holds_every_call_and_its_time_is_per_call(self):
        fake = FakeTorch()
        sets = [(f"q{i}", f"k{i}", f"v{i}") for i in range(3)]
        timer = measure.CudaTimer(fake, fake.call, sets, "graph_warm", 1000, fake.forced, fake.fill)
        self.assertEqual((timer.calls, len(timer.graph.calls)), (100, 100), "1000 us of 10 us each")
        self.assertAlmostEqual(timer.block(), 10)
        before = fake.now
        timer.block()
        self.assertAlmostEqual(fake.now - before, 2 * 100 * 0.01)
        timer.replay_us = measure.LONG_REPLAY_US + 1
        fake.done.clear()
        before = fake.now
        self.assertAlmostEqual(timer.block(), 10)
        self.assertAlmostEqual(fake.now - before, 100 * 0.01)
        self.assertEqual(fake.done, ["record", "replay", "record"], "what is nothing beside 20 ms is left out")

    def test_what_only_the_host_or_a_replay_takes_is_no_call_s_time(self):
        fake = FakeTorch()
        original, sets = fake.cuda.CUDAGraph.replay, [("q0", "k0", "v0"), ("q1", "k1", "v1")]

        def slow_to_begin(graph):
            fake.now += 0.004
            original(graph)

        def slow_host(q, k, v):
            if fake.captured is None:
                fake.now += 0.1
            return fake.call(q, k, v)

        fake.cuda.CUDAGraph.replay = slow_to_begin
        timer = measure.CudaTimer(fake, slow_host, sets, "graph_warm", 1000, fake.forced, fake.fill)
        self.assertEqual(timer.calls, 99)
        self.assertLess(timer.block(), 10.05)

    def test_a_reading_begins_behind_a_filled_cache_and_a_replay(self):
        fake = FakeTorch()
        timer = measure.CudaTimer(fake, fake.call, [("q0", "k0", "v0"), ("q1", "k1", "v1")], "graph_warm", 1000, fake.forced, fake.fill)
        fake.done.clear()
        timer.block()
        self.assertEqual(fake.done, ["fill", "replay", "record", "replay", "record"])

    def test_the_filler_writes_more_than_the_cache_holds(self):
        asked = []

        class Lines:
            def zero_(self):
                asked.append("written")

        torch = SimpleNamespace(uint8="a byte", empty=lambda count, dtype, device: asked.append((count, dtype, device)) or Lines())
        fill = measure.cache_filler(torch, 50)
        fill()
        self.assertEqual(asked, [(100, "a byte", "cuda"), "written"])

    def test_poison_is_gone_after_a_replay(self):
        fake = FakeTorch()
        sets = [("q0", "k0", "v0"), ("q1", "k1", "v1")]
        timer = measure.CudaTimer(fake, fake.call, sets, "graph_warm", 1000, fake.forced, fake.fill)
        timer.poison()
        self.assertNotEqual(timer.output.value, timer.output.value)
        timer.replay()
        self.assertEqual(timer.output.value, measure.arguments_of(sets, timer.calls - 1))


class Sets(unittest.TestCase):
    L2 = 60e6
    MEMORY = 139e9

    def test_warm_sets_fit_half_the_cache(self):
        for text in ("b1h8l512d64", "b1h8l2048d64", "b1h1l16d16"):
            w = parse_workload(text)
            count = measure.sets_for(w, "graph_warm", self.L2, self.MEMORY)
            self.assertTrue(2 <= count <= measure.MOST_WARM_SETS)
            self.assertLessEqual(count * w.set_bytes, self.L2 / 2)
        self.assertEqual(measure.sets_for(parse_workload("b64h12l128d64"), "graph_warm", self.L2, self.MEMORY), 2)

    def test_cold_sets_exceed_the_cache_and_are_all_visited(self):
        for text in ("b1h8l512d64", "b8h32hkv4l1k8192d128", "b64h12l128d64"):
            w = parse_workload(text)
            count = measure.sets_for(w, "graph_cold", self.L2, self.MEMORY)
            self.assertGreaterEqual(count * w.input_bytes, 3 * self.L2)
            self.assertGreaterEqual(measure.calls_for("graph_cold", count, 1e6, 1000), count)

    def test_calls_of_a_block_repeat_after_all_combinations(self):
        sets = [(f"q{i}", f"k{i}", f"v{i}") for i in range(5)]
        calls = measure.calls_for("graph_warm", 5, 1.0, 1000)
        self.assertEqual(calls, measure.MOST_CALLS)
        self.assertEqual(len({measure.arguments_of(sets, n) for n in range(25)}), 25, "all that five sets can give")

    def test_clocks_are_zero_where_they_cannot_be_read(self):
        self.assertEqual(measure.Clocks(False).mhz(), 0)


if __name__ == "__main__":
    unittest.main()
