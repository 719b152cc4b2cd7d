"""One contest: every contender on the same tensors and the same stream, row by row into evidence."""

import contextlib
import statistics
import time

import torch

from heed import contenders as field
from heed import measure
from heed.conclusion import PLAIN, conclude
from heed.reference import Reference, make_sets
from heed.suites import parse_workload

WARM_UP_MS = 150  # before the first reading of a row: an idle GPU reads up to 12% high
EAGER_CALLS = 60
EAGER_SETS = 2
KERNEL_NAME_CHARACTERS = 200
TIMED_FACTOR = 2  # the last timed output against an ordinary call on the same inputs: each may be off by the limit


class Settings:
    """How much is measured: quads (A B B A) a pair, us a block, warm-up."""

    def __init__(self, quick=False, seed=1):
        self.quick = quick
        self.quads = 2 if quick else 8
        self.block_us = 200 if quick else 1000
        self.seed = seed


class Contest:
    """Prepares, judges and times `others` and `heed` on one device ("cuda" or "cpu")."""

    def __init__(self, heed, others, device, facts, settings):
        self.heed, self.others, self.device, self.settings = heed, others, device, settings
        self.cuda = device == "cuda"
        self.cache_bytes = facts["cache_bytes"]
        self.memory_bytes = facts["memory_bytes"]
        self.timer = measure.CudaTimer if self.cuda else measure.CpuTimer
        self.warm_up_ms = (WARM_UP_MS if not settings.quick else 50) if self.cuda else 5
        self.budget_flops = 2e11 if self.cuda else 2e9
        bus = ""
        if self.cuda:
            p = torch.cuda.get_device_properties(0)
            if hasattr(p, "pci_bus_id"):
                bus = f"{getattr(p, 'pci_domain_id', 0):08x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
        self.clocks = measure.Clocks(self.cuda, bus)
        self.fill = measure.cache_filler(torch, self.cache_bytes) if self.cuda else None
        self.launch_us = measure.launch_floor_us(torch) if self.cuda else 0.0

    def synchronize(self):
        """Waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def prepare(self, w, sets, named):
        """Calls that ran once: {name: call}, with errors, kernel names (where `named`) and refusals by name."""
        calls, errors, kernels, refused = {}, {}, {}, {}
        reference = Reference(w, *sets[0], self.budget_flops, self.settings.seed)
        for contender in [self.heed, *self.others]:
            name = contender.name
            try:
                call = contender.prepare(w)
                o = field.first_call(call, sets[0], self.synchronize)
                errors[name] = reference.judge(o)
                del o
                kernels[name] = [] if not named else [n[:KERNEL_NAME_CHARACTERS] for n in field.kernel_names(call, *sets[0])]
                calls[name] = call
            except Exception as error:  # each refuses in its own way; the reason stands in the table
                refused[name] = field.reason_of(error)
        return calls, errors, kernels, refused, reference

    def rows(self, suite, text, facts):
        """Evidence rows of a workload, one for each of the suite's modes. `facts` is heed build's entry for it."""
        w = parse_workload(text)
        with torch.no_grad():
            first = make_sets(w, 1, self.device, self.settings.seed)
            calls, errors, kernels, refused, reference = self.prepare(w, first, suite.modes != ("acceptance",))
            del first
            for mode in self.modes_of(suite, calls):
                row = {"suite": suite.name, "workload": text, "causal": w.masked, "mode": mode, "flops": facts["flops"], "bytes": facts["bytes"]}
                shown = [name for name in [*errors, *refused] if mode != "graph_dependent" or name == "heed"]
                row |= {"errors": {n: dict(errors[n]) for n in shown if n in errors}, "refused": {n: refused[n] for n in shown if n in refused}}
                row["kernels"] = {n: kernels[n] for n in shown if n in kernels}
                row |= {key: facts[key] for key in ("variant", "config", "peak_flops") if key in facts}
                if "floor" in facts:
                    floor = {**facts["floor"], "launch_us": self.launch_us}
                    if self.launch_us > floor["us"]:
                        floor |= {"us": self.launch_us, "bound": "launch"}
                    row |= {"floor": floor, "floor_us": floor["us"]}
                if "heed" in errors:
                    row |= {"max_abs_err": errors["heed"]["max_abs"], "rel_rms_err": errors["heed"]["rel_rms"]}
                row["clocks_mhz"] = {"before": self.clocks.mhz()}
                if mode == "eager":
                    self.eager(row, w, calls)
                elif mode != "acceptance":
                    self.timed(row, w, mode, calls, reference, suite.copies)
                conclude(row)
                row["clocks_mhz"]["after"] = self.clocks.mhz()
                yield row

    def modes_of(self, suite, calls):
        """The suite's modes, and "graph_dependent" after the first graph mode where Heed's variant may be launched as a
        programmatic dependent: a row of Heed beside its plain launches, for no other contender is launched that way."""
        dependent = getattr(calls.get("heed"), "as_dependent", lambda: None)()
        graphs = [mode for mode in suite.modes if mode.startswith("graph_")]
        for mode in suite.modes:
            yield mode
            if dependent and graphs and mode == graphs[0]:
                yield "graph_dependent"

    def timed(self, row, w, mode, calls, reference, copies):
        """Adds times of a graph mode (on a CPU: of blocks of calls) to a row, and that of a copy where `copies`."""
        if mode == "graph_dependent":
            # Beside plain launches of the same row: a GPU that runs nothing else lowers its clock, and long launches take up to 1.25
            # times as long as by turns with other contenders.
            calls = {"heed": calls["heed"].as_dependent(), PLAIN: calls["heed"]}
            row["errors"][PLAIN] = dict(row["errors"]["heed"])
        count = measure.sets_for(w, mode, self.cache_bytes, self.memory_bytes)
        sets = self.make_sets(w, count)
        given = {}

        def captured(name, call):
            return self.timer(torch, call, given[name], mode, self.settings.block_us, lambda: field.context_of(call), self.fill)

        timers = {}
        again = None  # Heed's call, captured once more: what differs between two captures of one call belongs to no kernel
        for name, call in calls.items():
            try:
                given[name] = self.given(call, sets)
                if name == "heed":
                    again = captured(name, call)
                timers[name] = captured(name, call)
            except Exception as error:
                row["refused"][name] = f"not timed: {field.reason_of(error)}"
                self.synchronize()
        if not timers:
            return
        row |= {"sets": count, "most_quads": self.settings.quads, "calls": {n: t.calls for n, t in timers.items()}}
        base = timers.get("heed")
        measure.warm_up(base or next(iter(timers.values())), self.warm_up_ms)
        blocks = {name: timer.block for name, timer in timers.items()}
        self.compare(row, blocks, again.block if again else None)
        if copies and base and mode != "graph_dependent":
            try:
                self.compare_with_copy(row, sets, mode, base)
            except Exception as error:  # out of memory, most likely: the row stands without it
                row["copy"] = {"refused": f"not timed: {field.reason_of(error)}"}
                self.synchronize()
        for name, timer in timers.items():
            self.check_timed(row["errors"][name], timer, calls[name], given[name], reference)

    @staticmethod
    def given(call, sets):
        """Input sets as a call takes them: of one that is timed on inputs in 8 bits, quantised beforehand."""
        return [call.given(*one) for one in sets] if hasattr(call, "given") else sets

    def make_sets(self, w, count):
        """Input sets that a mode rotates over."""
        return make_sets(w, count, self.device, self.settings.seed + 1)

    def compare(self, row, blocks, again=None):
        """Pairs every contender with Heed, and Heed with itself (`again`, where there is another block of the same call); without
        Heed only times them."""
        quads, seed = self.settings.quads, self.settings.seed
        base = blocks.get("heed")
        peers, ratios, base_us = {}, {}, {}
        for name, block in blocks.items():
            if base is None:
                peers[name] = statistics.median(block() for _ in range(2 * quads))
                continue
            pair = measure.measure_pair(base, again or block if name == "heed" else block, quads, seed)
            base_us[name] = pair["base_us"]
            if name == "heed":
                row["self_ratio"] = pair["ratio"]
                row["self_spread"] = max(abs(pair["ratio"]["low"] - 1), abs(pair["ratio"]["high"] - 1))
            else:
                peers[name], ratios[name] = pair["other_us"], pair["ratio"]
        row |= {"peers_us": peers, "peer_ratios": ratios}
        if base_us:
            # Medians beside each contender, whose clocks it shares; beside itself only where there is no other.
            beside = [us for name, us in base_us.items() if name != "heed"] or list(base_us.values())
            row["heed_us"] = statistics.median(beside)
            row["heed_us_range"] = [min(beside), max(beside)]

    def compare_with_copy(self, row, sets, mode, base):
        """Adds what the memory gives at this moment: the time of a copy of the keys, which reads and writes as many bytes as reading keys
        and values does, and Heed's bytes a second as a share of the copy's."""
        target = torch.empty_like(sets[0][1])
        timer = self.timer(torch, lambda q, k, v: target.copy_(k), sets, mode, self.settings.block_us, contextlib.nullcontext, self.fill)
        pair = measure.measure_pair(base.block, timer.block, self.settings.quads, self.settings.seed)
        copied = 2 * target.numel() * target.element_size()
        share = {key: ratio * row["bytes"] / copied for key, ratio in pair["ratio"].items()}
        row["copy"] = {"us": pair["other_us"], "bytes": copied, "share": share}

    def check_timed(self, error, timer, call, sets, reference):
        """The output of the last timed call, written anew after poison, must be what an ordinary call gives; but of one that draws random numbers anew."""
        if getattr(call, "draws_anew", False):
            return
        timer.poison()
        timer.replay()
        with field.context_of(call):
            expected = call(*measure.arguments_of(sets, timer.calls - 1))
        difference = (timer.output.double() - expected.double()).abs().max().item()
        if not difference <= TIMED_FACTOR * reference.limit:
            error |= {"pass": False, "timed_difference": difference if difference == difference else None}

    def eager(self, row, w, calls):
        """Adds host times per call, back to back and waiting for each."""
        sets = make_sets(w, EAGER_SETS, self.device, self.settings.seed + 1)
        waiting = {}
        count = EAGER_CALLS // 4 if self.settings.quick or not self.cuda else EAGER_CALLS

        def block_of(name, call):
            def block():
                both = measure.time_eager(call, sets, count, lambda: field.context_of(call), self.synchronize)
                waiting.setdefault(name, []).append(both[1])
                return both[0]

            return block

        blocks = {name: block_of(name, call) for name, call in calls.items()}
        begin = time.perf_counter()
        while blocks and (time.perf_counter() - begin) * 1e3 < self.warm_up_ms:
            next(iter(blocks.values()))()
        waiting.clear()
        row |= {"sets": EAGER_SETS, "most_quads": self.settings.quads, "calls": dict.fromkeys(calls, count)}
        self.compare(row, blocks)
        row["synchronised_us"] = {name: statistics.median(us) for name, us in waiting.items()}
