"""What only a GPU has: CUDA graphs, streams, several devices, tensors of more than 2^31 elements."""

import itertools
import threading
import unittest

import torch
import torch.nn.functional as F
from attention_cases import assert_close, expected, require_programs, tensors
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

SMALL = (2, 4, 4, 16, 16, 64, 64)


def setUpModule():
    if not torch.cuda.is_available():
        raise unittest.SkipTest("it needs a GPU")
    require_programs()
    global heed, dropout_calls
    import heed
    from heed import dropout_calls


class Graphs(unittest.TestCase):
    def test_capture_and_replay(self):
        for sizes in (SMALL, (1, 8, 2, 1, 4096, 128, 128), (2, 4, 4, 40, 40, 80, 80)):
            with self.subTest(sizes=sizes):
                q, k, v = tensors(sizes, torch.float16, "cuda")
                wanted = heed.attention(q, k, v)  # also loads the program
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    o = heed.attention(q, k, v)
                for _ in range(3):
                    o.zero_()
                    graph.replay()
                    torch.testing.assert_close(o, wanted)
                q.copy_(torch.randn_like(q))
                graph.replay()
                torch.testing.assert_close(o, heed.attention(q, k, v))

    def test_graphs_of_one_pool_that_replay_in_turn(self):
        # Split decoding keeps counters in a workspace: plans of several sizes share that of their graph.
        cases = [tensors((1, 32, 8, 1, length, 128, 128), torch.float16, "cuda") for length in (700, 4096, 9000, 4096, 20000)]
        wanted = [heed.attention(*case) for case in cases]
        torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        graphs = []
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            outputs = []
            with torch.cuda.graph(graph, pool=pool):
                for case in cases:
                    outputs.append(heed.attention(*case))
                    torch.full((1 << 16,), 7.0, device="cuda") * 2  # memory that is given back within the graph
            graphs.append((graph, outputs))
        for _ in range(5):
            for graph, outputs in graphs:
                graph.replay()
                for o, one in zip(outputs, wanted):
                    torch.testing.assert_close(o, one)
                torch.testing.assert_close(heed.attention(*cases[1]), wanted[1])

    def test_a_first_call_in_a_capture(self):
        q, k, v = tensors((1, 3, 3, 77, 77, 64, 64), torch.bfloat16, "cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = heed.scaled_dot_product_attention(q, k, v)
        graph.replay()
        torch.testing.assert_close(o, F.scaled_dot_product_attention(q, k, v), atol=2e-2, rtol=2e-2)

    def test_streams(self):
        q, k, v = tensors((1, 8, 2, 1, 8192, 128, 128), torch.float16, "cuda")
        wanted = heed.attention(q, k, v)
        streams = [torch.cuda.Stream() for _ in range(4)]
        outputs = []
        torch.cuda.synchronize()
        for _ in range(20):
            for stream in streams:
                with torch.cuda.stream(stream):
                    outputs.append(heed.attention(q, k, v))
        torch.cuda.synchronize()
        for o in outputs:
            torch.testing.assert_close(o, wanted)


class Dropout(unittest.TestCase):
    """dropout_p of PyTorch's function: numbers from the GPU's generator, those of PyTorch's FlashAttention."""

    CALLS = ({}, {"is_causal": True}, {"dim": 128, "heads_kv": 1}, {"dim": 256}, {"dtype": torch.bfloat16, "dim": 72}, {"len_q": 1}, {"len_q": 300, "len_k": 1000})

    def test_it_drops_what_flash_attention_drops(self):
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        for given in self.CALLS:
            call = {"dtype": torch.float16, "dim": 64, "heads_kv": 2, "len_q": 70, "len_k": 70 if given.get("is_causal") else 131, "is_causal": False} | given
            q, k, v = (tensor.requires_grad_() for tensor in tensors((2, 4, call["heads_kv"], call["len_q"], call["len_k"], call["dim"], call["dim"]), call["dtype"], "cuda"))
            weight, results = torch.randn_like(q), []
            for context in (heed.sdpa(strict=True), sdpa_kernel([SDPBackend.FLASH_ATTENTION])):
                torch.manual_seed(5)
                generator.set_offset(8)
                with context:
                    outputs = [F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=call["is_causal"], enable_gqa=True) for _ in range(2)]
                of_tensors = torch.autograd.grad((outputs[1] * weight).float().sum(), (q, k, v))
                results.append((*outputs, *of_tensors, generator.get_offset()))
            self.assertFalse(torch.equal(*results[0][:2]))
            with self.subTest(**given):
                self.assertEqual(results[0][-1], results[1][-1])
                for ours, theirs in zip(results[0][:-1], results[1][:-1]):
                    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)

    def test_calls_and_gradients(self):
        q, k, v = (tensor.requires_grad_() for tensor in tensors((2, 4, 2, 131, 131, 64, 64), torch.float16, "cuda"))
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        hidden = torch.ones(131, 131, dtype=torch.bool, device="cuda").triu(1)
        far = torch.arange(131, device="cuda")[:, None] - torch.arange(131, device="cuda") > 20
        for named, out in (({}, None), ({"is_causal": True}, hidden), ({"window": (20, 0)}, hidden | far)):
            torch.manual_seed(5)
            generator.set_offset(8)
            if "window" in named:
                o = heed.attention(q, k, v, **named, dropout_p=0.3, dropout_seed=5, dropout_offset=8)
            else:
                with heed.sdpa(strict=True):
                    o = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, enable_gqa=True, **named)
                self.assertEqual((generator.initial_seed(), generator.get_offset()), (5, 8 + 2 * 4 * 32))
            exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
            keys, values = (tensor.repeat_interleave(2, 1) for tensor in exact[1:])
            scores = exact[0] @ keys.transpose(-1, -2) / 8
            scores = scores if out is None else scores.masked_fill(out, -torch.inf)
            wanted = (scores.softmax(-1) * heed.dropout_mask(0.3, 5, 8, (2, 4, 131, 131), "cuda") / 0.7) @ values
            assert_close(self, o, wanted, torch.float16)
            weight = torch.randn_like(o)
            for one, two in zip(torch.autograd.grad((o * weight).float().sum(), (q, k, v)), torch.autograd.grad((wanted * weight.double()).sum(), exact)):
                torch.testing.assert_close(one.double(), two, atol=2e-2, rtol=2e-2)

    def test_a_trace_and_a_checkpoint_drop_the_same(self):
        q, k, v = (tensor.requires_grad_() for tensor in tensors((2, 4, 4, 130, 130, 64, 64), torch.float16, "cuda"))
        weight, results = torch.randn_like(q), []

        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)

        for run in (attend, torch.compile(attend, fullgraph=True), lambda *given: checkpoint(attend, *given, use_reentrant=False)):
            with heed.sdpa(strict=True):
                torch.manual_seed(5)
                o = run(q, k, v)
                results.append((o, *torch.autograd.grad((o * weight).float().sum(), (q, k, v))))
        for other in results[1:]:
            for one, two in zip(results[0], other):
                torch.testing.assert_close(one, two, atol=2e-3, rtol=2e-3)

    def test_what_flash_attention_has_no_gradient_for_is_handed_back(self):
        q, k, v = tensors(SMALL, torch.float32, "cuda")
        heed.reset_report()
        with heed.sdpa():
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
            F.scaled_dot_product_attention(q.half(), k.half(), v.half(), torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device="cuda"), dropout_p=0.3)
        self.assertEqual({row.reason for row in heed.report().rows}, {dropout_calls.ON_A_GPU})

    def test_a_graph_drops_anew_in_each_replay(self):
        q, k, v = tensors(SMALL, torch.float16, "cuda")
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
        heed.reset_report()
        graph = torch.cuda.CUDAGraph()
        with heed.sdpa(), torch.cuda.graph(graph):
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
        self.assertEqual((heed.report().served, heed.report().handed_back), (0, 1), str(heed.report()))
        outputs = []
        for _ in range(2):
            graph.replay()
            outputs.append(o.clone())
        self.assertFalse(torch.equal(*outputs))


class Devices(unittest.TestCase):
    def test_every_device_and_thread(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("it needs two GPUs")
        failures = []

        def work(device):
            for turn in range(20):
                q, k, v = tensors((1, 4, 2, 1 + turn, 900, 64, 64), torch.float16, f"cuda:{device}", seed=turn)
                if (heed.attention(q, k, v).double().cpu() - expected(q, k, v)[0]).abs().max() > 3e-3:
                    failures.append((device, turn))

        threads = [threading.Thread(target=work, args=(device,)) for device in range(torch.cuda.device_count())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        # The current device is another than that of the tensors, and stays so.
        q, k, v = tensors(SMALL, torch.float16, "cuda:1")
        with torch.cuda.device(0):
            assert_close(self, heed.scaled_dot_product_attention(q, k, v), expected(q, k, v)[0], torch.float16)
            self.assertEqual(torch.cuda.current_device(), 0)
        with self.assertRaises(ValueError):
            heed.attention(q, k, v.to("cuda:0"))

    def test_more_elements_than_an_int_counts(self):
        # pytorch#190857: offsets past 2^31
        length, dim = (1 << 24) + 64, 128
        if torch.cuda.mem_get_info()[0] < 14 << 30:
            self.skipTest("it needs 14 GiB of the GPU's memory")
        q = torch.randn(1, 1, 4, dim, dtype=torch.float16, device="cuda")
        k = torch.zeros(1, 1, length, dim, dtype=torch.float16, device="cuda")
        v = torch.zeros_like(k)
        # One key far beyond the others' scores, behind 2^31 elements.
        k[0, 0, -3] = 20 * q[0, 0, 2].sign()
        v[0, 0, -3] = 1
        o = heed.attention(q, k, v)
        torch.testing.assert_close(o[0, 0, 2], torch.ones(dim, dtype=torch.float16, device="cuda"), atol=1e-2, rtol=0)

    def test_many_batch_entries(self):
        q, k, v = tensors((70_000, 1, 1, 1, 5, 64, 64), torch.float16, "cuda")
        assert_close(self, heed.attention(q, k, v), expected(q, k, v)[0], torch.float16)


class Cases(unittest.TestCase):
    """Few and small: compute-sanitizer takes minutes over what takes a second."""

    def test_under_a_sanitizer(self):
        sizes = ((1, 2, 1, 33, 65, 64, 64), (2, 4, 2, 1, 700, 128, 128), (1, 1, 1, 20, 20, 80, 80), (1, 2, 2, 40, 40, 256, 256))
        masks = ({}, {"causal": True, "alignment": "bottom_right"}, {"window": (9, 2), "alignment": "top_left"})
        for size, mask, layout in itertools.product(sizes, masks, ("bhld", "blhd", "strided")):
            q, k, v = tensors(size, torch.bfloat16, "cuda", layout)
            o, lse = heed.attention(q, k, v, **mask, return_lse=True)
            assert_close(self, o, expected(q, k, v, **mask)[0], torch.bfloat16)


if __name__ == "__main__":
    unittest.main()
