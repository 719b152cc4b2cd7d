"""python -m heed.fleet: what needs no cluster, and where Ray is installed a cluster of two nodes, one of which is killed in the middle."""

import base64
import contextlib
import importlib.util
import io
import json
import os
import stat
import sys
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path
from unittest import mock

from heed import fleet

# Stands in for heed: says what it was asked, takes a while, and wins at every workload but one.
PROGRAM = """#!/usr/bin/env python3
import json, os, sys, time
folder, arguments = os.path.dirname(__file__), sys.argv[1:]
if arguments == ["--version"]:
    print("heed 0 of sources 1")
elif arguments[0] == "book":
    if os.path.exists(folder + "/locked"):
        print("heed: the book is locked", file=sys.stderr)
        sys.exit(1)
    with open(folder + "/merged", "a") as file:
        file.write(open(arguments[2]).read() + "\\n")
else:
    value = lambda name: arguments[arguments.index(name) + 1]
    workload = value("--shape")
    with open(folder + "/processors", "a") as file:
        file.write(",".join(map(str, sorted(os.sched_getaffinity(0)))) + "\\n")
    with open(folder + "/started", "a") as file:
        file.write(workload + "\\n")
    if workload == "b9":
        print("heed: b9 is no workload", file=sys.stderr)
        sys.exit(2)
    time.sleep(float(os.environ.get("FLEET_TEST_SECONDS", "0")))
    open(value("--book"), "w").write("champion of " + workload)
    open(value("--evidence"), "w").write("{}")
    print(json.dumps({"result": {"summary": "Faster: " + workload}, "trials": value("--trials")}))
"""


def ray_of(nodes):
    """Stands in for Ray with nodes of these resources: runs a task when its end is waited for, in this process. `asked` lists what it was asked for."""

    class Task:
        def __init__(self, function):
            self.function = function

        def options(self, name, **needs):
            ray.asked.append(needs)
            return self

        def remote(self, *arguments):
            return lambda: self.function(*arguments)

    def init(address, **_):
        ray.addresses.append(address)
        return types.SimpleNamespace(dashboard_url="")

    ray = types.ModuleType("ray")
    ray.asked, ray.addresses, ray.cancelled = [], [], []
    ray.init, ray.shutdown = init, lambda: None
    ray.nodes = lambda: [{"Alive": True, "Resources": node} for node in nodes]
    ray.remote = lambda **_: Task
    ray.wait = lambda tasks, num_returns: (tasks[:1], tasks[1:])
    ray.get = lambda task: task()
    ray.cancel = lambda task, force: ray.cancelled.append(task)
    ray.exceptions = types.SimpleNamespace(RayError=OSError)
    return ray


class Fleet(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program = self.folder / "heed"
        self.program.write_text(PROGRAM)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        os.environ["HEED_PROGRAM"] = str(self.program)
        self.addCleanup(os.environ.pop, "HEED_PROGRAM")
        self.calls = self.folder / "calls.json"
        self.write(["b1", "b2", "b3"])

    def write(self, workloads):
        rows = [{"workload": one, "form": "", "calls": 1, "seconds": 1 / (i + 1)} for i, one in enumerate(workloads)]
        rows.append({"workload": "", "form": "a mask", "calls": 1, "seconds": 9.0})
        self.calls.write_text(json.dumps({"rows": rows}))

    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = fleet.main(["evolve", "--workloads", str(self.calls), "-o", str(self.folder / "results"), *map(str, arguments)])
            except SystemExit as exit:
                code = exit.code
        return code, out.getvalue(), err.getvalue()

    def call_on(self, nodes, *arguments):
        """Of a cluster that is not there. @returns what call() does, and the module"""
        ray = ray_of(nodes)
        with mock.patch.dict(sys.modules, {"ray": ray}):
            return *self.call(*arguments), ray

    def lines(self, name):
        file = self.folder / name
        return file.read_text().split("\n")[:-1] if file.is_file() else []

    def test_workloads_by_their_time(self):
        self.assertEqual(fleet.workloads_of(self.calls), ["b1", "b2", "b3"])
        of_row = '{"rows": [%s]}'
        wrong = ('{"workload": 7, "seconds": 1}', '{"workload": "b1", "seconds": "1"}', '{"workload": "b1", "seconds": true}', "1", "{}")
        for text in ("{", "[]", "[1]", '{"rows": 1}', "[" * 100_000, *(of_row % row for row in wrong)):
            with self.subTest(text=text[:40]):
                self.calls.write_text(text)
                with self.assertRaisesRegex(fleet.WrongUsage, "no file of calls that heed.record wrote"):
                    fleet.workloads_of(self.calls)
                code, _, said = self.call()
                self.assertEqual((code, said.count("\n")), (2, 1), said)

    def test_a_task(self):
        row = fleet.search("b1", ["--trials", "3"], "heed 0 of sources 1")
        self.assertEqual((row["state"], row["run"]["trials"], row["evidence"]), ("done", "3", {}))
        self.assertEqual(base64.b64decode(row["book"]), b"champion of b1")

    def test_a_task_that_heed_refuses_and_one_of_another_version(self):
        row = fleet.search("b9", [], "heed 0 of sources 1")
        self.assertEqual((row["state"], row["reason"], row["book"]), ("refused", "heed: b9 is no workload", None))
        row = fleet.search("b1", [], "heed 0 of sources 2")
        self.assertEqual(row["state"], "refused")
        self.assertIn("install the same Heed on both", row["reason"])
        self.assertEqual(fleet.search("b1", [], "heed 0 of sources 1", heed="/nowhere/heed")["state"], "failed")

    def test_what_a_task_asks_of_a_node(self):
        cluster = [{"CPU": 4.0, "GPU": 1.0, "accelerator_type:H100": 1.0}, {"CPU": 4.0, "GPU": 1.0}]
        self.assertEqual(fleet.demand(cluster, "cuda", "", None), {"num_gpus": 1})
        self.assertEqual(fleet.demand(cluster, "cuda", "H100", None), {"num_gpus": 1, "accelerator_type": "H100"})
        self.assertEqual(fleet.demand(cluster, "cpu", "", 3), {"num_cpus": 3})
        for nodes, device, kind, processors, words in (
            ([{"CPU": 4.0}], "cuda", "", None, "no GPU"),
            (cluster, "cuda", "L4", None, "no L4; it has H100"),
            ([*cluster, {"CPU": 1.0, "accelerator_type:L4": 1.0}], "cuda", "L4", None, "no L4"),
            (cluster, "cpu", "", 5, "takes 5 processors"),  # two nodes have them together, none alone
            ([{"GPU": 1.0}], "cpu", "", None, "no processors"),
            ([], "cpu", "", None, "no processors"),
        ):
            with self.assertRaisesRegex(fleet.FleetError, words):
                fleet.demand(nodes, device, kind, processors)

    def test_a_task_takes_so_many_processors_that_no_node_has_room_for_two(self):
        for counts, taken, able in (([2], 2, 1), ([8, 8], 8, 2), ([6, 8, 0], 6, 2), ([2, 4, 8, 5], 5, 2), ([1, 1], 1, 2)):
            nodes = [{"CPU": float(count)} for count in counts]
            needs = fleet.demand(nodes, "cpu", "", None)
            self.assertEqual(needs, {"num_cpus": taken})
            self.assertEqual(sum(fleet.can_run(node, needs) for node in nodes), able)
        code, _, err, ray = self.call_on([{"CPU": 4.0}, {"CPU": 1.0}], "--device", "cpu")
        self.assertEqual((code, ray.asked), (0, [{"num_cpus": 4}] * 3))
        self.assertIn("3 searches on 1 of 2 nodes", err)
        self.assertFalse(fleet.can_run({"CPU": 1.0, "GPU": 1.0, "accelerator_type:L4": 1.0}, {"num_gpus": 1, "accelerator_type": "H100"}))

    def test_tasks_of_one_node_share_no_processor(self):
        usable = os.sched_getaffinity(0)
        with mock.patch.object(tempfile, "tempdir", str(self.folder)):
            with fleet.held_processors(1) as held:
                self.assertEqual(len(held), 1)
                self.assertLessEqual(held, usable)
                if len(usable) > 1:
                    with fleet.held_processors(1, wait_s=0) as other:
                        self.assertTrue(held.isdisjoint(other))
                with self.assertRaisesRegex(fleet.FleetError, f"of {len(usable)} processors .* are free; other searches hold the rest"):
                    with fleet.held_processors(len(usable), wait_s=0):
                        self.fail("one of them is held")
            with fleet.held_processors(len(usable), wait_s=0) as every:
                self.assertEqual(every, usable)
            with self.assertRaisesRegex(fleet.FleetError, f"takes 9999 processors .*lets it use {len(usable)}"):
                with fleet.held_processors(9999):
                    self.fail("no node has so many")

    def test_a_search_runs_on_the_processors_it_was_given(self):
        self.write(["b1"])
        usable = os.sched_getaffinity(0)
        with mock.patch.object(tempfile, "tempdir", str(self.folder)):
            for arguments in ([], ["--processors", 1]):
                code, _, err, _ = self.call_on([{"CPU": float(len(usable))}], "--device", "cpu", *arguments)
                self.assertEqual(code, 0, err)
        whole, one = self.lines("processors")
        self.assertEqual(whole, ",".join(map(str, sorted(usable))))
        self.assertIn(int(one), usable)

    def test_results_are_kept_and_broken_ones_are_not_taken(self):
        folder = self.folder / "results"
        folder.mkdir()
        asked = {"version": "v", "device": "cuda", "kind": "", "processors": None, "extra": [], "trials": 5}
        row = {"workload": "b1:fp16", "state": "done", "asked": asked}
        fleet.keep(folder, row)
        for trials in (4, 5):
            self.assertEqual(fleet.finished(folder, "b1:fp16", asked | {"trials": trials}), row)
        for workload, other in (("b2", {}), ("b1_fp16", {}), ("b1:fp16", {"version": "w"}), ("b1:fp16", {"trials": 6})):
            self.assertIsNone(fleet.finished(folder, workload, asked | other))
        for other in ({"device": "cpu"}, {"device": "cpu", "processors": 2}, {"kind": "H100"}, {"extra": ["--strategy", "islands"]}, {"extra": ["--strategy islands"]}):
            self.assertIsNone(fleet.finished(folder, "b1:fp16", asked | other))
            fleet.keep(folder, row | {"asked": asked | other})
            self.assertEqual(fleet.finished(folder, "b1:fp16", asked | other)["asked"], asked | other)
        self.assertEqual(fleet.finished(folder, "b1:fp16", asked), row, "others have files of their own")
        self.assertEqual(len(list(folder.glob("*.json"))), 6)
        for text in ('{"state": "done"', json.dumps(row | {"asked": None})):
            fleet.file_of(folder, "b1:fp16", asked).write_text(text)
            self.assertIsNone(fleet.finished(folder, "b1:fp16", asked))
        with self.assertRaisesRegex(fleet.FleetError, "cannot be written"):
            fleet.keep(self.folder / "nowhere", row)

    def test_another_device_kind_or_option_is_another_search(self):
        self.write(["b1"])
        cluster = [{"GPU": 1.0, "CPU": 2.0, "accelerator_type:H100": 1.0}, {"GPU": 1.0, "accelerator_type:L4": 1.0}]
        searches = ([], ["--kind", "H100"], ["--kind", "L4"], ["--device", "cpu"], ["--device", "cpu", "--", "--strategy", "islands"])
        for _ in range(2):
            for arguments in searches:
                code, _, err, _ = self.call_on(cluster, *arguments)
                self.assertEqual(code, 0, err)
        self.assertEqual(self.lines("started"), ["b1"] * len(searches))

    def test_a_champion_that_did_not_reach_the_book_is_merged_by_the_same_command(self):
        (self.folder / "locked").touch()
        for _ in range(2):
            code, out, err, _ = self.call_on([{"GPU": 1.0}])
            self.assertEqual(code, 1, err)
            self.assertIn("b2: failed: its champion is in", out)
            self.assertIn("not in the book: heed: the book is locked", out)
        (self.folder / "locked").unlink()
        code, _, err, _ = self.call_on([{"GPU": 1.0}])
        self.assertEqual(code, 0, err)
        self.assertEqual(self.lines("merged"), ["champion of b1", "champion of b2", "champion of b3"])
        self.assertEqual(self.lines("started"), ["b1", "b2", "b3"], "nothing was searched again")

    def test_an_interrupt_between_result_and_book(self):
        with mock.patch.object(fleet, "merge", side_effect=KeyboardInterrupt):
            code, _, err, ray = self.call_on([{"GPU": 1.0}])
        self.assertEqual(code, 130)
        self.assertIn("the same command goes on", err)
        self.assertEqual((len(ray.cancelled), self.lines("merged")), (2, []))
        code, _, err, _ = self.call_on([{"GPU": 1.0}])
        self.assertEqual(code, 0, err)
        self.assertEqual(self.lines("merged"), ["champion of b1", "champion of b2", "champion of b3"])
        self.assertEqual(self.lines("started"), ["b1", "b2", "b3"])

    def test_lines_tell_the_outcome_of_a_run(self):
        code, out, err, _ = self.call_on([{"GPU": 1.0}])
        self.assertEqual(code, 0, err)
        self.assertEqual(out.splitlines(), [f"{one}: Faster: {one}" for one in ("b1", "b2", "b3")])
        self.assertIn("1 of 3: b1: Faster: b1\n", err)
        self.assertIn("1 of 3, by an earlier command: b1: Faster: b1\n", self.call_on([{"GPU": 1.0}])[2])

    def test_a_cluster_that_does_not_start(self):
        ray = ray_of([])
        ray.init = mock.Mock(side_effect=Exception("The current node timed out during startup."))  # as Ray says it
        with mock.patch.dict(sys.modules, {"ray": ray}):
            code, _, err = self.call()
        self.assertEqual(code, 1)
        self.assertIn("heed.fleet: no Ray cluster at this machine: The current node timed out", err)

    def test_a_cluster_of_this_machine_unless_one_is_named(self):
        self.assertEqual(self.call_on([{"GPU": 1.0}])[3].addresses, ["local"])
        self.assertEqual(self.call_on([{"GPU": 1.0}], "--trials", 99, "--address", "auto")[3].addresses, ["auto"])

    def test_wrong_usage(self):
        self.assertEqual(self.call("--trials", 0)[0], 2)
        self.assertEqual(self.call("--device", "abacus")[0], 2)
        self.assertEqual(self.call("--device", "cpu", "--processors", 0)[0], 2)
        self.assertEqual(self.call("--device", "cpu", "--kind", "H100")[0], 2)

    def test_without_ray(self):
        with mock.patch.dict(sys.modules, {"ray": None}):
            code, _, err = self.call()
        self.assertEqual(code, 1)
        self.assertIn("Ray cannot be imported", err)
        self.assertIn("pip install", err)

    @unittest.skipUnless(importlib.util.find_spec("ray"), "Ray is not installed")
    def test_a_node_that_dies_costs_its_task_alone(self):
        from ray.cluster_utils import Cluster

        os.environ["FLEET_TEST_SECONDS"] = "3"
        self.addCleanup(os.environ.pop, "FLEET_TEST_SECONDS")
        self.write(["b1", "b2", "b9", "b3"])
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.addCleanup(cluster.shutdown)
        cluster.add_node(num_cpus=1)
        victim = cluster.add_node(num_cpus=1)

        def kill():
            end = time.monotonic() + 120
            while len(self.lines("started")) < 2 and time.monotonic() < end:
                time.sleep(0.1)
            cluster.remove_node(victim, allow_graceful=False)

        killer = threading.Thread(target=kill)
        killer.start()
        code, out, err = self.call("--address", cluster.address, "--device", "cpu", "--trials", 2)
        killer.join()
        self.assertEqual(code, 1, err)
        self.assertIn("b9: refused: heed: b9 is no workload", out)
        self.assertEqual(sorted(self.lines("merged")), ["champion of b1", "champion of b2", "champion of b3"])
        started = self.lines("started")
        self.assertGreater(len(started), 4, "the task of the node that died ran again")
        self.assertEqual(len(list((self.folder / "results").glob("*.json"))), 4)

        # The same command again runs what was refused, and nothing else.
        code, _, err = self.call("--address", cluster.address, "--device", "cpu", "--trials", 2)
        self.assertEqual(code, 1, err)
        self.assertEqual(self.lines("started")[len(started) :], ["b9"])


if __name__ == "__main__":
    unittest.main()
