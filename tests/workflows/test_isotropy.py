"""Isotropy of a network: layers, tied and untied embeddings, and similarity after transforms."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.metrics.isotropy import mean_cosine
from kinfolk.nn.language_model import LanguageModel
from kinfolk.reports.isotropy_page import render, spectrum_chart
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.vectors.isotropy import isotropy_page, read_pairs

WORDS = ["the", "a", "film", "song", "book", "was", "lovely", "dull", "bright", "weak", "saw"]
NEURAL = [name for name in families() if name != "ngram"]


def texts(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(2, 7))) for _ in range(count)]


def pairs(count: int, seed: int) -> list[tuple[str, str, float]]:
    """Return texts and copies of them in which some words are others."""
    chance = random.Random(seed)
    found = []
    for text in texts(count, seed):
        words = text.split()
        changed = [word if chance.random() < 0.5 else chance.choice(WORDS) for word in words]
        same = sum(a == b for a, b in zip(words, changed, strict=True)) / len(words)
        found.append((text, " ".join(changed), same))
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(50, 0), kind="bpe", vocab_size=400, fewer=True)


def network(name: str, tokenizer: Tokenizer) -> tuple[LanguageModel, Tokenizer]:
    config = InitialWeights(name=f"{name}/nano").config(tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return config.build().eval(), tokenizer


def test_too_few_texts_for_their_dimensions_are_named(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    few = "IsoScore, dimensions and the spectrum need more vectors than dimensions"
    (sentence,) = kinfolk.isotropy(model, texts(3, 1)).notes
    assert sentence.startswith("3 texts and ") and few in sentence
    (sentence,) = kinfolk.isotropy(model, texts(64, 1)).notes
    assert sentence == f"64 texts, and vectors of 64 dimensions: {few}; give more with --text"
    assert kinfolk.isotropy(model, texts(65, 1)).notes == ()


@pytest.mark.parametrize("name", NEURAL)
def test_every_layer_of_every_family_is_measured(name: str, tokenizer: Tokenizer) -> None:
    model = network(name, tokenizer)
    result = kinfolk.isotropy(model, texts(20, 1))
    assert [layer.layer for layer in result.layers] == list(range(len(result.layers)))
    assert len(result.layers) >= 2 and result.transforms == () and result.pairs == 0
    last = kinfolk.embed(model, texts(20, 1))
    assert result.layers[-1].texts.mean_cosine == pytest.approx(
        mean_cosine(last.astype(np.float64)), abs=1e-5
    )
    for layer in result.layers:
        assert layer.tokens.vectors > 40 and layer.spearman is None
        assert 0 <= layer.texts.iso_score <= 1


@pytest.mark.parametrize("tied", [True, False])
def test_both_matrices_of_untied_embeddings_are_measured(tied: bool, tokenizer: Tokenizer) -> None:
    config = InitialWeights(name="t5/nano").config(tokenizer)
    model = replace(config, tie_word_embeddings=tied).build().eval()
    result = kinfolk.isotropy((model, tokenizer), texts(5, 1))
    assert result.tied_embeddings is tied
    names = [each.name for each in result.embeddings]
    assert names == ["input embeddings", *([] if tied else ["output embeddings"])]


def test_transforms_raise_the_similarity_of_vectors_with_a_common_direction(
    tokenizer: Tokenizer,
) -> None:
    """One dimension with large random values hides the words from the cosine."""
    model, _ = network("gpt2", tokenizer)
    with torch.no_grad():
        noise = torch.Generator().manual_seed(0)
        model.token_embeddings.weight[:, 0] = 50 * torch.randn(
            len(model.token_embeddings.weight), generator=noise
        )
    result = kinfolk.isotropy(
        (model, tokenizer),
        texts(150, 1),
        pairs(120, 2),
        layers="0",
        n_resamples=50,
        remove_components=1,
        flow=False,
    )
    found = {each.name: each for each in result.transforms}
    assert [*found] == ["none", "standardize", "remove-components-1", "whiten"]
    for name in ("standardize", "remove-components-1", "whiten"):
        change = found[name].difference
        assert change is not None and change.low > 0, name
        assert found[name].spearman.score - found["none"].spearman.score == change.score
        assert found[name].isotropy.iso_score > found["none"].isotropy.iso_score
    assert result.layers[0].spearman == found["none"].spearman
    page = render(isotropy_page(result))
    assert page.count('<figure class="chart') == 8
    shown = isotropy_page(result)
    assert [*shown.measures] == ["mean cosine", "IsoScore", "uniformity", "alignment"]
    ((_, aligned),) = shown.measures["alignment"]
    assert aligned == [layer.alignment for layer in result.layers]
    for n, layer in enumerate(result.layers):
        assert shown.spectra["tokens"][n] == (f"layer {n}", [*layer.tokens.spectrum])
        assert shown.spectra["texts"][n] == (f"layer {n}", [*layer.texts.spectrum])
    plain = isotropy_page(kinfolk.isotropy((model, tokenizer), texts(20, 1)))
    assert "alignment" not in plain.measures  # there are no pairs
    assert "remove-components-1" in page and "untied" not in page


def test_directions_of_rounding_alone_are_not_in_the_spectrum() -> None:
    """One of 1e-17 on a logarithmic axis would flatten all others."""
    page = spectrum_chart([("layer 0", [0.6, 0.4, 1e-17]), ("layer 1", [0.5, 0.3, 0.2])])
    data = page.partition('<script type="application/json">')[2].partition("</script>")[0]
    first, second = (curve["points"] for curve in json.loads(data)["series"])
    assert first == [[1, 0.6], [2, 0.4]] and len(second) == 3


def test_texts_that_are_cut_are_counted(tokenizer: Tokenizer) -> None:
    long, model = " ".join(WORDS * 3), network("bert", tokenizer)
    result = kinfolk.isotropy(
        model, [*texts(8, 1), long], [*pairs(5, 2), (long, long, 0.5)], length=24, n_resamples=10
    )
    assert result.notes[:2] == (
        "1 of 9 texts are longer than 24 tokens: their end was cut off",
        "pairs: 2 of 12 texts are longer than 24 tokens: their end was cut off",
    )
    assert not any("cut" in note for note in kinfolk.isotropy(model, [*texts(8, 1), long]).notes)


def test_transforms_that_cannot_be_fitted_are_left_out_with_a_note(tokenizer: Tokenizer) -> None:
    result = kinfolk.isotropy(
        network("bert", tokenizer), texts(20, 1), pairs(20, 2), n_resamples=10
    )
    assert [each.name for each in result.transforms] == [
        "none",
        "standardize",
        "remove-components-2",
    ]
    needs = "needs more texts than the vectors have dimensions"
    assert result.notes[1:] == (
        f"whiten is left out: it {needs} (20 texts, 64 dimensions); give more texts with --text",
        f"flow is left out: it {needs}, and is fitted on nine tenths of them (18 of 20 texts, 64 "
        "dimensions); give more texts with --text",
    )


def test_bad_input_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = network("bert", tokenizer)
    with pytest.raises(UserError, match="at least 2 texts"):
        kinfolk.isotropy(model, ["one"])
    with pytest.raises(UserError, match="all pairs have the same score"):
        kinfolk.isotropy(model, texts(5, 1), [("a", "b", 1.0), ("c", "d", 1.0)])
    with pytest.raises(UserError, match="--remove-components 64 must be below 64"):
        kinfolk.isotropy(model, texts(5, 1), remove_components=64)
    file = tmp_path / "pairs.tsv"
    file.write_text("a\tb\tscore\n1\tx y\t3\n", encoding="utf-8")
    with pytest.raises(UserError, match="--columns b,score are no pairs with scores"):
        read_pairs(file, "b,score")
    file.write_text("a\tb\tscore\nx\ty\t3.5\nu\tv\t1\n", encoding="utf-8")
    assert read_pairs(file, "a,b,score") == [("x", "y", 3.5), ("u", "v", 1.0)]
