"""Tensors of 8 bits with scale factors, as heed.attention takes them (q_scale, k_scale, v_scale), and heed.quantise, which makes their elements.

A number is element times factor (include/heed/heed.h, heed_scales). What is held in 8 bits for long, a cache of keys and values, is quantised as it is written.
"""

import numbers
import os
from dataclasses import dataclass

import torch

# Elements, the largest of them, and what rounds to it: half a step further.
_KINDS = {torch.float8_e4m3fn: ("e4m3", 448.0, 464.0), torch.float8_e5m2: ("e5m2", 57344.0, 61440.0), torch.int8: ("int8", 127.0, 127.5)}
NAMES = {name: dtype for dtype, (name, _, _) in _KINDS.items()}
CODES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float8_e4m3fn: 3, torch.float8_e5m2: 4, torch.int8: 5}  # heed_dtype


def quantise(x, dtype, scale):
    """x / scale, to nearest even, as elements of 8 bits, for a cache whose scale factors are fixed before its values are known.

    x      floating point, any shape
    dtype  torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8, or "e4m3", "e5m2", "int8"
    scale  positive and finite: a number, or a Tensor that broadcasts to x

    Values beyond the largest element (448, 57,344; -128 and 127) times the factor saturate. Infinity and NaN become NaN, in int8 an element of 0. Under
    HEED_DEBUG=1 in the environment these, but NaN of the two floats, are lost: RuntimeError says how many there are, and the first one's index.

    Returns a Tensor of x's shape. Raises TypeError and ValueError for other arguments.
    """
    name = "heed.quantise()"
    dtype = NAMES.get(dtype, dtype)
    if dtype not in _KINDS:
        raise ValueError(f"{name}: dtype is {dtype}; it must be {', '.join(map(str, _KINDS))}, or one of {', '.join(NAMES)}")
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype in _KINDS:
        raise TypeError(f"{name}: x must be a Tensor of floating point with 16 bits or more, not {x.dtype if isinstance(x, torch.Tensor) else type(x).__name__}")
    factors = _as_tensor(name, "scale", scale, x.device)
    try:
        factors = factors.to(torch.float32).expand(x.shape)
    except RuntimeError:
        raise ValueError(f"{name}: scale is {tuple(scale.shape)}; it must broadcast to x, {tuple(x.shape)}") from None
    _check_factors(name, "scale", factors)
    element, most, limit = _KINDS[dtype]
    scaled = x.float() / factors
    if is_debug():
        _expect_none_lost(name, x, scaled, element, limit)
    if dtype == torch.int8:
        # Of NaN the conversion is undefined.
        return torch.where(scaled.isfinite(), scaled, 0).round().clamp(-128, 127).to(torch.int8)
    return torch.where(scaled.isfinite(), scaled.clamp(-most, most), torch.nan).to(dtype)


def is_debug():
    """Whether HEED_DEBUG asks for checks that take time. Raises ValueError where it is neither 0 nor 1."""
    text = os.environ.get("HEED_DEBUG", "")
    if text not in ("", "0", "1"):
        raise ValueError(f'HEED_DEBUG is "{text}"; give 1 for checks of each run, or 0 for none')
    return text == "1"


def _expect_none_lost(name, x, scaled, element, limit):
    beyond = (scaled > limit) | (scaled < (-limit - 1 if element == "int8" else -limit))
    lost = (beyond & ~x.isnan()) | (x.isnan() & (element == "int8"))
    count = int(lost.sum())
    if count:
        first = tuple(int(place) for place in lost.nonzero()[0])
        raise RuntimeError(f"{name} lost {count} value{'' if count == 1 else 's'} in {element}, the first at {first}, {x[first].item():g}: the largest that its scale factor holds is {limit:g} times the factor; give a larger factor")


def _as_tensor(name, argument, scale, device):
    """Factors as a Tensor. Raises TypeError for what is neither a number nor a Tensor of real ones."""
    if isinstance(scale, torch.Tensor):
        if scale.is_complex():
            raise TypeError(f"{name}: {argument} is of {scale.dtype}; scale factors are real numbers")
        return scale
    if not isinstance(scale, (int, float)) and not isinstance(scale, numbers.Real):
        raise TypeError(f"{name}: {argument} must be a Tensor or a number, not {type(scale).__name__}")
    return torch.tensor(float(scale), device=device)


def rows_of(name, scale_rows, of):
    """How many rows share a factor, of each of `of`: words. Raises ValueError."""
    rows = tuple(scale_rows) if isinstance(scale_rows, (tuple, list)) else (scale_rows,) * len(of)
    rows = tuple(1 if block is None else block for block in rows)
    if len(rows) != len(of) or not all(isinstance(block, int) and block > 0 for block in rows):
        words = {2: "one number or two", 3: "one number or three"}[len(of)]
        raise ValueError(f"{name}: scale_rows is {scale_rows!r}; it must be how many rows share a factor, {words}, of {', '.join(of[:-1])} and {of[-1]}")
    return rows


def _check_factors(name, argument, factors):
    # A trace has no numbers, and a GPU's would be waited for: there they show in O.
    if factors.device.type == "cpu" and type(factors) is torch.Tensor and not torch.compiler.is_compiling() and not bool(((factors > 0) & factors.isfinite()).all()):
        raise ValueError(f"{name}: {argument} holds a factor that is not positive and finite")


def is_quantised(tensor):
    return tensor.dtype in _KINDS


@dataclass
class Scales:
    """The last arguments of heed::forward_scaled, in order: factors as (batch, heads, blocks of rows, columns), 1 in the place of any that is shared."""

    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    q_rows: int = 1
    k_rows: int = 1
    v_rows: int = 1
    out_dtype: int = -1

    def arguments(self):
        return self.q, self.k, self.v, self.q_rows, self.k_rows, self.v_rows, self.out_dtype


def checked(name, query, key, value, scales, scale_rows, out_dtype, sizes, f):
    """Scales of a call whose tensors have 8 bits, or None where none has. Tensors have their sizes by now, pools as (pages, heads_kv, page_size, dim).

    scales: q_scale, k_scale, v_scale. sizes: (batch, heads, len_q, len_k) of the scores. Raises TypeError and ValueError.
    """
    tensors = {"q": query, "k": key, "v": value}
    if not any(tensor.dtype in _KINDS for tensor in tensors.values()):
        for letter, scale in zip(tensors, scales):
            if scale is not None:
                raise ValueError(f"{name}: {letter}_scale is given, and {_argument(letter)} is of {tensors[letter].dtype}; scale factors are of tensors of 8 bits: {', '.join(map(str, _KINDS))}")
        if scale_rows is not None or out_dtype is not None:
            raise ValueError(f"{name}: {'out_dtype' if scale_rows is None else 'scale_rows'} is of calls whose tensors have 8 bits; leave it out")
        return None
    made = Scales()
    rows = rows_of(name, scale_rows, ("query", "key", "value"))
    batch, heads, len_q, _ = sizes
    paged = f.page_table is not None
    for letter, scale, block in zip(tensors, scales, rows):
        tensor = tensors[letter]
        if tensor.dtype not in _KINDS:
            if scale is not None:
                raise ValueError(f"{name}: {letter}_scale is given, and {_argument(letter)} is of {tensor.dtype}; leave it out")
            continue
        if scale is None:
            raise ValueError(f"{name}: {_argument(letter)} is of {tensor.dtype}, which is nothing without scale factors; give {letter}_scale")
        ragged = tensor.dim() == 3
        length = len_q if letter == "q" else tensor.shape[-2]
        blocks = 1 if ragged else -(-length // block)
        of = batch if ragged or letter == "q" else tensor.shape[0]
        columns = tensor.shape[-1] if letter == "v" else 1
        setattr(made, letter, four(name, f"{letter}_scale", scale, tensor, (batch, of), heads if letter == "q" else tensor.shape[1], blocks, columns, paged and letter != "q"))
        setattr(made, f"{letter}_rows", block)
    if out_dtype is None and query.dtype in _KINDS:
        raise ValueError(f"{name}: query is of {query.dtype}, which O is not written in; give out_dtype, torch.float16, torch.bfloat16 or torch.float32")
    if out_dtype is not None:
        if CODES.get(out_dtype, 3) > 2:
            raise ValueError(f"{name}: out_dtype is {out_dtype}; it must be torch.float16, torch.bfloat16 or torch.float32")
        made.out_dtype = CODES[out_dtype]
    wide = {tensor.dtype for tensor in tensors.values() if tensor.dtype not in _KINDS} | ({out_dtype} if out_dtype else set())
    if len(wide) > 1:
        raise ValueError(f"{name}: O and those of query, key and value that have 16 or 32 bits must have one dtype, not {' and '.join(sorted(map(str, wide)))}")
    return made


def _argument(letter):
    return {"q": "query", "k": "key", "v": "value"}[letter]


def four(name, argument, scale, tensor, batches, heads, blocks, columns, paged):
    """Factors as four dimensions, without copies where they are float32 on the tensor's device already. batches: entries, and what factors of rows are of."""
    scale = _as_tensor(name, argument, scale, tensor.device)
    if scale.device != tensor.device:
        raise ValueError(f"{name}: {argument} is on {scale.device} and its tensor on {tensor.device}; they must be on one device")
    given = tuple(scale.shape)
    if scale.numel() == 1:
        four = scale.reshape(1, 1, 1, 1)
    else:
        four = {1: lambda: scale[None, :, None, None], 2: lambda: scale[:, :, None, None], 3: lambda: scale[:, :, :, None], 4: lambda: scale}.get(scale.dim(), lambda: None)()
    wanted = (batches[1] if four is not None and four.shape[2] > 1 else batches[0], heads, blocks, columns)
    if four is None or not all(size in (1, full) for size, full in zip(four.shape, wanted)) or (four.shape[2] > 1 and four.shape[3] > 1):
        which = f"({heads},) by heads, ({batches[0]}, {heads}) by heads of entries"
        if blocks > 1:
            which += f", ({batches[1]}, {heads}, {blocks}) by rows{' of pages' if paged else ''}"
        if columns > 1:
            which += f", ({batches[0]}, {heads}, 1, {columns}) by columns"
        raise ValueError(f"{name}: {argument} is {given}; it must be a number for all, {which}")
    if four.shape[3] > 1 and four.stride(3) != 1:
        four = four.contiguous()
    four = four.to(torch.float32)
    _check_factors(name, argument, four)
    return four


def fill(problem, query, key, value, scales, c_api):
    """Element types, flags and layouts of factors in heed_problem."""
    p = problem
    p.dtype_q, p.dtype_k, p.dtype_v = (CODES[tensor.dtype] for tensor in (query, key, value))
    p.dtype_o = scales.out_dtype if scales.out_dtype >= 0 else p.dtype_q
    p.flags |= c_api.SCALED
    for letter in "qkv":
        factors = getattr(scales, letter)
        if factors is not None:
            strides = (0 if size == 1 else stride for size, stride in zip(factors.shape, factors.stride()))
            setattr(p, f"{letter}_scales", c_api.Scales(*strides, getattr(scales, f"{letter}_rows") if factors.shape[2] > 1 else 1))
