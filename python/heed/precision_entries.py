"""Precision modes of ragged batches and of keys in pages on a CPU, entry by entry.

libheed quantises neither pages, which outlive a run, nor entries of a ragged batch by blocks of rows, in which they would begin. Here each entry is a dense call
of its own: its keys are copied out of their pages, and its blocks begin with its first row.
"""

import dataclasses

from heed import operators, unfused


def serves(query, f):
    """Whether `forward` computes calls like this one. f: features.Features"""
    is_dense = f.cu_seqlens_q is None and f.page_table is None
    # What is dropped goes by the entry's number, and lists of blocks are of the longest entry.
    return query.device.type == "cpu" and not is_dense and f.dropout_p == 0 and f.block_counts is None


def calls(query, key, value, f):
    """((query, key, value), Features) of each entry, without norm and gate of O."""
    named = ("bias", "alibi_slopes", "key_lengths", "prefix_lengths", "cu_seqlens_q", "cu_seqlens_k", "page_table", "max_len_q", "max_len_k")
    none = {"key_lengths": None, "cu_seqlens_q": None, "cu_seqlens_k": None, "page_table": None, "max_len_q": 0, "max_len_k": 0}
    none |= {"out_gate": None, "out_norm_weight": None, "out_norm_eps": 0.0}
    for _, of_qkv, of_entry in unfused.entries(query, key, value, *(getattr(f, name) for name in named)):
        yield of_qkv, dataclasses.replace(f, **none, **of_entry)


def forward(query, key, value, masking, f, precision):
    """The arguments of heed::forward_precision, `masking` as (mask, window_left, window_right, scale), and its results. Raises RuntimeError where a mode does not
    serve the dense call of an entry."""
    results = []
    for of_qkv, of_entry in calls(query, key, value, f):
        arguments = *of_qkv, *masking, *of_entry.arguments()
        has_scores = of_qkv[0].shape[2] > 0 and of_qkv[1].shape[2] > 0
        results.append(operators.forward_precision(*arguments, precision) if has_scores else unfused.forward_features(*arguments))
    return unfused.joined(results, query, (f.out_gate, f.out_norm_weight, f.out_norm_eps))
