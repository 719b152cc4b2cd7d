"""Kernel Tuner's optimisers on landscapes that `heed landscape` recorded, in its simulation mode, beside `heed simulate`.

    python -m heed.landscape FILE... --trials 45 --seeds 100 [--strategies genetic_algorithm,...] [--json]
    python -m heed.landscape FILE... --beside SIMULATION.json --evidence COMPARISON.json [--stored COMPARISON.json]

Kernel Tuner (https://kerneltuner.github.io) is not a requirement of Heed: pip install kernel-tuner. It evaluates legal points alone, each once, as Heed's
searches do; the regret is time / fastest time - 1 after so many different points.
"""

import argparse
import contextlib
import io
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path

STRATEGIES = (
    "random_sample",
    "genetic_algorithm",
    "diff_evo",
    "simulated_annealing",
    "dual_annealing",
    "pso",
    "firefly_algorithm",
    "greedy_ils",
    "greedy_mls",
    "mls",
    "ordered_greedy_mls",
    "basinhopping",
    "bayes_opt",
)


class LandscapeError(ValueError):
    """A file that is no landscape, or an optimiser that there is none of."""


def read(path):
    """Reads a landscape. @returns names of its knobs, their values, times in ms by tuples of values (None: no time)

    @raises LandscapeError for a file that is none
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        knobs = document["heed"]["knobs"]
        names = [knob["name"] for knob in knobs]
        values = {knob["name"]: knob["names"] or knob["values"] for knob in knobs}
        times = {}
        for result in document["results"]:
            time = next((m["value"] for m in result["measurements"] if m["name"] == "time"), None)
            times[tuple(result["configuration"][name] for name in names)] = time
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LandscapeError(f"{path} is no landscape that heed landscape wrote: {error}") from error
    if not any(time is not None for time in times.values()):
        raise LandscapeError(f"no point of {path} has a time")
    return names, values, times


def cache_of(names, values, times):
    """The landscape as a cache file of Kernel Tuner: what its simulation mode reads."""
    entries = {}
    for config, time in times.items():
        entry = dict(zip(names, config))
        entry["time"] = time if time is not None else "RuntimeFailedConfig"
        entry.update(compile_time=0, verification_time=0, benchmark_time=0, strategy_time=0, framework_time=0)
        entries[",".join(str(value) for value in config)] = entry
    return {
        "device_name": "Simulation",
        "kernel_name": "heed_forward",
        "problem_size": 1,
        "tune_params_keys": names,
        "tune_params": values,
        "objective": "time",
        "cache": entries,
    }


def regret(names, values, times, cache, strategy, trials, seed):
    """How far the best of one search's points is behind the fastest of all."""
    # What few have is imported where it is needed.
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel

    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        results, _ = tune_kernel(
            "heed_forward",
            "",
            1,
            [],
            values,
            restrictions=[FunctionConstraint(lambda *config: config in times)],
            strategy=strategy,
            strategy_options={"max_fevals": trials},
            cache=cache,
            simulation_mode=True,
            lang="C",
            quiet=True,
        )
    found = [time for result in results if (time := times.get(tuple(result[name] for name in names))) is not None]
    fastest = min(time for time in times.values() if time is not None)
    return min(found) / fastest - 1 if found else math.inf


def simulate(path, strategies, trials, seeds, progress=None):
    """A row for each optimiser: median, quartiles, share within 2%, regrets by seed. @raises LandscapeError"""
    names, values, times = read(path)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for strategy in strategies:
            regrets = []
            reason = ""
            for seed in range(1, seeds + 1):
                cache = Path(folder) / "cache.json"  # Kernel Tuner writes to the file that it reads
                cache.write_text(json.dumps(cache_of(names, values, times)), encoding="utf-8")
                try:
                    regrets.append(regret(names, values, times, str(cache), strategy, trials, seed))
                except Exception as error:  # an optimiser whose own requirements are missing
                    reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
                    break
                if progress:
                    progress(f"{strategy}: {seed} of {seeds}")
            row = {"searcher": strategy, "reason": reason, "of_all_seeds": regrets}
            if regrets and not reason:
                ordered = sorted(regrets)
                row["median"] = statistics.median(ordered)
                row["quartiles"] = [ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]]
                row["within_2_percent"] = sum(one <= 0.02 for one in ordered) / len(ordered)
            rows.append(row)
    return rows


HEADER = ("arch", "date", "device", "driver", "family_digests", "heed", "referee", "schema", "source_digest")


def rows_of_heed(paths, files):
    """Heed's searches in evidence of `heed simulate`, a dict for each: name, median regret by landscape file.

    @param paths evidence files @param files the landscapes, each of which must be in each of them
    @return (header of the first file, rows) @raises LandscapeError for a file that is no such evidence, or of other landscapes
    """
    header, rows = None, []
    for path in paths:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            of_file = {Path(row["file"]).name: row for row in document["rows"]}
            header = header or {key: document[key] for key in HEADER}
            for name in dict.fromkeys(search["searcher"] for row in of_file.values() for search in row["searches"]):
                medians = {}
                for file, row in of_file.items():
                    medians.update({file: one["median"] for one in row["searches"] if one["searcher"] == name})
                start = next(iter(of_file.values()))["start"]
                rows.append({"searcher": f"heed {name}" + (", random start" if start == "random" else ""), "medians": medians})
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            raise LandscapeError(f"{path} is no evidence that heed simulate wrote: {error!r}") from error
        if missing := [file for file in files if Path(file).name not in of_file]:
            raise LandscapeError(f"{path} has no simulation on {missing[0]}")
    return header, rows


def comparison(simulations, header, heed_rows):
    """Evidence: median regrets of Kernel Tuner's optimisers and of Heed's searches, a column for each landscape."""
    files = [Path(one["file"]).name for one in simulations]
    rows = list(heed_rows)
    for name in [row["searcher"] for row in simulations[0]["searches"]]:
        medians = {}
        for file, one in zip(files, simulations):
            medians.update({file: row["median"] for row in one["searches"] if row["searcher"] == name and "median" in row})
        rows.append({"searcher": name, "medians": medians})
    lines = [f"({number}) {Path(file).stem}" for number, file in enumerate(files, 1)]
    first = simulations[0]
    lines.append(f"median regret after {first['trials']} trials, {first['seeds']} seeds")
    width = max(len(row["searcher"]) for row in rows)
    lines.append(" " * width + "".join(f"{f'({number})':>9}" for number in range(1, len(files) + 1)))
    for row in rows:
        cells = [f"{100 * row['medians'][file]:.2f}%" if file in row["medians"] else "-" for file in files]
        lines.append(f"{row['searcher']:<{width}}" + "".join(f"{cell:>9}" for cell in cells))
    return {**header, "what": "comparison of tuners", "rows": rows, "simulations": simulations, "table": "\n".join(lines) + "\n"}


def stored_simulations(path, files, trials, seeds):
    """The optimisers' searches that a comparison holds. @raises LandscapeError where it has none of one of the files, or of other numbers"""
    try:
        stored = {one["file"]: one for one in json.loads(Path(path).read_text(encoding="utf-8"))["simulations"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LandscapeError(f"{path} is no comparison of optimisers: {error}") from error
    if missing := [str(file) for file in files if str(file) not in stored]:
        raise LandscapeError(f"{path} holds no searches of optimisers on {missing[0]}")
    wanted = [stored[str(file)] for file in files]
    if any((one["trials"], one["seeds"]) != (trials, seeds) for one in wanted):
        raise LandscapeError(f"{path} is not of {trials} trials and {seeds} seeds; name its numbers, or run the optimisers again")
    return wanted


def write_comparison(path, simulations, header, heed_rows):
    """Writes evidence. @returns the exit code"""
    try:
        Path(path).write_text(json.dumps(comparison(simulations, header, heed_rows), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"heed.landscape: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments=None):
    """The command line. @returns the exit code: 0, 1 where Kernel Tuner is missing, 2 for wrong usage"""
    parser = argparse.ArgumentParser(prog="python -m heed.landscape", description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", help="files that heed landscape wrote")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="optimisers, with commas between [%(default)s]")
    parser.add_argument("--trials", type=int, default=45, help="points that a search may evaluate [%(default)s]")
    parser.add_argument("--seeds", type=int, default=100, help="searches of each kind [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--beside", action="append", default=[], metavar="FILE", help="evidence of heed simulate on the same files; with --evidence")
    parser.add_argument("--evidence", metavar="FILE", help="also write both, a row a search and a column a landscape, into this file")
    parser.add_argument("--stored", metavar="FILE", help="an earlier such comparison, whose optimisers are not run again; with --evidence")
    options = parser.parse_args(arguments)
    if bool(options.evidence) != bool(options.beside):
        parser.error("--evidence and --beside go together")
    if options.stored and not options.evidence:
        parser.error("--stored goes with --evidence")
    if options.trials < 1 or options.seeds < 1:
        parser.error("--trials and --seeds are at least 1")
    header, heed_rows = {}, []
    try:
        if options.beside:
            header, heed_rows = rows_of_heed(options.beside, options.files)
        if options.stored:
            return write_comparison(options.evidence, stored_simulations(options.stored, options.files, options.trials, options.seeds), header, heed_rows)
    except LandscapeError as error:
        print(f"heed.landscape: {error}", file=sys.stderr)
        return 2
    try:
        import kernel_tuner
    except ImportError:
        print("heed.landscape: Kernel Tuner is not installed; pip install kernel-tuner", file=sys.stderr)
        return 1
    strategies = options.strategies.split(",")
    if unknown := [one for one in strategies if one not in STRATEGIES]:
        parser.error(f"{unknown[0]} is no optimiser; known are {', '.join(STRATEGIES)}")
    say = (lambda text: print(text, file=sys.stderr, end="\r")) if sys.stderr.isatty() else None
    simulations = []
    for file in options.files:
        try:
            rows = simulate(file, strategies, options.trials, options.seeds, say)
        except LandscapeError as error:
            print(f"heed.landscape: {error}", file=sys.stderr)
            return 2
        simulations.append({"file": file, "trials": options.trials, "seeds": options.seeds, "searches": rows})
        if not options.json:
            print(f"{file}: {options.trials} trials, {options.seeds} seeds, Kernel Tuner {getattr(kernel_tuner, '__version__', '')}")
            for row in rows:
                result = row["reason"] or f"{100 * row['median']:6.2f}%  {100 * row['quartiles'][0]:.2f}% to {100 * row['quartiles'][1]:.2f}%"
                print(f"  {row['searcher']:<22}{result}")
    code = write_comparison(options.evidence, simulations, header, heed_rows) if options.evidence else 0
    if options.json and code == 0:
        print(json.dumps({"kernel_tuner": getattr(kernel_tuner, "__version__", ""), "simulations": simulations}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
