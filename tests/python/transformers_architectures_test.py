"""Architectures beyond those of transformers_models.MODELS: one row each, its results under "heed" beside those of Transformers' own."""

import unittest

import torch
from attention_cases import require_programs
from transformers_models import _DECODER, _ENCODER_DECODER, _SIZES, WINDOW, made_of, padding, references, require_transformers, result, tokens, with_implementation

_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "num_key_value_heads": 4, "n_routed_experts": 4,
           "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}  # fmt: skip
_PLAIN = {name: value for name, value in _DECODER.items() if name not in ("head_dim", "num_key_value_heads")}
_ENCODER = {**_SIZES, "pad_token_id": 0, "num_attention_heads": 2}
_VISION = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
_BART = {**_ENCODER_DECODER, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
         "decoder_ffn_dim": 64, "max_position_embeddings": 64, "forced_eos_token_id": None}  # fmt: skip

# class of the model, class of the configuration, its arguments, attention calls of a forward pass (0: the model computes attention itself)
DECODERS = {
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", {**_DECODER, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}, 2),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**_PLAIN, **_LATENT}, 2),  # V of another head dim than K
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _PLAIN, 2),
    "opt": ("OPTForCausalLM", "OPTConfig", {**_PLAIN, "ffn_dim": 96, "word_embed_proj_dim": 64}, 2),
    "bloom": ("BloomForCausalLM", "BloomConfig", {**_PLAIN, "n_head": 4, "n_layer": 2}, 0),
}
OTHERS = {
    "mpnet": ("MPNetModel", "MPNetConfig", _ENCODER, 0),
    "roberta": ("RobertaModel", "RobertaConfig", _ENCODER, 2),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", {**_VISION, "vision_use_head": False}, 2),
    "bart": ("BartForConditionalGeneration", "BartConfig", _BART, 6),
}


def setUpModule():
    require_programs()
    require_transformers()
    global heed
    import heed
    import heed.transformers


class Architectures(unittest.TestCase):
    def compare(self, model, arguments, calls, where=...):
        with torch.no_grad():
            wanted = [with_implementation(model, name, lambda model: result(model(**arguments))) for name in references(model)]
            heed.reset_report()
            actual = with_implementation(model, "heed", lambda model: result(model(**arguments)))
        report = heed.report()
        self.assertEqual((report.served, report.handed_back), (calls, 0), str(report))
        for one in wanted:
            self.assertLessEqual((actual - one)[where].abs().max(), 1e-5 * one.abs().max().clamp(min=1))

    def test_logits(self):
        for name, (*of_model, calls) in {**DECODERS, **OTHERS}.items():
            with self.subTest(name):
                model = made_of(*of_model)
                if name == "siglip":
                    self.compare(model, {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))}, calls)
                    continue
                given = {"decoder_input_ids": tokens(seed=3, length=9)} if name == "bart" else {}
                self.compare(model, {"input_ids": tokens(), **given}, calls)
                mask = padding("left" if name in DECODERS else "right")
                self.compare(model, {"input_ids": tokens(), "attention_mask": mask, **given}, calls, ... if given else mask.bool())

    def test_generated_tokens(self):
        for name, (*of_model, _) in DECODERS.items():
            with self.subTest(name):
                model = made_of(*of_model)
                arguments = {"input_ids": tokens(), "attention_mask": padding("left"), "max_new_tokens": 4, "do_sample": False}
                wanted, actual = (with_implementation(model, each, lambda model: model.generate(**arguments)) for each in ("eager", "heed"))
                self.assertTrue(torch.equal(wanted, actual))

    def test_attention_of_its_own_in_a_trace(self):
        *of_model, _ = DECODERS["bloom"]
        model = made_of(*of_model)
        arguments = {"input_ids": tokens(), "attention_mask": padding("left"), "use_cache": False}
        with torch.no_grad():
            wanted = with_implementation(model, "eager", lambda model: model(**arguments).logits)
            actual = with_implementation(model, "heed", lambda model: torch.compile(model, backend="eager")(**arguments).logits)
        where = arguments["attention_mask"].bool()
        torch.testing.assert_close(actual[where], wanted[where], atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    unittest.main()
