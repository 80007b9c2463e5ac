"""Isotropy of a network's vectors by layer, and what each transform does to text similarity.

texts -> hidden states of every layer -> token and text vectors -> metrics.isotropy
pairs of texts with scores -> cosines -> Spearman correlation, before and after each transform
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.errors import UserError
from kinfolk.metrics.bootstrap import (
    ConfidenceInterval,
    PairedDifference,
    confidence_interval,
    paired_difference,
)
from kinfolk.metrics.classification import Spearman
from kinfolk.metrics.isotropy import Isotropy, alignment, measure_isotropy, pair_cosines
from kinfolk.metrics.metric import Statistics
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.vector_transforms import TooFewTextsError
from kinfolk.reports.isotropy_page import IsotropyPage
from kinfolk.tasks.dataset import task_dataset
from kinfolk.tasks.formats.detect import first_spec
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows_in_memory import texts_of
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.load import load, restored
from kinfolk.workflows.vectors.choices import Layers, check_choices
from kinfolk.workflows.vectors.embed import Embedder, LayerVectors, Vectors, truncation_note
from kinfolk.workflows.vectors.transforms import TransformSpec, VectorTransforms

MAX_TOKENS, MAX_TEXTS = 5000, 20_000  # that are measured
N_RESAMPLES = 500
SIMILAR = 0.8  # of the range of scores: pairs from there on count as similar


@dataclass(frozen=True)
class ScoredPair:
    """Two texts and how similar they are."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class LayerIsotropy:
    """The isotropy of the tokens and the texts of one layer."""

    layer: int  # 0: the input of the first layer
    tokens: Isotropy
    texts: Isotropy
    alignment: float | None = None  # of similar pairs
    spearman: ConfidenceInterval | None = None  # of pairs


@dataclass(frozen=True)
class TransformedSimilarity:
    """The similarity of pairs after a transform, and the isotropy of their vectors."""

    name: str  # "none" for the vectors as they are
    isotropy: Isotropy
    alignment: float
    spearman: ConfidenceInterval
    difference: PairedDifference | None  # to the vectors as they are


@dataclass(frozen=True)
class EmbeddingIsotropy:
    """The isotropy of a matrix with a row per token of the vocabulary."""

    name: str
    isotropy: Isotropy


@dataclass(frozen=True, kw_only=True)
class IsotropyResult:
    """What `isotropy` measures."""

    model: str
    pooling: str
    layers_used: tuple[int, ...]  # of the transforms
    texts: int
    pairs: int
    tied_embeddings: bool | None  # None where the network has no output matrix of this form
    embeddings: tuple[EmbeddingIsotropy, ...]
    layers: tuple[LayerIsotropy, ...]
    transforms: tuple[TransformedSimilarity, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all values by their names."""
        return asdict(self)


def isotropy(
    model: Path | str | tuple[LanguageModel, Tokenizer],
    texts: Iterable[str],
    pairs: Sequence[tuple[str, str, float]] = (),
    *,
    pooling: str = "mean",
    layers: Layers = "last",
    remove_components: int = 2,
    flow: bool = True,
    length: int | None = None,
    tokenizer: Path | str | None = None,
    device: str = "auto",
    seed: int = 0,
    n_resamples: int = N_RESAMPLES,
    watch: Callable[[str], None] = lambda stage: None,
) -> IsotropyResult:
    """Measure how evenly the vectors of every layer fill their space.

    `isotropy("runs/bert", texts, [("a cat", "one cat", 4.8), ...]).layers[-1].texts.mean_cosine`

    With pairs of texts and their scores, the Spearman correlation of cosine and score is measured
    for every layer, and for the mean of `layers` after each transform, fitted on the texts.
    A model that is passed keeps its device and the mode of each module.
    """
    texts = texts_of(texts)
    if len(texts) < 2:
        raise UserError(f"isotropy needs at least 2 texts (got {len(texts)}): pass more text")
    check_choices(pooling, layers)
    texts = texts[:MAX_TEXTS]
    scored = [ScoredPair(first, second, float(score)) for first, second, score in pairs]
    if scored and len({pair.score for pair in scored}) < 2:
        raise UserError("all pairs have the same score: a correlation needs different ones")
    both = [pair.first for pair in scored] + [pair.second for pair in scored]
    pair_layers: list[Vectors] = []
    notes = []
    network, loaded = model if isinstance(model, tuple) else load(model, tokenizer)
    with restored(network):
        embedder = Embedder.open(
            (network, loaded), pooling=pooling, layers=layers, length=length, device=device
        )
        if remove_components >= embedder.size:
            raise UserError(
                f"--remove-components {remove_components} must be below {embedder.size}, the size "
                "of the vectors"
            )
        watch("texts")
        own = embedder.layer_vectors(texts, max_tokens=MAX_TOKENS, seed=seed)
        if own.truncated:
            notes.append(truncation_note(own.truncated, len(texts), embedder.max_length))
        if scored:
            watch("pairs")
            found = embedder.layer_vectors(both)
            pair_layers = found.texts
            if found.truncated:
                cut = truncation_note(found.truncated, len(both), embedder.max_length)
                notes.append(f"pairs: {cut}")
        notes += size_notes(own)
        tied, matrices = embedding_isotropy(embedder.network, seed)
    watch("layers")
    measured = [
        measure_layer(
            n, tokens, whole, pair_layers[n] if scored else None, scored, n_resamples, seed
        )
        for n, (tokens, whole) in enumerate(zip(own.tokens, own.texts, strict=True))
    ]
    transformed: list[TransformedSimilarity] = []
    if scored:
        chosen = [
            np.mean(np.stack([each[n] for n in embedder.layers]), axis=0)
            for each in (own.texts, pair_layers)
        ]
        specs = transform_specs(remove_components, flow)
        watch("transforms")
        transformed, left_out = compare_transforms(
            embedder, specs, chosen[0], chosen[1], scored, n_resamples, seed
        )
        notes += left_out
    return IsotropyResult(
        model=str(model) if isinstance(model, Path | str) else network.family_name,
        pooling=embedder.pooling,
        layers_used=embedder.layers,
        texts=len(texts),
        pairs=len(scored),
        tied_embeddings=tied,
        embeddings=matrices,
        layers=tuple(measured),
        transforms=tuple(transformed),
        notes=tuple(notes),
    )


def size_notes(vectors: LayerVectors) -> list[str]:
    """Return a sentence where there are too few vectors to fill their space."""
    size = max(layer.shape[1] for layer in vectors.texts)
    counts = {"texts": len(vectors.texts[0]), "tokens": len(vectors.tokens[0])}
    few = [f"{count:,} {name}" for name, count in counts.items() if count <= size]
    if not few:
        return []
    return [
        f"{' and '.join(few)}, and vectors of {size:,} dimensions: IsoScore, dimensions and the "
        "spectrum need more vectors than dimensions; give more with --text"
    ]


def measure_layer(
    layer: int,
    tokens: Vectors,
    texts: Vectors,
    pairs: Vectors | None,
    scored: Sequence[ScoredPair],
    n_resamples: int,
    seed: int,
) -> LayerIsotropy:
    """Measure the tokens, the texts and the pairs of one layer."""
    own = measure_isotropy(tokens, seed=seed), measure_isotropy(texts, seed=seed)
    if pairs is None:
        return LayerIsotropy(layer, *own)
    spearman = confidence_interval(
        Spearman(), similarity(pairs, scored), n_resamples=n_resamples, seed=seed
    )
    return LayerIsotropy(layer, *own, similar_alignment(pairs, scored), spearman)


def similarity(pairs: Vectors, scored: Sequence[ScoredPair]) -> Statistics:
    """Return the cosine and the score of each pair: (pairs, 2)."""
    first, second = np.split(pairs, 2)
    cosines = pair_cosines(first, second).tolist()
    return Spearman().statistics(cosines, [pair.score for pair in scored])


def similar_alignment(pairs: Vectors, scored: Sequence[ScoredPair]) -> float:
    """Return the alignment of the pairs with a score in the highest fifth of the range."""
    scores = np.array([pair.score for pair in scored])
    similar = scores >= scores.min() + SIMILAR * np.ptp(scores)
    first, second = np.split(pairs, 2)
    return alignment(first[similar], second[similar])


def transform_specs(remove_components: int, flow: bool) -> list[TransformSpec]:
    """Return the transforms that are compared."""
    specs = [TransformSpec(standardize=True)]
    if remove_components:
        specs.append(TransformSpec(remove_components=remove_components))
    specs.append(TransformSpec(whiten=True))
    return [*specs, TransformSpec(flow=True)] if flow else specs


def compare_transforms(
    embedder: Embedder,
    specs: Sequence[TransformSpec],
    texts: Vectors,
    pairs: Vectors,
    scored: Sequence[ScoredPair],
    n_resamples: int,
    seed: int,
) -> tuple[list[TransformedSimilarity], list[str]]:
    """Score the pairs as they are and after each transform; also return what was left out."""
    plain = similarity(pairs, scored)
    found, notes = [], []
    for spec in (None, *specs):
        vectors, statistics, difference = pairs, plain, None
        if spec is not None:
            try:
                fitted = VectorTransforms.fit(
                    spec, texts, embedder.pooling, embedder.layers, seed=seed
                )
            except TooFewTextsError as error:
                notes.append(
                    f"{spec.names[0]} is left out: it {error.reason}; give more texts with --text"
                )
                continue
            except UserError as error:
                notes.append(f"{spec.names[0]} is left out: {error}")
                continue
            notes += fitted.notes
            vectors = fitted(pairs)
            statistics = similarity(vectors, scored)
            difference = paired_difference(
                Spearman(), statistics, plain, n_resamples=n_resamples, seed=seed
            )
        found.append(
            TransformedSimilarity(
                "none" if spec is None else spec.names[0],
                measure_isotropy(vectors, seed=seed),
                similar_alignment(vectors, scored),
                confidence_interval(Spearman(), statistics, n_resamples=n_resamples, seed=seed),
                difference,
            )
        )
    return found, notes


@torch.no_grad()
def embedding_isotropy(
    network: LanguageModel, seed: int
) -> tuple[bool | None, tuple[EmbeddingIsotropy, ...]]:
    """Measure the input and the output matrix; also return whether they are one."""
    table = network.token_embeddings
    if not isinstance(table, TokenEmbedding):
        return None, ()
    tied, matrices = None, {"input embeddings": table.weight[: table.vocab_size]}
    try:
        logits = network.lm_logits(table.weight.new_zeros(1, network.config.hidden_size))
    except (NotImplementedError, AttributeError, RuntimeError):  # it predicts no tokens here
        logits = None
    if isinstance(logits, LinearLogits):
        tied = logits.weight.data_ptr() == table.weight.data_ptr()
        if not tied:
            matrices["output embeddings"] = logits.weight[: logits.vocab_size]
    measured = (
        EmbeddingIsotropy(name, measure_isotropy(matrix.float().cpu().numpy(), seed=seed))
        for name, matrix in matrices.items()
    )
    return tied, tuple(measured)


def read_pairs(file: Path | str, columns: str | None = None) -> list[tuple[str, str, float]]:
    """Read pairs of texts with a number each, from a table or JSON lines."""
    check_pair_columns(file, columns)
    # Scores are read as text, and parsed here: the messages of a regression name other options.
    rows = task_dataset(file, task="classification", columns=columns).rows
    if not rows:
        raise UserError(f"{file} has no rows: pass pairs of texts with a score each")
    labelled = [row for row in rows if row.label is not None]
    if not labelled:
        raise UserError(f"{file} has no scores: add a number to each pair")
    return [(*row.texts, parse_score(row.label, row.number, file)) for row in labelled]


def check_pair_columns(file: Path | str, columns: str | None) -> None:
    """Refuse columns that are not two texts and a score, those given or those detected."""
    advice = "name two texts and a score, such as --columns sentence1,sentence2,score"
    if columns is not None:
        names = columns.split(",")
        if len(names) != 3 or not all(name.strip() for name in names):
            raise UserError(f"--columns {columns} are no pairs with scores: {advice}")
        return
    found = first_spec(LabelledFile(file))
    known = found is not None and found.task in ("classify", "regress") and found.columns
    if not known or len(known.texts) != 2 or known.label is None:
        raise UserError(f"{file} has no columns that are clearly pairs with scores: {advice}")


def parse_score(text: str, row: int, file: Path | str) -> float:
    """Return a score; refuse one that is no finite number."""
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(
            f"the score in row {row:,} of {file} is {text!r}, not a number: fix or remove the row"
        )
    return score


def isotropy_page(result: IsotropyResult) -> IsotropyPage:
    """Gather the values of the page."""
    return IsotropyPage(
        title=f"Isotropy of {Path(result.model).name}",
        layers=[layer.layer for layer in result.layers],
        measures={
            "mean cosine": [
                ("tokens", [layer.tokens.mean_cosine for layer in result.layers]),
                ("texts", [layer.texts.mean_cosine for layer in result.layers]),
            ],
            "IsoScore": [
                ("tokens", [layer.tokens.iso_score for layer in result.layers]),
                ("texts", [layer.texts.iso_score for layer in result.layers]),
            ],
            "uniformity": [
                ("tokens", [layer.tokens.uniformity for layer in result.layers]),
                ("texts", [layer.texts.uniformity for layer in result.layers]),
            ],
            **alignment_curves(result),
        },
        similarity=[
            (layer.spearman.score, layer.spearman.low, layer.spearman.high)
            for layer in result.layers
            if layer.spearman is not None
        ],
        spectra={
            "tokens": [(f"layer {n.layer}", list(n.tokens.spectrum)) for n in result.layers],
            "texts": [(f"layer {n.layer}", list(n.texts.spectrum)) for n in result.layers],
        },
        transforms=[
            (
                each.name,
                (each.spearman.score, each.spearman.low, each.spearman.high),
                None
                if each.difference is None
                else (each.difference.score, each.difference.low, each.difference.high),
                (each.isotropy.mean_cosine, each.isotropy.iso_score, each.isotropy.uniformity),
                each.alignment,
            )
            for each in result.transforms
        ],
        facts=[
            ("model", result.model),
            ("texts", f"{result.texts:,}"),
            ("pairs", f"{result.pairs:,}"),
            ("pooling", result.pooling),
            ("layers of the transforms", ", ".join(map(str, result.layers_used))),
            *(
                (
                    each.name,
                    f"mean cosine {each.isotropy.mean_cosine:.3f}, IsoScore "
                    f"{each.isotropy.iso_score:.3f}",
                )
                for each in result.embeddings
            ),
            ("embeddings", TIED[result.tied_embeddings]),
        ],
        notes=result.notes,
    )


def alignment_curves(result: IsotropyResult) -> dict[str, list[tuple[str, list[float]]]]:
    """Return the alignment of similar pairs by layer, where there are pairs."""
    values = [layer.alignment for layer in result.layers if layer.alignment is not None]
    return {"alignment": [("similar texts", values)]} if values else {}


TIED = {
    True: "tied: the output layer is the input embeddings",
    False: "untied: the output layer has a matrix of its own",
    None: "no output matrix of the vocabulary",
}
