"""A search whose models answer through a server that others wrote: `transformers serve` over a tiny random model made on the spot.

The replies are noise. What is tested is the protocol: streamed replies, counted tokens, and a run that ends whatever it was answered.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

SERVE = "import sys; sys.argv = ['transformers', 'serve', '--port', sys.argv[1], '--host', '127.0.0.1']; from transformers.cli.transformers import main; main()"


def make_model(folder):
    """A Llama of one layer that reads and writes bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=1 << 18, **sizes))
    model.generation_config.pad_token_id = 1
    model.save_pretrained(folder)


def setUpModule():
    try:
        import fastapi  # noqa: F401
        import openai  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise unittest.SkipTest(f"transformers serve is not installed: {error}") from error


class TransformersServe(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        make_model(self.folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        log = open(os.path.join(self.folder, "log"), "w")
        self.addCleanup(log.close)
        self.server = subprocess.Popen([sys.executable, "-c", SERVE, str(port)], stdout=log, stderr=log)
        self.addCleanup(self.stop)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/models", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        self.fail("the server did not come up")

    def stop(self):
        self.server.kill()
        self.server.wait()

    def test_a_search_ends_whatever_the_model_writes(self):
        database = os.path.join(self.folder, "a.db")
        heed = os.environ["HEED_BINARY"]
        arguments = ["--shape", "b1h1l48d16:fp32", "--device", "cpu", "--population", "2", "--trials", "2", "--no-peers"]
        arguments += ["--measure-limit", "0.02", "--db", database, "--endpoint", self.url, "--model", self.folder, "--model-share", "1"]
        # A token a byte: a window for one small source.
        arguments += ["--window-tokens", "6000", "--reply-tokens", "24", "--reply-limit", "300"]
        run = subprocess.run([heed, "evolve", *arguments], capture_output=True, text=True, timeout=900)
        self.assertEqual(run.returncode, 0, run.stderr)
        shown = json.loads(subprocess.run([heed, "show", "1", "--json", "--db", database], capture_output=True, check=True).stdout)
        self.assertGreaterEqual(len(shown["exchanges"]), 2)
        for exchange in shown["exchanges"]:
            self.assertEqual(exchange["failure"], "")
            self.assertTrue(exchange["reply"]["content"])
            self.assertGreater(exchange["reply"]["prompt_tokens"], 100)
            self.assertGreater(exchange["reply"]["completion_tokens"], 0)
        self.assertGreaterEqual(len(shown["trials"]), 2)
