"""Sources for clang-tidy to read together: nearly all of its time goes to headers, which each of its sources reads anew.

    tidy_together.py BUILD SOURCE...

SOURCE: of BUILD/compile_commands.json. Those that CMake made of several files (Unity folders) and compiles alike become one source that
includes them, of at most MOST files; every other stays one by itself, for its names are others' too. Writes them and their
compile_commands.json below BUILD/together. Prints a line for each, the longest first: its path, and behind tabs what it includes.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

MOST = 60  # files: 22 s of processor time and half a GiB


def files_in(source):
    return max(1, source.read_text(encoding="utf-8").count("#include")) if "Unity" in source.parts else 1


def together(commands, sources):
    """Lists of sources to read at once, of entries of compile_commands.json by source."""
    alike, alone = defaultdict(list), []
    for source in sources:
        if "Unity" in source.parts:
            alike[re.sub(r"-o \S+ -c \S+", "", commands[source]["command"])].append(source)
        else:
            alone.append([source])
    groups = []
    for members in alike.values():
        count = MOST
        for source in members:
            count += files_in(source)
            if count > MOST:
                groups.append([])
                count = files_in(source)
            groups[-1].append(source)
    return sorted(groups, key=lambda group: -sum(map(files_in, group))) + alone


def main(build, *names):
    build = Path(build).resolve()
    commands = {Path(entry["file"]): entry for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))}
    folder = build / "together"
    folder.mkdir(exist_ok=True)
    entries, lines = [], []
    for number, group in enumerate(together(commands, sorted({Path(name).resolve() for name in names}))):
        path, entry = group[0], commands[group[0]]
        if len(group) > 1:
            path = folder / f"{number}.cpp"
            path.write_text("".join(f'#include "{source}"\n' for source in group), encoding="utf-8")
            # What is compiled comes last.
            entry = {**entry, "file": str(path), "command": re.sub(r"-c \S+$", f"-c {path}", entry["command"])}
            entries += (commands[source] for source in group)
        entries.append(entry)
        lines.append("\t".join(map(str, [path, *(group if len(group) > 1 else [])])))
    (folder / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD")
    parser.add_argument("sources", metavar="SOURCE", nargs="+")
    options = parser.parse_args()
    main(options.build, *options.sources)
