"""scripts/tidy_together.py: which sources clang-tidy reads at once."""

import importlib.util
import io
import json
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "scripts" / "tidy_together.py"


def tool():
    spec = importlib.util.spec_from_file_location("tidy_together", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Together(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name).resolve()
        self.entries = []

    def source(self, name, files, flags="-O0"):
        path = self.build / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'#include "{name}.{i}"\n' for i in range(files)))
        self.entries.append({"directory": str(self.build), "file": str(path), "command": f"clang++ {flags} -o {name}.o -c {path}"})
        return path

    def read(self, *sources):
        (self.build / "compile_commands.json").write_text(json.dumps(self.entries))
        with redirect_stdout(io.StringIO()) as said:
            tool().main(str(self.build), *map(str, sources))
        commands = json.loads((self.build / "together" / "compile_commands.json").read_text())
        return [[Path(path) for path in line.split("\t")] for line in said.getvalue().splitlines()], {Path(entry["file"]): entry["command"] for entry in commands}

    def test_sources_of_several_files_that_compile_alike_are_one(self):
        first, second, third = (self.source(f"{name}/Unity/{name}.cxx", 12) for name in "abc")
        other = self.source("d/Unity/d.cxx", 12, "-O0 -DOTHER")
        self.source("e/Unity/e.cxx", 12)  # nobody asked for it
        alone = self.source("alone.cpp", 1)
        groups, commands = self.read(first, second, third, other, alone)
        self.assertEqual(sorted(group[1:] for group in groups), [[], [], [first, second, third]])
        made = next(group[0] for group in groups if len(group) > 1)
        self.assertEqual(made.read_text(), "".join(f'#include "{path}"\n' for path in (first, second, third)))
        self.assertIn(f"-c {made}", commands[made])
        # Each by itself, too, for where they do not compile together.
        self.assertEqual(set(commands), {made, first, second, third, other, alone})

    def test_a_source_has_only_so_many_files(self):
        sources = [self.source(f"{number}/Unity/{number}.cxx", 12) for number in range(7)]
        groups, _ = self.read(*sources)
        self.assertEqual([len(group) - 1 for group in groups], [tool().MOST // 12, 2])

    def test_one_file_is_read_as_it_is(self):
        only = self.source("a/Unity/a.cxx", 12)
        groups, commands = self.read(only)
        self.assertEqual((groups, set(commands)), ([[only]], {only}))


if __name__ == "__main__":
    unittest.main()
