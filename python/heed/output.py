"""What is done to rows of O before they are written: an RMS norm of each, then a gate.

The norm is that of heads in RetNet (arXiv 2307.08621) and Differential Transformer (arXiv 2410.05258), the gate that of gated attention (arXiv 2505.06708).
"""

import torch

EPS = 1e-5
LEAST_EPS, MOST_EPS = 1e-30, 1e30


def set_output(name, query, value, out_gate, out_norm_weight, out_norm_eps, f):
    """Takes a gate and the weights of a norm into `f`. Raises TypeError and ValueError, whose sentences begin with `name`."""
    wanted = (*query.shape[:-1], value.shape[-1])
    for argument, tensor in (("out_gate", out_gate), ("out_norm_weight", out_norm_weight)):
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: {argument} must be a Tensor, not {type(tensor).__name__}")
        if tensor is not None and tensor.device != query.device:
            raise ValueError(f"{name}: {argument} is on {tensor.device} and query on {query.device}; they must be on one device")
    if out_gate is not None:
        if out_gate.dtype != query.dtype:
            raise ValueError(f"{name}: out_gate is of {out_gate.dtype}; it must be of {query.dtype}, as query is")
        if out_gate.dim() != len(wanted) or not all(size == full or size == 1 for size, full in zip(out_gate.shape, wanted)):
            raise ValueError(f"{name}: out_gate is {tuple(out_gate.shape)}; it must be {wanted}, as the output is, or have 1 in the place of any of these sizes")
        # Kernels read gates that follow each other, or one for all of a row.
        f.out_gate = out_gate if out_gate.shape[-1] == 1 or out_gate.stride(-1) in (0, 1) else out_gate.contiguous()
    if out_norm_weight is None:
        if out_norm_eps is not None:
            raise ValueError(f"{name}: out_norm_eps is {out_norm_eps} and there is no norm; give out_norm_weight too, or leave it out")
        return
    heads, dim = query.shape[1], wanted[-1]
    if not (tuple(out_norm_weight.shape) == (dim,) or tuple(out_norm_weight.shape) == (heads, dim)):
        raise ValueError(f"{name}: out_norm_weight is {tuple(out_norm_weight.shape)}; it must be {(dim,)} or {(heads, dim)}")
    if not out_norm_weight.is_floating_point():
        raise ValueError(f"{name}: out_norm_weight is of {out_norm_weight.dtype}; it must be float32, or another of its kind")
    eps = EPS if out_norm_eps is None else out_norm_eps
    if not (isinstance(eps, (int, float)) and LEAST_EPS <= eps <= MOST_EPS):
        raise ValueError(f"{name}: out_norm_eps is {eps}; it must be positive, from {LEAST_EPS:g} to {MOST_EPS:g}")
    f.out_norm_weight, f.out_norm_eps = out_norm_weight.to(torch.float32).contiguous(), float(eps)


def finished(o, out_gate, out_norm_weight, out_norm_eps, is_ragged=False):
    """O normed and gated, in float32 or what is wider. Differentiable. is_ragged: `o` is (total rows, heads, dim_v), else (batch, heads, len_q, dim_v)."""
    if out_gate is None and out_norm_weight is None:
        return o
    exact = o.to(torch.promote_types(o.dtype, torch.float32))
    if out_norm_weight is not None:
        weight = out_norm_weight if out_norm_weight.dim() == 1 or is_ragged else out_norm_weight.unsqueeze(1)
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + out_norm_eps) * weight
    if out_gate is not None:
        exact = exact * torch.sigmoid(out_gate.to(exact.dtype))
    return exact.to(o.dtype)


def fill(problem, f, c_api):
    """Strides, numbers and flags of heed_problem, as bindings/torch/featured_call.cpp has them."""
    if f.out_norm_weight is not None:
        problem.flags |= c_api.HAS_OUT_NORM | (c_api.OUT_NORM_BY_HEAD if f.out_norm_weight.dim() == 2 else 0)
        problem.out_norm_eps = f.out_norm_eps
    if f.out_gate is not None:
        problem.flags |= c_api.HAS_OUT_GATE
        strides = [0 if size == 1 else stride for size, stride in zip(f.out_gate.shape, f.out_gate.stride())]
        if len(strides) == 3:
            strides = [0, strides[1], strides[0], strides[2]]
        if f.out_gate.shape[-1] == 1 and problem.dim_v == 1:
            strides[3] = 1
        problem.out_gate_strides = c_api.Strides(*strides)
