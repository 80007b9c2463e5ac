"""The view of a trained model on a page: predictions, logit lens, attention, norms, gates."""

from collections.abc import Iterator, Sequence

import numpy as np

from kinfolk.families import family_of
from kinfolk.families.ngram import NGram
from kinfolk.nn.language_model import LanguageModel
from kinfolk.reports.inspect_view import (
    AttentionView,
    CurvesView,
    ModelView,
    PredictionView,
    TableView,
    TokenValuesView,
)
from kinfolk.text.token_views import readable_tokens
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.inspection.inspect import Inspection, inspect
from kinfolk.workflows.inspection.network import LensPredictions
from kinfolk.workflows.inspection.notes import blank_names

CharacterSpan = tuple[int, int]  # characters of a text


def model_view(
    name: str,
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    target: str | None = None,
    seed: int = 0,
) -> ModelView:
    """Return what a trained model computes for the text; a target is for an encoder-decoder."""
    kind = family_of(model)
    accepts = kind.architecture == "encoder-decoder"
    found = inspect(model, text, tokenizer, target=target if accepts else None, seed=seed)
    roles = blank_names(tokenizer.special_tokens) if model.decoding == "infilling" else {}
    row = readable_tokens(tokenizer, found.input_ids)
    tokens = {
        "": [roles.get(id, token) for id, token in zip(found.input_ids, row, strict=True)],
        "encoder": readable_tokens(tokenizer, found.encoder_ids),
    }
    names = [one.layers for one in found.predictions.values()]
    return ModelView(
        name=name,
        family=kind.name,
        hint=f"{kind.title} ({kind.paper})",
        lens_names=names[0] if names else (),
        predictions=[
            (direction, prediction_views(one, tokens[""], tokenizer))
            for direction, one in found.predictions.items()
        ],
        attention=[*attention_views(found, tokens, spans_of_rows(found, text, tokenizer))],
        curves=[*curve_views(found, tokens)],
        token_values=[*replaced_views(found, tokens[""])],
        tables=[*backoff_tables(model, found, tokenizer)],
        notes=found.values.notes,
    )


def spans_of_rows(
    found: Inspection, text: str, tokenizer: Tokenizer
) -> dict[str, list[CharacterSpan | None]]:
    """Return the characters of each token of the rows; None where the text is not there."""
    _, offsets = tokenizer.offsets(text)
    rows = {"": found.sources, "encoder": found.encoder_sources}
    return {
        name: [None if source is None else offsets[source] for source in sources]
        for name, sources in rows.items()
    }


def prediction_views(
    one: LensPredictions, tokens: Sequence[str], tokenizer: Tokenizer
) -> list[PredictionView]:
    """Return the predictions at every place."""
    words = readable_tokens(tokenizer, [int(i) for i in np.unique(one.lens_ids)])
    known = dict(zip(np.unique(one.lens_ids).tolist(), words, strict=True))
    read = [None if i is None else readable_tokens(tokenizer, [i])[0] for i in one.read_ids]
    views = []
    for place, (token, label) in enumerate(zip(tokens, one.labels, strict=True)):
        probability = None if label is None else float(one.probabilities[place])
        best = zip(one.lens_ids[-1, place], one.lens_probabilities[-1, place], strict=True)
        views.append(
            PredictionView(
                token=token,
                read=read[place] if read else token,
                label=None if label is None else readable_tokens(tokenizer, [label])[0],
                probability=probability,
                loss=None if label is None else float(one.losses[place]),
                best=[(known[int(i)], float(p)) for i, p in best],
                by_layer=[
                    (
                        known[int(one.lens_ids[layer, place, 0])],
                        float(one.lens_probabilities[layer, place, 0]),
                        None
                        if label is None
                        else float(one.lens_label_probabilities[layer, place]),
                    )
                    for layer in range(len(one.layers))
                ],
            )
        )
    return views


def replaced_views(found: Inspection, tokens: Sequence[str]) -> Iterator[TokenValuesView]:
    """Yield what ELECTRA's discriminator says of each token."""
    if "replaced_probabilities" in found.arrays:
        yield TokenValuesView(
            title="Probability that a token was replaced, by the discriminator",
            hint="It reads the text as it is, in which no token was replaced. The bluer a token, "
            "the more it takes it for a sample of the generator.",
            tokens=tokens,
            values=found["replaced_probabilities"].tolist(),
        )


def attention_views(
    found: Inspection, tokens: dict[str, list[str]], spans: dict[str, list[CharacterSpan | None]]
) -> Iterator[AttentionView]:
    """Yield the attention of each stack of layers."""
    rows = found.values.rows
    for name, probabilities in found.arrays.items():
        if not name.endswith("attention"):
            continue
        stream = name.removesuffix("attention").removesuffix("_")
        queries = "encoder" if stream == "encoder" else ""
        keys = "encoder" if stream in ("encoder", "cross") else ""
        yield AttentionView(
            name=name.replace("_", " "),
            probabilities=probabilities.astype(np.float32),
            queries=tokens[queries],
            keys=tokens[keys],
            query_spans=spans[queries],
            key_spans=spans[keys],
            row_starts=() if rows is None else rows.starts,
            memory=0 if rows is None else rows.memory,
        )


def curve_views(found: Inspection, tokens: dict[str, list[str]]) -> Iterator[CurvesView]:
    """Yield the norms of hidden states, and gates and states of LSTM layers, at every token."""
    for name, norms in found.arrays.items():
        if not name.endswith("norms"):
            continue
        stream = name.removesuffix("norms").removesuffix("_")
        labels = ["embeddings", *(f"layer {n}" for n in range(1, len(norms)))]
        if found.family == "cove" and stream == "decoder":
            labels[-1] = "attentional state"
        yield CurvesView(
            title=f"Norms of the hidden states{f', {stream}' if stream else ''}",
            hint="The length of the hidden state of each token, after each layer.",
            unit="L2 norm",
            tokens=tokens["encoder" if stream == "encoder" else ""],
            curves=[(n, row.tolist()) for n, row in zip(labels, norms, strict=True)],
        )
    for trace in found.values.traces.traces if found.values.traces else ():
        reads = "encoder" if trace.name.startswith("encoder") else ""
        gates = trace.gates.mean(-1).T.tolist()
        yield CurvesView(
            title=f"Gates of the {trace.name}",
            hint="Means over all cells: 0 is a closed gate, 1 an open one.",
            unit="mean of the gate",
            tokens=tokens[reads],
            curves=list(zip(("input", "forget", "output"), gates, strict=True)),
        )
        yield CurvesView(
            title=f"States of the {trace.name}",
            hint="The length of the cell state and of the hidden state after each token.",
            unit="L2 norm",
            tokens=tokens[reads],
            curves=[
                ("cell state", trace.cell.norm(dim=-1).tolist()),
                ("hidden state", trace.hidden.norm(dim=-1).tolist()),
            ],
        )


def backoff_tables(
    model: LanguageModel, found: Inspection, tokenizer: Tokenizer
) -> Iterator[TableView]:
    """Yield the n-gram that gives each probability, and the back-off weights of longer ones."""
    if not isinstance(model, NGram):
        return
    rows = []
    labelled = [(place, i) for place, i in enumerate(found.labels) if i is not None]
    steps_of_labels = model.backoff_steps(found.input_ids, found.labels)
    for (place, label), steps in zip(labelled, steps_of_labels, strict=True):
        weights = " · ".join(f"{weight:.3g}" for weight in steps.weights) or "–"
        rows.append(
            (
                readable_tokens(tokenizer, [label])[0],
                f"{found['probabilities'][place]:.3g}",
                str(steps.order),
                f"{steps.probability:.3g}",
                weights,
            )
        )
    yield TableView(
        title="Back-off at every place",
        columns=("token", "probability", "order of the n-gram", "its probability", "back-off"),
        rows=rows,
    )
