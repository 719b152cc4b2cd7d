"""Every script answers --help with its usage, and refuses what it does not know with exit code 2, before it does anything."""

import os
import subprocess
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SCRIPT_NAMES = sorted(path.name for path in SCRIPTS.iterdir() if path.is_file() and path.name != "usage.sh")

# Arguments that a script refuses, and what it says of them.
WRONG = [
    (["aarch64", "A.*", "B.*"], "one filter"),
    (["aarch64-packages"], "a folder and packages are missing"),
    (["aarch64-packages", "folder", "--kernels"], "unknown option --kernels"),
    (["build"], "a preset, the builds at a time and a target are wanted"),
    (["build", "release", "heed", "all"], "builds at a time are a number, not heed"),
    (["format", "--check", "lib"], "unknown argument lib"),
    (["gpu", "/dev/null", "out", "tests"], "/dev/null is no program that can be run"),
    (["gpu", "/bin/true"], "a built heed, a folder and a step are wanted"),
    (["python-with-torch", "3.11"], "unknown argument 3.11"),
    (["setup", "--test"], "unknown argument --test"),
    (["test", "release"], "a preset and the tests at once are wanted"),
    (["test", "release", "many"], "tests at once are a number, not many"),
    (["tidy", "no/such/folder"], "no/such/folder is no file or folder"),
    (["try-fresh", "--folder"], "--folder wants a folder"),
    (["try-fresh", "trixie/root/plain"], "trixie/root/plain is no case"),
    (["wheel"], "a folder for the wheel is wanted"),
    (["wheel", "out", "no.programs"], "no.programs is no file of programs"),
    (["without-cuda"], "a command is missing"),
]


def call(name, *arguments):
    path = SCRIPTS / name
    interpreter = [] if os.access(path, os.X_OK) else ["python3"]
    # From another folder: a script finds its own tree.
    return subprocess.run([*interpreter, str(path), *arguments], cwd="/", capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)


class Scripts(unittest.TestCase):
    def test_help(self):
        for name in SCRIPT_NAMES:
            with self.subTest(name):
                done = call(name, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                # A line of usage, and a sentence beside it.
                self.assertRegex(done.stdout, rf"(scripts/|usage: ){name}\b")
                self.assertGreater(len(done.stdout.splitlines()), 2)
                self.assertNotIn("set -", done.stdout)

    def test_unknown_options(self):
        for name in SCRIPT_NAMES:
            with self.subTest(name):
                done = call(name, "--no-such-option")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertRegex(done.stderr, "no-such-option|arguments are required")

    def test_wrong_arguments(self):
        for (name, *arguments), sentence in WRONG:
            with self.subTest(name, arguments=arguments):
                done = call(name, *arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"scripts/{name}: {sentence}", done.stderr)
                self.assertIn(f"scripts/{name} --help", done.stderr)


if __name__ == "__main__":
    unittest.main()
