"""Tokens generated under attn_implementation="heed" beside those of "eager" and "sdpa", and the share of calls that kernels computed."""

import itertools
import unittest

import torch
from attention_cases import require_programs
from transformers_models import DECODERS, LENGTH, MODELS, inputs, made, named_cache, padding, references, require_transformers, tokens, with_implementation

NEW_TOKENS = 6

# Arguments of generate, and which calls without padding take positions in place of a mask tensor: all, or those of the prompt. The length
# of a static cache is on the device, so that decoding with one takes a mask tensor.
WAYS = {
    "greedy": ({}, "all"),
    "beams": ({"num_beams": 3}, "all"),
    "without a cache": ({"use_cache": False, "max_new_tokens": 3}, "all"),
    "prompt in chunks": ({"prefill_chunk_size": 6}, "all"),
    "static cache": ({"cache_implementation": "static"}, "prompt"),
    "static cache, prompt in chunks": ({"cache_implementation": "static", "prefill_chunk_size": 6}, "prompt"),
}


def with_positions(report):
    """Calls that a kernel computed without a mask tensor."""
    return sum(row.calls for row in report.rows if row.served and ":bias=" not in row.workload)


def setUpModule():
    require_programs()
    require_transformers()
    global heed
    import heed
    import heed.transformers


@torch.no_grad()
def generated(model, implementation, given, **arguments):
    from transformers import GenerationMixin

    # Whisper's own generate asks for a tokenizer's tokens of languages.
    arguments = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **arguments}
    return with_implementation(model, implementation, lambda model: GenerationMixin.generate(model, **given, **arguments))


class Tokens(unittest.TestCase):
    def compare(self, model, given, **arguments):
        """The report of the calls under "heed"."""
        wanted = {name: generated(model, name, given, **arguments) for name in references(model)}
        heed.reset_report()
        actual = generated(model, "heed", given, **arguments)
        for name, tokens_of in wanted.items():
            self.assertTrue(torch.equal(actual, tokens_of), f"{actual.tolist()} beside {tokens_of.tolist()} of {name}")
        # Tokens that are all one would say little.
        self.assertGreater(len(actual[:, -min(NEW_TOKENS, arguments.get("max_new_tokens", NEW_TOKENS)) :].unique()), 2)
        return heed.report()

    def test_decoders(self):
        for name, (way, (arguments, served)), side in itertools.product(DECODERS, WAYS.items(), (None, "left", "right")):
            if side == "right" and way not in ("greedy", "beams"):
                continue
            with self.subTest(model=name, way=way, padding=side):
                model = made(name)
                report = self.compare(model, {"input_ids": tokens(), "attention_mask": padding(side)}, **arguments)
                self.assertEqual(report.handed_back, 0, str(report))
                if side is None and served == "all":
                    self.assertEqual(with_positions(report), report.served, str(report))
                elif side is None:
                    self.assertGreaterEqual(with_positions(report), MODELS[name][3], str(report))
                else:
                    self.assertLess(with_positions(report), report.served, str(report))

    def test_windows_pass_padding_by(self):
        # A prompt of 20 tokens, padded at its first 5, is in no window of 8 that decoding looks at.
        report = self.compare(made("mistral"), {"input_ids": tokens(), "attention_mask": padding("left")})
        layers = MODELS["mistral"][3]
        self.assertEqual((with_positions(report), report.served, report.handed_back), (layers * (NEW_TOKENS - 1), layers * NEW_TOKENS, 0), str(report))

    def test_a_cache_of_all_keys_beside_windows(self):
        from transformers import DynamicCache

        model = made("mistral")
        for chunk in (None, 6):
            with self.subTest(chunk=chunk):
                wanted = generated(model, "eager", {"input_ids": tokens()})
                heed.reset_report()
                actual = generated(model, "heed", {"input_ids": tokens()}, **named_cache(DynamicCache()), prefill_chunk_size=chunk)
                self.assertTrue(torch.equal(actual, wanted))
                self.assertEqual(heed.report().handed_back, 0)

    def test_a_conversation_that_goes_on(self):
        from transformers import DynamicCache

        for name in ("llama", "gemma3", "gpt_oss"):
            with self.subTest(model=name):
                model = made(name)
                outcomes = {}
                for implementation in ("eager", "heed"):
                    heed.reset_report()
                    cache = DynamicCache(config=model.config)
                    first = generated(model, implementation, {"input_ids": tokens()}, **named_cache(cache))
                    longer = torch.cat((first, tokens(seed=5, length=6)), 1)
                    outcomes[implementation] = generated(model, implementation, {"input_ids": longer}, **named_cache(cache))
                self.assertTrue(torch.equal(*outcomes.values()))
                self.assertEqual(heed.report().handed_back, 0)

    def test_encoder_decoders(self):
        for name, way in itertools.product(("whisper", "t5"), ("greedy", "beams", "static cache")):
            for side in (None, "left") if name == "t5" else (None,):
                with self.subTest(model=name, way=way, padding=side):
                    given = {key: tensor for key, tensor in inputs(name, side).items() if not key.startswith("decoder")}
                    report = self.compare(made(name), given, **WAYS[way][0])
                    self.assertEqual(report.handed_back, 0, str(report))
                    if name == "whisper" and way != "static cache":
                        self.assertEqual(with_positions(report), report.served, str(report))
                    elif name == "t5":
                        self.assertEqual(with_positions(report), 0, str(report))

    def test_bfloat16_generates_what_it_computes(self):
        # Rounding may choose another token than "eager" does: each token is the likeliest by the logits of a pass over all.
        model = made("llama", dtype=torch.bfloat16)
        heed.reset_report()
        all_tokens = generated(model, "heed", {"input_ids": tokens()})
        self.assertEqual(heed.report().handed_back, 0)
        with torch.no_grad():
            logits = model(input_ids=all_tokens).logits[:, LENGTH - 1 : -1].float()
        chosen = logits.gather(2, all_tokens[:, LENGTH:, None])[..., 0]
        self.assertLessEqual((logits.amax(2) - chosen).max(), 0.1)


if __name__ == "__main__":
    unittest.main()
