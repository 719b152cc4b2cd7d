"""Named patterns of blocks, as the text of a workload has them (`:blocks=128/bigbird@7`): lib/workload/block_pattern.cpp, lib/workload/blocks.cpp.

Longformer's window and global blocks (Beltagy et al., arXiv 2004.05150), BigBird's with drawn ones (Zaheer et al., arXiv 2007.14062), strides (Child et al.,
arXiv 1904.10509), dilated windows and anti-diagonals. The numbers drawn from a seed are those of the command line: xoshiro256++ (Blackman and Vigna 2019).
"""

import re
from dataclasses import dataclass

import torch

SIZES = ("64", "128")
NAMED = {"longformer": "window4+global1", "bigbird": "window1+global2+random3"}
PARTS = "windowN, dilatedNxM, globalN, randomN, strideN, wavefrontN and densityP, joined by +, or longformer or bigbird"
MOST_OF_PART = 1 << 20  # of a part's number
MOST_NUMBERS = 1 << 28  # of all lists: 1 GiB
_64_BITS = (1 << 64) - 1


def _mixed(x):
    """One round of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & _64_BITS
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _64_BITS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _64_BITS
    return x ^ (x >> 31)


def _rotated(x, by):
    return (x << by | x >> (64 - by)) & _64_BITS


class _Random:
    """Random of lib/base/random.hpp with the seed of a stream."""

    def __init__(self, seed, stream):
        word = _mixed(_mixed(seed) ^ _mixed(~stream & _64_BITS))
        self.state = [word := _mixed(word) for _ in range(4)]

    def _next(self):
        a, b, c, d = self.state
        result = (_rotated((a + d) & _64_BITS, 23) + a) & _64_BITS
        c, d = c ^ a, d ^ b
        self.state = [a ^ d, b ^ c, c ^ (b << 17 & _64_BITS), _rotated(d, 45)]
        return result

    def below(self, bound):
        return self._next() * bound >> 64

    def chance(self, probability):
        return (self._next() >> 11) * 2.0**-53 < probability


@dataclass
class Pattern:
    """What a text says. Distances are in blocks from a row's own one."""

    rows: int
    keys: int
    parts: dict  # by name; of "dilated" two numbers
    seed: int = 0
    dimensions: str = ""


def parse(text):
    """The Pattern of "SIZE/PARTS@SEED/DIMENSIONS". Raises ValueError with the part that is wrong."""
    size, has_parts, rest = text.partition("/")
    sizes = size.split("x") if "x" in size else [size, size]
    if len(sizes) != 2 or any(one not in SIZES for one in sizes):
        raise ValueError(f'heed.BlockMask: "{size}" of the pattern "{text}" is no size of blocks; write 64, 128, or rows x keys as in 64x128')
    listed, _, dimensions = rest.partition("/")
    if dimensions not in ("", "b", "h", "bh", "hb"):
        raise ValueError(f'heed.BlockMask: "{dimensions}" of the pattern "{text}" are no dimensions; write b, h or bh')
    listed, at, seed = listed.partition("@")
    if at and not (seed.isdecimal() and 0 < int(seed) <= _64_BITS):
        raise ValueError(f'heed.BlockMask: "{seed}" of the pattern "{text}" is no seed; write a whole number above 0 and below 2^64, or leave @ out')
    parts = {}
    for part in "+".join(NAMED.get(part, part) for part in listed.split("+")).split("+") if listed or (has_parts and (at or not dimensions)) else ():
        name, number = _part(part, text)
        if name in parts or {name, *parts} >= {"window", "dilated"}:
            raise ValueError(f'heed.BlockMask: "{part}" says again what another part of the pattern "{text}" says')
        if max(number if isinstance(number, tuple) else (number,)) > MOST_OF_PART:
            raise ValueError(f'heed.BlockMask: "{part}" of the pattern "{text}" has a number above {MOST_OF_PART}, the most there is')
        parts[name] = number
    if seed and not parts.keys() & {"random", "density"}:
        raise ValueError(f'heed.BlockMask: the pattern "{text}" has a seed and no part that is drawn; leave it out, or add randomN or densityP')
    return Pattern(int(sizes[0]), int(sizes[1]), parts, int(seed or 0), dimensions)


def _part(part, text):
    if match := re.fullmatch(r"dilated(\d+)x(\d+)", part):
        numbers = int(match[1]), int(match[2])
        if numbers[1] >= 2:
            return "dilated", numbers
    elif match := re.fullmatch(r"density(\d*\.?\d+(?:e-?\d+)?)", part):
        if 0 < float(match[1]) <= 1:
            return "density", float(match[1])
    elif match := re.fullmatch(r"(window|global|random|stride|wavefront)(\d+)", part):
        if match[1] == "window" or int(match[2]) >= 1:
            return match[1], int(match[2])
    raise ValueError(f'heed.BlockMask: "{part}" is no part of a pattern of blocks, in "{text}"; the parts are {PARTS}; N is 1 or more, M 2 or more, P above 0, at most 1')


def blocks_of(pattern, len_q, len_k, alignment, batch, heads):
    """Which blocks are seen: (batch or 1, heads or 1, blocks of rows, blocks of keys), boolean, on the CPU.

    alignment  "bottom_right" or "top_left": which key is a row's own, as of masks
    """
    rows, keys = -(-len_q // pattern.rows), -(-len_k // pattern.keys)
    lists = (batch if "b" in pattern.dimensions else 1, heads if "h" in pattern.dimensions else 1)
    if lists[0] * lists[1] * rows * keys > MOST_NUMBERS:
        raise ValueError(f"heed.BlockMask: a pattern of {lists[0] * lists[1]} lists for {rows} x {keys} blocks has more than {MOST_NUMBERS} numbers; take larger blocks")
    moved = 0 if alignment == "top_left" else len_k - len_q
    first_row = torch.arange(rows)[:, None] * pattern.rows
    key = torch.arange(keys)
    own_first = torch.div(first_row + moved, pattern.keys, rounding_mode="floor")
    own_last = torch.div((first_row + pattern.rows).clamp(max=len_q) - 1 + moved, pattern.keys, rounding_mode="floor")
    away = (own_first - key).clamp(min=0) + (key - own_last).clamp(min=0)
    parts, row = pattern.parts, torch.arange(rows)[:, None]
    seen = torch.zeros(rows, keys, dtype=torch.bool) if parts else torch.ones(rows, keys, dtype=torch.bool)
    if "global" in parts:
        seen |= (key < parts["global"]) | (row < parts["global"])
    if "window" in parts:
        seen |= away <= parts["window"]
    if "dilated" in parts:
        reach, every = parts["dilated"]
        seen |= (away <= reach * every) & (away % every == 0)
    if "stride" in parts:
        seen |= away % parts["stride"] == 0
    if "wavefront" in parts:
        seen |= (row + key) % parts["wavefront"] == 0
    every_list = seen.expand(lists[0] * lists[1], rows, keys).clone()
    for number, one in enumerate(every_list if parts.keys() & {"random", "density"} else ()):
        random = _Random(pattern.seed, number)
        for at in range(rows):
            if "density" in parts:
                one[at] |= torch.tensor([random.chance(parts["density"]) for _ in range(keys)])
            for _ in range(parts.get("random", 0)):
                one[at, random.below(keys)] = True
    return every_list.view(*lists, rows, keys)
