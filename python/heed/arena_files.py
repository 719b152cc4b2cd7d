"""Files of the arena: evidence that is read and written, charts, and the Failure of what cannot be."""

import os
import tempfile
from pathlib import Path

from heed.chart import suite_chart
from heed.evidence import Broken, check, parse
from heed.plane import ERRORS, plane_chart

SCHEMA = 1
WHAT = "arena"


class Failure(Exception):
    """Ends the program with one sentence; `code` is the exit code."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


def usage(text):
    """A Failure of wrong usage."""
    return Failure(text, 2)


def check_writable(path):
    """The output's folder, made; the file can be written. Raises Failure, before anything is measured."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise Failure(f"the output {path} cannot be written: {error.strerror or error}")


def write(path, text):
    """Writes beside the destination and renames over it: a reader never sees a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def write_charts(evidence, folder, stem):
    """One SVG a suite that has rows, and planes of speed and error of quantised calls; returns their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name in evidence["suites"]:
            rows = [row for row in evidence["rows"] if row["suite"] == name]
            if rows:
                paths.append(folder / f"{stem}_{name}.svg")
                write(paths[-1], suite_chart(evidence, name))
            if any(row.get("is_quantised") for row in rows):
                for error in ERRORS:
                    paths.append(folder / f"{stem}_{name}_{'plane' if error == 'rel_rms' else 'outliers'}.svg")
                    write(paths[-1], plane_chart(evidence, name, error))
        return paths
    except OSError as error:
        raise Failure(f"the charts cannot be written to {folder}: {error.strerror or error}")


def load(path):
    """The evidence of an arena. Raises Failure for anything else."""
    try:
        evidence = parse(Path(path).read_text())
        if not isinstance(evidence, dict) or evidence.get("schema") != SCHEMA:
            raise Failure(f"{path} has schema {evidence.get('schema') if isinstance(evidence, dict) else None}; this version reads schema {SCHEMA}")
        if evidence.get("what") != WHAT:
            raise Failure(f'{path} is evidence of "{evidence.get("what")}", not of an arena')
        check(evidence)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        raise Failure(f"{path} is no text in UTF-8")
    except Broken as error:
        raise Failure(f"{path} {error}")
    return evidence
