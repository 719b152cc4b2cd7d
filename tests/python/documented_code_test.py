"""The Python code of README.md and of docs/, run as it is printed."""

import contextlib
import io
import json
import os
import re
import tempfile
import unittest
from pathlib import Path

from attention_cases import require_programs

ROOT = Path(__file__).resolve().parents[2]


def code_of(path):
    """The blocks of Python of a document, as one script."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))


def setUpModule():
    require_programs()


class Documents(unittest.TestCase):
    def run_document(self, path):
        printed = io.StringIO()
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
            os.chdir(folder)
            try:
                exec(compile(code_of(path), str(path), "exec"), {})
                self.recorded = json.loads(Path("calls.json").read_text())["rows"] if os.path.exists("calls.json") else []
            finally:
                os.chdir(before)
        return printed.getvalue()

    def test_readme(self):
        self.assertIn("served by Heed", self.run_document(ROOT / "README.md"))

    def test_pytorch(self):
        printed = self.run_document(ROOT / "docs" / "pytorch.md")
        self.assertIn("runs      fwd_", printed)
        self.assertIn(":bias=bool/lk", printed)
        self.assertRegex(printed, r"b1h8l512d64:fp32:dropout=0\.1 ")
        self.assertEqual([row["workload"] for row in self.recorded], ["b1h8l128d64:fp32"])

    def test_long_contexts(self):
        self.assertIn("the link is hidden from", self.run_document(ROOT / "docs" / "long-contexts.md"))


class Printed(unittest.TestCase):
    """Blocks behind <!-- printed by: python -m MODULE --show FILE --> are what that command prints."""

    def test_blocks(self):
        import importlib

        blocks = 0
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            for module, file, block in re.findall(r"<!-- printed by: python -m (\S+) --show (\S+) -->\n```\n(.*?)```", path.read_text(), re.DOTALL):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    self.assertEqual(importlib.import_module(module).main(["--show", str(ROOT / file)]), 0)
                self.assertEqual(block, printed.getvalue(), f"{path.name}: {file}")
                blocks += 1
        self.assertGreaterEqual(blocks, 2)


if __name__ == "__main__":
    unittest.main()
