"""What a GPU did during steps of attention over keys in host memory: how busy link, kernels and processors were, and how much of the link's time a kernel ran.

Times are CUPTI's, by torch.profiler, whose records of kernels and copies have begin and end on one clock; a simulated GPU counts its lanes' seconds itself.
https://docs.nvidia.com/cupti/api/group__CUPTI__ACTIVITY__API.html
"""

import time

OVER_THE_LINK = "Memcpy HtoD"  # names of CUPTI's records of copies from the host begin so


def union(intervals):
    """Intervals (begin, end) in order, those that meet as one."""
    merged = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return [tuple(one) for one in merged]


def length(intervals):
    return sum(end - begin for begin, end in union(intervals))


def common(one, other):
    """The time that is in both."""
    return length(one) + length(other) - length(list(one) + list(other))


def shares(copies, kernels, processors_s, wall_s):
    """Of intervals in seconds, and of all time: {"link_busy", "kernel_busy", "processors_busy", "overlap"}; overlap is the share of the link's time during which a kernel ran, None without copies."""
    link = length(copies)
    return {
        "link_busy": link / wall_s,
        "kernel_busy": length(kernels) / wall_s,
        "processors_busy": processors_s / wall_s,
        "overlap": common(copies, kernels) / link if link > 0 else None,
    }


def of_steps(torch, kv, step, count):
    """Shares of `count` steps of a heed.HostKV, and where they are from. Raises RuntimeError where CUPTI recorded nothing."""
    return _simulated(kv, step, count) if kv.device.type == "cpu" else _recorded(torch, kv, step, count)


def _simulated(kv, step, count):
    before, begin = kv.info(), time.perf_counter()
    for _ in range(count):
        step()
    wall_s = time.perf_counter() - begin
    link, kernel, processors = (kv.info()[name] - before[name] for name in ("seconds_in", "seconds_compute", "seconds_host"))
    # Lanes count how long, not when: what is more than the wall's time was at the same time.
    least = min(max(0.0, link + kernel - wall_s), link, kernel)
    return {"from": "lanes of the simulated GPU, an overlap of at least", "link_busy": link / wall_s, "kernel_busy": kernel / wall_s, "processors_busy": processors / wall_s, "overlap": least / link if link > 0 else None}


def _recorded(torch, kv, step, count):
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    before = kv.info()["seconds_host"]
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        begin = time.perf_counter()
        for _ in range(count):
            with torch.cuda.nvtx.range("heed.offload step"):
                step()
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - begin
    processors_s = kv.info()["seconds_host"] - before
    copies, kernels = [], []
    for event in recorded.events():
        if event.device_type != DeviceType.CUDA or event.name.startswith(("Memset", "heed.")):
            continue
        interval = (event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        if event.name.startswith(OVER_THE_LINK):
            copies.append(interval)
        elif not event.name.startswith("Memcpy"):
            kernels.append(interval)
    if not kernels:
        raise RuntimeError("CUPTI recorded no kernel: another profiler has it, or this user may not read it")
    return {"from": "CUPTI", **shares(copies, kernels, processors_s, wall_s)}
