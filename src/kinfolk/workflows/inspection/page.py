"""Gather the values of the page of an inspection: objectives, trained models, costs."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kinfolk.errors import UserError
from kinfolk.families import family, index
from kinfolk.families.base import Family
from kinfolk.families.ngram import NGramConfig
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from kinfolk.nn.views import FULL, VIEWS, ViewedStates
from kinfolk.reports.inspect_view import (
    InspectPage,
    ObjectiveView,
    StreamView,
    TableView,
)
from kinfolk.text import train_tokenizer
from kinfolk.text.token_views import readable_tokens, unknown_note
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.workflows.folders import load_tokenizer
from kinfolk.workflows.generate import to_inference
from kinfolk.workflows.inspection.costs import network_costs
from kinfolk.workflows.inspection.draws import OTHER_DOCUMENT, InspectedText
from kinfolk.workflows.inspection.masks import dense_views, mask_view
from kinfolk.workflows.inspection.model_view import CharacterSpan, model_view
from kinfolk.workflows.inspection.objectives import inspect_objective
from kinfolk.workflows.load import load

MAX_PAGE_TOKENS = 256  # of a text on a page
INSPECTED_SIZE = "tiny"
NGRAM_ROWS = 5  # of each order
COUNTING = (
    "N-gram language modelling (Chen and Goodman, 1998): predict each token from the n - 1 before "
    "it, by counts."
)


@dataclass(frozen=True)
class Subject:
    """A family with new weights, or a trained model, that is looked into."""

    name: str
    family: Family
    config: ModelConfig
    tokenizer: Tokenizer
    model: LanguageModel | None = None  # trained
    replaced: str | None = None  # what --tokenizer took the place of


def split_documents_of(text: str) -> tuple[str, ...]:
    """Return the documents of a text, which blank lines separate."""
    return tuple(part.strip() for part in re.split(r"\n\s*\n", text) if part.strip())


def reads_target(family: Family) -> bool:
    """Return whether a family has a use for the target of a text."""
    return family.architecture == "encoder-decoder" or "pairs" in family.objectives


def inspected_families() -> list[str]:
    """Return the families of a page without names: those with an objective, and cross-view's."""
    found = index().items()
    return [name for name, one in found if one.objectives or "cross_view" in one.capabilities]


def inspect_page(
    text: str,
    names: Sequence[str] = (),
    *,
    tokenizer: Path | str | None = None,
    target: str | None = None,
    seed: int = 0,
    device: str = "auto",
    on_step: Callable[[str], None] = lambda name: None,
) -> InspectPage:
    """Return the page of a text through families (all by default) and trained models.

    Trained models run on the device.
    """
    select_device(device)
    documents = split_documents_of(text)
    if not documents:
        raise UserError("the text is empty: give some words")
    # BERT's second texts may be of the document that is added to a single one.
    added = OTHER_DOCUMENT if len(documents) == 1 else ""
    shared = load_tokenizer(tokenizer) if tokenizer else words_of([*documents, target or "", added])
    check_size(documents, shared)
    chosen = list(dict.fromkeys(names or inspected_families()))
    titles = model_names([name for name in names if Path(name).exists()])
    given = tokenizer is not None
    subjects = [
        open_subject(name, titles.get(name), shared, given=given, device=device) for name in chosen
    ]
    if target is not None and not any(reads_target(subject.family) for subject in subjects):
        raise UserError(
            "--target is what a decoder writes about the text: inspect an encoder-decoder too, "
            "such as t5, or remove --target"
        )
    objectives: list[ObjectiveView] = []
    models, costs, notes, warnings = [], [], list[str](), list[str]()
    for subject in subjects:
        on_step(subject.name)
        inspected = InspectedText(documents, subject.tokenizer, target)
        check_size(documents, subject.tokenizer)
        read_by = f"--tokenizer {tokenizer}" if given else f"the tokenizer of {subject.name}"
        warnings += subject_warnings(subject, inspected, read_by)
        found, reasons = objective_views(subject, inspected, seed)
        objectives += found
        notes += reasons
        if subject.model is not None:
            whole = "\n\n".join(documents)
            trained = subject.model, subject.tokenizer
            models.append(model_view(subject.name, *trained, whole, target=target, seed=seed))
        costs.append(network_costs(subject.name, subject.config, len(inspected.ids)))
    if not objectives and not models:
        raise UserError(notes[0])
    ids, spans = token_spans(documents, shared)
    return InspectPage(
        title="One text, every objective" if not models else "Inside the models",
        text="\n\n".join(documents),
        tokens=list(zip(readable_tokens(shared, ids), spans, strict=True)),
        objectives=objectives,
        models=models,
        costs=costs,
        facts=[
            ("tokens", f"{len(ids):,}"),
            ("documents", str(len(documents))),
            *tokenizer_facts(shared, subjects),
            ("seed", str(seed)),
        ],
        notes=notes,
        warnings=list(dict.fromkeys(warnings)),
    )


def subject_warnings(subject: Subject, text: InspectedText, read_by: str) -> list[str]:
    """Say how many tokens are unknown, and that a model does not read by its own tokenizer."""
    found = [] if subject.replaced is None else [subject.replaced]
    ids = [i for document in text.documents for i in text.tokenizer.offsets(document)[0]]
    if unknown := ids.count(-1 if (unk := text.tokenizer.special_tokens.unk) is None else unk):
        found.append(unknown_note(unknown, len(ids), read_by))
    return found


def replaced_tokenizer(name: str, title: str, given: Tokenizer, vocab_size: int) -> str | None:
    """Say that a model is given another tokenizer than its own, if it is."""
    try:
        own = load_tokenizer(name)
    except UserError:  # the folder has none
        if given.vocab_size == vocab_size:
            return None
        has = f"has {vocab_size:,} ids"
    else:
        if own.fingerprint == given.fingerprint:
            return None
        has = f"has another tokenizer of its own, of {own.vocab_size:,} ids"
    return (
        f"{title} {has}, and --tokenizer has {given.vocab_size:,}: the same id may be another token"
    )


def words_of(texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer whose tokens are the words of the texts."""
    return train_tokenizer(texts, kind="word", vocab_size=2**16, fewer=True)


def check_size(documents: Sequence[str], tokenizer: Tokenizer) -> None:
    """Refuse a text without tokens, and one that is too long to be shown."""
    count = len(token_spans(documents, tokenizer)[0])
    if not count:
        raise UserError("the text is empty for this tokenizer: give some words")
    if count > MAX_PAGE_TOKENS:
        raise UserError(
            f"the text has {count:,} tokens, and a page shows at most {MAX_PAGE_TOKENS}: use a "
            "shorter text"
        )


def token_spans(
    documents: Sequence[str], tokenizer: Tokenizer
) -> tuple[list[int], list[CharacterSpan]]:
    """Return the ids of documents, and the characters of each when blank lines join them."""
    ids, spans, start = list[int](), list[CharacterSpan](), 0
    for document in documents:
        own, offsets = tokenizer.offsets(document)
        ids += own
        spans += [(start + a, start + b) for a, b in offsets]
        start += len(document) + 2
    return ids, spans


def tokenizer_facts(shared: Tokenizer, subjects: Sequence[Subject]) -> list[tuple[str, str]]:
    """Name the tokenizer of the text and of families, and those of models that have their own."""
    own = [one for one in subjects if one.tokenizer.fingerprint != shared.fingerprint]
    if len(own) < len(subjects):
        named = [("tokenizer of the others" if own else "tokenizer", shared)]
    else:
        named = [("tokenizer of the text above", shared)]
    named += [(f"tokenizer of {one.name}", one.tokenizer) for one in own]
    return [(name, f"{one.kind}, {one.vocab_size:,} ids") for name, one in named]


def model_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the shortest end of each path that no other path has; a checkpoint names its run."""
    parts = {path: Path(path).absolute().parts for path in paths}
    names = {}
    for path, own in parts.items():
        others = [other for other in parts.values() if other != own]
        size = 3 if own[-2:-1] == ("checkpoints",) else 1
        while size < len(own) and any(other[-size:] == own[-size:] for other in others):
            size += 1
        names[path] = str(Path(*own[-size:]))
    return names


def open_subject(
    name: str, title: str | None, shared: Tokenizer, *, given: bool, device: str
) -> Subject:
    """Open FAMILY[/SIZE], or the folder of a trained model, which has a title."""
    if title is not None:
        model, own = load(name, shared if given else None)
        model = to_inference(model, device=device, precision="fp32")
        kind = family(model.family_name)
        config = model.config.pretrained
        replaced = replaced_tokenizer(name, title, own, config.vocab_size) if given else None
        return Subject(title, kind, config, own, model, replaced)
    family_name, _, size = name.partition("/")
    kind = family(family_name)
    size = size or INSPECTED_SIZE
    sized = {
        "vocab_size": shared.vocab_size,
        "decoder_start_token_id": shared.special_tokens.pad,
    }
    config = kind.config(size).with_fields(**sized)
    return Subject(f"{family_name}/{size}", kind, config, shared)


def objective_views(
    subject: Subject, text: InspectedText, seed: int
) -> tuple[list[ObjectiveView], list[str]]:
    """Return what each objective of a family makes of the text, and why some make nothing."""
    views, reasons = list[ObjectiveView](), list[str]()
    spans = token_spans(text.documents, text.tokenizer)[1]
    spans = spans if len(spans) == len(text.ids) else []
    if not subject.family.objectives:
        found = cross_view(subject, text)
        if found is None:
            reasons.append(
                f"{subject.family.name} has no pretraining objective to show: inspect a model "
                "folder of it, or another family"
            )
        else:
            views.append(replace(found, spans=spans))
    for name in subject.family.objectives:
        try:
            view, _ = inspect_objective(
                subject.family, name, subject.config, text, seed, subject.model
            )
        except UserError as error:
            reasons.append(f"{subject.name}, {name}: {error}")
            continue
        if isinstance(subject.config, NGramConfig):
            counts = [*ngram_counts(text, subject.config.order)]
            view = replace(view, description=COUNTING, tables=counts)
        views.append(replace(view, family=subject.name, spans=spans))
    return views, reasons


def cross_view(subject: Subject, text: InspectedText) -> ObjectiveView | None:
    """Return the views of cross-view training, which has no objective without labels."""
    if not issubclass(subject.family.model, ViewedStates):
        return None
    ids, starts = text.ids.tolist(), text.encoded.starts.tolist()
    lengths = np.diff(starts).tolist()
    none = [None] * len(ids)
    stream = StreamView(
        name="input",
        tokens=readable_tokens(text.tokenizer, ids),
        input_ids=ids,
        sources=range(len(ids)),
        changes=[""] * len(ids),
        labels=none,
        label_ids=none,
        label_sources=none,
        integers={},
        starts=starts[1:-1],
    )
    return ObjectiveView(
        family=subject.name,
        title=subject.family.title,
        objective="cross_view",
        description="Cross-view training (Clark et al., 2018): views of a part of the text learn to"
        " agree with the module that sees all of it.",
        streams=[stream],
        masks=[
            mask_view(
                f"{view} view",
                "A filled column is a token that this view of the row's token is predicted from.",
                "input",
                "input",
                mask,
                ("prediction", "token read"),
            )
            for view, mask in dense_views((FULL, *VIEWS["tokens"]), lengths).items()
        ],
        notes=["Labels come with the task: kinfolk finetune --formulation cross_view."],
    )


def ngram_counts(text: InspectedText, order: int) -> Iterator[TableView]:
    """Yield the most frequent n-grams of the text, for each order."""
    for size in range(1, order + 1):
        counts: Counter[tuple[int, ...]] = Counter()
        for first, end in zip(text.encoded.starts, text.encoded.starts[1:], strict=False):
            ids = text.ids[first:end].tolist()
            counts.update(tuple(ids[i : i + size]) for i in range(len(ids) - size + 1))
        rows = [
            (" ".join(readable_tokens(text.tokenizer, gram)), f"{count:,}")
            for gram, count in counts.most_common(NGRAM_ROWS)
        ]
        yield TableView(
            title=f"{len(counts):,} different n-grams of order {size}",
            columns=("n-gram", "count in the text"),
            rows=rows,
        )
