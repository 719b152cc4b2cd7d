"""The ledger: programs compile to the machine code recorded in tests/ledger/ledger.json, and scripts/ledger says what moved."""

import importlib.machinery
import importlib.util
import json
import os
import stat
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "scripts/ledger"
LEDGER = ROOT / "tests/ledger/ledger.json"
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("ledger", str(TOOL))
ledger = importlib.util.module_from_spec(importlib.util.spec_from_loader("ledger", loader))
loader.exec_module(ledger)


def call(*arguments, heed=None):
    """A finished call of the tool."""
    command = [sys.executable, str(TOOL), *map(str, arguments), "--heed", str(heed or os.environ["HEED_BINARY"])]
    return subprocess.run(command, capture_output=True, text=True, timeout=850)


def cubin(instructions):
    """An ELF file whose one section of code has these instructions, pairs of 64 bits."""
    code = b"".join(struct.pack("<QQ", *words) for words in instructions)
    names = b"\0.text.kernel\0.names\0"
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, 64 + len(code) + len(names))
    struct.pack_into("<HHH", header, 0x3A, 64, 2, 1)
    sections = [struct.pack("<IIQQQQ24x", 1, 1, 6, 0, 64, len(code)), struct.pack("<IIQQQQ24x", 14, 3, 0, 0, 64 + len(code), len(names))]
    return bytes(header) + code + names + b"".join(sections)


class NeedsNvrtc(unittest.TestCase):
    def skip_without_nvrtc(self, done):
        """Skips where the tool did; HEED_REQUIRE=nvrtc makes a machine without NVRTC a failure, and leaves one with another release skipped."""
        if done.returncode != ledger.SKIPPED:
            return
        reason = json.loads(done.stdout)["skipped"]
        if "nvrtc" in os.environ.get("HEED_REQUIRE", "").split(",") and "the ledger is of NVRTC" not in reason:
            self.fail(f"HEED_REQUIRE names nvrtc, and this machine lacks it: {reason}")
        self.skipTest(reason)


class Recorded(NeedsNvrtc):
    def test_rows_compile_to_the_recorded_code(self):
        done = call("check", "--json")
        self.skip_without_nvrtc(done)
        moved = [f"{row['arch']} {row['workload']} {row['variant']}: {row['how']}" for row in json.loads(done.stdout or "{}").get("moved", [])]
        self.assertEqual(done.returncode, 0, "\n".join([*moved, done.stderr, "docs/ledger.md says what to do about rows that moved"]))

    def test_every_row_has_a_digest(self):
        self.assertEqual([row for row in ledger.read_ledger(LEDGER)["rows"] if "code" not in row], [])

    def test_every_family_of_a_gpu_has_rows(self):
        families = json.loads(subprocess.run([os.environ["HEED_BINARY"], "families", "--json"], capture_output=True, text=True, check=True).stdout)
        expected = {family["name"] for family in families if family["device"] == "cuda"} - {"ladder"}  # a lesson, which nothing runs by itself
        self.assertEqual({row["variant"].split(":")[0] for row in ledger.read_ledger(LEDGER)["rows"]}, expected)

    def test_the_file_is_as_the_tool_writes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "ledger.json"
            ledger.write_ledger(copy, ledger.read_ledger(LEDGER))
            self.assertEqual(copy.read_text(), LEDGER.read_text())


class BrokenOnPurpose(NeedsNvrtc):
    @classmethod
    def setUpClass(cls):
        """Two rows with the keys of these very sources: those recorded may be of sources that compile to the same code."""
        content = json.loads(LEDGER.read_text())
        content["rows"] = [row for row in content["rows"] if row["arch"] == "sm_80" and row["variant"].startswith("fwd_sm80")][:2]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ledger.json"
            file.write_text(json.dumps(content))
            if call("update", "--reason", "keys", "--ledger", file).returncode == 0:  # else tests say why
                content = json.loads(file.read_text())
        cls.recorded = content

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.file = self.folder / "ledger.json"
        self.content = json.loads(json.dumps(self.recorded))
        self.assertEqual(len(self.content["rows"]), 2)

    def call(self, *arguments, heed=None):
        """A call with self.content for a ledger, as JSON: the process, and what it printed."""
        self.file.write_text(json.dumps(self.content))
        done = call(*arguments, "--ledger", self.file, "--json", heed=heed)
        self.skip_without_nvrtc(done)
        return done, json.loads(done.stdout or "{}")

    def patched(self, source, old, new):
        """A copy of the binary that carries another text of one of its kernel sources."""
        content = Path(os.environ["HEED_BINARY"]).read_bytes()
        text = (ROOT / source).read_bytes()
        self.assertEqual((len(old), content.count(text)), (len(new), 1))
        self.assertIn(old, text)
        binary = self.folder / "heed"
        binary.write_bytes(content.replace(text, text.replace(old, new)))
        binary.chmod(0o755)
        return binary

    def test_a_changed_digest_is_reported_and_recorded_again(self):
        first, second = json.loads(json.dumps(self.content["rows"]))
        second.pop("reason", None)
        self.content["rows"][1]["code"] = "0" * 32
        done, said = self.call("check", "--all")
        self.assertEqual((done.returncode, said["equal"]), (1, 1), done.stderr)
        self.assertEqual([(row["variant"], row["class"]) for row in said["moved"]], [(second["variant"], "operands")])
        done, _ = self.call("update", "--reason", "broken on purpose")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(self.file.read_text())["rows"], [first, {**second, "reason": "broken on purpose"}])

    def test_rows_of_the_recorded_sources_are_compiled_only_where_they_are_sampled(self):
        for row, other in zip(self.content["rows"], "ab"):
            row["code"] = other * 32
        real = [row["key"] for row in self.content["rows"]]
        sampled = [ledger.is_sampled(key) for key in real]
        self.assertEqual(self.call("check")[1]["equal"], sampled.count(False), "as the keys say")
        self.content["rows"][1]["key"] = "0" * 32
        self.assertEqual(self.call("check")[1]["equal"], int(not sampled[0]), "sources that are not those recorded are compiled")
        del self.content["rows"][1]["key"]
        self.assertEqual(self.call("check")[1]["equal"], int(not sampled[0]), "so are those of which nothing is recorded")

    def test_an_eighth_is_sampled(self):
        self.assertEqual(sum(ledger.is_sampled(f"{byte:02x}" + "0" * 30) for byte in range(256)), 32)

    def test_equal_rows_take_todays_label_of_their_config_and_no_reason(self):
        rows = json.loads(json.dumps(self.content["rows"]))
        self.content["rows"][0].update(config="00000000", key="0" * 32)
        self.assertEqual(self.call("check")[1]["equal"], 2)
        self.assertEqual(self.call("update", "--reason", "a knob was renamed")[0].returncode, 0)
        self.assertEqual(json.loads(self.file.read_text())["rows"], rows)

    def test_a_changed_source_moves_a_row(self):
        done, said = self.call("check", heed=self.patched("kernels/ptx/math.cuh", b"ex2.approx.ftz.f32", b"lg2.approx.ftz.f32"))
        self.assertEqual((done.returncode, len(said["moved"])), (1, 2), done.stderr)
        self.assertEqual({(row["class"], row["old"]["instructions"] - row["new"]["instructions"]) for row in said["moved"]}, {("instructions", 0)})
        self.assertIn("was not built of this tree's kernels/ptx/math.cuh", done.stderr)

    def test_a_changed_comment_moves_none(self):
        done, said = self.call("check", heed=self.patched("kernels/ptx/math.cuh", b"\n/// ", b"\n///_"))
        self.assertEqual((done.returncode, said["moved"]), (0, []), done.stderr)

    def test_a_row_without_a_digest_is_new_and_takes_no_reason(self):
        first, second = json.loads(json.dumps(self.content["rows"]))
        second.pop("reason", None)
        self.content["rows"][1] = {key: second[key] for key in ledger.ASKED}
        self.assertEqual([row["class"] for row in self.call("check")[1]["moved"]], ["new"])
        self.assertEqual(self.call("update", "--reason", "a new row")[0].returncode, 0)
        self.assertEqual(json.loads(self.file.read_text())["rows"], [first, second])

    def test_a_row_that_does_not_compile_is_reported_and_never_recorded(self):
        self.content["rows"][1]["variant"] = "fwd_sm80:stages=4,block_m=128,block_n=128"
        done, said = self.call("update", "--reason", "an illegal config")
        self.assertEqual((done.returncode, [row["class"] for row in said["moved"]]), (1, ["refused"]))
        self.assertEqual(json.loads(self.file.read_text()), self.content)

    def test_another_release_of_nvrtc_is_skipped_unless_it_is_to_be_pinned(self):
        self.content["nvrtc"] = "1.2.3"
        self.file.write_text(json.dumps(self.content))
        done = call("check", "--ledger", self.file)
        self.assertEqual(done.returncode, 77)
        if "the ledger is of" in done.stdout:
            self.assertIn("the ledger is of NVRTC 1.2.3, and heed uses ", done.stdout)
            self.assertEqual(self.call("update", "--pin", "--reason", "back")[0].returncode, 0)
            self.assertNotEqual(json.loads(self.file.read_text())["nvrtc"], "1.2.3")


class WithoutNvrtc(unittest.TestCase):
    def test_no_compiler_is_skipped_with_what_heed_says(self):
        with tempfile.TemporaryDirectory() as folder:
            heed = Path(folder) / "heed"
            heed.write_text('#!/bin/sh\necho \'{"error": {"code": "no_compiler", "message": "libnvrtc was not found"}}\'\nexit 1\n')
            heed.chmod(heed.stat().st_mode | stat.S_IXUSR)
            done = call("check", heed=heed)
        self.assertEqual((done.returncode, done.stdout), (77, "skipped: libnvrtc was not found\n"))

    def test_wrong_calls_say_what_would_be_right(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ledger.json"
            row = {"arch": "sm_80", "workload": "b1h8l512d64:fp16", "variant": "fwd_sm80"}
            for arguments, text, expected in (
                (("update",), None, "update needs --reason"),
                (("check", "--reason", "x"), None, "go with update"),
                (("check", "--only", "no such row"), None, "no row matches"),
                (("check",), "{", "is no ledger"),
                (("check",), json.dumps({"schema": 9}), "has schema 9; this program reads 1"),
                (("check",), json.dumps({"schema": 1, "nvrtc": "13.0.88", "rows": [row, row]}), "more than once"),
                (("check",), json.dumps({"schema": 1, "nvrtc": "13.0.88", "rows": [{**row, "code": "0"}]}), "lacks some of"),
                (("check",), json.dumps({"schema": 1, "nvrtc": "13.0.88", "rows": [{**row, "variant": "fwd_sm80:no=1"}]}), "no"),
            ):
                with self.subTest(expected):
                    file.write_text(text or LEDGER.read_text())
                    done = call(*arguments, "--ledger", file)
                    self.assertEqual((done.returncode, expected in done.stderr), (2, True), done.stdout + done.stderr)


class Classes(unittest.TestCase):
    A, B, NOP = (0x7A23 << 32 | 0x223, 5 << 41), (0x221, 3 << 41), (0x918, 0)

    def class_of(self, after):
        """The class of code that was A, A, B and some NOPs."""
        before = {"code": "before", **ledger.facts_of_code(cubin([self.A, self.A, self.B, self.NOP, self.NOP]))}
        return ledger.class_of(before, {"code": "after", **ledger.facts_of_code(cubin(after))})

    def test_other_registers_and_constants(self):
        self.assertEqual(self.class_of([self.A, (self.A[0] ^ 0x55000000, self.A[1]), self.B]), "operands")

    def test_another_order_or_schedule(self):
        self.assertEqual(self.class_of([self.A, self.B, self.A]), "reordered")
        self.assertEqual(self.class_of([self.A, (self.A[0], 6 << 41), self.B]), "reordered")

    def test_other_instructions_at_any_count(self):
        self.assertEqual(self.class_of([self.A, self.B, self.B]), "instructions")
        self.assertEqual(self.class_of([self.A, (self.A[0], self.A[1] | 1 << 10), self.B]), "instructions")  # a modifier
        self.assertEqual(self.class_of([self.A, self.A, self.B, self.B]), "instructions")

    def test_equal_new_and_refused(self):
        self.assertEqual(ledger.class_of({"code": "a"}, {"code": "a"}), "equal")
        self.assertEqual(ledger.class_of({}, {"code": "a"}), "new")
        self.assertEqual(ledger.class_of({"code": "a"}, {"refused": "why"}), "refused")

    def test_nops_at_the_end_are_no_instructions(self):
        self.assertEqual(ledger.facts_of_code(cubin([self.A, self.NOP, self.B, self.NOP]))["instructions"], 3)

    def test_a_row_is_described_with_its_registers_and_config(self):
        old = {"config": "1", "instructions": 100, "registers": 96, "spill_bytes": 0}
        new = {"config": "2", "instructions": 102, "registers": 98, "spill_bytes": 8}
        expected = "instructions changed, +2 of 100, registers 96 -> 98, bytes spilled 0 -> 8, config 1 -> 2: "
        self.assertTrue(ledger.describe("instructions", old, new).startswith(expected))


if __name__ == "__main__":
    unittest.main()
