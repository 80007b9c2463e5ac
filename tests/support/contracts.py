"""What the contracts share: the family as it lies on disk, a small text, and equal trees."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kinfolk.batch import IGNORE_INDEX, Batch, TokenTargets
from kinfolk.config import TYPES
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.examples import Example
from kinfolk.extensions import import_extensions
from kinfolk.families import families
from kinfolk.families.base import Family
from kinfolk.objectives.objective import Objective
from kinfolk.text.tokenizer import SpecialTokens
from support.pairs import contracted

VOCAB = 300  # not a multiple of 64: tables are padded
LENGTH = 32
FIRST = 40  # the first ordinary id
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=tuple(range(39, 19, -1))
)

import_extensions()  # families of files that KINFOLK_IMPORT names
# Every family member under everything it can learn by.
PAIRS = [(m, way) for m in families().values() for way in m.objectives]
NAMES = [f"{m.name}-{way}" for m, way in PAIRS]

# Of them, every family by its own objective, and every other objective by its first family.
OWN = {(m.name, next(iter(m.objectives))) for m in families().values()}
LENT = {way: (m.name, way) for m, way in reversed(PAIRS)}
SAMPLE = OWN | {pair for way, pair in LENT.items() if way not in {own for _, own in OWN}}


def slow_pairs(pairs: Iterable[tuple[Family, str]]) -> pytest.MarkDecorator:
    """Run a test for pairs of family and objective; those that are not in `SAMPLE` are slow."""
    cases = [
        pytest.param(
            *(member, way),
            id=f"{member.name}-{way}",
            marks=[] if (member.name, way) in SAMPLE else pytest.mark.slow,
        )
        for member, way in pairs
    ]
    return pytest.mark.parametrize(("member", "way"), cases)


# The registered objectives; the pseudo-log-likelihood of one lies in its module.
OBJECTIVES = {n: path for n, path in TYPES["objective"].items() if not n.endswith("_pll")}


def modules() -> list[ModuleType]:
    """Return the module of every registered objective."""
    return [importlib.import_module(path) for path in OBJECTIVES.values()]


def short(module: ModuleType) -> str:
    """Return the registered name of the objective that a module defines."""
    return next(name for name, path in OBJECTIVES.items() if path == module.__name__)


def objective(module: ModuleType, **settings: Any) -> Any:
    """Build the first objective that a file defines."""
    own = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and kind.__module__ == module.__name__
        and issubclass(kind, Objective)
    ]
    given = {"special_tokens": SPECIALS, "vocab_size": VOCAB, "max_length": LENGTH} | settings
    return contracted(own[0])(**given)


def documents(*, count: int = 9, longest: int = 70, apart: bool = False) -> InMemoryDocuments:
    """Draw documents of many lengths, each of sentences of two to nine tokens.

    No token comes twice in a document, so that whoever sees it has seen it there; where they are
    `apart`, nor in two documents that one row may hold.
    """
    draws = np.random.default_rng(7)
    found: list[list[list[int]]] = []
    for number in range(count):
        # The lengths where things go wrong first: the shortest there is, one row, one row and one.
        size = {0: 2, 1: LENGTH, 2: LENGTH + 1}.get(number, int(draws.integers(3, longest)))
        fresh = draws.permutation(np.arange(FIRST, VOCAB))
        if apart:
            said = [i for document in found for sentence in document for i in sentence]
            fresh = fresh[~np.isin(fresh, said[-LENGTH:])]
        ids = fresh[:size].tolist()
        sentences = []
        while ids:
            cut = int(draws.integers(2, 10))
            sentences.append(ids[:cut])
            ids = ids[cut:]
        if number in (1, 2):  # and sentences that fit no row
            sentences = [[i for sentence in sentences for i in sentence]]
        found.append(sentences)
    return InMemoryDocuments.from_lists(found)


def build(member: Family, *, dropout: float = 0.0, seed: int = 0, **changes: Any) -> Any:
    """Build a member's smallest network for the small text."""
    config = member.config("nano")
    drops = {f.name: dropout for f in dataclasses.fields(config) if "dropout" in f.name}
    torch.manual_seed(seed)
    sized = config.with_fields(vocab_size=VOCAB, max_length=2 * LENGTH)
    return dataclasses.replace(sized, **drops, **changes).build()


@torch.no_grad()
def shaken(model: nn.Module) -> Any:
    """Move every weight, so that no part is silent because it began at zero or one."""
    draws = torch.Generator().manual_seed(11)
    padding = {id(m.weight): m.vocab_size for m in model.modules() if hasattr(m, "vocab_size")}
    for weight in model.parameters():
        moved = 0.1 * torch.randn(weight.shape, generator=draws).to(weight.dtype)
        weight[: padding.get(id(weight))] += moved[: padding.get(id(weight))]
    return model


def labels_of(batch: Batch[Any]) -> TokenTargets:
    """Return the tokens that are predicted, among whatever else is."""
    targets = batch.targets
    found = targets if isinstance(targets, TokenTargets) else targets.tokens
    assert isinstance(found, TokenTargets)
    return found


def predicted(batch: Batch[Any]) -> list[tuple[int, int, int]]:
    """List what is predicted where: row, slot, label."""
    labels = labels_of(batch)
    at = torch.arange(len(labels.labels)) if labels.positions is None else labels.positions
    every = torch.arange(batch.inputs.input_ids.shape[1]).expand_as(batch.inputs.input_ids)
    slots = every if batch.inputs.target_positions is None else batch.inputs.target_positions
    places = [divmod(where, slots.shape[1]) for where in at.tolist()]
    return [
        (row, int(slots[row, place]), label)
        for (row, place), label in zip(places, labels.labels.tolist(), strict=True)
        if label != IGNORE_INDEX
    ]


def closure(table: Tensor) -> Tensor:
    """Say who may learn of whom through any number of layers: (batch, query, key)."""
    reach = table | torch.eye(table.shape[-1], dtype=torch.bool)
    while True:
        wider = (reach.float() @ reach.float()) > 0
        if torch.equal(wider, reach):
            return reach
        reach = wider


def learns(batch: Batch[Any]) -> Tensor:
    """Say of what a prediction at each slot may learn: (batch, query, key).

    Where slots are asked for, a prediction is a guess and sees only what was born before.
    """
    attention_mask = batch.inputs.attention_mask
    ever = closure(attention_mask.dense())
    if batch.inputs.target_positions is None:
        return ever
    every = torch.arange(ever.shape[1]).expand(len(ever), -1)
    return (attention_mask.for_targets(every).dense(attention_mask).float() @ ever.float()) > 0


def across(batch: Batch[Any]) -> Tensor:
    """Say which token of the target may look at which of the source."""
    assert batch.inputs.encoder_inputs is not None
    return (
        batch.inputs.attention_mask.document_ids[:, :, None]
        == batch.inputs.encoder_inputs.attention_mask.document_ids[:, None, :]
    )


def text_of(way: str, example: Example) -> np.ndarray:
    """Rebuild the text of an example; of a pair with a stranger, the first half.

    A pair that was swapped is turned again.
    """
    special = list(SPECIALS.ids)
    assert example.labels is not None
    if way == "pairs":
        assert example.encoder_input_ids is not None
        return np.concatenate([example.encoder_input_ids[:-1], example.labels[:-1]])
    if example.encoder_input_ids is not None:
        spans: dict[int, list[int]] = {}
        for label in example.labels[:-1].tolist():
            if label in SPECIALS.sentinels:
                spans[label] = []
            else:
                spans[next(reversed(spans))].append(label)
        words = [spans.get(i, [i]) for i in example.encoder_input_ids[:-1].tolist()]
        return np.array([i for some in words for i in some])
    if way == "blanks":
        assert example.order is not None and example.position_ids is not None
        blank = example.order > 0
        spans = {
            p: example.labels[blank & (example.position_ids == p)]
            for p in example.position_ids[blank]
        }
        ids = np.concatenate(
            [spans.get(p, example.input_ids[[p]]) for p in example.position_ids[~blank]]
        )
        return ids[~np.isin(ids, [*special, IGNORE_INDEX])]
    ids = np.where(example.labels == IGNORE_INDEX, example.input_ids, example.labels)
    if way == "prefix":
        assert example.order is not None
        size = int((example.order == 0).sum()) - 1
        ids = np.concatenate([example.input_ids[1 : size + 1], example.labels[size:]])
    if example.sequence_label == 1:
        sides = [ids[example.token_type_ids == side] for side in (1, 0)]
        ids = np.concatenate(sides) if way == "sop" else sides[1]
    return ids[~np.isin(ids, special)]


def equal(a: Any, b: Any) -> bool:
    """Say whether two trees hold the same, to the bit."""
    if isinstance(a, Tensor | np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if dataclasses.is_dataclass(a):
        names = [f.name for f in dataclasses.fields(a)]
        return type(a) is type(b) and all(equal(getattr(a, n), getattr(b, n)) for n in names)
    return bool(a == b)
