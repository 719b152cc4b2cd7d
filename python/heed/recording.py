"""Which calls of attention a model makes, how often, and how long they take: the input of `heed evolve --workloads`."""

import contextlib
import dataclasses
import datetime
import json
import threading
import time
from pathlib import Path

import torch

from heed import compile_caches, features, forms, functional, multi_head, operators, override, routing, unfused

SCHEMA = 1
WHAT = "calls"


@dataclasses.dataclass
class Row:
    """Calls of one workload ("" where no kernel of Heed has the form of the call). `seconds` is their time together: on a GPU between
    events on the stream before and after each call, on a CPU by the clock. `form` says what the call has that Heed does not serve."""

    workload: str
    form: str
    calls: int = 0
    seconds: float = 0.0


class Recording:
    """What `record` yields: rows by time when its statement has ended."""

    def __init__(self, with_tensors):
        self.rows = {}
        self.tensors = {}
        self._with_tensors = with_tensors
        self._events = []
        self._lock = threading.Lock()
        self.device = ""

    def call(self, workload, form, inputs, function):
        """Runs `function` as a call of a workload."""
        self.device = self.device or (torch.cuda.get_device_name(inputs[0].device) if inputs[0].is_cuda else "cpu")
        if inputs[0].is_cuda and not torch.cuda.is_current_stream_capturing():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            result = function()
            end.record()
            with self._lock:
                self._count(workload, form, inputs, 0.0)
                self._events.append((workload, form, begin, end))
            return result
        before = time.perf_counter()
        result = function()
        with self._lock:
            self._count(workload, form, inputs, 0.0 if inputs[0].is_cuda else time.perf_counter() - before)
        return result

    def sdpa(self, function, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
        """Runs `function`, which has the arguments of scaled_dot_product_attention, as a call of its workload."""
        plain = forms.plain(query, key, value, attn_mask, scale, enable_gqa)
        lifted = plain and routing.lifted(plain.query, plain.key, plain.value, plain.attn_mask, enable_gqa)
        inputs, mask, scale_of_form = (lifted, plain.attn_mask, plain.scale) if lifted else ((query, key, value), attn_mask, scale)
        masking = unfused.CAUSAL_TOP_LEFT if is_causal else unfused.NONE, -1, -1, scale_of_form
        form, f = _form(*inputs, mask, dropout_p)
        has_workload = form in ("", "dropout") or form.startswith("attn_mask")
        return self.call(functional.workload(*inputs, masking, f) if has_workload else "", form, inputs,
                         lambda: function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa))

    def _count(self, workload, form, inputs, seconds):
        row = self.rows.setdefault((workload, form), Row(workload, form))
        row.calls += 1
        row.seconds += seconds
        if self._with_tensors and workload and workload not in self.tensors:
            self.tensors[workload] = [tensor.detach().clone() for tensor in inputs]

    def reset(self):
        """Forgets what was recorded so far."""
        self.finish()
        self.rows.clear()
        self.tensors.clear()

    def finish(self):
        """Reads the events. Waits for the GPU."""
        if self._events:
            torch.cuda.synchronize()
        for workload, form, begin, end in self._events:
            self.rows[workload, form].seconds += begin.elapsed_time(end) / 1e3
        self._events.clear()

    def as_dict(self):
        rows = sorted(self.rows.values(), key=lambda row: -row.seconds)
        return {
            "schema": SCHEMA,
            "what": WHAT,
            "device": self.device,
            "torch": torch.__version__,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "rows": [dataclasses.asdict(row) for row in rows],
        }

    def save(self, path):
        """Writes JSON, and beside it PATH.N.safetensors with q, k and v of row N where tensors were kept."""
        path = Path(path)
        content = self.as_dict()
        if self.tensors:
            from safetensors.torch import save_file

            for number, row in enumerate(content["rows"]):
                if row["workload"] in self.tensors:
                    name = f"{path.name}.{number}.safetensors"
                    save_file(dict(zip("qkv", (tensor.contiguous() for tensor in self.tensors[row["workload"]]))), path.with_name(name))
                    row["tensors"] = name
        path.write_text(json.dumps(content, indent=1) + "\n")


def _form(query, key, value, attn_mask, dropout_p):
    """What a call of scaled_dot_product_attention has that Heed does not serve, and the Features of a mask tensor."""
    parts, f = [], features.Features(bias=attn_mask)
    if attn_mask is not None:
        name = f"attn_mask {str(attn_mask.dtype).removeprefix('torch.')}"
        if not _is_bias(query, key, attn_mask):
            parts, f = [name], features.Features()
    if 0 in (query.numel(), key.numel(), value.numel()):
        parts.append("without elements")
    if dropout_p:
        parts.append("dropout")
    if not query.dim() == key.dim() == value.dim() == 4:
        parts.append(f"{query.dim()}-dimensional")
    elif query.shape[0] != key.shape[0] or query.shape[1] % max(key.shape[1], 1):
        parts.append("broadcast")
    return ", ".join(parts), f


def _is_bias(query, key, mask):
    """Whether a mask tensor is one that Heed adds to scores, or hides some by."""
    if mask.dtype not in features.BIAS_DTYPES or query.dim() != 4 or key.dim() != 4:
        return False
    try:
        mask.expand(*query.shape[:3], key.shape[2])
    except RuntimeError:
        return False
    return True


_lock = threading.Lock()


@contextlib.contextmanager
def record(path=None, *, tensors=False, by="torch"):
    """Records every call of scaled_dot_product_attention, PyTorch's or Heed's, and of heed.attention that the statements below make, on any thread,
    and the attention within the fast path of torch.nn.MultiheadAttention.

    path      a file for `heed evolve --workloads`, written at the end, also after an exception; None for none
    tensors   keep q, k and v of each workload's first call, for `heed run --qkv` and `heed evolve --qkv`; takes the package safetensors
    by        which kernels compute the calls of scaled_dot_product_attention meanwhile: "torch" for PyTorch's own, "heed" for Heed's where
              it has them

    Yields a Recording. One recording at a time; a traced or compiled function is recorded by what it calls while it is traced, so record
    the model as it was before torch.compile. Raises RuntimeError within another recording or heed.sdpa(), ValueError for another `by`, and
    FileNotFoundError or IsADirectoryError for a path that cannot be a file, before anything runs.
    """
    if by not in ("torch", "heed"):
        raise ValueError(f'heed.record(): by is {by!r}; it must be "torch" or "heed"')
    if path is not None:
        # What could not be written would be known when the model has run.
        if Path(path).is_dir():
            raise IsADirectoryError(f"heed.record(): {path} is a folder; name a file")
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(f"heed.record(): there is no folder {Path(path).parent}; make it, or name another file")
    if override._installed:
        raise RuntimeError("heed.record() within heed.sdpa() or after heed.install(): both stand in the place of one function; leave that first")
    if not _lock.acquire(blocking=False):
        raise RuntimeError("heed.record() within another recording; end that first")
    recording = Recording(tensors)
    inner = operators.torch_attention if by == "torch" else torch.ops.heed.scaled_dot_product_attention.default

    def recorded(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        return recording.sdpa(inner, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    library = torch.library.Library("aten", "IMPL")
    fast_path = None
    try:
        for key in ("CPU", "CUDA", *routing.AUTOGRAD_KEYS):
            library.impl(torch.ops.aten.scaled_dot_product_attention.default, recorded, key)
        # Its projections are no attention: between them stands the function that is recorded.
        fast_path = multi_head.install(torch.cuda.is_available(), recorded)
        functional.recording = recording
        compile_caches.mark("recorded", by)
        yield recording
    finally:
        functional.recording = None
        compile_caches.mark()
        library._destroy()
        if fast_path is not None:
            fast_path._destroy()
        _lock.release()
        recording.finish()
        if path is not None:
            recording.save(path)
