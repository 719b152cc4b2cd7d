"""What torch.compile keeps on disk while Heed stands in the place of PyTorch's function, apart from what it keeps without.

Inductor's caches name a graph by what was called, aten's scaled_dot_product_attention, and not by what computes it. Without a mark a function
that an earlier process compiled without Heed would run as it was compiled, and one that was compiled with Heed would fail where Heed is not.
torch.compiler.config.cache_key_tag is a part of every such name:
https://docs.pytorch.org/docs/stable/torch.compiler_api.html
"""

import torch

import heed

_mark = ""


def mark(*state):
    """Names what is compiled from now on after `state`, which decides how calls are traced; none of it: as without Heed. What a user has set
    as the tag stays in front."""
    global _mark
    config = torch.compiler.config
    if not hasattr(config, "cache_key_tag"):
        return
    tag = config.cache_key_tag.removesuffix(_mark)
    _mark = f"|heed {heed.__version__} {' '.join(map(str, state))}" if state else ""
    config.cache_key_tag = tag + _mark
