"""Vectors of texts from a pretrained network, and transforms of them that are fitted and saved.

    texts -> packed batches -> hidden states of chosen layers -> one vector per text (pooling)
          -> transforms: standardize, remove components, whiten, flow (nn.vector_transforms)

Mean and maximum are over all tokens of an encoder's input, as in sentence-transformers, and over
the tokens of the text alone where a network has no template of special tokens (decoders, recurrent
networks, encoder-decoders).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.batch import Inputs
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.nn.language_model import LanguageModel
from kinfolk.rng import sequential
from kinfolk.tasks.classification import Regression
from kinfolk.tasks.formulations.base import pack_examples, segment_mean
from kinfolk.tasks.formulations.choose import build_formulation
from kinfolk.tasks.formulations.features import FeatureClassifier
from kinfolk.tasks.instances import TOKENS_PER_BATCH, length_buckets
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.rows_in_memory import texts_of
from kinfolk.text.token_views import unknown_note
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.workflows.folders import check_new_folder
from kinfolk.workflows.load import load, restored
from kinfolk.workflows.vectors.choices import (
    Layers,
    VectorPooling,
    check_choices,
    check_pooling,
    layer_numbers,
)
from kinfolk.workflows.vectors.transforms import (
    ModelReference,
    TransformSpec,
    VectorTransforms,
    is_saved_transform,
)

Vectors = NDArray[np.float32]  # (texts, size)
SHORT_TEXT = "a"  # fits into every context
TEXTS_PER_CHUNK = 4096  # encoded at a time, so that memory does not grow with a file


@dataclass(frozen=True, eq=False)
class EmbeddedTexts:
    """The vectors of texts, and what was cut, empty or unknown."""

    vectors: Vectors
    truncated: int  # texts that were longer than the context
    empty: int  # texts without a token
    unknown: int = 0  # tokens that the tokenizer does not know,
    tokens: int = 0  # of so many that were read

    def notes(self, max_length: int) -> list[str]:
        """Return what a user should know about the texts."""
        notes = self.truncation(max_length, "--strict")
        if self.empty:
            notes.append(
                f"{self.empty:,} of {len(self.vectors):,} texts are empty: their vectors are those "
                "of special tokens"
            )
        if self.unknown:
            notes.append(unknown_note(self.unknown, self.tokens, "the tokenizer of the model"))
        return notes

    def truncation(self, max_length: int, strict: str) -> list[str]:
        """Return a sentence where texts were cut, and how they are refused."""
        if not self.truncated:
            return []
        cut = truncation_note(self.truncated, len(self.vectors), max_length)
        return [f"{cut} ({strict} refuses them)"]


def truncation_note(truncated: int, texts: int, max_length: int) -> str:
    """Return the sentence about texts that were longer than the context."""
    return (
        f"{truncated:,} of {texts:,} texts are longer than {max_length} tokens: their end was cut "
        "off"
    )


@dataclass(frozen=True, eq=False)
class LayerVectors:
    """The vectors of every layer, and how many texts were cut."""

    texts: list[Vectors]  # (texts, size) of each layer
    tokens: list[Vectors]  # of some tokens
    truncated: int  # texts that were longer than the context


@dataclass(frozen=True, eq=False)
class Embedder:
    """A network in evaluation mode, and how texts become vectors of it."""

    network: LanguageModel
    tokenizer: Tokenizer
    formulation: FeatureClassifier
    pooling: VectorPooling
    layers: tuple[int, ...]  # whose mean is taken; 0 is the input of the first layer
    sizes: tuple[int, ...]  # of the hidden states of all layers

    @classmethod
    def open(
        cls,
        model: Path | str | tuple[LanguageModel, Tokenizer],
        *,
        pooling: str | None = None,
        layers: Layers | None = None,
        length: int | None = None,
        tokenizer: Path | str | None = None,
        device: str = "auto",
        transform: VectorTransforms | None = None,
    ) -> "Embedder":
        """Load a network; refuse families without hidden states, and what it has not.

        Pooling and layers are by default those of a transform, which is refused for another model;
        without one, the mean of the last layer.
        """
        network, loaded = model if isinstance(model, tuple) else load(model, tokenizer)
        network = network.pretrained
        family = family_of(network)
        if network.gradient_free is not None:
            raise UserError(
                f"{family.name} models have no hidden states: embed with another family"
            )
        if not family.objectives:
            raise UserError(
                f"{family.name} has no pretraining objective, and a fine-tuned one knows the "
                "labels of its task alone: embed with a pretrained family, such as bert"
            )
        if transform is not None:
            transform.check_family(family.name)
        if pooling is None:
            pooling = transform.pooling if transform else "mean"
        chosen = check_pooling(pooling)
        if chosen == "cls" and family.frame is None:
            raise UserError(f"{family.name} reads no [CLS] token: use --pooling mean, last or max")
        loaded = loaded.with_end_token(family.required_tokens)
        formulation = build_formulation(
            FeatureClassifier, Regression(), family, network.config, loaded, length=length
        )
        assert isinstance(formulation, FeatureClassifier)
        network = network.to(select_device(device)).eval()
        embedder = cls(network, loaded, formulation, chosen, (), ())
        sizes = tuple(layer.shape[-1] for layer in embedder.all_layers(SHORT_TEXT))
        if transform is not None:
            transform.check_layers(sizes)
        if layers is None:
            layers = transform.layers if transform else "last"
        embedder = replace(embedder, layers=parse_layers(layers, sizes), sizes=sizes)
        if transform is not None:
            transform.check(embedder.pooling, embedder.layers)
            transform.check_model(embedder.reference)
        return embedder

    @property
    def size(self) -> int:
        """The size of the vectors."""
        return self.sizes[self.layers[0]]

    @cached_property
    def reference(self) -> ModelReference:
        """What tells the network and its tokenizer from others, for these layers."""
        layers = self.all_layers(SHORT_TEXT)
        mean = torch.stack([layers[n][0].double().mean(0) for n in self.layers]).mean(0)
        return ModelReference(self.network.family_name, mean.cpu())

    @property
    def max_length(self) -> int:
        """The tokens of a text that are read, with its special tokens."""
        return self.formulation.max_length

    @torch.no_grad()
    def all_layers(self, text: str) -> list[Tensor]:
        """Return the hidden states of every layer for one text: (1, length, size) each."""
        inputs = pack_examples([self.example(text)[0]], self.formulation.pad_id).inputs
        return self.network.all_layer_outputs(inputs.to(self.device))

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def example(self, text: str) -> tuple[Example, int]:
        """Return the input of a text, whose read positions are pooled, and the tokens cut off."""
        row = LabelledText((text,), None, 0)
        (instance,) = self.formulation.instances(row, self.tokenizer, labelled=False)
        (example,) = instance.examples
        return replace(example, read_positions=self.positions(example)), instance.truncated_tokens

    def positions(self, example: Example) -> NDArray[np.int64]:
        """Return the tokens whose hidden states are pooled."""
        every = example.read_positions
        if self.formulation.frame is not None:
            every = np.arange(len(example.input_ids))
        if self.pooling == "last":
            return every[-1:]
        if self.pooling == "cls":
            return np.flatnonzero(example.input_ids == self.tokenizer.special_tokens.cls)[:1]
        return every

    def embed(
        self,
        texts: Sequence[str],
        *,
        strict: bool = False,
        watch: Callable[[int], None] = lambda done: None,
    ) -> EmbeddedTexts:
        """Return the vectors of texts, in their order."""
        found: list[Tensor] = []
        truncated = empty = unknown = tokens = done = 0
        for start in range(0, len(texts), TEXTS_PER_CHUNK):
            encoded = [self.example(text) for text in texts[start : start + TEXTS_PER_CHUNK]]
            cut = [n for n, (_, tokens) in enumerate(encoded) if tokens]
            if cut and strict:
                raise UserError(
                    f"text {start + cut[0] + 1:,} is longer than {self.max_length} tokens: shorten "
                    "it, or leave out --strict to cut off its end"
                )
            truncated += len(cut)
            empty += sum(not text.strip() for text in texts[start : start + TEXTS_PER_CHUNK])
            chunk = [example for example, _ in encoded]
            counts = [self.count_unknown(example) for example in chunk]
            unknown += sum(one for one, _ in counts)
            tokens += sum(every for _, every in counts)
            vectors: Tensor | None = None
            for group, part in self.pooled(chunk):
                if vectors is None:
                    vectors = part.new_empty(len(chunk), part.shape[1])
                vectors[torch.tensor(group, device=part.device)] = part
                done += len(group)
                watch(done)
            if vectors is not None:
                found.append(vectors.cpu())
        if not found:
            raise UserError("no texts to embed: pass at least one")
        return EmbeddedTexts(torch.cat(found).numpy(), truncated, empty, unknown, tokens)

    def count_unknown(self, example: Example) -> tuple[int, int]:
        """Return how many tokens of a text are unknown, of how many; special tokens are none."""
        ids = example.input_ids
        if example.encoder_input_ids is not None:
            ids = example.encoder_input_ids
        special = self.tokenizer.special_tokens
        unknown = 0 if special.unk is None else int((ids == special.unk).sum())
        ordinary = int((~special.is_special(ids)).sum())
        # Where <|endoftext|> is the unknown token too, no text has an unknown one.
        if special.unk in (special.bos, special.eos):
            return 0, ordinary
        return unknown, ordinary + unknown

    @torch.no_grad()
    def pooled(self, examples: Sequence[Example]) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the vectors of examples that share a batch, and their indices."""
        for group, inputs, read_at, owners in self.batches(examples):
            states = self.hidden(inputs).flatten(0, 1).index_select(0, read_at)
            yield group, self.pool(states, owners, len(group))

    def batches(
        self, examples: Sequence[Example]
    ) -> Iterator[tuple[list[int], Inputs, Tensor, Tensor]]:
        """Yield the indices of examples, their inputs, the positions read, and whose each is."""
        for group in length_buckets([sum(e.lengths) for e in examples], TOKENS_PER_BATCH):
            chosen = [examples[i] for i in group]
            collated = pack_examples(chosen, self.formulation.pad_id)
            sizes = torch.tensor([len(example.read_positions) for example in chosen])
            owners = torch.repeat_interleave(torch.arange(len(chosen)), sizes)
            read_at = collated.read_positions(chosen)
            yield (
                group,
                collated.inputs.to(self.device),
                read_at.to(self.device),
                owners.to(self.device),
            )

    @torch.no_grad()
    def layer_vectors(
        self, texts: Sequence[str], *, max_tokens: int = 0, seed: int = 0
    ) -> LayerVectors:
        """Return the vectors of texts from every layer, and those of some of their tokens.

        At most `max_tokens` tokens are drawn, the same ones of every layer.
        """
        encoded = [self.example(text) for text in texts]
        examples = [example for example, _ in encoded]
        rng = sequential(seed)
        share = min(1.0, max_tokens / max(1, sum(len(e.read_positions) for e in examples)))
        pooled: list[Vectors] = []
        tokens: list[list[Vectors]] = []
        for group, inputs, read_at, owners in self.batches(examples):
            drawn = torch.from_numpy(np.flatnonzero(rng.random(len(read_at)) < share))
            for n, layer in enumerate(self.network.all_layer_outputs(inputs)):
                states = layer.flatten(0, 1).index_select(0, read_at).float()
                if n == len(pooled):
                    pooled.append(np.empty((len(texts), states.shape[1]), np.float32))
                    tokens.append([])
                pooled[n][group] = self.pool(states, owners, len(group)).cpu().numpy()
                tokens[n].append(states.index_select(0, drawn.to(self.device)).cpu().numpy())
        truncated = sum(bool(tokens) for _, tokens in encoded)
        return LayerVectors(pooled, [np.concatenate(parts) for parts in tokens], truncated)

    def hidden(self, inputs: Inputs) -> Tensor:
        """Return the mean of the chosen layers: (rows, length, size)."""
        layers = self.network.all_layer_outputs(inputs)
        if len(self.layers) == 1:
            return layers[self.layers[0]].float()
        return torch.stack([layers[n].float() for n in self.layers]).mean(0)

    def pool(self, states: Tensor, owners: Tensor, texts: int) -> Tensor:
        """Return one vector per text from the states that are read: (texts, size)."""
        if self.pooling == "max":
            index = owners[:, None].expand_as(states)
            empty = states.new_empty(texts, states.shape[1])
            return empty.scatter_reduce(0, index, states, "amax", include_self=False)
        return segment_mean(states, owners, texts)


def parse_layers(layers: Layers, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return layer numbers from 0, of "last", "all", "1,-1", a number or numbers.

    `sizes` are the sizes of all layers, the input of the first one among them.
    """
    last = len(sizes) - 1
    chosen = layer_numbers(layers)
    numbers = [*range(len(sizes))] if chosen is None else chosen
    if any(not -last - 1 <= n <= last for n in numbers):
        given = layers if isinstance(layers, str) else ",".join(map(str, numbers))
        raise UserError(f"--layers {given}: the network has layers 0 to {last}")
    found = tuple(dict.fromkeys(n % (last + 1) for n in numbers))
    if len({sizes[n] for n in found}) > 1:
        listed = ", ".join(f"{n}: {sizes[n]}" for n in found)
        raise UserError(
            f"--layers: the mean of layers needs equal sizes, and these differ ({listed}): choose "
            "layers of one size"
        )
    return found


def embed(
    model: Path | str | tuple[LanguageModel, Tokenizer],
    texts: Iterable[str],
    *,
    pooling: str | None = None,
    layers: Layers | None = None,
    length: int | None = None,
    standardize: bool = False,
    remove_components: int = 0,
    whiten: bool = False,
    flow: bool = False,
    fit: Iterable[str] | None = None,
    transform: VectorTransforms | Path | str | None = None,
    save_transform: Path | str | None = None,
    force: bool = False,
    strict: bool = False,
    device: str = "auto",
) -> Vectors:
    """Return one vector per text: (texts, size), in float32.

    `embed("runs/bert", ["a text", "another"], whiten=True, fit=many_texts)`

    The model is a run, a model folder, or what `load` returns. Transforms are fitted on the texts
    `fit`, by default the texts themselves, and written to the folder `save_transform`, where
    `force` replaces another; `transform` applies a saved one, whose pooling and layers are then
    the default. Texts longer than the context lose their end, with a warning; `strict` refuses
    them.
    A model that is passed keeps its device and the mode of each module.
    """
    texts = texts_of(texts)
    fit = None if fit is None else texts_of(fit, "fit")
    spec = TransformSpec(standardize, remove_components, whiten, flow)
    used = VectorTransforms.load(transform) if isinstance(transform, Path | str) else transform
    if used is not None and (spec.names or fit is not None or save_transform is not None):
        raise UserError(
            "transform applies a saved transform: leave out the others, fit and save_transform"
        )
    if not spec.names and (fit is not None or save_transform is not None):
        raise UserError(
            "fit and save_transform need a transform: add standardize, remove_components, whiten "
            "or flow"
        )
    check_choices(pooling, layers)
    folder = None if save_transform is None else Path(save_transform)
    if folder is not None and not (force and is_saved_transform(folder)):
        check_new_folder(folder, "choose another save_transform, or replace one with force=True")
    network, tokenizer = model if isinstance(model, tuple) else load(model)
    with restored(network):
        embedder = Embedder.open(
            (network, tokenizer),
            pooling=pooling,
            layers=layers,
            length=length,
            device=device,
            transform=used,
        )
        found = embedder.embed(texts, strict=strict)
        cut, given = found.truncation(embedder.max_length, "strict=True"), found.vectors
        if fit is not None:
            others = embedder.embed(fit, strict=strict)
            given = others.vectors
            cut += (f"fit: {n}" for n in others.truncation(embedder.max_length, "strict=True"))
        if spec.names:
            used = VectorTransforms.fit(
                spec, given, embedder.pooling, embedder.layers, model=embedder.reference
            )
    if cut:
        warnings.warn("; ".join(cut), stacklevel=2)
    if used is None:
        return found.vectors
    vectors = used(found.vectors)
    if folder is not None:
        used.save(folder, replace=force)
    return vectors
