"""Logits under attn_implementation="heed" beside those of "eager" and "sdpa", and the share of calls that kernels computed."""

import itertools
import unittest
from unittest import mock

import torch
from attention_cases import require_programs
from transformers_models import DECODERS, MODELS, inputs, made, padding, references, require_transformers, result, tokens, with_implementation

# Largest difference, as a part of the largest logit.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-2}


def setUpModule():
    require_programs()
    require_transformers()
    global heed
    import heed
    import heed.transformers


def assert_logits(test, actual, wanted, dtype=torch.float32, where=None):
    """Compares the rows `where` there is no padding."""
    if where is not None:
        actual, wanted = actual[where], wanted[where]
    test.assertGreater(wanted.float().std(), 0.05)
    limit = TOLERANCES[dtype] * wanted.float().abs().max()
    test.assertLessEqual((actual.float() - wanted.float()).abs().max(), limit)


def masked(report):
    """Calls that a kernel computed with a mask tensor."""
    return sum(row.calls for row in report.rows if row.served and ":bias=" in row.workload)


@torch.no_grad()
def logits(model, implementation, **arguments):
    return with_implementation(model, implementation, lambda model: result(model(**arguments)))


class Logits(unittest.TestCase):
    def compare(self, model, arguments, dtype=torch.float32, where=None):
        """The report of the call under "heed"."""
        wanted = {name: logits(model, name, **arguments) for name in references(model)}
        heed.reset_report()
        actual = logits(model, "heed", **arguments)
        for logits_of in wanted.values():
            assert_logits(self, actual, logits_of, dtype, where)
        return heed.report()

    def test_without_padding_kernels_compute_every_call(self):
        for name in MODELS:
            with self.subTest(model=name):
                report = self.compare(made(name), inputs(name))
                self.assertEqual((report.served, report.handed_back), (MODELS[name][3], 0), str(report))
                # The position bias of T5 is a tensor, and its cross attention has one too, of zeros.
                self.assertEqual(masked(report), MODELS[name][3] if name == "t5" else 0, str(report))

    def test_padding(self):
        for name, side in itertools.product([*DECODERS, "bert", "modernbert", "t5"], ("left", "right")):
            with self.subTest(model=name, side=side):
                given = inputs(name, side)
                where = None if name == "t5" else given["attention_mask"].bool()
                report = self.compare(made(name), given, where=where)
                # The causal self-attention of T5's decoder has no padding, but it has a bias.
                self.assertEqual((report.served, report.handed_back, masked(report)), (MODELS[name][3], 0, MODELS[name][3]), str(report))

    def test_a_mask_that_hides_nothing_is_no_padding(self):
        for name in ("llama", "mistral", "bert", "modernbert"):
            with self.subTest(model=name):
                report = self.compare(made(name), {"input_ids": tokens(), "attention_mask": torch.ones(2, 20, dtype=torch.long)})
                self.assertEqual((report.served, report.handed_back, masked(report)), (MODELS[name][3], 0, 0), str(report))

    def test_bfloat16(self):
        for name, side in itertools.product(("llama", "gemma3", "gpt_oss", "bert"), (None, "left")):
            with self.subTest(model=name, side=side):
                where = None if side is None else padding(side).bool()
                self.compare(made(name, dtype=torch.bfloat16), inputs(name, side), torch.bfloat16, where)

    def test_head_dims_between_those_of_programs(self):
        for head_dim in (24, 80):
            with self.subTest(head_dim=head_dim):
                report = self.compare(made("llama", head_dim=head_dim), inputs("llama"))
                self.assertEqual(report.handed_back, 0)

    def test_sequences_packed_by_their_positions(self):
        positions = torch.cat((torch.arange(7), torch.arange(13))).expand(2, -1)
        for name in ("llama", "mistral", "gemma3"):
            with self.subTest(model=name):
                model = made(name)
                report = self.compare(model, {"input_ids": tokens(), "position_ids": positions, "use_cache": False})
                self.assertEqual((report.served, report.handed_back, masked(report)), (2, 0, 2), str(report))
                alone = logits(model, "heed", input_ids=tokens()[:, 7:], use_cache=False)
                assert_logits(self, logits(model, "heed", input_ids=tokens(), position_ids=positions, use_cache=False)[:, 7:], alone)

    def test_a_users_own_mask(self):
        seen = torch.rand(2, 1, 20, 20, generator=torch.Generator().manual_seed(4)) > 0.4
        seen |= torch.eye(20, dtype=torch.bool)
        for name, dtype in itertools.product(("llama", "gpt_oss", "gemma2"), TOLERANCES):
            with self.subTest(model=name, dtype=dtype):
                model = made(name, dtype=dtype)
                numbers = torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)
                wanted = logits(model, "eager", input_ids=tokens(), attention_mask=numbers)
                heed.reset_report()
                assert_logits(self, logits(model, "heed", input_ids=tokens(), attention_mask=numbers), wanted, dtype)
                assert_logits(self, logits(model, "heed", input_ids=tokens(), attention_mask=seen), wanted, dtype)
                self.assertEqual((heed.report().served, heed.report().handed_back), (4, 0), str(heed.report()))

    def test_decoders_that_see_both_ways(self):
        for name in ("llama", "mistral"):
            with self.subTest(model=name):
                model = made(name)
                model.config.is_causal = False
                wanted = logits(model, "eager", input_ids=tokens())
                heed.reset_report()
                assert_logits(self, logits(model, "heed", input_ids=tokens()), wanted)
                self.assertEqual(heed.report().handed_back, 0)

    def test_a_model_for_eager_alone(self):
        # Modules of Splinter have no attribute is_causal, and "sdpa" would take them for causal ones.
        import transformers

        torch.manual_seed(0)
        config = transformers.SplinterConfig(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2)
        report = self.compare(transformers.SplinterModel(config).eval(), {"input_ids": tokens()})
        self.assertEqual((report.served, report.handed_back), (2, 0))


class Transforms(unittest.TestCase):
    """Gradients through transforms of torch.func are those of "eager"."""

    NAMES = ("mistral", "gemma3", "gpt_oss")

    def compare(self, gradients):
        for name, side in itertools.product(self.NAMES, (None, "right")):
            with self.subTest(name, padding=side):
                wanted, actual = (gradients(name, implementation, {} if side is None else {"attention_mask": padding(side)}) for implementation in ("eager", "heed"))
                for parameter, gradient in wanted.items():
                    torch.testing.assert_close(actual[parameter], gradient, atol=1e-4 * gradient.abs().max().item() + 1e-6, rtol=1e-3, msg=lambda said: f"{parameter}: {said}")

    def test_grad(self):
        def gradients(name, implementation, arguments):
            model = made(name)
            model.set_attn_implementation(implementation)
            parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}
            return torch.func.grad(lambda p: torch.func.functional_call(model, p, (), {"input_ids": tokens(), **arguments}).logits[:, :9].sin().sum())(parameters)

        self.compare(gradients)

    def test_an_ensemble(self):
        def gradients(name, implementation, arguments):
            models = [made(name, seed=seed) for seed in (0, 1)]
            for model in models:
                model.set_attn_implementation(implementation)
            parameters, buffers = torch.func.stack_module_state(models)
            inputs = {"input_ids": tokens(), "use_cache": False, **arguments}
            outputs = torch.vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), (), inputs).logits)(parameters, buffers)
            outputs[:, :, :9].sin().sum().backward()
            return {key: parameter.grad for key, parameter in parameters.items() if parameter.grad is not None}

        self.compare(gradients)


class TheTestsCanFail(unittest.TestCase):
    def test_without_its_mask_function_padding_is_ignored(self):
        from transformers import AttentionInterface

        AttentionInterface.register("heed_without_masks", heed.transformers.attention)
        self.addCleanup(AttentionInterface._global_mapping.pop, "heed_without_masks")
        model, where = made("llama"), padding("left").bool()
        arguments = inputs("llama", "left")
        wanted = logits(model, "eager", **arguments)
        assert_logits(self, logits(model, "heed", **arguments), wanted, where=where)
        with self.assertRaises(AssertionError):
            assert_logits(self, logits(model, "heed_without_masks", **arguments), wanted, where=where)

    def test_a_lost_fast_path_is_counted(self):
        with mock.patch("heed.transformers_masks._visible", return_value=None):
            heed.reset_report()
            logits(made("mistral"), "heed", input_ids=tokens())
        self.assertEqual((heed.report().served, masked(heed.report())), (2, 2))

    def test_a_window_that_is_one_key_off_is_seen(self):
        model = made("mistral")
        wanted = logits(model, "eager", input_ids=tokens())
        with mock.patch("heed.transformers_masks.Visible.dense", side_effect=AssertionError("no mask tensor is made here")):
            model.config.sliding_window = 9
            actual = logits(model, "heed", input_ids=tokens())
        with self.assertRaises(AssertionError):
            assert_logits(self, actual, wanted)


if __name__ == "__main__":
    unittest.main()
