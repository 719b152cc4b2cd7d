"""Heed as the evaluator of OpenEvolve (https://github.com/codelion/openevolve): its programs are edits of a kernel family.

    HEED_SHAPE=b1h8l512d64 openevolve-run edits_gpu.md evaluator.py --config config.yaml --iterations 45
    HEED_SHAPE=b1h8l512d64:fp32 HEED_FAMILY=fwd_cpu openevolve-run edits.md evaluator.py --config config.yaml --iterations 45

A program is a file of edits, in any form that `heed judge` reads. A search starts with edits of the family that it edits: edits_gpu.md is for
every GPU family, edits.md for fwd_cpu. Both change nothing that is computed, so that their score is that of the base, about 1.

The score is the lower end of the ratio's interval, which is certain, and 0 for whatever does not build or pass the gate; the reason and the
compiler's lines go back to the model as artifacts. Edits that the database knows already are not measured again: they have the score of the
trial that they repeat.
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


def reading(judged):
    """Lower end of the ratio and microseconds of edits that passed. Of a duplicate they are those of the trial (or base) that it repeats. None for others"""
    if judged["verdict"] == "ok":
        return judged["ratio"]["low"], judged["trial_us"]
    earlier = judged.get("earlier") if judged["verdict"] == "duplicate" else None
    if earlier is None or earlier["verdict"] != "ok":
        return None
    return earlier["low"], judged["base_us"] / earlier["ratio"]


def evaluate(program_path):
    """What OpenEvolve calls. @returns metrics and artifacts as its EvaluationResult, or metrics alone without OpenEvolve"""
    judged = judge(program_path)
    if "verdict" not in judged:
        raise RuntimeError(judged["error"]["message"])
    passed = reading(judged)
    low, microseconds = passed or (0.0, 0.0)
    metrics = {"combined_score": low, "valid": 1.0 if passed else 0.0, "microseconds": microseconds}
    artifacts = {"verdict": judged["verdict"], "reason": judged["reason"], "compiler": judged["log"]}
    try:
        from openevolve.evaluation_result import EvaluationResult
    except ImportError:
        return metrics
    return EvaluationResult(metrics=metrics, artifacts=artifacts)
