"""Small random models of Transformers, and their results under each attention implementation, that tests share."""

import unittest

import torch

VOCABULARY = 99
WINDOW = 8
LENGTH = 20
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 256}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_DECODER = {**_SIZES, **_TOKENS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False}
_ENCODER_DECODER = {"vocab_size": VOCABULARY, **_TOKENS, "d_model": 64, "decoder_start_token_id": 1, "tie_word_embeddings": False}

# class of the model, class of the configuration, arguments of the configuration, attention calls of a forward pass
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER, 2),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**_DECODER, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}, 2),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_DECODER, "sliding_window": WINDOW}, 2),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_DECODER, "sliding_window": WINDOW, "attn_logit_softcapping": 2.0}, 2),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_DECODER, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 32},
        2,
    ),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**_DECODER, "sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}, 2),
    "bert": ("BertModel", "BertConfig", {**_SIZES, "num_attention_heads": 2}, 2),
    "vit": ("ViTModel", "ViTConfig", {**_SIZES, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}, 2),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **_ENCODER_DECODER,
            **{"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64},
            **{"decoder_ffn_dim": 64, "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 64},
            **{"suppress_tokens": None, "begin_suppress_tokens": None},
        },
        6,
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**_ENCODER_DECODER, "d_kv": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}, 6),
    # An encoder with layers that see both ways within a window.
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        {**_SIZES, **_TOKENS, "num_attention_heads": 2, "local_attention": 2 * WINDOW, "cls_token_id": 1, "sep_token_id": 2},
        2,
    ),
}
DECODERS = ["llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt_oss"]


def require_transformers():
    """Skips where Transformers is not installed. Messages are of errors alone afterwards, and PyTorch runs on one thread: models this small
    gain nothing from more, which wait for each other on a busy machine."""
    try:
        import transformers
    except ImportError as error:
        raise unittest.SkipTest(f"Transformers is not installed: {error}; scripts/setup --tests installs it beside PyTorch") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)


def made(name, seed=0, dtype=torch.float32, **changes):
    """A model with N(0, 1.5 / fan_in) weights, lively enough that each generated token depends on the attention before it."""
    model_class, config_class, arguments, _ = MODELS[name]
    return made_of(model_class, config_class, {**arguments, **changes}, seed, dtype)


def made_of(model_class, config_class, arguments, seed=0, dtype=torch.float32):
    """`made` of a class and a configuration that MODELS need not have."""
    import transformers

    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**arguments))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (1.5 / parameter.shape[-1]) ** 0.5)
            elif parameter.numel() == MODELS["gpt_oss"][2]["num_attention_heads"]:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))  # sinks
    return model.to(dtype).eval()


def references(model):
    """Names of Transformers' own implementations that run the model."""
    return ["eager", "sdpa"] if model._supports_sdpa else ["eager"]


def with_implementation(model, name, function):
    """function(model) under an implementation."""
    model.set_attn_implementation(name)
    return function(model)


def tokens(seed=1, batch=2, length=LENGTH):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(side, batch=2, length=LENGTH, hidden=5):
    """A mask (batch, length) with `hidden` zeros in its first row; None for no side."""
    if side is None:
        return None
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, slice(hidden) if side == "left" else slice(length - hidden, length)] = 0
    return mask


def inputs(name, side=None):
    """Arguments of a forward pass."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))}
    if name == "whisper":
        return {"input_features": torch.randn(2, 16, 100, generator=torch.Generator().manual_seed(2)), "decoder_input_ids": tokens(length=9)}
    given = {"input_ids": tokens(), "attention_mask": padding(side)}
    if name == "t5":
        given["decoder_input_ids"] = tokens(seed=3, length=9)
    return given


def result(output):
    """Logits of a model's output, or its last hidden states."""
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def named_cache(cache):
    """The argument of `generate` that takes a cache: `cache`, in older versions of Transformers `past_key_values`."""
    from transformers.generation import utils

    return {"cache" if "cache" in getattr(utils, "ALL_CACHE_NAMES", ()) else "past_key_values": cache}
