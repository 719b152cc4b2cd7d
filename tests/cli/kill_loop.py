"""Kills `heed evolve` with SIGKILL at random instants and checks that nothing is lost.

After every kill: the database is sound, every trial that was reported as finished is stored, none is stored twice, and the run
goes on where it was. At the end the run is finished and holds each trial once.

    kill_loop.py HEED [--kills N] [--seed S]
"""

import argparse
import json
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


def check(condition, text):
    if not condition:
        sys.exit(f"kill_loop: {text}")


def stored(db):
    """Trial numbers and ids of run 1, after SQLite's own check of the file."""
    connection = sqlite3.connect(db)
    check(connection.execute("pragma integrity_check").fetchone()[0] == "ok", "the database is damaged")
    rows = connection.execute("select number, id, config from trials where run = 1 order by number").fetchall()
    connection.close()
    check([row[0] for row in rows] == list(range(len(rows))), f"trial numbers have gaps or repeat: {[row[0] for row in rows]}")
    check(len({row[2] for row in rows}) == len(rows), "a config was tried twice")
    return {row[0]: row[1] for row in rows}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("heed")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "a.db")
        common = ["--db", db, "--cache", str(Path(folder) / "cache"), "--device", "cpu", "--measure-limit", "0.1"]
        # Enough trials that the run never ends before the last kill.
        start = ["evolve", "--shape", "b1h1l40d16:fp32", "--population", "3", "--no-peers", "--trials", "100000", *common]
        resume = ["evolve", "--resume", "1", *common]
        before = {}
        begun = False
        for kill in range(options.kills):
            process = subprocess.Popen([options.heed, *(resume if begun else start)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            reported = []

            def read(out=process.stdout, into=reported):
                for line in out:
                    match = re.match(r" *(\d+)/100000 ", line)
                    if match:
                        into.append(int(match.group(1)) - 1)

            reader = threading.Thread(target=read)
            reader.start()
            time.sleep(random.uniform(0.02, 2.5))
            process.kill()
            process.wait()
            reader.join()
            if not Path(db).exists():
                continue
            try:
                after = stored(db)
                begun = begun or bool(sqlite3.connect(db).execute("select count(*) from runs").fetchone()[0])
            except sqlite3.OperationalError as error:  # killed before the tables were there
                check("no such table" in str(error), str(error))
                continue
            for number in reported:
                check(number in after, f"trial {number} was reported as finished and is not stored")
            for number, trial in before.items():
                check(after.get(number) == trial, f"trial {number} was stored and is gone or was repeated")
            before = after
        check(begun, "no run was ever stored; the kills came too early")
        count = len(before)
        end = subprocess.run([options.heed, *resume, "--trials", str(count + 2), "--json"], capture_output=True, text=True)
        check(end.returncode == 0, f"the run could not be finished: {end.stderr[-500:]}")
        # The ablation may add up to three.
        check(count + 2 <= len(json.loads(end.stdout)["trials"]) <= count + 5, "the finished run has the wrong number of trials")
        print(f"{options.kills} kills, {count} trials stored in between, none lost, none repeated")


main()
