"""The layout of O: what bindings/torch/layout.hpp does, for tensors whose sizes may be symbols of a trace."""


def order_in_memory(q):
    """The dimensions of Q (batch, head, length, dim) from outermost to innermost, as torch.empty_like keeps them (infer_dense_strides in
    ATen/ExpandUtils.cpp), with the head dim innermost and dimensions of one element outermost."""
    inner_first = [dim for dim in (2, 1, 0) if q.shape[dim] > 1]
    natural = list(inner_first)
    for end in range(1, len(inner_first)):
        at = end
        for before in range(end - 1, -1, -1):
            order = _lies_inside(q, inner_first[before], inner_first[at])
            if order > 0:
                break
            if order < 0:
                inner_first[before], inner_first[at] = inner_first[at], inner_first[before]
                at = before
    if inner_first == natural:
        return 0, 1, 2, 3
    return (*(dim for dim in range(3) if dim not in inner_first), *reversed(inner_first), 3)


def _lies_inside(q, a, b):
    """1 where dimension `a` of Q lies inside of `b`, -1 where `b` lies inside of `a`, 0 where strides do not tell."""
    inner, outer = q.stride(a), q.stride(b)
    if inner == 0 or outer == 0:
        return 0
    if inner == outer:
        return -1 if q.shape[a] > q.shape[b] else 0
    return 1 if inner < outer else -1


def inverse(order):
    """The order that takes dimensions back to where they were."""
    return tuple(order.index(dim) for dim in range(len(order)))


def like_queries(o, q):
    """`o` with the layout of an operator's output."""
    order = order_in_memory(q)
    return o.permute(order).contiguous().permute(inverse(order))


def empty_like_queries(q, sizes):
    """Memory for an output of these sizes, of Q's type, in that layout."""
    order = order_in_memory(q)
    return q.new_empty([sizes[dim] for dim in order]).permute(inverse(order))
