"""Whole steps of a Llama-like model of Transformers with Heed and without: prefill and one token of decoding.

    python -m heed.model_steps -o evidence/h100/model_steps.json
    python -m heed.model_steps --show evidence/h100/model_steps.json

Weights are random: times do not depend on them. Ways are interleaved, and the median of rounds is taken. Takes the package transformers.
"""

import contextlib
import statistics
import sys
import time

from heed import stored_times

MODELS = {  # hidden size, layers, heads, heads_kv, intermediate size
    "llama-3-8b, 8 of its 32 layers": (4096, 8, 32, 8, 14336),
    "llama-3.2-1b": (2048, 16, 32, 8, 8192),
}
SMALL = {"tiny": (256, 2, 4, 2, 512)}
VOCABULARY = 32000


def model_of(torch, sizes, device, dtype, implementation):
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, layers, heads, heads_kv, intermediate = sizes
    config = LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads_kv,
        intermediate_size=intermediate, vocab_size=VOCABULARY, max_position_embeddings=32768, attn_implementation=implementation,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(config).to(dtype).eval()


def milliseconds(torch, function, calls):
    """A call's time, of some back to back."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls * 1e3


def steps_of(torch, model, length, device):
    """{name: function}: a prefill of `length` tokens, and one token behind a cache of as many."""
    from transformers import DynamicCache

    tokens = torch.randint(VOCABULARY, (1, length), device=device)
    cache = DynamicCache(config=model.config)
    model(tokens, past_key_values=cache, use_cache=True)
    one = tokens[:, :1]

    def decode():
        model(one, past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return {f"prefill {length}": lambda: model(tokens, use_cache=False), f"decode behind {length}": decode}


def measure(torch, heed, name, sizes, lengths, device, rounds):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = model_of(torch, sizes, device, dtype, "sdpa")
    ways = {"sdpa": contextlib.nullcontext, "heed.sdpa()": heed.sdpa}
    rows = []
    with torch.inference_mode():
        for length in lengths:
            for step, function in steps_of(torch, model, length, device).items():
                calls = 10 if step.startswith("decode") else 3
                times = {way: [] for way in ways}
                report = None
                for turn in range(rounds + 1):
                    for way, context in ways.items():
                        with context():
                            heed.reset_report()
                            took = milliseconds(torch, function, calls)
                            report = heed.report() if way != "sdpa" else report
                        if turn:  # the first loads programs
                            times[way].append(took)
                row = {"model": name, "step": step, "ms": {way: round(statistics.median(many), 4) for way, many in times.items()}}
                row["served"], row["handed_back"] = report.served, report.handed_back
                rows.append(row)
                print(f"{name}  {step}  {row['ms']}", file=sys.stderr, flush=True)
    return rows


def table(evidence):
    lines = [f"{evidence['device']}, PyTorch {evidence['torch']}, Transformers {evidence['transformers']}; ms a step", ""]
    lines.append(f"{'model':<32}{'step':<24}{'sdpa':>10}{'heed.sdpa()':>14}{'ratio':>8}  served")
    for row in evidence["rows"]:
        ms = row["ms"]
        lines.append(f"{row['model']:<32}{row['step']:<24}{ms['sdpa']:>10.3f}{ms['heed.sdpa()']:>14.3f}{ms['sdpa'] / ms['heed.sdpa()']:>8.3f}  {row['served']} of {row['served'] + row['handed_back']}")
    return "\n".join(lines)


def main(arguments=None):
    """Exit code: 0, 1 without Transformers, 2 for a wrong argument."""
    parser = stored_times.parser("heed.model_steps", __doc__.split("\n")[0], rounds=7)
    parser.add_argument("--lengths", default="512,2048,8192", metavar="N,...", help="tokens of a prefill and of a cache [512,2048,8192]")
    parser.add_argument("--small", action="store_true", help="a tiny model instead, to see whether it runs")
    options = parser.parse_args(arguments)
    if options.show:
        return stored_times.shown(options.show, table)
    try:
        lengths = [int(text) for text in options.lengths.split(",")]
    except ValueError:
        parser.error(f"--lengths takes numbers with commas between, not {options.lengths}")
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"heed.model_steps: {error}; it takes torch and transformers", file=sys.stderr)
        return 1
    import heed

    device, evidence = stored_times.head("model steps", options)
    evidence["transformers"] = transformers.__version__
    for name, sizes in (SMALL if options.small else MODELS).items():
        evidence["rows"] += measure(torch, heed, name, sizes, lengths, device, options.rounds)
    return stored_times.store(evidence, options, table)


if __name__ == "__main__":
    sys.exit(main())
