"""Kernels for the calls of a model, searched on every GPU of a Ray cluster at once.

    python -m heed.fleet evolve --workloads calls.json --trials 45 --book heed.book -o results
    python -m heed.fleet evolve --workloads calls.json --address auto --kind H100 -o results

A task is one workload on one whole GPU of a kind, or on processors of a node, all of them or so many that no other task has; what it brings back is a
book of its champion and the evidence of its run. A task whose worker or node dies runs again on another, and costs the others nothing. What has come back lies in the folder of results, one file a workload,
device, kind of GPU and set of further options: the same command puts its champions into the book, if they are not there, and goes on where it was.
Ray (https://docs.ray.io) is not a requirement of Heed: pip install "ray[default]". Every node needs the same version of Heed.
"""

import argparse
import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from heed import program

RETRIES = 3  # of a task whose worker or node died
PROCESSORS_WAIT_S = 60.0  # for processors of a search that has just ended
DONE = "done"


class FleetError(RuntimeError):
    """A sentence for the user: no cluster, no GPU of the kind, files that cannot be read or written."""


class WrongUsage(FleetError):
    """A sentence about what the command was given."""


def workloads_of(path):
    """Workloads of a file that heed.record wrote, most seconds first, as text. @raises WrongUsage for a file that is none"""

    def refused(why):
        return WrongUsage(f"{path} is no file of calls that heed.record wrote: {why}")

    try:
        calls = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise refused(error) from error
    rows = calls.get("rows") if isinstance(calls, dict) else None
    if not isinstance(rows, list):
        raise refused('there is no list "rows"')
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("workload"), str) or not isinstance(row.get("seconds"), int | float) or isinstance(row["seconds"], bool):
            raise refused(f'row {i} has no text "workload" or no number "seconds"')
    served = [row for row in rows if row["workload"] and not row.get("form")]
    return [row["workload"] for row in sorted(served, key=lambda row: -row["seconds"])]


def version_of(heed):
    """What `heed --version` prints: version and digest of the kernels' sources. @raises FleetError where the program does not run"""
    try:
        done = subprocess.run([heed, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FleetError(f"{heed} --version did not run: {error}") from error
    if done.returncode != 0:
        raise FleetError(f"{heed} --version ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def _by_core(processors):
    """Processors in an order in which those of one core are neighbours: two searches that share one disturb each other's times."""

    def core_of(processor):
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text(encoding="ascii")
            return int(re.match(r"\d+", siblings).group())
        except (OSError, AttributeError):
            return processor

    return sorted(processors, key=lambda processor: (core_of(processor), processor))


@contextlib.contextmanager
def held_processors(count, wait_s=PROCESSORS_WAIT_S):
    """So many processors of this node, for as long as the context lasts: a set that shares none with that of any other search of this user.

    Ray counts processors and chooses none. A lock on a file for each, which ends with the process, does.

    @raises FleetError where there are not so many, or others hold them for longer than `wait_s`
    """
    usable = _by_core(os.sched_getaffinity(0))
    if len(usable) < count:
        raise FleetError(f"a task takes {count} processors (--processors), and this node lets it use {len(usable)}")
    folder = Path(tempfile.gettempdir()) / f"heed.fleet-{os.getuid()}"
    end = time.monotonic() + wait_s
    while True:
        with contextlib.ExitStack() as locks:
            held = set()
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                for processor in usable:
                    if len(held) < count:
                        file = locks.enter_context(open(folder / str(processor), "w", encoding="ascii"))
                        with contextlib.suppress(BlockingIOError):
                            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            held.add(processor)
            except OSError as error:
                raise FleetError(f"processors cannot be held by files in {folder}: {error}") from error
            if len(held) == count:
                yield held
                return
        if time.monotonic() > end:
            raise FleetError(f"{len(held)} of {count} processors (--processors) of this node are free; other searches hold the rest")
        time.sleep(0.2)


def _as_a_child_of(processors):
    """What a child does before it becomes heed: it ends with its parent, and runs on these processors alone, if any are named."""
    end_with_parent = program.ending_with_parent()

    def prepare():
        end_with_parent()
        if processors:
            os.sched_setaffinity(0, processors)

    return prepare


def search(workload, arguments, version, heed=None, processors=None):
    """One task: `heed evolve` of one workload on this node. Runs in a worker of Ray, which shows it the GPU that it holds and no other.

    @param processors how many it may run on; None for all
    @returns a row: workload, state ("done", "failed" or "refused"), reason, run (what --json printed), book (base64; None without a champion),
    evidence (a JSON value; None where the run failed), seconds
    """
    begin = time.monotonic()
    row = {"workload": workload, "state": "failed", "reason": "", "run": None, "book": None, "evidence": None}
    try:
        heed = heed or program.path()
        here = version_of(heed)
        if here != version:
            return {**row, "state": "refused", "reason": f"this node has {here!r}, the one that sent the task {version!r}; install the same Heed on both"}
        with tempfile.TemporaryDirectory() as folder, held_processors(processors) if processors else contextlib.nullcontext(set()) as held:
            book, evidence = Path(folder) / "heed.book", Path(folder) / "run.json"
            command = [heed, "evolve", "--shape", workload, "--db", f"{folder}/heed.db", "--book", str(book), "--evidence", str(evidence), "--json", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, preexec_fn=_as_a_child_of(held))
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or [f"heed evolve ended with {done.returncode}"]
                return {**row, "state": "refused" if done.returncode == 2 else "failed", "reason": lines[-1]}
            row["run"] = json.loads(done.stdout)
            row["evidence"] = json.loads(evidence.read_text(encoding="utf-8")) if evidence.is_file() else None
            row["book"] = base64.b64encode(book.read_bytes()).decode() if book.is_file() else None
            row["state"] = DONE
    except (FleetError, FileNotFoundError, ValueError) as error:
        row["reason"] = str(error)
    row["seconds"] = time.monotonic() - begin
    return row


def demand(nodes, device, kind, processors):
    """What a task asks of a node: a dict for Ray's options. @raises FleetError where no node has it

    A search on all processors of a node is disturbed by a second one there: without a number a task asks for so many that no node has room for two.
    Nodes of less than half of the largest one's processors are then too small for any.

    @param nodes what each has, as ray.nodes() gives it under "Resources"
    @param processors of a task with device "cpu"; None for those of a node
    """
    if device == "cpu":
        counts = sorted({int(node.get("CPU", 0)) for node in nodes} | {0})
        if counts[-1] < (processors or 1):
            raise FleetError(f"a task takes {processors} processors (--processors), and the largest node has {counts[-1]}" if processors else "the cluster has no processors")
        return {"num_cpus": processors or next(count for count in counts if 2 * count > counts[-1])}
    nodes = [node for node in nodes if node.get("GPU", 0) >= 1]
    if not nodes:
        raise FleetError("the cluster has no GPU; --device cpu searches on its processors")
    if not kind:
        return {"num_gpus": 1}
    kinds = sorted({name.split(":", 1)[1] for node in nodes for name in node if name.startswith("accelerator_type:")})
    if kind not in kinds:
        raise FleetError(f"the cluster has no {kind}; it has {', '.join(kinds) or 'GPUs of no known kind'}")
    return {"num_gpus": 1, "accelerator_type": kind}


def can_run(node, needs):
    """Whether a node with these resources has what demand() returned."""
    kind = f"accelerator_type:{needs.get('accelerator_type')}"
    return node.get("CPU", 0) >= needs.get("num_cpus", 0) and node.get("GPU", 0) >= needs.get("num_gpus", 0) and ("accelerator_type" not in needs or kind in node)


def processors_of(options):
    """How many processors a task is given; None for all of a node, and where it searches on a GPU."""
    return options.processors if options.device == "cpu" else None


def asked_of(options, version):
    """What makes two searches of a workload the same one but for `trials`: a dict, which is kept in the row of its result."""
    return {
        "version": version,
        "device": options.device,
        "kind": options.kind,
        "processors": processors_of(options),
        "extra": list(options.extra),
        "trials": options.trials,
    }


def file_of(folder, workload, asked):
    """The file of a workload's result. Searches on another device, of another kind of GPU, on other processors or with other options have files of their own."""
    of_some = f"cpu{asked['processors']}" if asked["processors"] else "cpu"
    parts = [workload, *([of_some] if asked["device"] == "cpu" else []), *([asked["kind"]] if asked["kind"] else [])]
    if asked["extra"]:
        parts.append(hashlib.sha256(json.dumps(asked["extra"]).encode()).hexdigest()[:8])
    return Path(folder) / (re.sub(r"[^A-Za-z0-9._-]+", "_", ".".join(parts)) + ".json")


def finished(folder, workload, asked):
    """The row that an earlier command left, where it is done and of the same search with as many trials; else None."""
    try:
        row = json.loads(file_of(folder, workload, asked).read_text(encoding="utf-8"))
        same = row["workload"] == workload and all(row["asked"][name] == value for name, value in asked.items() if name != "trials")
        return row if row["state"] == DONE and same and row["asked"]["trials"] >= asked["trials"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(folder, row):
    """Writes a row whole or not at all. @raises FleetError where it cannot be written"""
    file = file_of(folder, row["workload"], row["asked"])
    beside = file.with_suffix(".part")
    try:
        beside.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise FleetError(f"the result of {row['workload']} cannot be written: {error}") from error


def merge(heed, row, book):
    """Puts the champion of a row into a book. Of two for one workload and device the book keeps the one whose ratio's interval has the higher
    lower end, where referee and sources are the same; else the newer one (`heed book --help`). @returns what went wrong, or ''"""
    if row["book"] is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".book") as file:
        file.write(base64.b64decode(row["book"]))
        file.flush()
        done = subprocess.run([heed, "book", "import", file.name, *(["--book", str(book)] if book else [])], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"heed book import ended with {done.returncode}"])[-1]


def line_of(row):
    """A row in a few words."""
    if row["state"] != DONE:
        return f"{row['workload']}: {row['state']}: {row['reason']}"
    summary = (row["run"].get("result") or {}).get("summary", DONE)
    return f"{row['workload']}: {summary}"


def evolve(options, say):
    """Runs the searches. @returns (rows, number that failed) @raises FleetError"""
    try:
        import ray
    except ImportError as error:
        raise FleetError(f'Ray cannot be imported ({error}); pip install "ray[default]"') from error
    heed = program.path()
    version = version_of(heed)
    asked = asked_of(options, version)
    workloads = workloads_of(options.workloads)
    if not workloads:
        raise WrongUsage(f"{options.workloads} has no call that a kernel of Heed has the form of")
    folder = Path(options.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FleetError(f"{folder} is no folder to write into: {error}") from error

    def merged(row):
        """The row, as one that failed where its champion could not be put into the book. Its file stays: the same command merges it again."""
        if row["state"] != DONE or not (wrong := merge(heed, row, options.book)):
            return row
        return row | {"state": "failed", "reason": f"its champion is in {file_of(folder, row['workload'], asked)} and not in the book: {wrong}"}

    rows = {}
    for workload in workloads:
        # An earlier command may have ended between keeping the row and merging it; merging twice is merging once.
        if row := finished(folder, workload, asked):
            rows[workload] = merged(row)
            say(f"{len(rows)} of {len(workloads)}, by an earlier command: {line_of(rows[workload])}")
    left = [workload for workload in workloads if workload not in rows]
    if left:
        if options.address:
            say(f"asking for the Ray cluster at {options.address}; Ray waits up to some minutes for one that does not answer")
        try:
            # Without an address Ray takes a cluster that runs here already, of whomever it is.
            cluster = ray.init(address=options.address or "local", log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # what Ray raises where a node does not start is of no other class
            raise FleetError(f"no Ray cluster at {options.address or 'this machine'}: {error}") from error
        try:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            needs = demand(nodes, options.device, options.kind, options.processors)
            able = sum(can_run(node, needs) for node in nodes)
            say(f"{len(left)} searches on {able} of {len(nodes)} nodes" + (f", dashboard http://{cluster.dashboard_url}" if cluster.dashboard_url else ""))
            arguments = ["--trials", str(options.trials), "--device", options.device, *options.extra]
            task = ray.remote(max_retries=RETRIES, max_calls=1)(search)
            under_way = {task.options(name=f"heed evolve {one}", **needs).remote(one, arguments, version, None, processors_of(options)): one for one in left}
            try:
                while under_way:
                    (ready, *_), _ = ray.wait(list(under_way), num_returns=1)
                    workload = under_way.pop(ready)
                    try:
                        row = ray.get(ready)
                    except ray.exceptions.RayError as error:  # its worker or node died RETRIES times more
                        row = {"workload": workload, "state": "failed", "reason": str(error).strip().splitlines()[0], "run": None, "book": None, "evidence": None}
                    row["asked"] = asked
                    keep(folder, row)
                    rows[workload] = merged(row)
                    say(f"{len(rows)} of {len(workloads)}: {line_of(rows[workload])}")
            except KeyboardInterrupt:
                for one in under_way:
                    ray.cancel(one, force=True)
                raise
        finally:
            ray.shutdown()
    ordered = [rows[workload] for workload in workloads]
    return ordered, sum(row["state"] != DONE for row in ordered)


def main(arguments=None):
    """The command line. @returns the exit code: 0, 1 where a search failed or there is no cluster, 2 for wrong usage, 130 for Ctrl-C"""
    parser = argparse.ArgumentParser(prog="python -m heed.fleet", description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("evolve", help="evolve kernels for the calls of a model", description="Evolve kernels for the calls of a model, a task of Ray for each workload.")
    command.add_argument("--workloads", required=True, metavar="FILE", help="calls that heed.record wrote")
    command.add_argument("-o", "--output", required=True, metavar="FOLDER", help="folder for results, a file a workload and device; those that are there, of the same Heed, device, kind and options, are not searched again")
    command.add_argument("--trials", type=int, default=45, help="variants to build, verify and measure for each workload [%(default)s]")
    command.add_argument("--book", metavar="FILE", help="book that champions go to [the user's own]")
    command.add_argument("--address", help="a Ray cluster, e.g. auto or ray://host:10001 [a cluster of this machine alone, which ends with the command]")
    command.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what a task searches on [%(default)s]")
    command.add_argument("--kind", default="", help="GPUs of this accelerator type of Ray alone, e.g. H100 or L4 [any]")
    command.add_argument(
        "--processors",
        type=int,
        metavar="N",
        help="processors that a task with --device cpu takes, which no other task on its node then runs on [all of a node]. Tasks that share a node share its caches and its memory",
    )
    command.add_argument("--json", action="store_true", help="print the results as JSON")
    command.add_argument("extra", nargs="*", metavar="-- OPTION", help="more options for heed evolve, behind --")
    options = parser.parse_args(arguments)
    if options.device == "cpu" and options.kind:
        parser.error("--kind is of GPUs, and --device cpu searches on processors")
    if options.trials < 1 or (options.processors is not None and options.processors < 1):
        parser.error("--trials and --processors are at least 1")
    try:
        rows, failed = evolve(options, lambda text: print(text, file=sys.stderr, flush=True))
    except (FleetError, FileNotFoundError) as error:
        print(f"heed.fleet: {error}", file=sys.stderr)
        return 2 if isinstance(error, WrongUsage) else 1
    except KeyboardInterrupt:
        print(f"heed.fleet: interrupted; what is done lies in {options.output}, and the same command goes on", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps({"results": [{key: value for key, value in row.items() if key != "book"} for row in rows]}, indent=1))
    else:
        for row in rows:
            print(line_of(row))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
