"""The attention function of attn_implementation="heed": arguments, refusals, gradients and compilation."""

import unittest
import warnings
from unittest import mock

import torch
from attention_cases import require_programs
from transformers_models import MODELS, WINDOW, inputs, made, require_transformers, result, tokens, with_implementation


def setUpModule():
    require_programs()
    require_transformers()
    global heed, masks, transformers
    import heed
    import heed.transformers
    import transformers
    from heed import transformers_masks as masks


class Module(torch.nn.Module):
    """The attributes that an attention function reads of the module that calls it."""

    def __init__(self, heads=4, heads_kv=2, is_causal=True):
        super().__init__()
        self.num_key_value_groups = heads // heads_kv
        if is_causal is not None:
            self.is_causal = is_causal


def projections(len_q=7, len_k=7, heads=4, heads_kv=2, dim=32, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((heads, len_q), (heads_kv, len_k), (heads_kv, len_k))
    return [torch.randn(batch, length, count, dim, generator=generator).transpose(1, 2) for count, length in sizes]


def reference(q, k, v, mask=None, scaling=None, softcap=None, sinks=None, bias=None):
    """Attention (batch, len_q, heads, dim) in float64; `mask` of booleans."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    return (scores.softmax(-1)[..., : k.shape[2]] @ v).transpose(1, 2)


class Function(unittest.TestCase):
    def check(self, mask, seen, module=None, sizes=(7, 7), served=1, **arguments):
        """Compares the function, given a mask, with the formula, given what is seen of it."""
        q, k, v = projections(*sizes)
        heed.reset_report()
        o, weights = heed.transformers.attention(module or Module(), q, k, v, mask, **arguments)
        self.assertIsNone(weights)
        self.assertTrue(o.is_contiguous())
        names = {"s_aux": "sinks", "position_bias": "bias"}
        arguments = {names.get(name, name): given for name, given in arguments.items() if name not in ("is_causal", "sliding_window")}
        torch.testing.assert_close(o.double(), reference(q, k, v, seen, **arguments), atol=2e-5, rtol=2e-5)
        self.assertEqual((heed.report().served, heed.report().handed_back), (served, 1 - served), str(heed.report()))

    def test_no_mask(self):
        lower = torch.ones(7, 9, dtype=torch.bool).tril()
        self.check(None, lower[:, :7])
        self.check(None, lower, sizes=(7, 9))  # an empty cache with room for 9
        self.check(None, None, Module(is_causal=False), sizes=(7, 9))
        self.check(None, None, is_causal=False)
        self.check(None, lower[:, :7], Module(is_causal=False), is_causal=True)
        self.check(None, None, sizes=(1, 9))
        self.check(None, lower[:, :7], scaling=0.7)

    def test_positions(self):
        for q_length, kv_length, q_offset, window in ((3, 9, 6, None), (3, 9, 6, 2), (3, 12, 6, 4), (9, 9, 0, 5), (1, 9, 5, None), (1, 9, 5, 3)):
            with self.subTest(q_length=q_length, kv_length=kv_length, q_offset=q_offset, window=window):
                visible = masks.Visible(q_length, kv_length, q_offset, None if window is None else window - 1, 0)
                mask = masks.PositionMask(2, visible, "cpu")
                self.check(mask, visible.dense("cpu"), sizes=(q_length, kv_length))
                sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
                self.check(mask, visible.dense("cpu"), sizes=(q_length, kv_length), s_aux=sinks)
                self.check(mask, visible.dense("cpu"), sizes=(q_length, kv_length), softcap=3.0)

    def test_mask_tensors(self):
        seen = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(1)) > 0.3
        seen |= torch.eye(7, dtype=torch.bool)
        numbers = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        sinks = torch.randn(4, generator=torch.Generator().manual_seed(2))
        for mask in (seen, numbers, seen.expand(2, 4, 7, 7)):
            self.check(mask, seen)
            self.check(mask, seen, softcap=2.0)
            self.check(mask, seen, s_aux=sinks)
            self.check(mask, seen, s_aux=sinks, softcap=2.0)
        self.check(seen[:, :, :1], seen[:, :, :1], sizes=(1, 7))
        touched = masks.mask(2, 3, 9, q_offset=6)
        self.assertEqual((~touched).sum(), 6)
        self.check(touched, touched.dense(), sizes=(3, 9))

    def test_a_position_bias(self):
        bias = torch.randn(1, 4, 7, 9, generator=torch.Generator().manual_seed(1))
        lower = torch.ones(7, 9, dtype=torch.bool).tril()
        self.check(None, lower, sizes=(7, 9), position_bias=bias)
        self.check(None, None, Module(is_causal=False), sizes=(7, 9), position_bias=bias)
        seen = torch.rand(2, 1, 7, 9, generator=torch.Generator().manual_seed(2)) > 0.3
        seen[..., 0] = True
        self.check(seen, seen, sizes=(7, 9), position_bias=bias)
        self.check(torch.where(seen, 0.0, -1e30), seen, sizes=(7, 9), position_bias=bias)
        mask = masks.mask(2, 7, 9, q_offset=2)
        self.check(mask, mask.dense(), sizes=(7, 9), position_bias=bias)

    def test_a_row_that_sees_no_key(self):
        seen = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
        seen[0, :, 3] = False
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            q, k, v = (tensor.to(dtype) for tensor in projections())
            numbers = torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)
            for arguments in ({}, {"softcap": 2.0}, {"s_aux": torch.zeros(4)}, {"position_bias": torch.randn(1, 4, 7, 7)}):
                rows = []
                for mask in (seen, numbers):
                    with self.subTest(dtype=dtype, **arguments):
                        rows.append(heed.transformers.attention(Module(), q, k, v, mask, **arguments)[0])
                        self.assertTrue(rows[-1].isfinite().all())
                        if "position_bias" not in arguments:
                            self.assertEqual(rows[-1][0, 3].abs().max(), 0)
                # The other rows are what they are of either mask.
                torch.testing.assert_close(rows[0][1], rows[1][1], atol=1e-2, rtol=1e-2)
                torch.testing.assert_close(rows[0][0, 4:], rows[1][0, 4:], atol=1e-2, rtol=1e-2)

    def test_types_that_no_kernel_has(self):
        q, k, v = (tensor.double() for tensor in projections(3, 9))
        mask = masks.mask(2, 3, 9, q_offset=6)
        for sinks in (None, torch.ones(4)):
            o, _ = heed.transformers.attention(Module(), q, k, v, mask, s_aux=sinks)
            torch.testing.assert_close(o, reference(q, k, v, mask.dense(), sinks=sinks), atol=1e-6, rtol=1e-6)

    def test_queries_for_every_entry_of_a_batch(self):
        q, k, v = projections(heads_kv=4)
        o, _ = heed.transformers.attention(Module(heads_kv=4, is_causal=False), q[:1], k, v, None)
        torch.testing.assert_close(o.double(), reference(q[:1].expand(2, -1, -1, -1), k, v), atol=2e-5, rtol=2e-5)

    def test_a_mask_for_other_keys_is_an_error(self):
        q, k, v = projections(3, 8)
        with self.assertRaises(RuntimeError):
            heed.transformers.attention(Module(), q, k, v, masks.mask(2, 3, 9, q_offset=6))

    def test_tensors_that_it_does_not_know(self):
        q, k, v = projections()
        for given in (torch.ones(3), (torch.ones(3), None), {"rows": torch.ones(3)}):
            with self.assertRaisesRegex(NotImplementedError, "does not know the tensor block_indices that Module passes"):
                heed.transformers.attention(Module(), q, k, v, None, block_indices=given)
        # Numbers, flags and what is in Q and K already change nothing.
        heed.transformers.attention(Module(), q, k, v, None, position_ids=torch.arange(7), use_cache=True, sliding_window=3, max_length_q=7)

    def test_a_module_that_does_not_say_whether_it_is_causal(self):
        q, k, v = projections()
        with self.assertRaisesRegex(NotImplementedError, "has no attribute is_causal"):
            heed.transformers.attention(Module(is_causal=None), q, k, v, None)

    def test_strict_mode_forbids_operators_too(self):
        q, k, v = projections()
        with heed.sdpa(strict=True):
            heed.transformers.attention(Module(), q, k, v, None)
            heed.transformers.attention(Module(), q, k, v, None, softcap=2.0)
            for name, given in (("softcap", 2.0), ("s_aux", torch.zeros(4))):
                dropped = [heed.transformers.attention(Module(), q, k, v, None, dropout=0.5, **{name: given})[0] for _ in range(2)]
                self.assertFalse(torch.equal(*dropped))
                with mock.patch.object(heed.transformers, "_dropped", lambda *call: None), self.assertRaisesRegex(heed.NotServed, name.replace("s_aux", "sinks")):
                    heed.transformers.attention(Module(), q, k, v, None, dropout=0.5, **{name: given})
            heed.transformers.attention(Module(), q.requires_grad_(), k, v, torch.ones(7, 7, dtype=torch.bool))

    def test_weights_that_it_does_not_return(self):
        q, k, v = projections()
        with self.assertWarnsRegex(UserWarning, "returns no attention weights"):
            heed.transformers.attention(Module(), q, k, v, None, output_attentions=True)


class Registration(unittest.TestCase):
    def test_once_more_changes_nothing(self):
        before = dict(transformers.AttentionInterface._global_mapping), dict(transformers.AttentionMaskInterface._global_mapping)
        heed.transformers.register()
        after = dict(transformers.AttentionInterface._global_mapping), dict(transformers.AttentionMaskInterface._global_mapping)
        self.assertEqual(before, after)

    def test_a_model_that_is_made_with_it(self):
        config = transformers.LlamaConfig(**MODELS["llama"][2], attn_implementation="heed")
        model = transformers.LlamaForCausalLM(config)
        self.assertEqual(model.config._attn_implementation, "heed")
        heed.reset_report()
        model(tokens())
        self.assertEqual((heed.report().served, heed.report().handed_back), (2, 0))


class Gradients(unittest.TestCase):
    @staticmethod
    def gradients(model, implementation, given, seed=None):
        def run(model):
            if seed is not None:
                torch.manual_seed(seed)
            model.zero_grad()
            output = result(model(**given))
            (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(9))).mean().backward()
            return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

        return with_implementation(model, implementation, run)

    def check(self, model, given, beside="eager", seed=None, bound=3e-5):
        wanted = self.gradients(model, beside, given, seed)
        heed.reset_report()
        actual = self.gradients(model, "heed", given, seed)
        self.assertEqual(actual.keys(), wanted.keys())
        # The gradient of a bias of keys is zero, and what is left of it rounding, which is of the size of the others.
        rounding = 1e-7 * max(gradient.abs().max() for gradient in wanted.values())
        for name, gradient in wanted.items():
            self.assertLessEqual((actual[name] - gradient).abs().max(), bound * gradient.abs().max() + rounding, name)

    def test_of_models(self):
        for name in ("llama", "mistral", "gemma2", "gpt_oss", "bert", "t5"):
            with self.subTest(model=name):
                # T5 does not scale scores: "eager" itself is 6e-5 away from the gradients of float64.
                self.check(made(name), inputs(name), bound=2e-4 if name == "t5" else 3e-5)
                self.assertEqual(heed.report().handed_back, 0)

    def test_of_padding(self):
        for name in ("llama", "bert", "gemma2", "gpt_oss"):
            with self.subTest(model=name):
                # Padding on the right: rows of a causal mask all see a key.
                self.check(made(name), inputs(name, "right"), "sdpa" if name == "llama" else "eager")
                self.assertEqual(heed.report().handed_back, 0, str(heed.report()))

    def test_with_recomputed_activations(self):
        for is_reentrant in (False, True):
            with self.subTest(use_reentrant=is_reentrant):
                model = made("mistral").train()
                model.activation_checkpointing_enable({"use_reentrant": is_reentrant})
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.check(model, {"input_ids": tokens(), "use_cache": False})
                self.assertEqual(heed.report().handed_back, 0)

    def test_dropout(self):
        for name in ("llama", "mistral", "gpt_oss", "gemma2"):
            with self.subTest(model=name):
                model = made(name, attention_dropout=0.5).train()
                heed.reset_report()
                gradients = self.gradients(model, "heed", inputs(name))
                self.assertTrue(all(gradient.isfinite().all() for gradient in gradients.values()))
                self.assertEqual((heed.report().served > 0, heed.report().handed_back), (True, 0), str(heed.report()))


class Compilation(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()

    def test_a_model(self):
        for name, served in (("llama", 2), ("bert", 2), ("gpt_oss", 2), ("gemma2", 2)):
            with self.subTest(model=name):
                model = made(name)
                model.set_attn_implementation("heed")
                compiled = torch.compile(model, backend="aot_eager", fullgraph=name != "gpt_oss")
                with torch.no_grad():
                    output, wanted = compiled(tokens()), model(tokens())
                    heed.reset_report()
                    compiled(tokens())
                self.assertEqual(heed.report().served, served, str(heed.report()))
                for actual, expected in zip(output.values(), wanted.values()):
                    if isinstance(expected, torch.Tensor):
                        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)

    def test_padding(self):
        for name in ("llama", "bert", "gemma2"):
            with self.subTest(model=name):
                model, where = made(name), inputs(name, "left")["attention_mask"].bool()
                model.set_attn_implementation("heed")
                with torch.no_grad():
                    output, wanted = torch.compile(model, backend="aot_eager")(**inputs(name, "left")), model(**inputs(name, "left"))
                torch.testing.assert_close(result(output)[where], result(wanted)[where], atol=1e-4, rtol=1e-4)

    def test_a_softcap_in_training(self):
        q, k, v = projections(7, 7)

        def loss(q, k, v):
            return heed.transformers.attention(module, q, k, v, None, softcap=2.0, s_aux=sinks)[0].square().sum()

        module, sinks, gradients = Module(), torch.randn(4, generator=torch.Generator().manual_seed(2)), []
        for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
            leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
            function(*leaves).backward()
            gradients.append([tensor.grad for tensor in leaves])
        for one, two in zip(*gradients):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)

    def test_a_mask_that_comes_from_outside_of_a_graph(self):
        q, k, v = projections(3, 12)
        sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
        module = Module()

        def call(mask, sinks):
            return heed.transformers.attention(module, q, k, v, mask, s_aux=sinks)[0]

        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        for own, left in ((9, None), (6, None), (9, WINDOW - 1), (4, 2)):
            for given in (None, sinks):
                with self.subTest(own=own, left=left, sinks=given):
                    visible = masks.Visible(3, 12, own, left, 0)
                    o = compiled(masks.PositionMask(2, visible, "cpu"), given)
                    torch.testing.assert_close(o.double(), reference(q, k, v, visible.dense("cpu"), sinks=given), atol=2e-5, rtol=2e-5)


if __name__ == "__main__":
    unittest.main()
