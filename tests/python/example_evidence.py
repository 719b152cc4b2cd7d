"""Evidence of an arena for tests: a row of every kind."""

RATIO = {"value": 1.65, "low": 1.64, "high": 1.66}


def error(value, good=True):
    return {"max_abs": value, "rel_rms": 1e-4, "rows": 128, "limit": 1e-3, "pass": good}


def evidence():
    """A file with one row of every kind."""
    timed = {
        "suite": "latency",
        "workload": "b1h8l512d64:fp16",
        "causal": False,
        "mode": "graph_warm",
        "variant": "fwd_x",
        "flops": 536870912.0,
        "heed_us": 5.5,
        "tflops": 97.6,
        "floor_us": 0.52,
        "self_spread": 0.001,
        "peers_us": {"sdpa_cudnn": 9.1, "sdpa_math": 60.0},
        "peer_ratios": {"sdpa_cudnn": RATIO, "sdpa_math": {"value": 10.9, "low": 10.8, "high": 11.0}},
        "best_peer": "sdpa_cudnn",
        "ratio": 1.65,
        "ratio_ci": [1.64, 1.66],
        "errors": {"heed": error(2e-4), "sdpa_cudnn": error(1e-4), "sdpa_math": error(0.5, good=False)},
        "refused": {"sdpa_flash": "it <refuses> & says so"},
        "kernels": {"sdpa_cudnn": ["Memset (Device)", "cudnn_generated<64>(x)"]},
        "peak_flops": 1e15,
    }
    without_heed = {**timed, "suite": "throughput", "mode": "graph_cold", "refused": {"heed": "head dim 256 is not supported"}}
    without_heed["errors"] = {"sdpa_cudnn": error(1e-4)}
    without_heed["peers_us"] = {"sdpa_cudnn": 900.0}
    for key in ("heed_us", "tflops", "self_spread", "peer_ratios", "ratio", "ratio_ci", "variant"):
        del without_heed[key]
    accepted = {"suite": "acceptance", "workload": "b1h1l8d64:fp16", "causal": False, "mode": "acceptance", "flops": 1.0, "refused": {}, "kernels": {}}
    accepted["errors"] = {"heed": error(1e-4), "sdpa_flash": {**error(None, good=False), "rel_rms": None}}
    eager = {**timed, "suite": "eager", "mode": "eager", "synchronised_us": {"heed": 20.0, "sdpa_cudnn": 25.0}}
    titles = {"latency": "us", "throughput": "TFLOP/s", "acceptance": "error", "eager": "us"}
    return {
        "schema": 1,
        "what": "arena",
        "device": "NVIDIA Test",
        "arch": "sm_90a",
        "driver": "13.0",
        "clocks_mhz": {"before": 1980, "after": 1980},
        "heed": "0.1.0",
        "source_digest": "0123456789abcdef",
        "peer": {"torch": "2.11.0", "cudnn": "9.19"},
        "skipped": {"xformers": "No module named 'xformers'"},
        "complete": True,
        "suites": {name: {"title": f"title of {name}", "modes": [], "unit": unit, "workloads": 1} for name, unit in titles.items()},
        "rows": [timed, without_heed, accepted, eager],
    }
