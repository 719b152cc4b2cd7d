"""The arena: PyTorch's attention and Heed's side by side on the same tensors and the same stream, in one process.

    python -m heed.arena --suite latency --suite decode     measure suites (latency, throughput, acceptance, decode, models, random, windows, eager, all)
    python -m heed.arena --suite masks --suite paged         measure calls with features (masks, ragged, paged, sparse)
    python -m heed.arena --suite fp8 --suite caches          measure quantised calls (fp8, int8, caches), errors beside times
    python -m heed.arena --shapes b1h8l512d64,b2h4l100d64    measure workloads of your own
    python -m heed.arena --show evidence/h200/arena.json     draw tables and charts of what was measured; needs no PyTorch, no GPU

Exit codes: 0 done, 1 failed (Heed's results failing their gate included), 2 wrong usage, 130 interrupted.
"""

import argparse
import datetime
import json
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from heed import feature_suites, launch, precision_suites, suites
from heed import measure as timing
from heed.arena_files import SCHEMA, WHAT, Failure, check_writable, load, usage, write, write_charts
from heed.conclusion import conclude
from heed.evidence import Broken, parse
from heed.tables import brief, everything, heading, suite_text

ROOT = Path(__file__).resolve().parents[2]
OLDEST_TORCH = (2, 5)
SDPA = ("sdpa_math", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_default")
OTHERS = ("flash_attn_3", "flash_attn_2", "flash_attn_4", "flashinfer", "xformers", "triton_flex")
OF_CALLS = ("torch_varlen",)  # that take part in CALL_SUITES alone
GPU_SUITES = ("latency", "throughput", "acceptance", "decode", "models", "random", "windows", "eager")
CALL_SUITES = ("masks", "ragged", "paged", "sparse")  # of heed.feature_suites: their own contenders take part
PRECISION_SUITES = ("fp8", "int8", "caches")  # of heed.precision_suites: all that is there takes part
SUITES = (*GPU_SUITES, *CALL_SUITES, *PRECISION_SUITES, "cpu")
QUICK_RANDOM = 20  # random acceptance workloads of --quick


def require_torch():
    """PyTorch, new enough. Raises Failure."""
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        raise Failure(f"PyTorch cannot be imported ({str(error).splitlines()[0] if str(error) else type(error).__name__}); measuring needs it, --show does not")
    found = re.match(r"(\d+)\.(\d+)", getattr(torch, "__version__", ""))
    if not found or (int(found[1]), int(found[2])) < OLDEST_TORCH:
        raise Failure(f"PyTorch {getattr(torch, '__version__', '?')} is too old; the arena needs 2.5 or newer, whose backends can all be forced")
    return torch


def choose(given, known, what, groups):
    """Names out of a comma list or a repeated option, in the order known. `groups` maps a word to many."""
    chosen = set()
    for word in (part.strip() for text in given for part in text.split(",")):
        if word in groups:
            chosen.update(groups[word])
        elif word in known:
            chosen.add(word)
        else:
            raise usage(f'there is no {what} "{word}"; there are {", ".join([*known, *groups])}')
    return [name for name in known if name in chosen]


def chosen_suites(options):
    """The suites to run. Raises Failure."""
    every = suites.suites(options.seed) | feature_suites.suites() | precision_suites.suites()
    names = choose(options.suite, SUITES, "suite", {"all": GPU_SUITES})
    chosen = [every[name] for name in names]
    if options.quick:
        shortened = suites.RANDOM_WORKLOADS - QUICK_RANDOM
        chosen = [suites.Suite(s.name, s.title, s.workloads[:-shortened], s.modes, s.unit) if s.name == "acceptance" else s for s in chosen]
    if options.shapes:
        modes = choose([options.modes], ("graph_warm", "graph_cold", "eager", "acceptance"), "mode", {})
        if "acceptance" in modes and len(modes) > 1:
            raise usage('the mode "acceptance" stands alone: it measures no time')
        chosen.append(suites.custom(options.shapes.split(","), modes))
    if not chosen:
        raise usage(f"nothing to measure: give --suite {'|'.join(SUITES)}|all, or --shapes, or --show FILE")
    return chosen


def champions_on(stored, arch, device):
    """{canonical workload: variant text} of what `heed champions` wrote: the device's own, or where nothing is said of that device the
    first on another whose architecture starts with `arch`. A base of its own that nothing beat stands for itself."""
    mine = [entry for entry in stored["champions"] if entry["arch"].startswith(arch)]
    decided = {str(suites.parse_workload(entry["workload"])) for entry in [*mine, *stored.get("unbeaten", [])] if entry.get("device") == device}
    table = {}
    for entry in mine:
        workload = str(suites.parse_workload(entry["workload"]))
        if entry.get("device") == device or workload not in decided:
            table.setdefault(workload, entry["variant"])
    return table


def variants_of(options, arch="sm_", device=""):
    """{canonical workload: variant text} and the variant of all other workloads; champions on `device`, or on architectures that
    start with `arch`. A variant named for all workloads takes the place of champions that nobody named. Raises Failure."""
    named, default = {}, None
    for text in options.variant:
        match = re.fullmatch(r"((?:(?:hkv|dv|b|h|l|k|d)\d+)+(?::scale=[^:=]+|:\w+)*)=(.+)", text)
        if match:
            named[str(suites.parse_workload(match[1]))] = match[2]
        else:
            default = text
    table = {}
    default_file = ROOT / "tuned" / "champions.json"
    path = Path(options.champions) if options.champions else default_file if default is None and default_file.exists() else None
    if path:
        try:
            stored = parse(path.read_text())
        except (OSError, ValueError, Broken) as error:
            raise Failure(f"the champions in {path} cannot be read: {error}")
        try:
            table = champions_on(stored, arch, device)
        except (TypeError, KeyError, AttributeError, suites.BadWorkload) as error:
            raise Failure(f"{path} does not hold champions as heed champions writes them") from error
    return table | named, default or "auto"


def keep_suites(evidence, given):
    """Leaves rows of these suites alone in `evidence`; it is complete if each has a row of every workload. Raises Failure."""
    names = choose(given, tuple(evidence["suites"]), "suite in this file", {})
    evidence["suites"] = {name: evidence["suites"][name] for name in names}
    evidence["rows"] = [row for row in evidence["rows"] if row["suite"] in names]
    found = {name: len({row["workload"] for row in evidence["rows"] if row["suite"] == name}) for name in names}
    evidence["complete"] = all(found[name] == suite["workloads"] for name, suite in evidence["suites"].items())


def show(options):
    """--show: tables on stdout, charts into a folder where one is given; with --suite of those suites alone; with --output the file
    again, with what today's rules conclude from its readings."""
    evidence = load(options.show)
    if options.suite:
        keep_suites(evidence, options.suite)
    if options.output:
        check_writable(Path(options.output))
    for row in evidence["rows"]:
        conclude(row)
    if options.output:
        write(Path(options.output), with_tables(evidence))
    print(everything(evidence), end="")
    paths = write_charts(evidence, Path(options.charts), Path(options.show).stem) if options.charts else []
    for path in paths:
        print(f"chart     {path}")
    return 0


def device_name(torch, asked):
    """ "cuda" or "cpu". Raises Failure."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise Failure("no GPU can be used: this PyTorch sees none; --device cpu measures on the CPU")
    return asked if asked != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def folder_name(name):
    """The evidence folder of a device: "NVIDIA H200" is h200."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower().replace("nvidia", "").replace("geforce", "")).strip("_") or "device"


def version_text(cudnn):
    """91900 is 9.19."""
    return f"{cudnn // 10000}.{cudnn // 100 % 100}" if cudnn else ""


def kept_interrupts():
    """From now on a list of the Ctrl-C of this process: Python drops the KeyboardInterrupt that is raised within a finaliser (sys.unraisablehook)."""
    seen = []

    def note(number, frame):
        seen.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    return seen


def peers_of_calls(contenders, named):
    """Of contenders for calls with features those that take part: beside Heed's dense call the named ones, or with None all, each the best at some calls."""
    return [contender for contender in contenders if named is None or contender.name in (*named, "heed_dense")]


def measure(options):
    """Measures what is asked and writes it row by row."""
    chosen = chosen_suites(options)
    against = choose([options.against or "sdpa"], SDPA + OTHERS + OF_CALLS, "contender", {"all": SDPA + OTHERS + OF_CALLS, "sdpa": SDPA})
    torch = require_torch()
    device = device_name(torch, options.device)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    table, default = variants_of(options, "sm_%d%d" % torch.cuda.get_device_capability() if device == "cuda" else "x86_64", name)
    heed = launch.find_heed(options.heed)
    if device == "cuda":
        timing.use_one_stream(torch)
    place = ROOT / "evidence" / folder_name(name) if (ROOT / "evidence").is_dir() else Path()  # of a checkout, or here
    output = Path(options.output) if options.output else place / "arena.json"
    check_writable(output)

    from heed import contenders, contest

    begun = time.monotonic()
    of_calls = (*CALL_SUITES, *PRECISION_SUITES)
    calls = [call for suite in chosen if suite.name in of_calls for call in suite.workloads]
    workloads = [text for suite in chosen if suite.name not in of_calls for text in suite.workloads]
    workloads = [str(suites.parse_workload(text)) for text in dict.fromkeys(workloads)]
    workloads += [text for call in calls for text in (call.text, str(call.dense()))]
    workloads = list(dict.fromkeys(workloads))
    with tempfile.TemporaryDirectory() as folder:
        print(f"building for {len(workloads)} workloads", flush=True)
        in_16_bits = [str(call.dense()) for suite in chosen if suite.name == "int8" and device == "cuda" for call in suite.workloads]
        built = launch.build(heed, [(text, table.get(text, default)) for text in workloads] + [(text, "fwd_sm80") for text in in_16_bits], folder, device, options.cache)
        facts = {entry["workload"]: entry for entry in built["builds"]} | dict(zip(workloads, built["builds"]))
        sm80 = dict(zip(in_16_bits, built["builds"][len(workloads) :]))
        found, skipped = contenders.gather([name for name in against if name not in OF_CALLS], device == "cuda", built["device"]["memory_bytes"])
        for skipped_name, why in skipped.items():
            print(f"skipped {skipped_name}: {why}", flush=True)
        settings = contest.Settings(options.quick, options.seed)
        if device == "cpu":
            torch.set_num_threads(built["device"]["processors"])  # as many threads as Heed's defaults take
        run = contest.Contest(contenders.Heed(facts), found, device, built["device"], settings)
        runs_of_calls = {}
        if any(suite.name in CALL_SUITES for suite in chosen):
            from heed import feature_contenders, feature_contest

            mine = peers_of_calls(feature_contenders.contenders(facts), against if options.against else None)
            runs_of_calls |= dict.fromkeys(CALL_SUITES, feature_contest.FeatureContest(feature_contenders.Heed(facts), mine, device, built["device"], settings))
        if any(suite.name in PRECISION_SUITES for suite in chosen):
            from heed import precision_contenders, precision_contest

            quantised = precision_contenders.HeedQuantised(facts)
            for suite in (suite for suite in chosen if suite.name in PRECISION_SUITES):
                mine = precision_contenders.contenders(suite.name, facts, sm80)
                runs_of_calls[suite.name] = precision_contest.PrecisionContest(quantised, mine, device, built["device"], settings)
        evidence = {
            "schema": SCHEMA,
            "what": WHAT,
            "device": built["device"]["name"],
            "arch": built["device"]["arch"],
            "driver": built["device"]["driver"],
            "clocks_mhz": {"before": run.clocks.mhz(), "after": 0},
            "heed": built["heed"],
            "source_digest": built["source_digest"],
            "referee": built["referee"],
            "family_digests": built["family_digests"],
            "programs": {entry["variant"]: entry["machine_code"] for entry in built["builds"] if "machine_code" in entry},
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "peer": {"torch": torch.__version__, "cudnn": version_text(torch.backends.cudnn.version()) if device == "cuda" else ""},
            "contenders": ["heed", *[contender.name for contender in found]],
            "skipped": skipped,
            "options": {"quick": options.quick, "seed": options.seed, "quads": settings.quads, "block_us": settings.block_us, **({"threads": torch.get_num_threads()} if device == "cpu" else {})},
            "complete": False,
            "suites": {s.name: {"title": s.title, "modes": list(s.modes), "unit": s.unit, "workloads": len(s.workloads)} for s in chosen},
            "rows": [],
        }
        interrupted = False
        interrupts = kept_interrupts()
        try:
            for suite in chosen:
                for contender in found:
                    getattr(contender, "new_suite", lambda: None)()
                for number, text in enumerate(suite.workloads, 1):
                    if suite.name in runs_of_calls:
                        rows = runs_of_calls[suite.name].rows(suite, text, facts[text.text])
                    else:
                        text = str(suites.parse_workload(text))
                        rows = run.rows(suite, text, facts[text])
                    for row in rows:
                        evidence["rows"].append(row)
                        print(f"{time.monotonic() - begun:5.0f} s  {suite.name} {number}/{len(suite.workloads)}  {progress_text(row)}", flush=True)
                        save(evidence, output, run)
                    if interrupts:
                        raise KeyboardInterrupt
                print("\n" + suite_text(evidence, suite.name), flush=True)
            evidence["complete"] = True
        except KeyboardInterrupt:
            interrupted = True
    evidence["elapsed_s"] = round(time.monotonic() - begun, 1)
    save(evidence, output, run)
    paths = write_charts(evidence, output.parent, output.stem)
    print(heading(evidence) + f"evidence  {output}\n" + "".join(f"chart     {path}\n" for path in paths), end="")
    if interrupted:
        print("heed.arena: interrupted; the rows that were finished are in the file", file=sys.stderr)
        return 130
    wrong = [f"{row['workload']} {row['mode']}" for row in evidence["rows"] if not row["errors"].get("heed", {}).get("pass", True)]
    if wrong:
        print(f"heed.arena: heed's results fail their gate at {', '.join(wrong[:5])}", file=sys.stderr)
        return 1
    return 0


def progress_text(row):
    """One line for a finished row."""
    text = f"{row['workload']} {row['mode']}"
    if row["mode"] == "acceptance":
        failed = [n for n, e in row["errors"].items() if not e["pass"]]
        return f"{text}: {len(row['errors']) - len(failed)} pass" + (f", FAIL: {', '.join(failed)}" if failed else "")
    heed = f"heed {row['heed_us']:.2f} us" if row.get("heed_us") else "heed -"
    best = row.get("best_peer")
    return f"{text}: {heed}" + (f", {best} {row['peers_us'][best]:.2f} us" if best else "")


def save(evidence, output, run):
    """The file as it stands."""
    evidence["clocks_mhz"]["after"] = run.clocks.mhz()
    write(output, with_tables(evidence))


def with_tables(evidence):
    """The file's text, its tables drawn anew."""
    evidence["table"] = everything(evidence)
    evidence["tables"] = {name: brief(evidence, name) for name in evidence["suites"]}
    return serialized(evidence)


def serialized(evidence):
    """JSON with one line a row: a third of the size of an indented file, and differences can still be read."""
    head = json.dumps({key: value for key, value in evidence.items() if key != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row) for row in evidence["rows"])
    return head[:-2] + ',\n "rows": [\n' + rows + "\n ]\n}\n"


def parser():
    """The command line."""
    p = argparse.ArgumentParser(prog="heed.arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", action="append", default=[], metavar="NAME", help=f"{', '.join(SUITES)}, or all for those of a GPU; may be given several times")
    p.add_argument("--shapes", metavar="W,...", help="workloads of your own, written as for heed --shape")
    p.add_argument("--modes", default="graph_warm", metavar="M,...", help="of --shapes: graph_warm, graph_cold, eager or acceptance [graph_warm]")
    p.add_argument(
        "--against",
        metavar="NAME,...",
        help=f"sdpa (every backend), all, or any of {', '.join(SDPA + OTHERS + OF_CALLS)} [sdpa; in masks, ragged, paged, sparse, fp8, int8 and caches all that can be imported]",
    )
    p.add_argument("--variant", action="append", default=[], metavar="[WORKLOAD=]VARIANT", help="Heed's variant, for one workload or for all others [auto, and the champion where there is one]")
    p.add_argument("--champions", metavar="FILE", help="what heed champions wrote [tuned/champions.json, unless --variant names one for all]")
    p.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    p.add_argument("--heed", metavar="PATH", help="the heed program [of this package, of a checkout's release build, or that on PATH]")
    p.add_argument("--cache", metavar="FOLDER", help="Heed's folder for built kernels")
    p.add_argument("-o", "--output", metavar="FILE", help="the evidence [evidence/<gpu>/arena.json of a checkout, else arena.json]; with --show where to write that file's readings with today's conclusions")
    p.add_argument("--quick", action="store_true", help="a look, not a measurement: few and short readings")
    p.add_argument("--seed", type=int, default=1, help="of inputs, random workloads and the bootstrap [1]")
    p.add_argument("--show", metavar="FILE", help="draw tables of an evidence file; with --suite of those suites of it")
    p.add_argument("--charts", metavar="FOLDER", help="with --show: draw the charts into this folder")
    return p


def main(arguments=None):
    """Runs the command line; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return show(options) if options.show else measure(options)
    except (Failure, launch.HeedError, suites.BadWorkload) as error:
        print(f"heed.arena: {error}", file=sys.stderr)
        return 2 if isinstance(error, suites.BadWorkload) else getattr(error, "code", 1)
    except KeyboardInterrupt:
        print("heed.arena: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
