"""python -m heed: what is installed, what there is to run on, and what would be served.

    python -m heed                         version, libraries, programs, book, PyTorch, devices
    python -m heed --shape b1h8l512d64     which kernel serves a workload on each device, and why
    python -m heed --json                  the same for programs
"""

import argparse
import ctypes
import json
import os
import sys

import heed
from heed import c_api, libraries, program

EXAMPLES = ("b1h8l512d64:fp16", "b1h32hkv8l2048d128:bf16:causal_top_left", "b1h32hkv8l1k4096d128:bf16")


def explained(library, workload, device_type, ordinal):
    """heed_explain of a suites.Workload whose tensors are dense."""
    w = workload
    p = c_api.Problem(struct_size=ctypes.sizeof(c_api.Problem), abi_version=c_api.ABI_VERSION, device_type=device_type, device=ordinal)
    p.batch, p.heads, p.heads_kv, p.len_q, p.len_k = w.batch, w.heads, w.heads_kv, w.len_q, w.len_k
    p.dim = p.dim_v = w.dim
    p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = c_api.DTYPES[w.dtype]
    p.mask, p.window_left, p.window_right = c_api.MASKS[w.mask], w.left, w.right
    p.scale = float(w.scale_text or 0)
    text = ctypes.create_string_buffer(8192)
    library.heed_explain.restype = ctypes.c_size_t
    library.heed_explain(ctypes.byref(p), None, text, ctypes.c_size_t(len(text)))
    lines = [line.split(None, 1) for line in text.value.decode().splitlines()]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def devices():
    """[(name, heed_device_type, ordinal)]: the CPU, and GPUs that PyTorch sees where it is there."""
    found = [("cpu", c_api.CPU, 0)]
    try:
        import torch
    except ImportError:
        return found
    return found + [(f"cuda:{i} {torch.cuda.get_device_name(i)}", c_api.CUDA, i) for i in range(torch.cuda.device_count())]


def facts(shapes):
    """A dictionary of what there is; a part that is missing is told as a sentence under "missing"."""
    from heed.suites import parse_workload

    missing = []
    found = {"version": heed.__version__, "libraries": "", "programs": "", "book": "", "program": "", "torch": "", "missing": missing, "served": []}
    try:
        found["program"] = program.path()
    except FileNotFoundError as error:
        missing.append(str(error))
    try:
        import torch

        found["torch"] = torch.__version__
    except ImportError:
        missing.append("PyTorch is not installed: heed.attention and its like take version 2.10 or newer")
    try:
        folder = libraries.folder()
    except libraries.LibraryMissing as error:
        missing.append(str(error))
        return found
    found["libraries"] = str(folder)
    programs = os.environ.get("HEED_PROGRAMS") or str(folder / "heed.programs")
    if os.path.isfile(programs):
        found["programs"] = programs
    else:
        missing.append(f"{programs} is not there: nothing can be served; `heed programs build` makes it")
    data = os.environ.get("XDG_DATA_HOME", "")
    data = data if os.path.isabs(data) else os.path.join(os.path.expanduser("~"), ".local", "share")
    book = os.environ.get("HEED_BOOK", os.path.join(data, "heed", "book.heed"))  # empty: none
    found["book"] = book if os.path.exists(book) else ""
    library = c_api.library(str(folder / "libheed.so")).lib
    for name, kind, ordinal in devices():
        for text in shapes:
            row = {"on": name, "workload": text, **explained(library, parse_workload(text), kind, ordinal)}
            found["served"].append(row)
            code, _, sentence = row.get("refused", "").partition(": ")
            if code == "HEED_BAD_PROGRAMS" and f"nothing is served: {sentence}" not in missing:
                missing.append(f"nothing is served: {sentence}")
    return found


def main(arguments=None):
    """Exit code: 0, 1 where something is missing, 2 for a wrong argument."""
    from heed.suites import BadWorkload, parse_workload

    parser = argparse.ArgumentParser(prog="python -m heed", description="What is installed, what there is to run on, and what would be served.")
    parser.add_argument("--shape", action="append", metavar="W", help=f"a workload, as {EXAMPLES[0]}; may be given again [{', '.join(EXAMPLES)}]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        shapes = [str(parse_workload(text)) for text in options.shape or EXAMPLES]
    except BadWorkload as error:
        parser.error(str(error))
    found = facts(shapes)
    if options.json:
        print(json.dumps(found, indent=1))
        return 1 if found["missing"] else 0
    print(f"heed {found['version']}, PyTorch {found['torch'] or 'not installed'}")
    for key in ("libraries", "programs", "book", "program"):
        print(f"{key:<9} {found[key] or '-'}")
    device = ""
    for row in found["served"]:
        if row["on"] != device:
            device = row["on"]
            print(f"\n{device}")
        print("\n    ".join(filter(None, (f"  {row['workload']}", row.get("runs") or row.get("refused"), row.get("because")))))
    for sentence in found["missing"]:
        print(f"missing: {sentence}", file=sys.stderr)
    return 1 if found["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
