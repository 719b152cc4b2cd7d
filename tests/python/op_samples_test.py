"""The samples of PyTorch's own table of operators (op_db), with Heed in the place of scaled_dot_product_attention and without.

https://github.com/pytorch/pytorch/blob/main/torch/testing/_internal/opinfo/core.py; the table is part of the torch wheel.
"""

import unittest
import warnings

import torch
from attention_cases import require_programs

NAMES = ("nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 0.0}


def setUpModule():
    require_programs()
    global heed, operators
    import heed

    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise unittest.SkipTest(f"PyTorch's table of operators cannot be imported: {error}") from error
    operators = {one.name: one for one in op_db if one.name in NAMES}


def outcome(operator, sample, needs_gradient):
    """The output and the gradients of a sample's tensors, or the exception."""

    def leaf(value):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value.detach().clone().requires_grad_(needs_gradient)
            leaves.append(value)
        return value

    leaves = []
    arguments = [leaf(value) for value in (sample.input, *sample.args)]
    named = {name: leaf(value) for name, value in sample.kwargs.items()}
    torch.manual_seed(5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = operator(*arguments, **named)
    except Exception as error:
        return error
    output = output if isinstance(output, torch.Tensor) else output[0]
    if needs_gradient and output.requires_grad:
        output.sum().backward()
    return [output.detach(), *(tensor.grad for tensor in leaves)]


class Samples(unittest.TestCase):
    def test_every_sample(self):
        served = 0
        for name in NAMES:
            for dtype in DTYPES:
                for needs_gradient in (False, True):
                    for number, sample in enumerate(operators[name].sample_inputs("cpu", dtype)):
                        with self.subTest(operator=name, dtype=dtype, gradient=needs_gradient, sample=number):
                            wanted = outcome(operators[name], sample, needs_gradient)
                            heed.reset_report()
                            with heed.sdpa():
                                got = outcome(operators[name], sample, needs_gradient)
                            served += heed.report().served
                            if isinstance(wanted, Exception):
                                self.assertIs(type(got), type(wanted))
                                continue
                            self.assertNotIsInstance(got, Exception, repr(got))
                            self.assertEqual([one is None for one in got], [one is None for one in wanted])
                            if any(isinstance(given, float) and 0 < given < 1 for given in (*sample.args, sample.kwargs.get("dropout_p"))):
                                # One seed of PyTorch's generator drops others in Heed.
                                self.assertEqual(got[0].shape, wanted[0].shape)
                                continue
                            # PyTorch computes calls of three dimensions without a fused kernel, in float32, whose gradients do not go
                            # through a rounded output.
                            bound = BOUNDS[dtype] * (5 if needs_gradient and sample.input.dim() == 3 else 1)
                            for one, two in ((one, two) for one, two in zip(got, wanted) if two is not None):
                                # Inputs reach 9, and gradients are differences of rounded products of them.
                                largest = max(1.0, two.abs().nan_to_num(0.0).max().item()) if two.numel() else 1.0
                                torch.testing.assert_close(one, two, atol=bound * largest, rtol=bound, equal_nan=True)
        self.assertGreater(served, 20)


if __name__ == "__main__":
    unittest.main()
