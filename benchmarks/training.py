"""How fast kinfolk trains, beside transformers, on the same network and the same texts.

    python benchmarks/training.py                                 every workload
    python benchmarks/training.py --workloads bert t5 --json      some of them
    python benchmarks/training.py --workloads gpt2 --variant master_weights=yes
    python benchmarks/training.py --workloads t5 --size t5-small --model num_layers=2

Counted are **useful tokens a second of whole training steps**: forward, backward, clipping of the
gradient and the AdamW update. A useful token is a token of a text; padding, [CLS], [SEP], ends and
sentinels are not. Texts have log-normal lengths (median 120 tokens or half a row, whichever is
less; sigma 1) and words by Zipf's law.

kinfolk runs what `kinfolk pretrain` runs: the data set, the data loader and the step that a `Run`
makes from the settings (`--variant` changes them, `train.` left out). It is measured twice:

    kinfolk            from the documents to the update: packing, masking, loading, copying
    kinfolk, no feed   the same step on batches that are on the device

A variant is measured without the feed. The peer gets its batches ready on the device:

    gpt2                 GPT2LMHeadModel: texts joined by an end token, cut into full rows
    bert, albert         BertForMaskedLM, AlbertForMaskedLM: a text a row, padded to the longest
    t5                   T5ForConditionalGeneration: source and target padded to the longest
    electra              ElectraForMaskedLM and ElectraForPreTraining with shared embeddings: padded
    xlnet                XLNetLMHeadModel: padded, with perm_mask and target_mapping
    glm                  transformers has no such loss: our own network, eager, a text a row, padded
    transformer_xl       nor this one: our own network, eager, the same rows and memory

With `--grouped` a padded peer is measured with batches of texts of about one length too, and on
CUDA every peer of transformers under torch.compile (on a CPU with `--compiled`, and only those
whose batches all have one shape). Both sides have the same weights, no dropout, fused AdamW,
bfloat16 autocast on CUDA and float32 on the CPU, and about as many tokens to an update: where
padding makes the peer's batches hold fewer, it accumulates gradients over several batches of the
same number of rows. Networks have the published vocabularies. On CUDA all are of the size `base`;
on a CPU `SMALL_SHAPES` has the size of each, unless `--size` and `--model` say otherwise.

Before anything is timed the two must do the same work: on the same texts, in float64 (XLNet:
float32), the mean losses may differ by 1e-3, and the norms of the gradient by 1e-3 of themselves.
Parts that a peer computes in float32 whatever it is given (T5's norm) are kept in float64 as well.
The loss of the first step as it is timed (compiled, bfloat16) must be within 1 % of that of the
plain float32 network. A workload that fails is named at the end, after the table of the others.

With `--cpu-time` the seconds are those of this process on its CPU, not those of the clock on the
wall: on a machine where other programs run, ratios of one thread are meaningful only so.

Blocks of steps alternate between all sides; on CUDA those of the first `--warm-up` seconds are not
counted. At least five rounds are. Speeds are medians over the rounds; a ratio is the median of the
ratios in each round. The table at the end has for every side:

    ratio         kinfolk's tokens a second over this side's
    of ceiling    FLOP/s of the products of weights and tokens (6ND: attention is left out, and
                  logits count where they are computed by kinfolk) over those of a bare product of
                  large matrices, measured in this run (in bfloat16 on CUDA, over ten seconds)
    memory        most bytes on the device in its steps, with its own weights and optimizer; on the
                  CPU what a step adds to the resident set, and these
    data wait     share of the time in which the device waited for a batch; on CUDA in one long
                  block, since the loader has made the batches of a short one before
    batch         milliseconds of one core in which a batch is made
    start         seconds from nothing to the end of the first step, without imports; compile: those
                  in which the compiler ran. The heading says where the compiler found kernels of an
                  earlier process in its cache, or other workloads were compiled at the same time

With `--parallel` so many workloads are built, checked and compiled at the same time, each in a
process of its own; they are timed one after the other, while the others wait. `--out` appends a
line of JSON for each workload when it is done. With `--profile` it has the kernels of a step of
each side of kinfolk without the feed, by kind and by name: they run one after the other, so that
what their times leave of the step, the device was idle.
"""

import argparse
import copy
import ctypes
import json
import math
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kinfolk import hub
from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs
from kinfolk.config import apply_overrides
from kinfolk.data.chunks import InMemoryDocuments, IntArray
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.data.examples import pad_rows
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.nn.cpu_products import linear
from kinfolk.objectives.rtd import RTD, UNIFORM_LEVELS
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig
from kinfolk.training.flops import FlopCounter
from kinfolk.training.memory import resident_bytes
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import TrainStep
from kinfolk.training.workload import Workload, uses_bfloat16
from kinfolk.workflows.comparison.step_timing import many_compiled

SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=tuple(range(7, 107))
)
ORDINARY = 107  # the first id that is a word
SEED = 0
CLIP = 1.0
RATE = 1e-4
CHECKED = 4  # packed rows whose texts are compared before anything is timed
ROUNDS = 5  # at least
BLOCK = 0.5  # seconds, or one step where it takes longer
LONG_BLOCK = 40  # steps, more than the loader makes ahead
WARM_UP = 10.0  # seconds on CUDA: a GPU that was idle runs above the clock that it can hold
PROFILED = 12  # steps
TOP_KERNELS = 40  # in the JSON
ENDLESS = 10**9  # steps of the run that is measured
FEED, NO_FEED, PEER = "kinfolk", "kinfolk, no feed", "peer"
# Kinds of kernels, each with words in their names: a kernel is of the first kind that has one.
KERNEL_KINDS = {
    "loss over the vocabulary": ("cross_entropy", "log_softmax", "online_softmax"),
    "attention": ("flex_attention", "flash", "fmha", "attention", "sdpa"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitkreduce", "triton_tem"),
    "optimizer and clipping": ("multi_tensor", "adam", "lpnorm", "foreach"),
    "norms": ("layer_norm", "rms", "_norm", "var_mean", "rsqrt"),
    "activations": ("gelu", "relu", "silu", "erf", "tanh"),
    "embeddings": ("embedding", "index_put", "indexing", "gather", "scatter", "sort", "radix"),
    "copies": ("memcpy", "memset", "copy", "cat", "clone", "_to_copy"),
}
Clock = Callable[[], float]  # seconds


@dataclass(frozen=True)
class Text:
    """An example, and how many tokens of text it holds."""

    example: Any
    tokens: int


@dataclass(frozen=True)
class Reading:
    """What the peer reads at once: the arguments of its forward, and what is in them."""

    arguments: dict[str, Tensor]
    tokens: int  # of text
    slots: int
    filled: int
    counts: Mapping[str, int]  # what the peer's mean losses are taken over
    # Random numbers with which the peer draws what kinfolk draws, for the comparison of both.
    drawn: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Reading":
        """Move to a device."""
        arguments, drawn = (
            {name: tensor.to(device) for name, tensor in some.items()}
            for some in (self.arguments, self.drawn)
        )
        return replace(self, arguments=arguments, drawn=drawn)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A network, an objective, and the peer with the way it is fed."""

    name: str  # of the family
    way: str  # of the objective
    vocab: int
    rows: int = 64  # on CUDA
    length: int = 512  # on CUDA
    # The class in transformers, or its networks; None: our own network, eager.
    peer: str | Callable[[Path], nn.Module] | None = None
    pad: Callable[[Sequence[Text]], Reading] | None = None  # a text a row, for transformers
    join: Callable[[Sequence[Text], int, int], list[Reading]] | None = None  # or full rows
    exact: torch.dtype = torch.float64  # in which both sides are compared


def gpt2() -> Work:
    """Predict the next token; the peer's rows are full."""

    def pad(texts: Sequence[Text]) -> Reading:
        lines = [t.example for t in texts]
        # transformers shifts the labels itself, so a row ends with the last label.
        ids = [np.append(line.input_ids, line.labels[-1]) for line in lines]
        counts = {"clm": sum(len(line.input_ids) for line in lines)}
        arguments = {
            "input_ids": beside(ids, SPECIALS.pad),
            "attention_mask": beside([np.ones_like(i) for i in ids], 0),
            "labels": beside(ids, IGNORE_INDEX),
        }
        return reading(arguments, texts, counts)

    def join(texts: Sequence[Text], rows: int, length: int) -> list[Reading]:
        stream = np.concatenate([t.example.labels for t in texts])  # each ends with an end token
        whole = torch.from_numpy(stream[: len(stream) // length * length].reshape(-1, length))
        return [
            Reading(
                {"input_ids": ids, "labels": ids},
                tokens=int((ids >= ORDINARY).sum()),
                slots=ids.numel(),
                filled=ids.numel(),
                counts={"clm": ids[:, 1:].numel()},
            )
            for ids in whole.split(rows)
            if len(ids) == rows
        ]

    return Work(
        name="gpt2",
        way="clm",
        vocab=50257,
        rows=32,
        length=1024,
        peer="GPT2LMHeadModel",
        pad=pad,
        join=join,
    )


def masked(texts: Sequence[Text]) -> Reading:
    """Pad texts with masked words; the peer scores every slot."""
    examples = [t.example for t in texts]
    labels = beside([e.labels for e in examples], IGNORE_INDEX)
    arguments = {
        "input_ids": beside([e.input_ids for e in examples], SPECIALS.pad),
        "attention_mask": beside([np.ones_like(e.input_ids) for e in examples], 0),
        "labels": labels,
    }
    return reading(arguments, texts, {"mlm": int((labels != IGNORE_INDEX).sum())})


def t5() -> Work:
    """Write the spans that are missing; the peer pads source and target."""

    def pad(texts: Sequence[Text]) -> Reading:
        holes = [t.example for t in texts]
        labels = beside([h.labels for h in holes], IGNORE_INDEX)
        arguments = {
            "input_ids": beside([h.encoder_input_ids for h in holes], SPECIALS.pad),
            "attention_mask": beside([np.ones_like(h.encoder_input_ids) for h in holes], 0),
            "labels": labels,  # the decoder's input is their shift, padding first, as ours is
        }
        count = int((labels != IGNORE_INDEX).sum())
        found = reading(arguments, texts, {"spans": count})
        return replace(found, slots=found.slots + labels.numel(), filled=found.filled + count)

    peer = "T5ForConditionalGeneration"
    return Work(name="t5", way="spans", vocab=32128, peer=peer, pad=pad)


def xlnet() -> Work:
    """Predict words in a random order; the peer has a mask and a mapping of targets for a text."""

    def pad(texts: Sequence[Text]) -> Reading:
        examples = [t.example for t in texts]
        ids = beside([e.input_ids for e in examples], SPECIALS.pad)
        orders = [e.order for e in examples]
        order = beside(orders, int(max(o.max() for o in orders)) + 1)
        targets = [np.flatnonzero(e.labels != IGNORE_INDEX) for e in examples]
        mapping = torch.zeros(len(texts), max(map(len, targets)), ids.shape[1])
        for row, at in enumerate(targets):
            mapping[row, torch.arange(len(at)), torch.from_numpy(at)] = 1.0
        # The content stream sees its own token in any case, the query stream does not.
        hidden = (order[:, None, :] >= order[:, :, None]) & (order[:, None, :] > 0)
        labels = [e.labels[at] for e, at in zip(examples, targets, strict=True)]
        arguments = {
            "input_ids": ids,
            "attention_mask": beside([np.ones_like(e.input_ids) for e in examples], 0),
            "token_type_ids": beside([e.token_type_ids for e in examples], 0),
            "perm_mask": hidden.float(),
            "target_mapping": mapping,
            "labels": beside(labels, IGNORE_INDEX),
        }
        return reading(arguments, texts, {"permutation": sum(map(len, targets))})

    return Work(
        name="xlnet",
        way="permutation",
        vocab=32000,
        peer="XLNetLMHeadModel",
        pad=pad,
        exact=torch.float32,  # the peer's position embeddings are float32
    )


class ElectraPair(nn.Module):
    """ELECTRA's two networks, trained together as a user of transformers would write it."""

    discriminator_weight = RTD.discriminator_weight

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.generator = transformers.ElectraForMaskedLM.from_pretrained(folder / "generator")
        self.discriminator = transformers.ElectraForPreTraining.from_pretrained(folder)
        shared = self.discriminator.electra.embeddings
        self.generator.electra.embeddings = shared
        self.generator.generator_lm_head.weight = shared.word_embeddings.weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        uniforms: Tensor | None = None,  # with which tokens are drawn; None: torch draws
    ) -> dict[str, Tensor]:
        """Return the mean loss of both networks, the second with its weight."""
        guessed = self.generator(input_ids, attention_mask, labels=labels)
        masked = labels != IGNORE_INDEX
        with torch.no_grad():
            probs = guessed.logits[masked].softmax(-1)
            if uniforms is None:
                sampled = torch.multinomial(probs, 1)[:, 0]
            else:
                cumulative = probs.cumsum(-1)
                sampled = (cumulative < uniforms[masked][:, None] * cumulative[:, -1:]).sum(-1)
        ids, replaced = input_ids.clone(), torch.zeros_like(input_ids)
        ids[masked] = sampled
        replaced[masked] = (sampled != labels[masked]).long()
        judged = self.discriminator(ids, attention_mask, labels=replaced)
        return {"mlm": guessed.loss, "rtd": self.discriminator_weight * judged.loss}


def electra() -> Work:
    """Guess masked tokens, and find the wrong guesses; the peer pads."""

    def pad(texts: Sequence[Text]) -> Reading:
        found = masked(texts)
        levels = beside([t.example.uniforms for t in texts], 0)
        return replace(
            found,
            counts={**found.counts, "rtd": found.filled},
            drawn={"uniforms": (levels.float() + 0.5) / UNIFORM_LEVELS},
        )

    return Work(name="electra", way="rtd", vocab=30522, peer=ElectraPair, pad=pad)


WORKS: dict[str, Callable[[], Work]] = {
    "gpt2": gpt2,
    "bert": lambda: Work(name="bert", way="mlm", vocab=30522, peer="BertForMaskedLM", pad=masked),
    "t5": t5,
    "electra": electra,
    "albert": lambda: Work(
        name="albert", way="mlm", vocab=30000, peer="AlbertForMaskedLM", pad=masked
    ),
    "xlnet": xlnet,
    "glm": lambda: Work(name="glm", way="blanks", vocab=30522),
    "transformer_xl": lambda: Work(name="transformer_xl", way="stream", vocab=32000),
}


# Sizes on a CPU and fields of them, where a published one is small enough; else the size is mini.
SMALL_SHAPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpt2": ("mini", ("num_layers=6", "hidden_size=384", "num_heads=6")),
    "t5": ("t5-small", ()),
    "electra": ("electra-small", ()),
}


def beside(arrays: Sequence[IntArray], fill: int) -> Tensor:
    """Lay arrays out a row each, padded to the longest."""
    return pad_rows([[a] for a in arrays], max(map(len, arrays)), fill)


def reading(
    arguments: dict[str, Tensor], texts: Sequence[Text], counts: Mapping[str, int]
) -> Reading:
    """Count what a padded batch holds."""
    mask = arguments["attention_mask"]
    tokens = sum(t.tokens for t in texts)
    return Reading(arguments, tokens, mask.numel(), int(mask.sum()), counts)


def documents(tokens: int, *, longest: int, vocab: int) -> InMemoryDocuments:
    """Draw texts of ragged lengths until there are so many tokens; words follow Zipf's law."""
    rng = np.random.default_rng(SEED)
    median = min(120, longest // 2)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        drawn = np.rint(rng.lognormal(math.log(median), 1.0, 256)).astype(int)
        lengths += np.clip(drawn, 8, longest).tolist()
    share = 1 / (np.arange(vocab - ORDINARY) + 2.7)
    words = ORDINARY + rng.choice(len(share), sum(lengths), p=share / share.sum())
    return InMemoryDocuments.from_lists(
        [[some.tolist()] for some in np.split(words, np.cumsum(lengths)[:-1])]
    )


def chunk_numbers(dataset: PackedDataset, batch: int) -> list[IntArray]:
    """Return the chunks of every row of a batch."""
    rows = range(batch * dataset.batch_size, (batch + 1) * dataset.batch_size)
    places = [divmod(row, len(dataset.packing)) for row in rows]
    return [dataset.packing[int(dataset.epoch_order(epoch)[at])] for epoch, at in places]


def rows_of_texts(dataset: PackedDataset, batch: int) -> list[list[Text]]:
    """Return the texts of a batch by row, with the examples that the data set draws."""
    found = []
    for row, numbers in enumerate(chunk_numbers(dataset, batch)):
        examples = dataset.sequence(batch * dataset.batch_size + row)
        sizes = [len(dataset.chunks[int(number)].ids) for number in numbers]
        found.append([Text(*pair) for pair in zip(examples, sizes, strict=True)])
    return found


def text_tokens(dataset: PackedDataset | ContiguousDataset, batch: int) -> int:
    """Count the tokens of text in a batch; rows that continue have an end token for each text."""
    if isinstance(dataset, ContiguousDataset):
        return int((dataset[batch].targets.labels >= ORDINARY).sum())
    numbers = np.concatenate(chunk_numbers(dataset, batch)).tolist()
    return sum(len(dataset.chunks[number].ids) for number in numbers)


class Measured(Workload):
    """The workload of a pretraining run, without a folder."""

    command: ClassVar[str] = "pretrain"
    has_eval_data = False
    fingerprints = ()

    def __init__(
        self, model: Any, objective: Any, dataset: Any, train: TrainConfig, device: torch.device
    ) -> None:
        self.model, self.objective, self.train = model.to(device).train(), objective, train
        self.batches, self.row_length = dataset, objective.row_length
        if objective.recurrent:
            self.memory = [model.init_memory(dataset.batch_size).to(device)]

    @classmethod
    def reopen(cls, recipe: Any, folder: Path, newest: Path | None, callbacks: Any) -> Self:
        """Refuse: nothing was saved."""
        raise NotImplementedError

    def write_recipe(self, folder: Path) -> None:
        """Write nothing."""

    def evaluate(self, loss: Any) -> Mapping[str, Any]:
        """Refuse: there are no held-out documents."""
        raise NotImplementedError

    def save_model(self, folder: Path) -> None:
        """Save nothing."""

    def load_weights(self, folder: Path) -> None:
        """Refuse: nothing was saved."""
        raise NotImplementedError

    def write_report(self, folder: Path, *, finished: bool) -> None:
        """Write nothing."""


@dataclass(kw_only=True)
class Side:
    """One way to run steps, over and over, and what was measured of it."""

    name: str
    step: Callable[[int], Tensor]  # of a number; returns the loss
    tokens: Callable[[int], int]  # of text in the step of a number
    states: Callable[[], list[Tensor]]  # its weights and the state of its optimizer
    device: torch.device
    pool: int  # steps until the same batches come again
    filled: float  # share of the slots that hold something
    slots_per_token: float
    clock: Clock = time.perf_counter
    build_seconds: float = 0.0
    compile_seconds: Callable[[], float] = lambda: 0.0  # so far
    waited: Callable[[], float] = lambda: 0.0  # seconds for batches, so far

    done: int = field(default=0, init=False)
    pace: float = field(default=math.inf, init=False)  # seconds a step
    start: float = field(default=0.0, init=False)
    memory: int = field(default=0, init=False)
    speeds: list[float] = field(default_factory=list, init=False)  # of each round
    waits: list[float] = field(default_factory=list, init=False)  # share of each round
    first: float = field(default=math.nan, init=False)  # loss
    last: float = field(default=math.nan, init=False)

    def warm_up(self) -> None:
        """Do the first step; on CUDA see every shape, each of which is compiled."""
        began = time.perf_counter()
        self.run(1)
        self.start = self.build_seconds + time.perf_counter() - began
        self.first = self.last
        if self.device.type == "cuda":
            self.run(self.pool)
        with peak_resident() as peak:
            self.run(1)  # the pace of what is compiled
        if self.device.type == "cpu" and peak:
            self.memory = peak[0] + bytes_of(self.states())

    def run(self, steps: int) -> tuple[float, float]:
        """Run steps; return tokens a second, and the share of the time that batches took."""
        cuda = self.device.type == "cuda"
        numbers = range(self.done, self.done + steps)
        tokens = sum(map(self.tokens, numbers))
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        began, waited = self.clock(), self.waited()
        for number in numbers:
            loss = self.step(number)
        launched = self.clock()
        if cuda:
            torch.cuda.synchronize()
        ended = self.clock()
        if cuda:
            # Others' weights lie on the device too: count what the steps took, and one's own.
            peak = torch.cuda.max_memory_allocated() - held + bytes_of(self.states())
            self.memory = max(self.memory, peak)
        self.last, self.done, self.pace = loss.item(), self.done + steps, (ended - began) / steps
        # While the device was busy, waiting for batches cost nothing.
        waited = max(0.0, self.waited() - waited - (ended - launched))
        return tokens / (ended - began), waited / (ended - began)

    def block(self, *, counted: bool = True) -> None:
        """Run a few steps, and note their speed."""
        speed, wait = self.run(max(1, round(BLOCK / self.pace)))
        if counted:
            self.speeds.append(speed)
            self.waits.append(wait)

    def figures(self, flops: float, ceiling: float) -> dict[str, Any]:
        """Return what was measured; `flops` are those of one token."""
        speed = statistics.median(self.speeds)
        return {
            "tokens_per_second": round(speed, 1),
            "of_ceiling": round(flops * speed / ceiling, 4),
            "flops": float(f"{flops * speed:.4g}"),
            "filled": round(self.filled, 4),
            "memory_gb": round(self.memory / 1e9, 2) if self.memory else None,
            "data_wait": round(statistics.median(self.waits), 4),
            "start_seconds": round(self.start, 4),
            "compile_seconds": round(self.compile_seconds(), 2),
            "last_loss": round(self.last, 4),
        }


@contextmanager
def peak_resident() -> Iterator[list[int]]:
    """Append how far the resident set of this process rose in the block, where Linux tells."""
    found: list[int] = []
    before = None
    with suppress(OSError, AttributeError):  # AttributeError: of another C library
        ctypes.CDLL(None).malloc_trim(0)  # else the block fills what was freed before
        Path("/proc/self/clear_refs").write_text("5")  # the highest is that of now
        before = resident_bytes("VmRSS")
    yield found
    peak = resident_bytes("VmHWM")
    if before is not None and peak is not None:
        found.append(max(0, peak - before))


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """Return the size of some tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def ours(
    work: Measured,
    variant: Sequence[str],
    pool: int,
    device: torch.device,
    *,
    feeds: bool,
    clock: Clock = time.perf_counter,
) -> list[Side]:
    """Return the sides of a run: with its feed and without, which share the step."""
    began = time.perf_counter()
    step = work.make_step(Path(), device, bfloat16=uses_bfloat16(work.train, device))
    assert isinstance(step, TrainStep)
    step.on_message = lambda message: print(message, file=sys.stderr)  # the compiler failed
    cuda = device.type == "cuda"
    one = step_by_step(work, cuda)
    ready = [[part.to(device) for part in next(one)] for _ in range(pool)]
    streams = [s for parts in ready for b in parts for s in streams_of(b.inputs)]
    slots, filled = sum(s.input_ids.numel() for s in streams), sum(map(occupied, streams))
    counts = [text_tokens(work.batches, number) for number in range(pool)]  # type: ignore[arg-type]
    loader, waited = work.micro_batches(0, pinned=cuda), 0.0

    def fed(number: int) -> Tensor:
        nonlocal waited
        asked = clock()
        parts = next(loader)
        waited += clock() - asked
        return step(number, parts).loss

    def side(name: str, run: Callable[[int], Tensor], **more: Any) -> Side:
        return Side(
            name=name,
            step=run,
            states=lambda: step_tensors(step),
            device=device,
            clock=clock,
            pool=pool,
            filled=filled / slots,
            slots_per_token=slots / sum(counts),
            build_seconds=time.perf_counter() - began,
            compile_seconds=lambda: step.compile_seconds,
            **more,
        )

    without = side(
        ", ".join([NO_FEED if feeds else FEED, *variant]),
        lambda number: step(number, ready[number % pool]).loss,
        tokens=lambda number: counts[number % pool],
    )
    if not feeds:
        return [without]
    tokens: Any = lambda number: text_tokens(work.batches, number)  # type: ignore[arg-type]  # noqa: E731
    return [side(FEED, fed, tokens=tokens, waited=lambda: waited), without]


def step_by_step(work: Measured, cuda: bool) -> Iterator[Sequence[Batch[Any]]]:
    """Return the batches of the run, made by this process."""
    train = work.train
    work.train = replace(train, workers=0)
    try:
        return work.micro_batches(0, pinned=cuda)
    finally:
        work.train = train


def transformers_side(
    name: str,
    model: nn.Module,
    forward: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Sequence[Reading]],
    device: torch.device,
) -> Side:
    """Run steps as a plain loop around transformers does; a group of batches is one update."""
    ready = [[r.to(device) for r in group] for group in groups]
    parameters = list(model.parameters())

    def step(number: int) -> Tensor:
        group = ready[number % len(ready)]
        totals = {name: sum(r.counts[name] for r in group) for name in group[0].counts}
        loss = torch.zeros((), device=device)
        for r in group:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                mean = peer_mean(forward(**r.arguments), r.counts, totals)
            mean.backward()
            loss += mean.detach()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    every = [r for group in groups for r in group]
    return Side(
        name=name,
        step=step,
        tokens=lambda number: sum(r.tokens for r in groups[number % len(groups)]),
        states=lambda: [*parameters, *optimizer_tensors(optimizer)],
        device=device,
        pool=len(groups),
        filled=sum(r.filled for r in every) / sum(r.slots for r in every),
        slots_per_token=sum(r.slots for r in every) / sum(r.tokens for r in every),
    )


def peer_mean(
    output: Mapping[str, Tensor], counts: Mapping[str, int], totals: Mapping[str, int]
) -> Tensor:
    """Return the mean losses of a peer, each times the share of what is predicted in total."""
    (name, count), *others = counts.items()
    if not others:
        return output["loss"] * (count / totals[name])
    return torch.stack([output[n] * (count / totals[n]) for n, count in counts.items()]).sum()


def eager_side(
    work: Measured, groups: Sequence[tuple[Sequence[Batch[Any]], int]], device: torch.device
) -> Side:
    """Run eager steps of our own network on batches of one text a row; groups have their tokens."""
    step = work.make_step(Path(), device, bfloat16=uses_bfloat16(work.train, device))
    assert isinstance(step, TrainStep)
    ready = [([batch.to(device) for batch in parts], tokens) for parts, tokens in groups]
    streams = [s for parts, _ in ready for b in parts for s in streams_of(b.inputs)]
    slots = sum(s.input_ids.numel() for s in streams)
    return Side(
        name=PEER,
        step=lambda number: step(number, ready[number % len(ready)][0]).loss,
        tokens=lambda number: ready[number % len(ready)][1],
        states=lambda: step_tensors(step),
        device=device,
        pool=len(ready),
        filled=sum(map(occupied, streams)) / slots,
        slots_per_token=slots / sum(tokens for _, tokens in ready),
    )


def streams_of(inputs: Inputs) -> list[Inputs]:
    """Return the inputs of the decoder, and of the encoder where there is one."""
    return [inputs, *([] if inputs.encoder_inputs is None else [inputs.encoder_inputs])]


def occupied(stream: Inputs) -> int:
    """Count the slots that hold something."""
    return int((stream.attention_mask.document_ids != PADDING_ID).sum())


def step_tensors(step: TrainStep) -> list[Tensor]:
    """Return weights, master weights and the state of the optimizer, each tensor once."""
    tensors = [*step.learner.parameters(), *step.updated, *optimizer_tensors(step.optimizer)]
    return list({id(tensor): tensor for tensor in tensors}.values())


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of the state of an optimizer."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in values if isinstance(value, Tensor)]


def padded_batch(objective: Any, texts: Sequence[Text]) -> Batch[Any]:
    """Lay texts out one a row, as long as the longest."""
    longest = max(max(t.example.lengths) for t in texts)
    narrow = replace(objective, max_length=min(objective.max_length, longest))
    found: Batch[Any] = narrow.collate([[t.example] for t in texts])
    return found


def open_peer(work: Work, model: Any) -> Any:
    """Hand the weights over to transformers, through a model folder."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        hub.save(Path(folder), model, None)
        if not isinstance(work.peer, str):
            assert work.peer is not None
            return work.peer(Path(folder)).train()
        peer = getattr(transformers, work.peer).from_pretrained(folder)
    peer.config.use_cache = False  # nothing is generated: a cache would only slow the peer down
    return peer.train()


class StayDouble(TorchFunctionMode):
    """Leave float64 as it is where code asks for float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        asks = func is Tensor.float or (
            func is Tensor.to and torch.float32 in (*args[1:], *kwargs.values())
        )
        if asks and args[0].dtype == torch.float64:
            return args[0]
        if kwargs.get("dtype") is torch.float32 and any(
            isinstance(a, Tensor) and a.dtype == torch.float64 for a in args
        ):
            kwargs = {**kwargs, "dtype": torch.float64}  # such as of softmax
        return func(*args, **kwargs)


def norm(model: nn.Module) -> float:
    """Return the norm of the gradient, and empty it."""
    found = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf).item()
    model.zero_grad(set_to_none=True)
    return float(found)


@dataclass(frozen=True)
class Checked:
    """What both sides computed of the same texts: [kinfolk, peer]; None where both are ours."""

    loss: list[float] | None
    grad_norm: list[float] | None
    flops: float  # of the products of weights and tokens, for a token of text


def count_products(model: nn.Module, objective: Any, batch: Batch[Any]) -> tuple[Tensor, float]:
    """Return the loss after the backward pass, and the FLOPs of products of weights and tokens."""
    with FlopCounter() as counter:
        loss = objective.loss(model, batch).mean(batch.counts)
        loss.backward()
    counts = counter.mode.get_flop_counts()["Global"]
    aten = torch.ops.aten  # attention multiplies batches of matrices, which are other operations
    products = [aten.mm, aten.addmm, aten.addmm_]
    if torch.backends.mkldnn.is_available():
        products.append(torch.ops.mkldnn._linear_pointwise)
    return loss.detach(), float(sum(counts.get(kind, 0) for kind in products))


def check(
    work: Work, model: nn.Module, peer: Any, objective: Any, rows: Sequence[Sequence[Text]]
) -> Checked:
    """Compare losses and gradients of packed rows with those of padded ones.

    In float64: T5's fresh weights turn float32's rounding into half a percent of the gradient. At
    base size on a CPU the two then differ by 2e-8 of the gradient, the rounding of the peer's norm,
    and by 2e-15 without it.

    Where they differ on a GPU, both do it on the CPU too (`does_same_work`).
    """
    device, cpu = next(model.parameters()).device, torch.device("cpu")
    found = both_sides(work, model, peer, objective, rows, device)
    on_cpu = None
    if not found.agrees() and device != cpu:
        on_cpu = both_sides(work, model.to(cpu), peer.to(cpu), objective, rows, cpu)
        model.to(device)
        peer.to(device)
        print(f"{work.name}: on {device} {found}, on the CPU {on_cpu}", file=sys.stderr)
    if not does_same_work(found, on_cpu):
        raise SystemExit(
            f"{work.name}: the two sides do not compute the same: "
            f"loss {found.loss}, norm {found.grad_norm}"
        )
    streams = streams_of(objective.collate([[t.example for t in row] for row in rows]).inputs)
    filled = sum(map(occupied, streams)) / sum(s.input_ids.numel() for s in streams)
    tokens = sum(t.tokens for row in rows for t in row)
    return Checked(found.loss, found.grad_norm, found.flops * filled / tokens)


@dataclass(frozen=True)
class Pass:
    """The loss and the norm of the gradient of both sides, [kinfolk, peer], and kinfolk's FLOPs."""

    loss: list[float]
    grad_norm: list[float]
    flops: float

    def agrees(self) -> bool:
        """Return whether the two sides computed the same."""
        return (
            abs(self.loss[0] - self.loss[1]) <= 1e-3
            and abs(self.grad_norm[0] / self.grad_norm[1] - 1) <= 1e-3
        )


def does_same_work(found: Pass, on_cpu: Pass | None) -> bool:
    """Return whether both sides do the same work.

    Where they differ on a GPU, they must agree on the CPU, and kinfolk must compute in float64 on
    the GPU what it does on the CPU: then it is the peer that rounds on the GPU.
    """
    if found.agrees() or on_cpu is None:
        return found.agrees()
    (loss, cpu_loss), (norm, cpu_norm) = (
        (here[0], there[0])
        for here, there in ((found.loss, on_cpu.loss), (found.grad_norm, on_cpu.grad_norm))
    )
    return on_cpu.agrees() and abs(loss - cpu_loss) <= 1e-6 and abs(norm / cpu_norm - 1) <= 1e-6


def both_sides(
    work: Work,
    model: nn.Module,
    peer: Any,
    objective: Any,
    rows: Sequence[Sequence[Text]],
    device: torch.device,
) -> Pass:
    """Return what both sides compute of the same texts on a device, where their weights are."""
    texts = [t for row in rows for t in row]
    for side in {model, peer}:
        side.to(work.exact)
    batch = objective.collate([[t.example for t in row] for row in rows]).to(device)
    loss, flops = count_products(model, objective, batch)
    losses, norms = [loss.item()], [norm(model)]
    said = 0.0
    for start in range(0, len(texts), 8):
        some = texts[start : start + 8]
        with StayDouble():
            if work.pad is None:
                part = objective.loss(peer, padded_batch(objective, some).to(device))
                mean = part.mean(batch.counts)
            else:
                r = work.pad(some).to(device)
                mean = peer_mean(peer(**r.arguments, **r.drawn), r.counts, batch.counts)
            mean.backward()
        said += mean.item()
    losses.append(said)
    norms.append(norm(peer))
    for side in {model, peer}:
        side.float()
    return Pass(losses, norms, flops)


@torch.no_grad()
def plain_loss(model: nn.Module, objective: Any, batch: Batch[Any]) -> float:
    """Return the loss of a whole batch, in float32, nothing compiled."""
    batch = batch.to(next(model.parameters()).device)
    return float(objective.loss(model, batch).mean(batch.counts))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a workload is measured."""

    size: str | None  # None is the workload's own, as below
    fields: Sequence[str]  # of the network: name=value
    vocab: int | None
    rows: int | None
    length: int | None
    device: torch.device
    seconds: float  # of measuring, all sides together
    pool: int  # batches that are made, and run through over and over
    compiled: bool  # the peer too; on a CPU where its batches have one shape
    grouped: bool  # the peer also with batches of texts of about one length
    variants: Sequence[Sequence[str]]  # settings of other runs
    warm_up: float  # seconds on CUDA
    profile: bool
    clock: Clock


def run_settings(rows: int, settings: Sequence[str]) -> TrainConfig:
    """Return the settings of a run that is too long to end."""
    train = TrainConfig(
        steps=ENDLESS, batch_size=rows, lr=RATE, warmup=0, schedule="constant", grad_clip=CLIP
    )
    return apply_overrides(train, settings)


@dataclass(kw_only=True)
class Prepared:
    """A workload whose sides were checked and have done their first steps."""

    work: Work
    peers: list[Side]
    own: list[Side]  # with the feed, without, and the variants
    left_out: dict[str, str]  # variants that are not timed, with the reason
    checked: Checked
    batch_ms: float  # of one core
    figures: dict[str, Any]  # that are known before anything is timed


def prepare(work: Work, s: Settings, alone: AbstractContextManager[Any]) -> Prepared:
    """Build all sides, check that they do the same work, and do their first steps.

    Peers that are not compiled take most of the memory of the device: they do that `alone`.
    """
    began = time.perf_counter()

    def ready(what: str) -> None:
        print(f"{work.name}: {what}, {time.perf_counter() - began:.0f} s", file=sys.stderr)

    rows, length, vocab = s.rows or work.rows, s.length or work.length, s.vocab or work.vocab
    kind = family(work.name).objective(work.way)
    objective: Any = kind(special_tokens=SPECIALS, vocab_size=vocab, max_length=length)
    # A text and what is put around it fits a row, so that few are cut.
    enough = int(1.25 * s.pool * rows * length) + rows * length
    texts = documents(enough, longest=length - 2, vocab=vocab)
    torch.manual_seed(SEED)
    size, fields = s.size, s.fields
    if size is None and s.device.type == "cuda":
        size = "base"
    if size is None:
        size, own_fields = SMALL_SHAPES.get(work.name, ("mini", ()))
        fields = (*own_fields, *fields)
    fresh = shaped(work, size, fields, vocab, length).build()
    train = run_settings(rows, ())
    others = [run_settings(rows, variant) for variant in s.variants]
    dataset: Any = (ContiguousDataset if objective.recurrent else PackedDataset)(
        objective, texts, batch_size=rows, seed=train.seed
    )
    batch_ms = batch_milliseconds(dataset, s.pool)
    peers, checked = peer_sides(work, fresh, objective, dataset, s)
    ready("the two sides compute the same")
    run = Measured(copy.deepcopy(fresh), objective, dataset, train, s.device)
    plain = plain_loss(run.model, objective, dataset[0])
    for side in peers:
        side.clock = s.clock
        with alone if side.name == PEER else nullcontext():
            side.warm_up()
            empty_cache(s.device)
        ready(side.name)
    own, left_out = ours(run, (), s.pool, s.device, feeds=True, clock=s.clock), dict[str, str]()
    for side in own:
        side.warm_up()
        ready(side.name)
    if mistake := wrong_loss(own[0], plain):
        raise SystemExit(f"{work.name}: {mistake}")
    for variant, settings in zip(s.variants, others, strict=True):
        other = Measured(copy.deepcopy(fresh), objective, dataset, settings, s.device)
        try:
            (side,) = ours(other, variant, s.pool, s.device, feeds=False, clock=s.clock)
            side.warm_up()
        except (UserError, RuntimeError) as error:  # such as a kernel that the family cannot use
            left_out[", ".join(variant)] = f"{type(error).__name__}: {error}"
        else:
            if mistake := wrong_loss(side, plain):
                left_out[", ".join(variant)] = mistake
            else:
                own.append(side)
        ready(", ".join(variant))
        empty_cache(s.device)
    figures = {
        "loss": checked.loss,
        "grad_norm": checked.grad_norm,
        "loss_timed": [own[0].first, plain],
        "peer_class": peer_name(work),
        "size": ", ".join([size, *fields]),
        "parameters": sum(p.numel() for p in fresh.parameters()),
        "vocab": vocab,
        "rows": rows,
        "length": length,
        "prepare_seconds": round(time.perf_counter() - began, 1),
    }
    return Prepared(
        work=work,
        peers=peers,
        own=own,
        left_out=left_out,
        checked=checked,
        batch_ms=batch_ms,
        figures=figures,
    )


def batch_milliseconds(dataset: Any, batches: int) -> float:
    """Return the milliseconds of one core in which a batch is made, in the median."""
    taken = []
    for number in range(batches):
        began = time.thread_time()
        dataset[number]
        taken.append(1e3 * (time.thread_time() - began))
    return statistics.median(taken)


def empty_cache(device: torch.device) -> None:
    """Give the memory that this process does not need back to the device, for others."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def wrong_loss(side: Side, plain: float) -> str | None:
    """Return what is wrong with the loss of the first step, as it is timed."""
    if abs(side.first / plain - 1) <= 0.01:
        return None
    return (
        f"the first timed step of {side.name} has a loss of {side.first}, "
        f"and the plain float32 network one of {plain} on the same batch"
    )


def measure(ready: Prepared, s: Settings, ceiling: float) -> dict[str, Any]:
    """Time all sides in turn; `ceiling` is in FLOP/s."""
    began = time.perf_counter()
    sides, own, cuda = [*ready.peers, *ready.own], ready.own, s.device.type == "cuda"
    start = time.perf_counter()
    while cuda and time.perf_counter() - start < s.warm_up:
        for side in sides:
            side.block(counted=False)
    start = time.perf_counter()
    while len(own[0].speeds) < ROUNDS or time.perf_counter() - start < s.seconds:
        for side in sides:
            side.block()
    fed, unfed = (statistics.median(side.speeds) for side in own[:2])
    if cuda:
        (fed, wait), (unfed, _) = (side.run(LONG_BLOCK) for side in own[:2])
        own[0].waits = [wait]
    for side in sides:
        if not math.isfinite(side.last):
            raise SystemExit(f"{ready.work.name}: the loss of {side.name} is {side.last}")
    found = {side.name: side.figures(ready.checked.flops, ceiling) for side in sides}
    found[FEED] |= {"batch_ms": round(ready.batch_ms, 3), "feed_cost": round(1 - fed / unfed, 4)}
    for side in sides:
        ratios = [a / b for a, b in zip(own[0].speeds, side.speeds, strict=True)]
        found[side.name]["ratio"] = round(statistics.median(ratios), 3)
        found[side.name]["spread"] = [round(q, 3) for q in np.quantile(ratios, [0.25, 0.75])]
    if s.profile:
        for side in own[1:]:
            found[side.name]["profile"] = profile_steps(side)
    return {
        "ratio": found[PEER]["ratio"],
        "ratio_compiled": found.get("peer, compiled", {}).get("ratio"),
        "rounds": len(own[0].speeds),
        "sides": found,
        "left_out": ready.left_out,
        **ready.figures,
        "seconds": round(time.perf_counter() - began, 1),
    }


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel by its name."""
    name = kernel.lower()
    kinds = (kind for kind, words in KERNEL_KINDS.items() if any(word in name for word in words))
    return next(kinds, "other")


def profile_steps(side: Side) -> dict[str, Any]:
    """Return the milliseconds of the kernels of a step, by kind and by name."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        side.run(PROFILED)
    kernels, calls, kinds = Counter[str](), Counter[str](), Counter[str]()
    for event in trace.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name] += event.device_time_total / 1e3 / PROFILED
            calls[event.name] += 1
    for kernel, ms in kernels.items():
        kinds[kind_of(kernel)] += ms
    return {
        "step_ms": round(1e3 * side.pace, 3),  # under the profiler
        "kernels_ms": round(sum(kernels.values()), 3),
        "launches": round(sum(calls.values()) / PROFILED),
        "kinds": {kind: round(ms, 3) for kind, ms in kinds.most_common()},
        "kernels": [
            (name, round(ms, 4), round(calls[name] / PROFILED, 2))
            for name, ms in kernels.most_common(TOP_KERNELS)
        ],
    }


def profile_table(name: str, found: Mapping[str, Any]) -> str:
    """Write the kinds of kernels of each side that was profiled, a line each."""
    return "\n".join(
        f"{name}, {side}: kernels {p['kernels_ms']:.2f} ms, {p['launches']} launches: "
        + ", ".join(f"{kind} {ms:.2f}" for kind, ms in p["kinds"].items())
        for side, figures in found["sides"].items()
        if (p := figures.get("profile"))
    )


def peer_sides(
    work: Work, fresh: Any, objective: Any, dataset: Any, s: Settings
) -> tuple[list[Side], Checked]:
    """Return the sides of the peer, after comparing what it computes with what kinfolk does."""
    rows, model = dataset.batch_size, copy.deepcopy(fresh).to(s.device).train()
    if objective.recurrent:  # the same batches, one after the other
        batches = [dataset[number] for number in range(s.pool)]
        tokens = [text_tokens(dataset, number) for number in range(s.pool)]
        eager = run_settings(rows, ("compile=no", "cuda_graph=no"))
        peer_run = Measured(model, objective, dataset, eager, s.device)
        flops = count_products(model, objective, batches[0].to(s.device))[1] / tokens[0]
        model.zero_grad(set_to_none=True)
        groups = [([b], t) for b, t in zip(batches, tokens, strict=True)]
        return [eager_side(peer_run, groups, s.device)], Checked(None, None, flops)
    packed = [rows_of_texts(dataset, number) for number in range(s.pool)]
    peer = model if work.peer is None else open_peer(work, fresh).to(s.device)
    checked = check(work, model, peer, objective, packed[0][:CHECKED])
    texts = [t for batch in packed for row in batch for t in row]
    order = np.random.default_rng(SEED + 1).permutation(len(texts))
    shuffled = [texts[i] for i in order]
    per_step = sum(t.tokens for t in texts) / s.pool
    if work.pad is None:
        parts = [shuffled[i : i + rows] for i in range(0, len(texts) - rows + 1, rows)] or [texts]
        sizes = [sum(t.tokens for t in some) for some in parts]
        together = updates_together(per_step, sizes)
        count = len(parts) // together
        eager = run_settings(
            rows * together, ("compile=no", "cuda_graph=no", f"gradient_accumulation={together}")
        )
        made = [padded_batch(objective, some) for some in parts[: count * together]]
        groups = [
            (made[i : i + together], sum(sizes[i : i + together]))
            for i in range(0, len(made), together)
        ]
        return [
            eager_side(Measured(model, objective, dataset, eager, s.device), groups, s.device)
        ], checked
    optimizer = build_optimizer(peer, run_settings(rows, ()))

    def groups_of(some: Sequence[Text]) -> list[list[Reading]]:
        single = readings(work, some, rows, s.length or work.length)
        together = updates_together(per_step, [r.tokens for r in single])
        ends = range(0, len(single) - together + 1, together)
        return [single[i : i + together] for i in ends]

    grouped = groups_of(shuffled)
    sides = [transformers_side(PEER, peer, peer, optimizer, grouped, s.device)]
    if s.grouped and work.join is None:
        # Texts of about one length share a batch; batches come in any order.
        rank = np.argsort([t.tokens for t in shuffled], kind="stable")
        cuts = np.array_split(rank, max(1, len(rank) // rows))
        mixed = np.random.default_rng(SEED + 2).permutation(len(cuts))
        alike = [shuffled[i] for number in mixed for i in cuts[number][:rows]]
        sides.append(
            transformers_side(
                "peer, grouped by length", peer, peer, optimizer, groups_of(alike), s.device
            )
        )
    if s.compiled and (s.device.type == "cuda" or work.join is not None):
        forward = torch.compile(peer)
        sides.append(
            transformers_side("peer, compiled", peer, forward, optimizer, grouped, s.device)
        )
    return sides, checked


def updates_together(tokens: float, sizes: Sequence[int]) -> int:
    """Return how many batches of these sizes hold about as many tokens."""
    return min(max(1, round(tokens / statistics.mean(sizes))), len(sizes))


def readings(work: Work, texts: Sequence[Text], rows: int, length: int) -> list[Reading]:
    """Make the batches of so many rows for transformers."""
    if work.join is not None:
        return work.join(texts, rows, length)
    assert work.pad is not None
    starts = range(0, max(1, len(texts) - rows + 1), rows)
    return [work.pad(texts[i : i + rows]) for i in starts]


def peer_name(work: Work) -> str:
    """Return the class of the peer."""
    if isinstance(work.peer, str):
        return work.peer
    return "kinfolk, eager" if work.peer is None else work.peer.__name__


def shaped(work: Work, name: str, settings: Sequence[str], vocab: int, length: int) -> Any:
    """Return a size with these fields, this vocabulary, rows of this length, and no dropout."""
    sizes = family(work.name).sizes
    if name not in sizes:
        raise UserError(f"{work.name} has no size {name!r}: choose from {', '.join(sizes)}")
    rates = {f: 0.0 for f in vars(sizes[name]) if f.endswith("dropout")}
    config = apply_overrides(sizes[name], settings)
    return config.with_fields(vocab_size=vocab, max_length=length, **rates)


def measure_ceiling(
    device: torch.device, seconds: float, clock: Clock = time.perf_counter
) -> float:
    """Return the FLOP/s of a bare product of large matrices, in the format of training.

    On a CPU it is the faster one of torch's and oneDNN's.
    """
    cuda = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if cuda else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    products: list[Callable[[], Any]] = [lambda: torch.mm(a, b, out=out)]
    if not cuda:
        products.append(lambda: linear(a, b))
    speeds: list[list[float]] = [[] for _ in products]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not speeds[0]:
        for product, own in zip(products, speeds, strict=True):
            began = clock()
            for _ in range(100 if cuda else 2):
                product()
            if cuda:
                torch.cuda.synchronize()
            own.append(2 * size**3 * (100 if cuda else 2) / (clock() - began))
    # After the clock has settled.
    return max(statistics.median(own[len(own) // 2 :]) for own in speeds)


def table(works: Mapping[str, Mapping[str, Any]], start: str) -> str:
    """Write the figures of all workloads for a reader; `start` is the heading of the starts."""
    head = ("workload", "", "tokens/s", "ratio", "of ceiling", "memory", "data wait", "batch")
    lines = [[*head, start, "of it compiling"]]
    for name, found in works.items():
        for side, f in found["sides"].items():
            label = side.replace(PEER, found["peer_class"])
            low, high = f["spread"]
            is_feed = side == FEED
            lines.append(
                [
                    f"{name} {found['size']}, {found['rows']} x {found['length']}",
                    label,
                    f"{f['tokens_per_second']:,.0f}",
                    "" if is_feed else f"{f['ratio']:.2f} ({low:.2f} to {high:.2f})",
                    f"{f['of_ceiling']:.1%}",
                    f"{f['memory_gb']:.1f} GB" if f["memory_gb"] else "-",
                    f"{f['data_wait']:.1%}" if is_feed else "-",
                    f"{f['batch_ms']:.2f} ms" if is_feed else "-",
                    f"{f['start_seconds']:.1f} s",
                    f"{f['compile_seconds']:.1f} s",
                ]
            )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def start_heading(warm: bool, parallel: int) -> str:
    """Return the heading of the starts, with what makes them shorter or longer."""
    parts = ["start"]
    if warm:
        parts.append("caches warm")
    if parallel > 1:
        parts.append(f"{parallel} at once")
    return ", ".join(parts)


def compiler_cache_is_warm() -> bool:
    """Return whether an earlier process compiled kernels into the cache of this one."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # where torch looks for them

    return any(Path(cache_dir()).iterdir())


def ceiling_of(s: Settings) -> float:
    """Return the FLOP/s of a bare product, with as long a warm-up as the workloads have."""
    seconds = s.warm_up if s.device.type == "cuda" else min(0.5, s.seconds)
    return measure_ceiling(s.device, seconds, s.clock)


def one_after_the_other(
    names: Sequence[str], s: Settings
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield each workload with its figures, or what was wrong with it."""
    ceiling = ceiling_of(s)
    for name in names:
        try:
            with many_compiled():  # of every shape of every side
                ready = prepare(WORKS[name](), s, nullcontext())
                yield name, {**measure(ready, s, ceiling), "ceiling": ceiling}
        except SystemExit as failure:
            yield name, str(failure)
        ready = None
        if s.device.type == "cuda":
            torch.compiler.reset()
            torch.cuda.empty_cache()


def work_process(name: str, s: Settings, turn: Any, alone: Any) -> None:
    """Prepare a workload, say so, and time it when its turn comes: the ceiling is sent."""
    sys.stdout = sys.stderr
    try:
        with many_compiled():
            ready = prepare(WORKS[name](), s, alone)
            turn.send(None)
            ceiling = turn.recv()
            turn.send({**measure(ready, s, ceiling), "ceiling": ceiling})
    except SystemExit as failure:
        turn.send(str(failure))
    except EOFError:  # the first process has ended
        return
    except Exception as error:
        turn.send(f"{name}: {type(error).__name__}: {error}\n{traceback.format_exc()}")


def side_by_side(
    names: Sequence[str], s: Settings, parallel: int
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Prepare several workloads at the same time; yield each with its figures, timed in turn.

    One that finds too little memory beside the others is prepared alone, after them.
    """
    spawn = multiprocessing.get_context("spawn")
    # Each process of torch.compile would start as many of its own as there are cores.
    threads = max(1, (os.cpu_count() or 1) // parallel)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    alone, ceiling, again = spawn.Lock(), None, list[str]()
    for first in range(0, len(names), parallel):
        started = []
        for name in names[first : first + parallel]:
            here, there = spawn.Pipe()
            process = spawn.Process(target=work_process, args=(name, s, there, alone))
            process.start()
            there.close()  # so that the end of the process ends what is read from it
            started.append((name, process, here))
        try:
            found = {name: receive(name, turn) for name, _, turn in started}
            for name, process, turn in started:
                if found[name] is None:  # it is ready, and so are the others
                    if ceiling is None:
                        ceiling = ceiling_of(s)
                        empty_cache(s.device)
                    turn.send(ceiling)
                    found[name] = receive(name, turn)
                process.join()
                if parallel > 1 and "OutOfMemoryError" in str(found[name])[:200]:
                    again.append(name)
                else:
                    yield name, found[name]
        finally:
            for _, _, turn in started:
                turn.close()  # a process that waits ends
    if again:
        yield from side_by_side(again, s, 1)


def receive(name: str, turn: Any) -> Any:
    """Return what a process sends, or that it ended before."""
    try:
        return turn.recv()
    except EOFError:
        return f"{name}: its process ended before it had figures"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Read the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--workloads", nargs="+", choices=WORKS, default=[*WORKS], help="some")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="FIELD=VALUE[,...]",
        help="measure a run with other training settings too; may be repeated",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--size", help="of the network; base on CUDA, small ones on the CPU")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the network, such as num_layers=6; may be repeated",
    )
    parser.add_argument("--vocab", type=int, help="of the network; the published one by default")
    parser.add_argument("--batch", type=int, help="rows; 16 on the CPU, 32 or 64 on CUDA")
    parser.add_argument("--length", type=int, help="of a row; 128 on the CPU, 512 or 1024 on CUDA")
    parser.add_argument("--seconds", type=float, default=15, help="of measuring a workload")
    parser.add_argument("--pool", type=int, default=8, help="batches that are run through")
    parser.add_argument(
        "--warm-up", type=float, default=WARM_UP, help="seconds on CUDA before anything counts"
    )
    parser.add_argument(
        "--parallel",
        type=int,
        default=1,
        metavar="N",
        help="prepare so many workloads at the same time",
    )
    parser.add_argument(
        "--profile", action="store_true", help="put the kernels of a step into the JSON, on CUDA"
    )
    parser.add_argument("--out", type=Path, help="append a line of JSON for each workload")
    parser.add_argument("--plain", action="store_true", help="do not compile the peer on CUDA")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compile peers with batches of one shape on the CPU too; needs a C++ compiler",
    )
    parser.add_argument(
        "--grouped", action="store_true", help="measure padded peers grouped by length too"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the time of the process: one thread of a CPU that others use too",
    )
    told = parser.parse_args(arguments)
    cuda = torch.cuda.is_available() if told.device == "auto" else told.device == "cuda"
    if cuda and not torch.cuda.is_available():
        parser.error("this machine has no CUDA device that torch can use: use --device cpu")
    device = torch.device("cuda" if cuda else "cpu")
    clock = time.process_time if told.cpu_time else time.perf_counter
    if told.cpu_time and (cuda or torch.get_num_threads() > 1):
        parser.error(
            "--cpu-time is for one thread of a CPU: use OMP_NUM_THREADS=1 and --device cpu"
        )
    compiler = os.environ.get("CXX", "g++")  # as torch.compile chooses
    if told.compiled and not cuda and shutil.which(compiler) is None:
        print(f"there is no C++ compiler {compiler}: peers are not compiled", file=sys.stderr)
        told.compiled = False
    settings = Settings(
        size=told.size,
        fields=told.model,
        vocab=told.vocab,
        rows=told.batch or (None if cuda else 16),
        length=told.length or (None if cuda else 128),
        device=device,
        seconds=told.seconds,
        pool=told.pool,
        compiled=not told.plain if cuda else told.compiled,
        grouped=told.grouped,
        variants=[text.split(",") for text in told.variant],
        warm_up=told.warm_up,
        profile=told.profile and cuda,
        clock=clock,
    )
    warm = cuda and compiler_cache_is_warm()
    machine = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "precision": "bfloat16" if cuda else "float32",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "caches_warm": warm,
        "parallel": told.parallel,
    }
    heading = start_heading(warm, told.parallel)
    works: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    if told.parallel > 1:
        results = side_by_side(told.workloads, settings, told.parallel)
    else:
        results = one_after_the_other(told.workloads, settings)
    for name, result in results:
        if isinstance(result, str):
            failures.append(result)
            print(result, file=sys.stderr, flush=True)
            continue
        works[name] = result
        taken = result["prepare_seconds"], result["seconds"]
        print(f"{name}: {taken[0]:.0f} s, timed in {taken[1]:.0f} s", file=sys.stderr)
        print(table({name: result}, heading), file=sys.stderr, flush=True)
        for variant, reason in result["left_out"].items():
            print(f"{name}: without {variant}: {reason[:600]}", file=sys.stderr, flush=True)
        if told.out is not None:
            with told.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"workload": name, **machine, **result}) + "\n")
    if not works:
        raise SystemExit("; ".join(failures))
    slowest = min(works, key=lambda name: float(works[name]["ratio"]))
    compiled = [w["ratio_compiled"] for w in works.values() if w["ratio_compiled"] is not None]
    ceiling = works[slowest]["ceiling"]
    found = {
        "ratio": works[slowest]["ratio"],
        "ratio_compiled": min(compiled, default=None),
        "slowest": slowest,
        **works,
        "ceiling": ceiling,
        **machine,
    }
    print(
        f"{found['device']}, {found['precision']}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {found['threads']} threads; "
        f"a bare product: {ceiling / 1e12:.3g} TFLOP/s"
    )
    print(table(works, heading), flush=True)
    for name, work in works.items():
        if lines := profile_table(name, work):
            print(lines, flush=True)
    if told.json:
        print(json.dumps(found), flush=True)
    if failures:
        raise SystemExit("; ".join(failures))
    return found


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
