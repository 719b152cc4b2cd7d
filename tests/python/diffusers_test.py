"""Heed's attention backend and processors of Diffusers beside those that call PyTorch's attention."""

import unittest

import torch
from attention_cases import require_programs


def setUpModule():
    require_programs()
    try:
        import diffusers
    except ImportError as error:
        raise unittest.SkipTest(f"Diffusers is not installed: {error}; scripts/setup --tests installs it beside PyTorch") from error
    diffusers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)  # models this small gain nothing from more
    global heed
    import heed
    import heed.diffusers


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


TEXT = (2, 7, 32)


def text_mask():
    """Which tokens of a text there are: the first row's last three are padding."""
    mask = torch.ones(TEXT[:2])
    mask[0, 4:] = 0
    return mask


def unet(down, middle, up):
    import diffusers

    return diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=16, in_channels=4, out_channels=4, cross_attention_dim=32, attention_head_dim=8,
        norm_num_groups=8, down_block_types=("DownBlock2D", down), mid_block_type=middle, up_block_types=(up, "UpBlock2D"),
    )  # fmt: skip


def plain_unet():
    return unet("CrossAttnDownBlock2D", "UNetMidBlock2DCrossAttn", "CrossAttnUpBlock2D")


def run_unet(model, **masks):
    return model(randn(2, 4, 16, 16), 3, randn(*TEXT, seed=1), **masks).sample


def unet_of_added_projections():
    return unet("SimpleCrossAttnDownBlock2D", "UNetMidBlock2DSimpleCrossAttn", "SimpleCrossAttnUpBlock2D")


def autoencoder():
    import diffusers

    return diffusers.AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, layers_per_block=1)


def stable_diffusion_3():
    import diffusers

    return diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=32,
        caption_projection_dim=64, pooled_projection_dim=64, out_channels=4, pos_embed_max_size=16, qk_norm="rms_norm", dual_attention_layers=(0,),
    )  # fmt: skip


def pixart():
    import diffusers

    return diffusers.PixArtTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=4, in_channels=4, out_channels=8, cross_attention_dim=32,
        caption_channels=32, use_additional_conditions=False,
    )  # fmt: skip


def run_pixart(model, **masks):
    return model(randn(2, 4, 8, 8), randn(*TEXT, seed=1), torch.tensor([1, 2]), **masks).sample


def flux():
    import diffusers

    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
        pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


def run_flux(model):
    places = torch.zeros(16, 3)
    places[:, 1] = torch.arange(16)
    return model(
        randn(2, 16, 4), encoder_hidden_states=randn(*TEXT, seed=1), pooled_projections=randn(2, 32, seed=2), timestep=torch.tensor([1.0, 2.0]),
        img_ids=places, txt_ids=torch.zeros(7, 3),
    ).sample  # fmt: skip


def qwen_image():
    import diffusers

    return diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip


def run_qwen_image(model, mask=None):
    return model(randn(2, 16, 16), randn(*TEXT, seed=1), mask, torch.tensor([1.0, 2.0]), img_shapes=[[(1, 4, 4)]] * 2).sample


# A model, a function that runs it, and the calls that kernels compute and that are handed back.
PROCESSORS = {
    "UNet": (plain_unet, run_unet, 8, 0),
    "UNet, text with padding": (plain_unet, lambda model: run_unet(model, encoder_attention_mask=text_mask()), 8, 0),
    "UNet of added projections": (unet_of_added_projections, run_unet, 4, 0),
    "autoencoder": (autoencoder, lambda model: model(randn(1, 3, 16, 16)).sample, 2, 0),
    "Stable Diffusion 3": (
        stable_diffusion_3,
        lambda model: model(randn(2, 4, 16, 16), randn(*TEXT, seed=1), randn(2, 64, seed=2), torch.tensor([1, 2])).sample,
        3,
        0,
    ),
    "PixArt": (pixart, run_pixart, 4, 0),
    "PixArt, text with padding": (pixart, lambda model: run_pixart(model, encoder_attention_mask=text_mask()), 4, 0),
}
BACKEND = {
    "Flux": (flux, run_flux, 2, 0),
    "Qwen-Image": (qwen_image, run_qwen_image, 2, 0),
    "Qwen-Image, text with padding": (qwen_image, lambda model: run_qwen_image(model, text_mask().bool()), 2, 0),
}


class Models(unittest.TestCase):
    def check(self, case, change):
        make, run, served, handed_back = case
        torch.manual_seed(0)
        model = make().eval()
        with torch.no_grad():
            wanted = run(model)
            change(model)
            heed.reset_report()
            actual = run(model)
        self.assertGreater(wanted.std(), 0.05)
        torch.testing.assert_close(actual, wanted, atol=5e-6, rtol=1e-5)
        self.assertEqual((heed.report().served, heed.report().handed_back), (served, handed_back), str(heed.report()))

    def test_processors(self):
        changes = {
            "one for all modules": lambda model: model.set_attn_processor(heed.diffusers.HeedAttnProcessor()),
            "those that call PyTorch's": lambda model: model.set_attn_processor(heed.diffusers.processors(model)),
        }
        for name, case in PROCESSORS.items():
            for way, change in changes.items():
                with self.subTest(model=name, way=way):
                    self.check(case, change)

    def test_the_backend(self):
        from diffusers.models.attention_dispatch import attention_backend

        dispatch = heed.diffusers.attention_dispatch
        self.addCleanup(dispatch._AttentionBackendRegistry.set_active_backend, dispatch.AttentionBackendName.NATIVE)
        for name, case in BACKEND.items():
            with self.subTest(model=name):
                self.check(case, lambda model: model.set_attention_backend("heed"))
        with attention_backend("heed"):
            heed.reset_report()
            run_flux(flux())
        self.assertEqual(heed.report().served, 2)

    def test_the_override_serves_processors_that_stay(self):
        torch.manual_seed(0)
        model = plain_unet()
        with heed.sdpa():
            heed.reset_report()
            run_unet(model)
        self.assertEqual(heed.report().served, 8)

    def test_gradients(self):
        torch.manual_seed(0)
        model = plain_unet()
        gradients = []
        for processors in (model.attn_processors, heed.diffusers.processors(model)):
            model.set_attn_processor(dict(processors))
            model.zero_grad()
            run_unet(model).square().mean().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        for actual, wanted in zip(*reversed(gradients)):
            self.assertLessEqual((actual - wanted).abs().max(), 1e-4 * wanted.abs().max() + 1e-7)


# Parts of Attention modules, beside the processor of Diffusers that computes them.
PARTS = {
    "alone": {},
    "norms of the text": {"cross_attention_norm": "layer_norm"},
    "norms of groups of the text": {"cross_attention_norm": "group_norm", "cross_attention_norm_num_groups": 4},
    "norms of Q and K": {"qk_norm": "layer_norm"},
    "norms of RMS": {"qk_norm": "rms_norm"},
    "a residual block": {"norm_num_groups": 4, "residual_connection": True, "rescale_output_factor": 1.7},
    "a bias": {"bias": True},
}


class Modules(unittest.TestCase):
    def compare(self, processor, arguments, *inputs, **named):
        from diffusers.models.attention_processor import Attention

        torch.manual_seed(0)
        module = Attention(32, heads=2, dim_head=16, processor=processor, **arguments).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(0.25 * torch.randn(parameter.shape))
            wanted = module(*inputs, **named)
            module.set_processor(heed.diffusers.HeedAttnProcessor())
            actual = module(*inputs, **named)
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)

    def test_parts(self):
        from diffusers.models.attention_processor import AttnProcessor2_0

        for name, parts in PARTS.items():
            with self.subTest(part=name):
                if "cross_attention_norm" not in parts:
                    self.compare(AttnProcessor2_0(), parts, randn(2, 9, 32))
                    self.compare(AttnProcessor2_0(), parts, randn(2, 32, 3, 4))
                self.compare(AttnProcessor2_0(), {**parts, "cross_attention_dim": 24}, randn(2, 9, 32), randn(2, 5, 24, seed=1))
                mask = torch.where(randn(2, 1, 5, seed=2) > 0, 0.0, -1e4)
                self.compare(AttnProcessor2_0(), {**parts, "cross_attention_dim": 24}, randn(2, 9, 32), randn(2, 5, 24, seed=1), attention_mask=mask)

    def test_a_norm_that_depends_on_another_tensor(self):
        from diffusers.models.attention_processor import AttnProcessor2_0

        self.compare(AttnProcessor2_0(), {"spatial_norm_dim": 8}, randn(2, 32, 4, 4), temb=randn(2, 8, 4, 4, seed=1))

    def test_scores_that_are_not_scaled(self):
        from diffusers.models.attention_processor import AttnProcessor

        self.compare(AttnProcessor(), {"scale_qk": False}, 0.3 * randn(2, 9, 32))

    def test_added_projections(self):
        from diffusers.models.attention_processor import AttnAddedKVProcessor2_0

        for parts in ({}, {"only_cross_attention": True}, {"cross_attention_norm": "group_norm", "cross_attention_norm_num_groups": 4}):
            with self.subTest(**parts):
                arguments = {"norm_num_groups": 4, "added_kv_proj_dim": 24, **parts}
                self.compare(AttnAddedKVProcessor2_0(), arguments, randn(2, 32, 3, 4), randn(2, 5, 24, seed=1))

    def test_joint_attention(self):
        from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0

        for parts in ({"context_pre_only": False}, {"context_pre_only": True}, {"context_pre_only": False, "qk_norm": "rms_norm"}):
            with self.subTest(**parts):
                self.compare(JointAttnProcessor2_0(), {"added_kv_proj_dim": 32, **parts}, randn(2, 9, 32), randn(2, 5, 32, seed=1))
                self.compare(JointAttnProcessor2_0(), {"added_kv_proj_dim": 32, **parts}, randn(2, 9, 32))
        module = Attention(32, heads=2, dim_head=16, added_kv_proj_dim=32, context_pre_only=False, processor=heed.diffusers.HeedAttnProcessor())
        with self.assertRaisesRegex(NotImplementedError, "without a mask"):
            module(randn(2, 9, 32), randn(2, 5, 32), attention_mask=torch.zeros(2, 1, 5))


class Backend(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = (randn(2, 9, 4, 32, seed=seed) for seed in range(3))

    def native(self, **arguments):
        return torch.nn.functional.scaled_dot_product_attention(*(tensor.transpose(1, 2) for tensor in (self.q, self.k, self.v)), **arguments).transpose(1, 2)

    def test_arguments(self):
        seen = torch.ones(2, 9, dtype=torch.bool)
        seen[0, 5:] = False
        for given, arguments in (
            ({}, {}),
            ({"is_causal": True}, {"is_causal": True}),
            ({"scale": 0.3}, {"scale": 0.3}),
            ({"attn_mask": seen}, {"attn_mask": seen[:, None, None]}),
            ({"attn_mask": seen[:, None, None]}, {"attn_mask": seen[:, None, None]}),
        ):
            torch.testing.assert_close(heed.diffusers.attention(self.q, self.k, self.v, **given), self.native(**arguments), atol=2e-5, rtol=2e-5)

    def test_the_log_sum_exp(self):
        o, lse = heed.diffusers.attention(self.q, self.k, self.v, return_lse=True)
        torch.testing.assert_close(o, self.native(), atol=2e-5, rtol=2e-5)
        scores = torch.einsum("bqhd,bkhd->bqhk", self.q, self.k) / 32**0.5
        torch.testing.assert_close(lse, scores.logsumexp(-1), atol=1e-4, rtol=1e-4)

    def test_refusals(self):
        with self.assertRaisesRegex(NotImplementedError, "context parallelism"):
            heed.diffusers.attention(self.q, self.k, self.v, _parallel_config=object())
        with self.assertRaisesRegex(NotImplementedError, "log-sum-exp"):
            heed.diffusers.attention(self.q, self.k, self.v, attn_mask=torch.ones(9, 9, dtype=torch.bool), return_lse=True)

    def test_registering_once_more_changes_nothing(self):
        names = heed.diffusers.attention_dispatch.AttentionBackendName
        before = list(names)
        heed.diffusers.register()
        self.assertEqual(list(names), before)
        self.assertIs(names("heed"), names.HEED)
        self.assertEqual(names.HEED.value, "heed")


class Refusals(unittest.TestCase):
    def test_a_module_of_another_class(self):
        model = flux()
        model.set_attn_processor(heed.diffusers.HeedAttnProcessor())
        with self.assertRaisesRegex(TypeError, "computes Attention modules, not FluxAttention"):
            run_flux(model)

    def test_arguments_of_other_processors(self):
        from diffusers.models.attention_processor import Attention

        attention = Attention(32, heads=2, dim_head=16, processor=heed.diffusers.HeedAttnProcessor())
        states = randn(1, 5, 32)
        for name in ("image_rotary_emb", "ip_hidden_states"):
            with self.assertRaisesRegex(NotImplementedError, f"does not compute {name}"):
                attention(states, **{name: states})

    def test_other_processors_stay(self):
        from diffusers.models.attention_processor import AttnProcessor

        model = plain_unet()
        model.set_attn_processor(AttnProcessor())
        self.assertTrue(all(type(one) is AttnProcessor for one in heed.diffusers.processors(model).values()))


if __name__ == "__main__":
    unittest.main()
