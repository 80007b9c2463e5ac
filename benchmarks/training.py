"""How fast kinfolk trains, beside transformers, on the same network and the same texts.

    python benchmarks/training.py --json                 every work
    python benchmarks/training.py --json --only bert     one work

A *work* is a network and a way of learning: `gpt2` (next token), `bert` (masked words), `t5` (span
corruption). Counted are **useful tokens a second of whole training steps**:

- A step is forward, backward, clipping of the gradient, the AdamW update and the emptying of the
  gradients. The input pipeline is left out: all batches lie on the device, ready made.
- A useful token is a token of a text. Padding, [CLS], [SEP], ends and sentinels do not count.
- Texts have log-normal lengths (median 120 tokens or half a row, whichever is less; sigma 1), are
  clipped so that each fits a row, and have their words by Zipf's law. Both sides learn from the
  same texts with the same masks and spans; what does not fill a last update is left out.
- Both sides have the same weights, no dropout, the same fused AdamW, bfloat16 autocast on CUDA and
  float32 on the CPU, and about as many tokens to an update: where padding makes the peer's batches
  hold fewer, it accumulates gradients over several batches of the same number of rows.

kinfolk runs as `kinfolk pretrain` runs: packed rows, `Learner` and `Step`, compiled on CUDA. The
peer is transformers' own class in training mode with its default attention and its own loss, fed by
the field's usual practice:

    gpt2   texts joined by an end token and cut into full rows: no padding, sight across texts
    bert   a text a row, padded to the longest of the batch, with a mask (run_mlm's line by line)
    t5     a text a row, source and target padded to the longest of the batch

On CUDA the peer is measured a second time under torch.compile, with the same weights.

Before anything is timed the two must do the same work: on the same texts, in float64, the mean
losses may differ by 1e-3, and the norms of the gradient by 1e-3 of themselves. The loss of the
first step as it is timed (compiled, autocast) must be within 1 % of the plain float32 network's.

After a warm-up that sees every shape there is, short blocks of steps alternate: peer, peer
compiled, kinfolk, and again, at least three rounds. Speeds are medians over the rounds; a ratio is
the median of the ratios in each round, so that a machine that slows down slows both sides down. In
the JSON of each work:

    ratio, ratio_compiled   kinfolk's tokens a second over the peer's, plain and compiled
    ratio_slots             the same over all slots, empty ones too: `ratio` without the packing
    spread                  the first and the third quartile of `ratio` over the rounds
    sides                   of each: tokens_per_second; filled, the share of slots with something in
                            them; memory_gb, the peak of its steps with its own weights and
                            optimiser (CUDA); flops, 6 x parameters x tokens a second (T5's tokens
                            meet one of its two stacks); utilisation, of the device's published peak
    loss, grad_norm         what the check saw: [kinfolk, peer]
    loss_timed              of the first timed step, and of the plain float32 network
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from kinfolk import hub
from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs
from kinfolk.data.chunks import InMemoryDocuments, IntArray
from kinfolk.data.examples import pack, pad_rows
from kinfolk.errors import UserError
from kinfolk.families import bert as bert_file
from kinfolk.families import gpt2 as gpt2_file
from kinfolk.families import t5 as t5_file
from kinfolk.objectives.clm import CLM
from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.rng import Stream, generator
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep

SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=tuple(range(7, 107))
)
ORDINARY = 107  # the first id that is a word
SEED = 0
CLIP = 1.0
RATE = 1e-4
CHECKED = 4  # packed rows whose texts are compared before anything is timed
ROUNDS = 3  # at least
BLOCK = 0.5  # seconds, or one step where it takes longer
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # bfloat16, dense; NVIDIA's data sheets


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
    predictions: int  # what the peer's mean loss is taken over

    def to(self, device: torch.device) -> "Reading":
        """Move to a device."""
        return replace(self, arguments={k: v.to(device) for k, v in self.arguments.items()})


@dataclass(frozen=True, kw_only=True)
class Work:
    """A network, a way of learning, its peer, and how the peer is fed."""

    name: str
    presets: dict[str, Any]
    objective: type[Any]
    vocab: int
    rows: int  # on CUDA
    length: int  # on CUDA
    peer: str  # the class in transformers
    pad: Callable[[Sequence[Text]], Reading]  # a text a row
    join: Callable[[Sequence[Text], int, int], list[Reading]] | None = None  # or full rows
    met: Callable[[Any], float] = lambda peer: size(peer)  # parameters that one token goes through


def gpt2() -> Work:
    """Predict the next token; the peer's rows are full."""

    def pad(texts: Sequence[Text]) -> Reading:
        lines = [t.example for t in texts]
        # transformers shifts the labels itself, so a row ends with the last label.
        ids = [np.append(line.input_ids, line.labels[-1]) for line in lines]
        predictions = sum(len(line.input_ids) for line in lines)
        arguments = {
            "input_ids": beside(ids, SPECIALS.pad),
            "attention_mask": beside([np.ones_like(i) for i in ids], 0),
            "labels": beside(ids, IGNORE_INDEX),
        }
        return reading(arguments, texts, predictions)

    def join(texts: Sequence[Text], rows: int, length: int) -> list[Reading]:
        stream = np.concatenate([t.example.labels for t in texts])  # each ends with an end token
        whole = torch.from_numpy(stream[: len(stream) // length * length].reshape(-1, length))
        return [
            Reading(
                {"input_ids": ids, "labels": ids},
                tokens=int((ids >= ORDINARY).sum()),
                slots=ids.numel(),
                filled=ids.numel(),
                predictions=ids[:, 1:].numel(),
            )
            for ids in whole.split(rows)
            if len(ids) == rows
        ]

    return Work(
        name="gpt2",
        presets=gpt2_file.FAMILY.sizes,
        objective=CLM,
        vocab=50257,
        rows=32,
        length=1024,
        peer="GPT2LMHeadModel",
        pad=pad,
        join=join,
    )


def bert() -> Work:
    """Predict hidden words; the peer scores every slot and pads."""

    def pad(texts: Sequence[Text]) -> Reading:
        masked = [t.example for t in texts]
        labels = beside([m.labels for m in masked], IGNORE_INDEX)
        arguments = {
            "input_ids": beside([m.input_ids for m in masked], SPECIALS.pad),
            "attention_mask": beside([np.ones_like(m.input_ids) for m in masked], 0),
            "labels": labels,
        }
        return reading(arguments, texts, int((labels != IGNORE_INDEX).sum()))

    return Work(
        name="bert",
        presets=bert_file.FAMILY.sizes,
        objective=MLM,
        vocab=30522,
        rows=64,
        length=512,
        peer="BertForMaskedLM",
        pad=pad,
    )


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
        found = reading(arguments, texts, count)
        return replace(found, slots=found.slots + labels.numel(), filled=found.filled + count)

    return Work(
        name="t5",
        presets=t5_file.FAMILY.sizes,
        objective=SpanCorruption,
        vocab=32128,
        rows=64,
        length=512,
        peer="T5ForConditionalGeneration",
        pad=pad,
        # Of 100 tokens 15 are hidden in 5 spans: 90 slots in the encoder, 20 in the decoder.
        met=lambda peer: (
            0.9 * size(peer.encoder.block) + 0.2 * (size(peer.decoder.block) + size(peer.lm_head))
        ),
    )


WORKS: dict[str, Callable[[], Work]] = {"gpt2": gpt2, "bert": bert, "t5": t5}


def size(module: nn.Module) -> int:
    """Count parameters, shared ones once."""
    return sum(p.numel() for p in module.parameters())


def beside(arrays: Sequence[IntArray], fill: int) -> Tensor:
    """Lay arrays out a row each, padded to the longest."""
    return pad_rows([[a] for a in arrays], max(map(len, arrays)), fill)


def reading(arguments: dict[str, Tensor], texts: Sequence[Text], predictions: int) -> Reading:
    """Count what a padded batch holds."""
    mask = arguments["attention_mask"]
    tokens = sum(t.tokens for t in texts)
    return Reading(arguments, tokens, mask.numel(), int(mask.sum()), predictions)


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


def packed(objective: Any, texts: InMemoryDocuments, rows: int) -> list[list[list[Text]]]:
    """Pack texts as a feed does, and draw an example of each: texts by row by batch."""
    chunks = objective.chunks(texts)
    lengths = np.diff(texts.starts)
    assert len(chunks) == len(lengths), "every text fits a row"
    shelves = pack(chunks.sizes, objective.row_lengths)
    order = np.random.default_rng(SEED).permutation(len(shelves))
    filled = [
        [
            Text(
                objective.example(chunks[i], generator(SEED, Stream.EXAMPLE, 0, i)),
                int(lengths[chunks.document[i]]),
            )
            for i in shelves[int(row)].tolist()
        ]
        for row in order
    ]
    return [filled[i : i + rows] for i in range(0, len(filled) - rows + 1, rows)]


def readings(work: Work, texts: Sequence[Text], rows: int, length: int) -> list[Reading]:
    """Make the peer's batches of so many rows."""
    order = np.random.default_rng(SEED + 1).permutation(len(texts))
    shuffled = [texts[i] for i in order]
    if work.join is not None:
        return work.join(shuffled, rows, length)
    starts = range(0, len(shuffled) - rows + 1, rows)
    return [work.pad(shuffled[i : i + rows]) for i in starts]


class Side:
    """One way to run steps, over and over the same batches."""

    def __init__(
        self,
        name: str,
        step: Callable[[int], Tensor],
        *,
        tokens: Sequence[int],  # of each step, of which there are only so many different ones
        slots: int,  # of all of them
        filled: int,
        model: nn.Module,
        device: torch.device,
    ) -> None:
        self.name, self.step, self.tokens, self.device = name, step, tokens, device
        self.filled = filled / slots
        self.slots_per_token = slots / sum(tokens)
        self.weights = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
        self.done = 0
        self.pace = math.inf  # seconds a step
        self.speeds: list[float] = []  # of each round, in tokens a second
        self.memory = 0
        self.first = self.last = math.nan  # losses

    def warm_up(self) -> float:
        """See every shape there is on CUDA, where each is compiled; say how long it took."""
        start = time.perf_counter()
        self.run(1)
        self.first = self.last
        if self.device.type == "cuda":
            self.run(len(self.tokens))
            self.run(1)  # the pace of what is compiled
        return time.perf_counter() - start

    def run(self, steps: int) -> float:
        """Run steps and return their speed."""
        numbers = [(self.done + i) % len(self.tokens) for i in range(steps)]
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        start = time.perf_counter()
        for number in numbers:
            loss = self.step(number)
        if cuda:
            torch.cuda.synchronize()
        taken = time.perf_counter() - start
        if cuda:
            # Others' weights lie on the device too: count what the steps took, and one's own.
            peak = torch.cuda.max_memory_allocated() - held + self.weights
            self.memory = max(self.memory, peak)
        self.last = loss.item()
        self.done += steps
        self.pace = taken / steps
        return sum(self.tokens[i] for i in numbers) / taken

    def block(self) -> None:
        """Run a few steps, and note their speed."""
        self.speeds.append(self.run(max(1, round(BLOCK / self.pace))))

    def figures(self, flops: float, peak: float | None) -> dict[str, Any]:
        """Say what was measured; `flops` is of one token, `peak` what the device could do."""
        speed = statistics.median(self.speeds)
        return {
            "tokens_per_second": round(speed, 1),
            "filled": round(self.filled, 4),
            "tokens_per_step": round(statistics.mean(self.tokens)),
            "memory_gb": round(self.memory / 1e9, 2) if self.memory else None,
            "flops": float(f"{flops * speed:.4g}"),
            "utilisation": round(flops * speed / peak, 4) if peak else None,
            "last_loss": round(self.last, 4),
        }


def ours(
    model: nn.Module, objective: Any, batches: Sequence[list[list[Text]]], device: torch.device
) -> Side:
    """Run steps as pretraining does."""
    ready: list[Batch[Any]] = [collate(objective, rows).to(device) for rows in batches]
    learner = Learner(model, objective)
    cuda = device.type == "cuda"
    if cuda:
        learner.compile(dynamic=False)
    step = TrainStep(
        learner,
        adamw(model),
        lambda number: RATE,
        clip=CLIP,
        seed=SEED,
        device=device,
        bfloat16=cuda,
    )
    streams = [s for b in ready for s in (b.inputs, b.inputs.encoder_inputs) if s is not None]
    return Side(
        "kinfolk",
        lambda number: step(number, [ready[number]]).loss,
        tokens=[sum(t.tokens for row in rows for t in row) for rows in batches],
        slots=sum(s.input_ids.numel() for s in streams),
        filled=sum(occupied(s) for s in streams),
        model=model,
        device=device,
    )


def theirs(
    name: str,
    model: nn.Module,
    forward: Callable[..., Any],
    optimiser: torch.optim.Optimizer,
    groups: Sequence[Sequence[Reading]],
    device: torch.device,
) -> Side:
    """Run steps as a plain loop around transformers does; a group of batches is one update."""
    ready = [[r.to(device) for r in group] for group in groups]
    parameters = list(model.parameters())

    def step(number: int) -> Tensor:
        total = sum(r.predictions for r in ready[number])
        loss = torch.zeros((), device=device)
        for r in ready[number]:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                mean = forward(**r.arguments).loss * (r.predictions / total)
            mean.backward()
            loss += mean.detach()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    return Side(
        name,
        step,
        tokens=[sum(r.tokens for r in group) for group in groups],
        slots=sum(r.slots for group in groups for r in group),
        filled=sum(r.filled for group in groups for r in group),
        model=model,
        device=device,
    )


def collate(objective: Any, rows: Sequence[Sequence[Text]]) -> Batch[Any]:
    """Lay rows of texts out as kinfolk reads them."""
    found: Batch[Any] = objective.collate([[t.example for t in row] for row in rows])
    return found


def occupied(stream: Inputs) -> int:
    """Count the slots that hold something."""
    return int((stream.attention_mask.document_ids != PADDING_ID).sum())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of both sides."""
    train = TrainConfig(optimizer="adamw", lr=RATE, weight_decay=0.01, betas=(0.9, 0.98), eps=1e-8)
    return build_optimizer(model, train)


def open_peer(work: Work, model: Any) -> Any:
    """Hand the weights over to transformers, through a model folder."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        hub.save(Path(folder), model, None)
        peer = getattr(transformers, work.peer).from_pretrained(folder)
    peer.config.use_cache = False  # nothing is generated: a cache would only slow the peer down
    return peer.train()


def norm(model: nn.Module) -> float:
    """Return the norm of the gradient, and empty it."""
    found = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf).item()
    model.zero_grad(set_to_none=True)
    return float(found)


def check(
    work: Work, model: nn.Module, peer: Any, objective: Any, rows: list[list[Text]]
) -> dict[str, list[float]]:
    """Compare losses and gradients of both sides on the same texts.

    In float64: T5's fresh weights turn float32's rounding into half a percent of the gradient.
    """
    device = next(model.parameters()).device
    for side in (model, peer):
        side.double()
    batch = collate(objective, rows[:CHECKED]).to(device)
    loss = objective.loss(model, batch).mean(batch.counts)
    loss.backward()
    texts = [t for row in rows[:CHECKED] for t in row]
    padded = [work.pad(texts[i : i + 8]).to(device) for i in range(0, len(texts), 8)]
    predictions = sum(r.predictions for r in padded)
    assert predictions == batch.counts[objective.loss_name], "both sides predict the same tokens"
    said = 0.0
    for r in padded:
        part = peer(**r.arguments).loss * (r.predictions / predictions)
        part.backward()
        said += part.item()
    losses, norms = [loss.item(), said], [norm(model), norm(peer)]
    for side in (model, peer):
        side.float()
    if abs(losses[0] - losses[1]) > 1e-3 or abs(norms[0] / norms[1] - 1) > 1e-3:
        raise SystemExit(
            f"{work.name}: the two sides do not compute the same: loss {losses}, norm {norms}"
        )
    return {"loss": losses, "grad_norm": norms}


@torch.no_grad()
def plain_loss(model: nn.Module, objective: Any, rows: list[list[Text]]) -> float:
    """Return the loss of a whole batch, in float32, nothing compiled."""
    batch = collate(objective, rows).to(next(model.parameters()).device)
    return float(objective.loss(model, batch).mean(batch.counts))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a work is measured."""

    size: str
    vocab: int | None  # None is the work's own
    rows: int | None
    length: int | None
    device: torch.device
    seconds: float  # of measuring, all sides together
    pool: int  # batches that are made, and run through over and over
    compiled: bool  # the peer too


def measure(work: Work, s: Settings) -> dict[str, Any]:
    """Check that both sides do the same work, then time them in turn."""
    began = time.perf_counter()
    rows, length, vocab = s.rows or work.rows, s.length or work.length, s.vocab or work.vocab
    objective = work.objective(special_tokens=SPECIALS, vocab_size=vocab, max_length=length)
    # A text and what is put around it fits a row, so that none is cut.
    enough = int(1.25 * s.pool * rows * length) + rows * length
    texts = documents(enough, longest=length - 2, vocab=vocab)
    batches = packed(objective, texts, rows)[: s.pool]
    assert len(batches) == s.pool, "there were too few texts"

    torch.manual_seed(SEED)
    model = shaped(work, s.size, vocab, length).build()
    peer = open_peer(work, model).to(s.device)
    model.to(s.device).train()
    checked = check(work, model, peer, objective, batches[0])
    plain = plain_loss(model, objective, batches[0])

    kinfolk = ours(model, objective, batches, s.device)
    single = readings(work, [t for batch in batches for row in batch for t in row], rows, length)
    # As many tokens to an update on both sides.
    wanted = statistics.mean(kinfolk.tokens) / statistics.mean(r.tokens for r in single)
    together = min(max(1, round(wanted)), len(single))
    groups = [single[i : i + together] for i in range(0, len(single) - together + 1, together)]
    update = adamw(peer)
    sides = [theirs("peer", peer, peer, update, groups, s.device)]
    if s.compiled and s.device.type == "cuda":
        compiled = torch.compile(peer)
        sides.append(theirs("peer_compiled", peer, compiled, update, groups, s.device))
    sides.append(kinfolk)

    warm = {side.name: round(side.warm_up(), 1) for side in sides}
    if abs(kinfolk.first / plain - 1) > 0.01:
        raise SystemExit(
            f"{work.name}: the first timed step has a loss of {kinfolk.first}, "
            f"and the plain float32 network one of {plain} on the same batch"
        )
    start = time.perf_counter()
    while len(kinfolk.speeds) < ROUNDS or time.perf_counter() - start < s.seconds:
        for side in sides:
            side.block()
    for side in sides:
        if not math.isfinite(side.last):
            raise SystemExit(f"{work.name}: the loss of {side.name} is {side.last}")

    ratios = [a / b for a, b in zip(kinfolk.speeds, sides[0].speeds, strict=True)]
    slots = kinfolk.slots_per_token / sides[0].slots_per_token
    flops, peak = 6 * work.met(peer), device_peak(s.device)
    found: dict[str, Any] = {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_compiled": None,
        "ratio_slots": round(statistics.median(ratios) * slots, 3),
        "spread": [round(float(q), 3) for q in np.quantile(ratios, [0.25, 0.75])],
        "rounds": len(ratios),
        "sides": {side.name: side.figures(flops, peak) for side in sides},
        **checked,
        "loss_timed": [kinfolk.first, plain],
        "peer_class": work.peer,
        "peer_attention": peer.config._attn_implementation,
        "accumulate": together,  # the peer's batches to an update
        "size": s.size,
        "parameters": size(peer),
        "vocab": vocab,
        "rows": rows,
        "length": length,
        "warm_up_seconds": warm,
        "seconds": round(time.perf_counter() - began, 1),
    }
    if len(sides) == 3:
        pairs = zip(kinfolk.speeds, sides[1].speeds, strict=True)
        found["ratio_compiled"] = round(statistics.median(a / b for a, b in pairs), 3)
    return found


def shaped(work: Work, name: str, vocab: int, length: int) -> Any:
    """Return a preset with this vocabulary, rows of this length, and no dropout."""
    if name not in work.presets:
        raise UserError(f"{work.name} has no size {name!r}: choose from {', '.join(work.presets)}")
    config = work.presets[name]
    sizes = {"vocab_size": vocab, "max_length": length, "dropout": 0.0, "attention_dropout": 0.0}
    return config.with_fields(**sizes)


def device_peak(device: torch.device) -> float | None:
    """Return the operations a second that the maker promises, where we know them."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def table(name: str, found: dict[str, Any]) -> str:
    """Write the figures of one work for a reader."""
    (loss, peer_loss), (grad, peer_grad) = found["loss"], found["grad_norm"]
    lines = [
        f"{name} {found['size']}: {found['parameters'] / 1e6:.1f} M parameters, vocabulary "
        f"{found['vocab']}, {found['rows']} rows of {found['length']}; peer {found['peer_class']} "
        f"({found['peer_attention']}), {found['accumulate']} of its batches to an update",
        f"  same work: loss {loss:.5f} and {peer_loss:.5f}, "
        f"gradient {grad:.5f} and {peer_grad:.5f}",
        f"  {'':14}{'tokens/s':>12}{'filled':>9}{'memory':>10}{'FLOP/s':>10}{'of peak':>9}",
    ]
    for side, f in found["sides"].items():
        memory = f"{f['memory_gb']:.1f} GB" if f["memory_gb"] else "-"
        share = f"{f['utilisation']:.1%}" if f["utilisation"] else "-"
        lines.append(
            f"  {side:14}{f['tokens_per_second']:12,.0f}{f['filled']:9.1%}{memory:>10}"
            f"{f['flops']:10.2e}{share:>9}"
        )
    low, high = found["spread"]
    line = (
        f"  kinfolk / peer {found['ratio']:.2f} ({low:.2f} to {high:.2f}, {found['rounds']} rounds)"
    )
    if found["ratio_compiled"] is not None:
        line += f", / peer compiled {found['ratio_compiled']:.2f}"
    lines.append(line + f", by slots {found['ratio_slots']:.2f}; {found['seconds']:.0f} s in all")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Read the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", choices=WORKS, help="one work")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--size", help="a preset; mini on the CPU, base on CUDA")
    parser.add_argument("--vocab", type=int, help="8192 on the CPU, the published one on CUDA")
    parser.add_argument("--batch", type=int, help="rows; 16 on the CPU, 32 or 64 on CUDA")
    parser.add_argument("--length", type=int, help="of a row; 128 on the CPU, 512 or 1024 on CUDA")
    parser.add_argument("--seconds", type=float, help="of measuring a work; 15, 8 on CUDA")
    parser.add_argument("--pool", type=int, default=8, help="batches that are run through")
    parser.add_argument("--plain", action="store_true", help="do not compile the peer on CUDA")
    told = parser.parse_args(arguments)
    cuda = torch.cuda.is_available() if told.device == "auto" else told.device == "cuda"
    if cuda and not torch.cuda.is_available():
        parser.error("this machine has no CUDA device that torch can use: use --device cpu")
    settings = Settings(
        size=told.size or ("base" if cuda else "mini"),
        vocab=told.vocab or (None if cuda else 8192),
        rows=told.batch or (None if cuda else 16),
        length=told.length or (None if cuda else 128),
        device=torch.device("cuda" if cuda else "cpu"),
        seconds=(8 if cuda else 15) if told.seconds is None else told.seconds,
        pool=told.pool,
        compiled=not told.plain,
    )
    works: dict[str, dict[str, Any]] = {}
    for name in [told.only] if told.only else WORKS:
        works[name] = measure(WORKS[name](), settings)
        print(table(name, works[name]), flush=True)
        if cuda:
            torch.compiler.reset()
            torch.cuda.empty_cache()
    where = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "precision": "bfloat16" if cuda else "float32",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if told.only:
        found = {"work": told.only, **works[told.only], **where}
    else:
        slowest = min(works, key=lambda name: float(works[name]["ratio"]))
        compiled = [w["ratio_compiled"] for w in works.values() if w["ratio_compiled"] is not None]
        found = {
            "ratio": works[slowest]["ratio"],
            "ratio_compiled": min(compiled, default=None),
            "slowest": slowest,
            **works,
            **where,
        }
    if told.json:
        print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
