"""Heed as the evaluator of OpenEvolve (https://github.com/codelion/openevolve): its programs are edits of a kernel family.

    HEED_SHAPE=b1h8l512d64 openevolve-run edits.md evaluator.py --config config.yaml --iterations 45

A program is a file of edits, in any form that `heed judge` reads. The score is the lower end of the ratio's interval, which is certain, and 0
for whatever does not build or pass the gate; the reason and the compiler's lines go back to the model as artifacts.
"""

import json
import os
import subprocess


def judge(path):
    """The document of `heed judge` for a file of edits; how to call it comes from the environment.

    HEED         the program [heed]
    HEED_SHAPE   workload, e.g. b1h8l512d64
    HEED_FAMILY  family or config that is edited [auto]
    HEED_OPTIONS further options, e.g. "--device cpu --db trials.db"
    """
    command = [os.environ.get("HEED", "heed"), "judge", "--json", "--patch", path, "--shape", os.environ["HEED_SHAPE"]]
    command += ["--family", os.environ.get("HEED_FAMILY", "auto"), *os.environ.get("HEED_OPTIONS", "").split()]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode not in (0, 1):  # 1 is a verdict other than ok
        raise RuntimeError(f"heed judge failed: {result.stderr.strip()}")
    return json.loads(result.stdout)


def evaluate(program_path):
    """What OpenEvolve calls. @returns metrics and artifacts as its EvaluationResult, or metrics alone without OpenEvolve"""
    judged = judge(program_path)
    if "verdict" not in judged:
        raise RuntimeError(judged["error"]["message"])
    passed = judged["verdict"] == "ok"
    metrics = {
        "combined_score": judged["ratio"]["low"] if passed else 0.0,
        "valid": 1.0 if passed else 0.0,
        "microseconds": judged["trial_us"] if passed else 0.0,
    }
    artifacts = {"verdict": judged["verdict"], "reason": judged["reason"], "compiler": judged["log"]}
    try:
        from openevolve.evaluation_result import EvaluationResult
    except ImportError:
        return metrics
    return EvaluationResult(metrics=metrics, artifacts=artifacts)
