"""The workload grammar and the fixed suites."""

import ast
import unittest
from pathlib import Path

from heed import suites


class Grammar(unittest.TestCase):
    def test_canonical_text_reads_back(self):
        for text in ("b1h8l512d64:fp16", "b8h32hkv4l1k8192d128:bf16", "b1h2l7k9d64:fp32:causal_bottom_right:blhd:scale=0.25"):
            self.assertEqual(str(suites.parse_workload(text)), text)
        self.assertEqual(str(suites.parse_workload("l8d16")), "b1h1l8d16:fp16")
        self.assertEqual(str(suites.parse_workload("h2b3l8k8d16:causal_top_left:bf16")), "b3h2l8d16:bf16:causal_top_left")

    def test_windows_have_one_text(self):
        for text, canonical in {
            "l8d16:window=3/2": "b1h1l8d16:fp16:window=3/2",
            "l8d16:window=3": "b1h1l8d16:fp16:window=3",
            "l8d16:window=-1/2": "b1h1l8d16:fp16:window=-1/2",
            "l8d16:window_top_left=3/2": "b1h1l8d16:fp16:window=3/2",
            "l8k9d16:window_top_left=3/2:bf16": "b1h1l8k9d16:bf16:window_top_left=3/2",
            "l8d16:causal_top_left:window=3:blhd:scale=0.5": "b1h1l8d16:fp16:causal_top_left:window=3:blhd:scale=0.5",
            "l8k9d16:window=3/0": "b1h1l8k9d16:fp16:causal_bottom_right:window=3",
            "l8k9d16:window_top_left=-1/0": "b1h1l8k9d16:fp16:causal_top_left",
            "l8d16:window=7/7": "b1h1l8d16:fp16",
            "l8d16:window=7/6": "b1h1l8d16:fp16:window=-1/6",
            "l8d16:causal_top_left:window=7": "b1h1l8d16:fp16:causal_top_left",
            "l2k9d16:window=7/0": "b1h1l2k9d16:fp16:causal_bottom_right:window=7",
            "l9k2d16:window=1/5": "b1h1l9k2d16:fp16:window=-1/5",
        }.items():
            w = suites.parse_workload(text)
            self.assertEqual(str(w), canonical, text)
            self.assertEqual(suites.parse_workload(str(w)), w, text)

    def test_a_row_sees_the_keys_of_its_window(self):
        w = suites.parse_workload("l8k10d16:window=3/2")
        self.assertEqual([w.keys_of(row) for row in (0, 3, 7)], [(0, 5), (2, 8), (6, 10)])
        w = suites.parse_workload("l8k3d16:causal_bottom_right:window=1")
        self.assertEqual([w.keys_of(row) for row in (0, 4, 5, 7)], [(0, 0), (0, 0), (0, 1), (1, 3)])
        self.assertEqual(w.flops, 4 * 16 * (1 + 2 + 2))

    def test_what_is_no_workload_is_named(self):
        bad = {
            "banana": "is no shape",
            "b1h8d64": "l and d are needed",
            "b1h9hkv2l8d64": "multiple of hkv",
            "b1l0d64": "at least 1",
            "b1b2l8d64": "twice",
            "b1l8d64dv32": "equal head dims",
            "l8d64:fp8": "no dtype",
            "l8d64:fp16:bf16": "one too many",
            "l8d64:scale=-1": "positive scale",
            "l8d64:scale=x": "positive scale",
            "l8d64:window=": "is no window",
            "l8d64:window=-2": "is no window",
            "l8d64:window=3:window=3": "twice",
            "l8d64:causal_top_left:window=3/4": "write window=3",
            "l8d64:causal_top_left:window_top_left=3": "how the mask is aligned",
        }
        for text, words in bad.items():
            with self.assertRaisesRegex(suites.BadWorkload, words, msg=text):
                suites.parse_workload(text)

    def test_operations_count_visible_scores(self):
        self.assertEqual(suites.parse_workload("b1h8l512d64").flops, 4 * 64 * 8 * 512 * 512)
        self.assertEqual(suites.parse_workload("l3k5d2:causal_top_left").flops, 4 * 2 * (1 + 2 + 3))
        self.assertEqual(suites.parse_workload("l3k5d2:causal_bottom_right").flops, 4 * 2 * (3 + 4 + 5))
        self.assertEqual(suites.parse_workload("l5k3d2:causal_bottom_right").flops, 4 * 2 * (0 + 0 + 1 + 2 + 3))


class Imports(unittest.TestCase):
    """--show must work where PyTorch is not installed, and tables and charts must not depend on measuring."""

    ALLOWED = {
        "suites": {"heed.key_span"},
        "key_span": set(),
        "tables": {"heed.conclusion"},
        "chart": {"heed.tables"},
        "conclusion": set(),
        "measure": set(),
        "launch": {"heed.c_api"},
        "c_api": set(),
        "libraries": set(),
        "program": set(),
        "recording": {"torch", "heed"},
        "routing": {"torch", "heed"},
        "unfused": {"torch", "heed", "heed.relative_bias"},
        "relative_bias": {"torch"},
        "output": {"torch"},
        "dropout_calls": {"torch", "heed"},
        "precision_entries": {"heed"},
        "blocks": {"torch"},
        "block_patterns": {"torch"},
        "flashinfer_contender": {"torch", "heed.contenders", "heed.feature_calls", "heed.reference"},
        "flex_contender": {"torch", "heed.contenders", "heed.feature_calls"},
        "reference": {"torch"},
        "contenders": {"torch", "heed.launch"},
        "contest": {"torch", "heed", "heed.conclusion", "heed.reference", "heed.suites"},
        "arena": {"heed", "heed.arena_files", "heed.conclusion", "heed.evidence", "heed.tables"},
        "arena_files": {"heed.chart", "heed.evidence", "heed.plane"},
        "plane": {"heed.chart", "heed.tables"},
        "precision_suites": {"heed.suites"},
        "precision_calls": {"torch", "heed"},
        "precision_contenders": {"torch", "heed", "heed.contenders", "heed.launch", "heed.precision_suites", "heed.reference"},
        "precision_contest": {"torch", "heed", "heed.conclusion", "heed.contest", "heed.reference"},
    }

    def test_point_one_way(self):
        for name, allowed in self.ALLOWED.items():
            tree = ast.parse((Path(suites.__file__).parent / f"{name}.py").read_text())
            found = set()
            for node in tree.body:  # imports inside functions are made when they are needed
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add(node.module)
            outside = {module for module in found if module.split(".")[0] in ("torch", "heed")}
            self.assertLessEqual({m if m.startswith("heed") else "torch" for m in outside}, allowed, name)

    def test_go_in_no_circle(self):
        modules = {path.stem: path for path in Path(suites.__file__).parent.glob("*.py") if not path.stem.startswith("__")}

        def imported(name):
            """Modules of Heed, also where a function imports them."""
            for node in ast.walk(ast.parse(modules[name].read_text())):
                if isinstance(node, ast.Import):
                    yield from (alias.name.removeprefix("heed.") for alias in node.names if alias.name.startswith("heed."))
                elif isinstance(node, ast.ImportFrom) and node.module == "heed":
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heed."):
                    yield node.module.removeprefix("heed.")

        left = {name: {other for other in imported(name) if other in modules and other != name} for name in modules}
        while free := {name for name, others in left.items() if not others}:
            left = {name: others - free for name, others in left.items() if name not in free}
        self.assertEqual(left, {}, "these modules wait for each other")


class Suites(unittest.TestCase):
    def test_are_what_they_say(self):
        every = suites.suites()
        self.assertEqual({name: len(s.workloads) for name, s in every.items()}, {"latency": 14, "throughput": 72, "acceptance": 106, "decode": 3, "models": 35, "random": 200, "windows": 16, "cpu": 11, "eager": 7})
        for suite in every.values():
            for text in suite.workloads:
                suites.parse_workload(text)
        for text in every["throughput"].workloads:
            w = suites.parse_workload(text)
            self.assertEqual((w.batch * w.len_q, w.heads * w.dim), (suites.TOKENS, suites.HIDDEN))

    def test_random_workloads_depend_on_the_seed_alone(self):
        self.assertEqual(suites.random_workloads(1), suites.random_workloads(1))
        self.assertNotEqual(suites.random_workloads(1), suites.random_workloads(2))
        all_of_them = [suites.parse_workload(text) for text in suites.random_workloads(1)]
        self.assertEqual(len(set(all_of_them)), 100)
        for w in all_of_them:
            self.assertTrue(w.batch <= 4 and w.heads <= 8 and w.len_q <= 700 and w.len_k <= 700 and w.dim in (64, 128))
        for field, values in {"dtype": 2, "mask": 3, "layout": 2, "dim": 2}.items():
            self.assertEqual(len({getattr(w, field) for w in all_of_them}), values)
        self.assertTrue(any(w.heads != w.heads_kv for w in all_of_them))

    def test_random_calls_depend_on_the_seed_alone(self):
        self.assertEqual(suites.random_calls(1), suites.random_calls(1))
        self.assertNotEqual(suites.random_calls(1), suites.random_calls(2))
        calls = [suites.parse_workload(text) for text in suites.random_calls(1)]
        self.assertEqual(len(set(calls)), suites.RANDOM_CALLS)
        for w in calls:
            self.assertTrue(w.flops <= suites.MOST_CALL_FLOPS and w.set_bytes <= suites.MOST_CALL_BYTES and w.heads <= 128)
        for field, values in {"dtype": 2, "mask": 3, "layout": 2, "dim": 9}.items():
            self.assertEqual(len({getattr(w, field) for w in calls}), values)
        self.assertTrue(any(w.len_q == 1 for w in calls) and any(1 < w.len_q <= 16 < w.len_k for w in calls))
        self.assertTrue(any(w.heads >= 64 * w.heads_kv for w in calls))


if __name__ == "__main__":
    unittest.main()
