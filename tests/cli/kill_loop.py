"""Kills `heed evolve`, or the worker and runner processes below it, with SIGKILL at random instants and checks that nothing is lost.

After every kill of the run: the database is sound, every trial that was reported as finished is stored, none is stored twice, and
the run goes on where it was. After every kill of a worker: the run lives, and what it stored is sound. At the end the run is
finished and holds each trial once.

    kill_loop.py HEED [--kills N] [--target run|worker|both] [--seed S] [--evidence FILE]

Prints how trials ended, killed workers among them; --evidence keeps it (evidence/cpu/kills.json).
"""

import argparse
import datetime
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from pathlib import Path


def check(condition, text):
    if not condition:
        sys.exit(f"kill_loop: {text}")


def stored(db):
    """Trial numbers and ids of run 1, after SQLite's own check of the file."""
    connection = sqlite3.connect(db, timeout=60)
    check(connection.execute("pragma integrity_check").fetchone()[0] == "ok", "the database is damaged")
    rows = connection.execute("select number, id, config from trials where run = 1 order by number").fetchall()
    connection.close()
    check([row[0] for row in rows] == list(range(len(rows))), f"trial numbers have gaps or repeat: {[row[0] for row in rows]}")
    check(len({row[2] for row in rows}) == len(rows), "a config was tried twice")
    return {row[0]: row[1] for row in rows}


def workers_below(root):
    """Worker and runner processes of a run: its descendants that were started as `heed worker`."""
    parents, found = {}, []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name in parentheses may hold anything; the parent is the second field after it.
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if len(arguments) > 1 and arguments[1] == b"worker":
            found.append(int(folder.name))

    def is_below(pid):
        while pid > 1 and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    return [pid for pid in found if is_below(pid)]


class Loop:
    def __init__(self, heed, folder):
        self.heed = heed
        self.db = str(Path(folder) / "a.db")
        common = ["--db", self.db, "--cache", str(Path(folder) / "cache"), "--device", "cpu", "--measure-limit", "0.1"]
        # Enough trials that the run never ends before the last kill.
        self.begin = ["evolve", "--shape", "b1h1l40d16:fp32", "--population", "3", "--no-peers", "--trials", "100000", *common]
        self.resume = ["evolve", "--resume", "1", *common]
        self.begun = False
        self.before = {}
        self.process = None
        self.said = deque(maxlen=5)  # the run's last lines, for when it ends by itself

    def start(self):
        """The run, begun or resumed, and a list of the trials that it reports as they finish."""
        process = subprocess.Popen([self.heed, *(self.resume if self.begun else self.begin)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.process = process
        reported = []
        self.said.clear()

        def read():
            for line in process.stdout:
                self.said.append(line)
                match = re.match(r" *(\d+)/100000 ", line)
                if match:
                    reported.append(int(match.group(1)) - 1)

        reader = threading.Thread(target=read)
        reader.start()
        return process, reported, reader

    def look(self, reported):
        """Checks the database against what was stored before and what was reported since."""
        if not Path(self.db).exists():
            return
        try:
            after = stored(self.db)
            connection = sqlite3.connect(self.db, timeout=60)
            self.begun = self.begun or bool(connection.execute("select count(*) from runs").fetchone()[0])
            connection.close()
        except sqlite3.OperationalError as error:  # killed before the tables were there
            check("no such table" in str(error), str(error))
            return
        for number in reported:
            check(number in after, f"trial {number} was reported as finished and is not stored")
        for number, trial in self.before.items():
            check(after.get(number) == trial, f"trial {number} was stored and is gone or was repeated")
        self.before = after

    def end(self, process, reported, reader):
        process.kill()
        process.wait()
        reader.join()
        self.look(reported)

    def undisturbed_s(self):
        """Seconds from the start to the first trial: as long as several of a worker's tasks, on this machine as busy as it is."""
        process, reported, reader = self.start()
        begin = time.monotonic()
        while not reported:
            check(process.poll() is None, f"the run ended with {process.poll()}: {''.join(self.said)}")
            check(time.monotonic() - begin < 600, "no trial was finished in 600 s")
            time.sleep(0.05)
        seconds = time.monotonic() - begin
        self.end(process, reported, reader)
        return seconds

    def kill_run(self, kills):
        # Between the start and well into a trial.
        reach = max(2.5, 1.5 * self.undisturbed_s())
        for _ in range(kills):
            process, reported, reader = self.start()
            time.sleep(random.uniform(0.02, reach))
            self.end(process, reported, reader)

    def kill_workers(self, kills):
        # A run gives up where 20 workers in a row die at one task: kills that always come sooner than a task ends would show nothing else.
        reach = max(2.0, self.undisturbed_s())
        process, reported, reader = self.start()
        done, last = 0, time.monotonic()
        while done < kills:
            time.sleep(random.uniform(0.0, reach))
            check(process.poll() is None, f"the run ended with {process.poll()} after {done} kills of its workers: {''.join(self.said)}")
            pids = workers_below(process.pid)
            # The limit is for a run that hangs: an idle machine starts several workers a second.
            check(time.monotonic() - last < 300, "no worker was started for 300 s")
            if not pids:
                continue
            try:
                os.kill(random.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                continue
            done, last = done + 1, time.monotonic()
            if done % 10 == 0:
                finished = list(reported)
                self.look(finished)
        self.end(process, reported, reader)


def write_evidence(options, finished, count, ends):
    """How many kills of runs and of workers a run survived, beside what every evidence file says of its origin."""
    row = {
        "kills_of_run": options.kills if options.target != "worker" else 0,
        "kills_of_workers": options.kills if options.target != "run" else 0,
        "trials_stored": count,
        "trials_lost": 0,
        "trials_repeated": 0,
        "verdicts": dict(ends),
    }
    evidence = {
        "schema": 1,
        "what": "kills",
        "device": finished["device"]["name"],
        "arch": finished["device"]["arch"],
        "driver": finished["device"]["driver"],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "heed": finished["heed"],
        "source_digest": finished["source_digest"],
        "referee": finished["options"]["referee"],
        "rows": [row],
    }
    Path(options.evidence).write_text(json.dumps(evidence, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("heed")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--target", choices=["run", "worker", "both"], default="run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evidence", help="file that is written when all kills are over and nothing was lost")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(options.heed, folder)
        try:
            if options.target != "worker":
                loop.kill_run(options.kills)
            if options.target != "run":
                loop.kill_workers(options.kills)
        finally:
            if loop.process is not None:
                loop.process.kill()
        check(loop.begun, "no run was ever stored; the kills came too early")
        count = len(loop.before)
        end = subprocess.run([options.heed, *loop.resume, "--trials", str(count + 2), "--json"], capture_output=True, text=True)
        check(end.returncode == 0, f"the run could not be finished: {end.stderr[-500:]}")
        finished = json.loads(end.stdout)
        trials = finished["trials"]
        # The ablation may add up to three.
        check(count + 2 <= len(trials) <= count + 5, "the finished run has the wrong number of trials")
        ends = Counter(trial["verdict"] for trial in trials)
        if options.evidence:
            write_evidence(options, finished, count, ends)
        print(f"{options.kills} kills of {options.target}, {count} trials stored in between, none lost, none repeated; verdicts {dict(ends)}")


if __name__ == "__main__":
    main()
