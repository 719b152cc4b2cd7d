"""Heed's binaries from Python: `heed build` makes them, libheed launches them (include/heed/heed.h), through ctypes.

On a GPU a run goes to PyTorch's current stream; it allocates nothing and waits for nothing, so it can be captured in a CUDA graph.
On a CPU the library's pinned threads share the blocks of a program, as a worker of Heed does.
"""

import ctypes
import json
import os
import subprocess
import tempfile

from heed.c_api import ABI_VERSION, CPU, CUDA, DTYPES, MASKS, RUN_DEPENDENT, HeedError, Options, PlanInfo, Problem, Tensors, library, strides_of


def build(heed, orders, folder, device, cache=None):
    """Builds [(workload text, variant text)] with one call of `heed build --list`.

    Returns its JSON: "device", "heed", "source_digest", "family_digests" and, in the order asked, "builds"; an entry that cannot be had
    holds "refused" with the reason. Raises HeedError.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
        listing.writelines(f"{workload} {variant}\n" for workload, variant in orders)
        listing.flush()
        command = [heed, "build", "--list", listing.name, "--into", str(folder), "--device", device, "--json"]
        try:
            done = subprocess.run(command + (["--cache", str(cache)] if cache else []), capture_output=True, text=True, timeout=900)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HeedError(f"the heed program {heed} cannot be run: {error}") from error
    if done.returncode != 0:
        raise HeedError(f"heed build failed: {done.stderr.strip() or done.stdout.strip()[-500:]}")
    result = json.loads(done.stdout)
    for entry in result["builds"]:
        entry["library"] = os.path.join(os.path.dirname(os.path.abspath(heed)), "libheed.so")
    return result


def problem_of(workload, on_gpu, device, q, k, v, o):
    """heed_problem of a workload (suites.Workload) and tensors that lie as these do."""
    w = workload
    problem = Problem(struct_size=ctypes.sizeof(Problem), abi_version=ABI_VERSION, device_type=CUDA if on_gpu else CPU, device=device)
    problem.batch, problem.heads, problem.heads_kv, problem.len_q, problem.len_k = w.batch, w.heads, w.heads_kv, w.len_q, w.len_k
    problem.dim = problem.dim_v = w.dim
    problem.dtype_q = problem.dtype_k = problem.dtype_v = problem.dtype_o = DTYPES[w.dtype]
    problem.mask, problem.window_left, problem.window_right = MASKS[w.mask], w.left, w.right
    problem.scale = float(w.scale_text or 0)
    problem.q_strides, problem.k_strides, problem.v_strides, problem.o_strides = map(strides_of, (q, k, v, o))
    return problem


class Plan:
    """A built variant for tensors that lie in one way. `binary` is an entry of build(), `l2` a heed_l2."""

    def __init__(self, binary, image, problem, l2=0):
        self.lib = library(binary["library"])
        self.handle = ctypes.c_void_p()
        # A champion of few threads is measured on as many.
        options = Options(struct_size=ctypes.sizeof(Options), threads=0 if problem.device_type == CUDA else binary["threads"],
                          variant=binary["config"].encode(), image=image, image_bytes=len(image), l2=l2)
        self.lib.check(self.lib.lib.heed_plan_create(ctypes.byref(problem), ctypes.byref(options), ctypes.byref(self.handle)))
        self.info = PlanInfo(struct_size=ctypes.sizeof(PlanInfo))
        self.lib.check(self.lib.lib.heed_plan_get_info(self.handle, ctypes.byref(self.info)))

    def run(self, tensors, count, workspace, stream, dependent=False, microseconds=None):
        """Runs `count` heed_tensors in order; `workspace` and `stream` are addresses or None."""
        status = self.lib.run_many(self.handle, tensors, count, workspace, stream, RUN_DEPENDENT if dependent else 0, microseconds)
        if status:
            self.lib.check(status)

    def prepare(self, workspace, stream):
        """Clears what of a workspace must be zero before its first run."""
        self.lib.check(self.lib.lib.heed_plan_prepare(self.handle, workspace, stream))

    def __del__(self):
        if getattr(self, "handle", None):
            self.lib.lib.heed_plan_destroy(self.handle)


class HeedAttention:
    """A built variant as a function of tensors, for one workload (suites.Workload). `binary` is an entry of build(), `l2` a heed_l2."""

    def __init__(self, binary, workload, l2=0):
        import torch

        self.torch = torch
        self.workload = workload
        self.binary = binary
        self.l2 = l2
        self.on_gpu = binary["file"].endswith(".cubin")
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        try:
            with open(binary["file"], "rb") as file:
                self.image = file.read()
        except OSError as error:
            raise HeedError(f"{binary['file']} cannot be read: {error}") from error
        self.o_strides = tuple(binary["o_strides"] or ())  # the only ones the program writes to; empty: any
        self.plans = {}
        self.tensors = Tensors(struct_size=ctypes.sizeof(Tensors))
        if not self.on_gpu:
            library(binary["library"])
            return
        torch.cuda.current_stream().synchronize()  # the context is there and current

    def plan_of(self, q, k, v, o):
        """(Plan, workspace) for tensors that lie as these do; made when they are first seen."""
        key = (q.stride(), k.stride(), v.stride(), o.stride())
        found = self.plans.get(key)
        if found is None:
            device = self.torch.cuda.current_device() if self.on_gpu else 0
            plan = Plan(self.binary, self.image, problem_of(self.workload, self.on_gpu, device, q, k, v, o), self.l2)
            workspace = None
            if plan.info.workspace_bytes:
                workspace = self.torch.empty(plan.info.workspace_bytes + plan.info.workspace_alignment, dtype=self.torch.uint8, device=self.device)
                workspace = workspace[-workspace.data_ptr() % plan.info.workspace_alignment :]
                plan.prepare(workspace.data_ptr(), self.stream())
            found = self.plans[key] = plan, workspace
        return found

    def stream(self):
        """The address of PyTorch's current stream; None on a CPU."""
        return self.torch.cuda.current_stream().cuda_stream if self.on_gpu else None

    def into(self, q, k, v, o, dependent=False):
        """Launches with these (batch, head, length, dim) tensors; waits for nothing on a GPU. `dependent`: as a programmatic
        dependent of the launch before it, for a variant whose plan allows it."""
        plan, workspace = self.plan_of(q, k, v, o)
        t = self.tensors
        t.q, t.k, t.v, t.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        plan.run(t, 1, workspace.data_ptr() if workspace is not None else None, self.stream(), dependent)

    def chain(self, arguments):
        """On a CPU: a function that launches with each of these (q, k, v) in turn, without Python in between, and returns
        (microseconds, the last output). Outputs are made once, one for each q; all of them lie as the first do. None on a GPU."""
        if self.on_gpu:
            return None
        outputs = {}
        launches = (Tensors * len(arguments))()
        for one, (q, k, v) in zip(launches, arguments):
            if q.data_ptr() not in outputs:
                outputs[q.data_ptr()] = self.output_for(q)
            one.struct_size = ctypes.sizeof(Tensors)
            one.q, one.k, one.v, one.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), outputs[q.data_ptr()].data_ptr()
        last = outputs[arguments[-1][0].data_ptr()]
        plan, workspace = self.plan_of(*arguments[0], outputs[arguments[0][0].data_ptr()])
        us = ctypes.c_double()

        # The launches hold addresses alone: the tensors live as long as the function does.
        def run(held=(arguments, outputs, workspace)):
            plan.run(launches, len(launches), workspace.data_ptr() if workspace is not None else None, None, False, ctypes.byref(us))
            return us.value, last

        return run

    def output_for(self, q):
        """An output for these queries, from PyTorch's pool as every other contender's: laid out as they are, or by the strides that
        the variant is built for."""
        if self.o_strides:
            return self.torch.empty_strided(q.shape, (*self.o_strides, 1), dtype=q.dtype, device=q.device)
        return self.torch.empty_like(q)

    def __call__(self, q, k, v):
        o = self.output_for(q)
        self.into(q, k, v, o)
        return o

    def as_dependent(self):
        """The same function, launched as a programmatic dependent of the launch before it; None where the plan does not allow it."""
        if not self.binary["supports_pdl"]:
            return None

        def call(q, k, v):
            o = self.output_for(q)
            self.into(q, k, v, o, dependent=True)
            return o

        return call


def find_heed(path):
    """The heed program that `path` names, without one that of heed.program. Raises HeedError when there is none."""
    if not path:
        from heed import program

        try:
            return os.path.abspath(program.path())
        except FileNotFoundError as error:
            raise HeedError(f"{error}, or name it with --heed PATH") from error
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise HeedError(f"the heed program was not found at {path}; build it with `make` or name it with --heed PATH")
    return os.path.abspath(path)
