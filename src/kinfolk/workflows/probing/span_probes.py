"""Rows of spans for probes: edges between words (Tenney et al. 2019) and senses of words.

    {"text": "Anna lives in Paris", "targets": [{"span1": [1, 2], "span2": [3, 4], "label": "obl"}]}
    {"word": "bank", "sentence1": ..., "sentence2": ..., "start1": 4, "end1": 8, ..., "label": true}
    a CoNLL-U file: every word, its head and the relation between them

Spans of `targets` count words between blanks, and end before the second number; without `span2` the
label is one of the word, such as its sense. The second form is that of Words in Context, in
characters. A span is the mean of its words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import Batch
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.nn.language_model import LanguageModel
from kinfolk.tasks.formats.conll import is_conllu, read_sentences
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.formulations.base import Instance, TaskTargets, segment_mean
from kinfolk.tasks.formulations.choose import build_formulation
from kinfolk.tasks.formulations.features import FeatureTagger
from kinfolk.tasks.instances import TOKENS_PER_BATCH, length_buckets
from kinfolk.tasks.rows import LabelledText, TaggedSentence
from kinfolk.tasks.task import Task, task_class
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.probing.dataset import (
    MAX_TOKENS,
    ProbeDataset,
    TextPooling,
    item_targets,
)

ID, FORM, HEAD, RELATION = 0, 1, 6, 7  # columns of CoNLL-U


@dataclass(frozen=True)
class WordSpan:
    """Some words of a sentence, from `start` up to `stop`."""

    words: tuple[str, ...]
    start: int
    stop: int

    @property
    def text(self) -> str:
        """The words of the span."""
        return " ".join(self.words[self.start : self.stop])


@dataclass(frozen=True)
class SpanRow(LabelledText):
    """A label of one span or two; its texts are the words of the spans."""

    spans: tuple[WordSpan, ...] = ()
    same_sentence: bool = True  # all spans are in one sentence

    is_span: ClassVar[bool] = True

    @property
    def form(self) -> str:
        """What the vector of the row is made of."""
        if len(self.spans) == 1:
            return "one span"
        return f"two spans in {'one sentence' if self.same_sentence else 'two sentences'}"


def span_row(
    spans: Sequence[WordSpan], label: Any, number: int, *, same_sentence: bool = True
) -> SpanRow:
    """Return a row of spans."""
    name = str(label).lower() if isinstance(label, bool) else str(label)
    texts = tuple(span.text for span in spans)
    return SpanRow(texts, name, number, spans=tuple(spans), same_sentence=same_sentence)


def check_forms(splits: Mapping[str, Sequence[SpanRow]]) -> None:
    """Refuse rows whose vectors would have another form than that of the first training row."""
    (first, *_), *_ = splits.values()
    for name, rows in splits.items():
        for row in rows:
            if row.form != first.form:
                raise UserError(
                    f"line {row.number:,} of the {name} rows has {row.form}, and line "
                    f"{first.number:,} of the train rows {first.form}: probe one form of rows at "
                    "a time; put the others in files of their own"
                )


def is_span_file(path: Path) -> bool:
    """Return whether the first record of JSON lines has spans."""
    file = LabelledFile(path)
    if not file.is_json_lines:
        return False
    first = file.first_record
    return isinstance(first, dict) and ("targets" in first or "start1" in first)


def read_spans(path: Path) -> list[SpanRow]:
    """Read the rows of a file."""
    file = LabelledFile(path)
    if not (is_conllu(file) or file.is_json):
        raise UserError(
            f"{path} is neither CoNLL-U nor JSON lines of spans: give one of them, or leave out "
            "--task spans to probe tags or labels"
        )
    rows = list(_edges(file) if is_conllu(file) else _records(file, path))
    if not rows:
        raise UserError(f"{path} has no labelled spans: see docs/embed.md for the format")
    return rows


def _edges(file: LabelledFile) -> Iterator[SpanRow]:
    """Yield every word of CoNLL-U with its head, and their relation."""
    for sentence in read_sentences(file):
        words = tuple(cells[FORM] for cells in sentence.cells)
        index = {cells[ID]: n for n, cells in enumerate(sentence.cells)}
        for n, cells in enumerate(sentence.cells):
            head = index.get(cells[HEAD])
            if head is not None:
                pair = (WordSpan(words, n, n + 1), WordSpan(words, head, head + 1))
                yield span_row(pair, cells[RELATION].partition(":")[0], sentence.number)


def _records(file: LabelledFile, path: Path) -> Iterator[SpanRow]:
    """Yield the spans of JSON lines."""
    for number, record in file.records():
        where = f"line {number:,} of {path}"
        try:
            if "targets" in record:
                words = tuple(record["text"].split())
                for target in record["targets"]:
                    ends = [target[name] for name in ("span1", "span2") if name in target]
                    spans = [WordSpan(words, int(start), int(stop)) for start, stop in ends]
                    yield checked(span_row(spans, target["label"], number), where)
            else:
                spans = [_in_context(record, n) for n in ("1", "2")]
                row = span_row(spans, record["label"], number, same_sentence=False)
                yield checked(row, where)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{where} has no spans with a label ({type(error).__name__}: {error}): write "
                '{"text": ..., "targets": [{"span1": [0, 1], "span2": [2, 3], "label": ...}]}'
            ) from error


def _in_context(record: Any, number: str) -> WordSpan:
    """Return the word of a sentence that a range of characters names."""
    text, start = record[f"sentence{number}"], int(record[f"start{number}"])
    stop = int(record[f"end{number}"])
    before = len(text[:start].split()) - (start > 0 and not text[start - 1].isspace())
    return WordSpan(tuple(text.split()), before, before + len(text[start:stop].split()))


def checked(row: SpanRow, where: str) -> SpanRow:
    """Refuse a row without a span, or with one outside of its sentence."""
    if not row.spans:
        raise UserError(f"{where}: a target needs span1")
    for span in row.spans:
        if not 0 <= span.start < span.stop <= len(span.words):
            raise UserError(
                f"{where}: span [{span.start}, {span.stop}] is outside of its {len(span.words)} "
                "words"
            )
    return row


@dataclass(frozen=True, eq=False)
class SpanProbeDataset(ProbeDataset):
    """Rows of spans: the vector of a row is that of its span, or those of both side by side.

    Of spans in two sentences the probe reads [u; v; |u - v|; u * v].
    """

    @classmethod
    def open(
        cls,
        network: LanguageModel,
        tokenizer: Tokenizer,
        task: Task,
        splits: tuple[list[Any], ...],
        pooling: TextPooling,
        penalties: Sequence[float],
        seed: int,
    ) -> "SpanProbeDataset":
        """Encode the sentence of every span; rows that do not fit are left out."""
        family = family_of(network)
        tokenizer = tokenizer.with_end_token(family.required_tokens)
        tagging = task_class("tag").from_rows([TaggedSentence(("a",), ("X",), 1)], file="spans")
        formulation = build_formulation(
            FeatureTagger,
            *(tagging, family, network.config, tokenizer),
            length=min(network.config.max_length or MAX_TOKENS, MAX_TOKENS),
        )
        assert isinstance(formulation, FeatureTagger)
        encoded = [cls.encode(formulation, rows, tokenizer) for rows in splits]
        kept = tuple(rows for rows, _ in encoded)
        if not all(kept):
            raise UserError(f"no row of spans fits into {formulation.max_length} tokens")
        device = next(network.parameters()).device
        return cls(
            task,
            task.main_metric_of(kept[-1]),
            formulation,
            pooling,
            penalties,
            kept,
            tuple(instances for _, instances in encoded),
            tuple(item_targets(task, rows).to(device) for rows in kept),
            None,
            cls.fit_notes(sum(map(len, splits)), sum(map(len, kept)), formulation.max_length),
        )

    @staticmethod
    def fit_notes(rows: int, kept: int, length: int) -> tuple[str, ...]:
        """Return a sentence about the rows of spans that do not fit, if there are any."""
        if rows == kept:
            return ()
        left_out = f"{rows - kept:,} of {rows:,} rows of spans"
        return (f"{left_out} are left out: their sentences are longer than {length} tokens",)

    @classmethod
    def encode(
        cls, formulation: FeatureTagger, rows: Sequence[SpanRow], tokenizer: Tokenizer
    ) -> tuple[list[SpanRow], list[Instance]]:
        """Return the rows that fit, each with an instance of an example per span."""
        kept, instances = [], []
        for row in rows:
            examples = []
            for span in row.spans:
                sentence = TaggedSentence(span.words, ("",) * len(span.words), row.number)
                parts = formulation.instances(sentence, tokenizer, labelled=False)
                if len(parts) == 1 and not parts[0].truncated_tokens:
                    (example,) = parts[0].examples
                    read = example.read_positions[span.start : span.stop]
                    examples.append(replace(example, read_positions=read))
            if len(examples) == len(row.spans):
                kept.append(row)
                instances.append(Instance(examples=tuple(examples)))
        return kept, instances

    @torch.no_grad()
    def features(self, network: LanguageModel, instances: Sequence[Instance]) -> list[Tensor]:
        """Return the vectors of all rows from every layer: (rows, size) each."""
        device = next(network.parameters()).device
        found: list[Tensor] = []
        for group in length_buckets([instance.tokens for instance in instances], TOKENS_PER_BATCH):
            chosen = [instances[i] for i in group]
            batch: Batch[TaskTargets] = self.formulation.make_batch(chosen)
            batch = batch.to(device)
            sizes = [len(e.read_positions) for instance in chosen for e in instance.examples]
            owners = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(device)
            counts = np.array([len(instance.examples) for instance in chosen])
            ends = torch.from_numpy(np.cumsum(counts)).to(device)
            for n, layer in enumerate(network.all_layer_outputs(batch.inputs)):
                states = layer.flatten(0, 1).index_select(0, batch.targets.read_at)
                vectors = self.join(segment_mean(states, owners, len(sizes)), ends, counts)
                if n == len(found):
                    found.append(vectors.new_empty(len(instances), vectors.shape[1]))
                found[n][torch.tensor(group, device=device)] = vectors
        return found

    def join(self, spans: Tensor, ends: Tensor, counts: Any) -> Tensor:
        """Return one vector per row from those of its spans."""
        last = spans.index_select(0, ends - 1)
        if counts.max() == 1:
            return last
        first = spans.index_select(0, ends - 2)
        if self.rows[0][0].same_sentence:
            return torch.cat([first, last], dim=1)
        return torch.cat([first, last, (first - last).abs(), first * last], dim=1)
