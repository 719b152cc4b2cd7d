"""What heed.eager and heed.model_steps share: their common arguments, the head of a file of evidence, and how it is stored and printed."""

import argparse
import datetime
import json
from pathlib import Path

SCHEMA = 1


def parser(module, description, rounds):
    """An ArgumentParser with --device, --rounds, --output, --show and --json."""
    p = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    p.add_argument("--device", choices=("cpu", "cuda"), help="[a GPU if there is one]")
    p.add_argument("--rounds", type=int, default=rounds, help=f"of every way [{rounds}]")
    p.add_argument("-o", "--output", metavar="FILE", help="write JSON there")
    p.add_argument("--show", metavar="FILE", help="measure nothing: print the table of such a file")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


def shown(path, table):
    """Prints the table of a stored file."""
    print(table(json.loads(Path(path).read_text())))
    return 0


def head(what, options):
    """(device, evidence without rows) of this machine. Takes PyTorch."""
    import torch

    import heed
    from heed.c_api import of_this_machine

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return device, {
        "schema": SCHEMA,
        "what": what,
        **of_this_machine(device),
        "torch": torch.__version__,
        "heed": heed.__version__,
        "date": date,
        "rounds": options.rounds,
        "rows": [],
    }


def store(evidence, options, table):
    """Writes and prints what was measured."""
    text = json.dumps(evidence, indent=1)
    if options.output:
        Path(options.output).write_text(text + "\n")
    print(text if options.json else table(evidence))
    return 0
