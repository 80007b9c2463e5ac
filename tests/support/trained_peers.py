"""Networks of transformers that write: tiny ones with random weights, and trained ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.decode import GeneratedSequence
from kinfolk.hub import load_model
from support.decoding import Rules, write

VOCAB, END = 50, 1
ENDS = frozenset({END, *range(40, 46)})  # enough for the texts of random weights to end
PROMPTS = [[3, 4, 5, 6, 7], [20], [8, 10], [30, 33, 36]]
SOURCES = [[9, 8, 7, END], [30, END], [5, 6, 7, 8, 9, 10, 11, END], [20, 21, END]]
KINDS: dict[str, tuple[Any, Any]] = {
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "gpt": (OpenAIGPTConfig, OpenAIGPTLMHeadModel),
}


def random(name: str) -> Any:
    """Build a tiny network whose weights are large enough to have opinions."""
    torch.manual_seed(1)
    if name.startswith("t5"):
        sizes: dict[str, Any] = {
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 2,
        }
        bend = {"t5": "relu", "t5-gated": "gated-gelu"}[name]
        config: Any = T5Config(
            vocab_size=VOCAB, decoder_start_token_id=0, feed_forward_proj=bend, **sizes
        )
        model: Any = T5ForConditionalGeneration(config)
    else:
        configure, build = KINDS[name]
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40}
        model = build(configure(vocab_size=VOCAB, bos_token_id=END, eos_token_id=END, **sizes))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.25)
    return model.eval()


def trained(name: str, steps: int = 100) -> Any:
    """Teach a tiny network to count on from a prompt, or from a source, to an end."""
    model = random(name)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.08)
    learn = torch.optim.Adam(model.parameters(), lr=1e-2)
    draws = torch.Generator().manual_seed(0)
    for _ in range(steps):
        if name.startswith("t5"):
            rows = counting(draws)
            source = torch.cat([rows[:, :1], torch.full_like(rows[:, :1], END)], dim=1)
            loss = model(source, labels=rows[:, 1:].masked_fill(rows[:, 1:] == 0, -100)).loss
        else:
            rows = counting(draws)
            logits = model(rows).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=0)
        learn.zero_grad()
        loss.backward()
        learn.step()
    return model.eval()


def counting(draws: torch.Generator, rows: int = 24, length: int = 10) -> Tensor:
    """Draw texts that count from 2 to 39, now and then leaving one out, and end in the middle."""
    first = torch.randint(2, 39, (rows, 1), generator=draws)
    missed = (torch.rand(rows, length, generator=draws) < 0.15).cumsum(1)
    ids = first + torch.arange(length) + missed
    stop = (ids > 39) | ((ids % 8 == 0) & (torch.rand(rows, length, generator=draws) < 0.5))
    stop[:, 0] = False
    over = stop.cumsum(1)
    ended = over.roll(1, 1).masked_fill(torch.arange(length) == 0, 0) > 0
    return ids.masked_fill(stop, END).masked_fill(ended, 0)


@dataclass(frozen=True, eq=False)
class Pair:
    """One network twice: as transformers has it, and as we read it from its folder."""

    name: str
    theirs: Any
    ours: Any

    @classmethod
    def make(cls, name: str, folder: Path, *, learned: bool) -> "Pair":
        """Save the one and load the other."""
        theirs = trained(name) if learned else random(name)
        theirs.save_pretrained(folder)
        return cls(name, theirs, load_model(folder))

    @property
    def reads(self) -> bool:
        """Say whether it has an encoder."""
        return self.name.startswith("t5")

    @property
    def texts(self) -> list[list[int]]:
        """What each text goes on from."""
        return SOURCES if self.reads else PROMPTS

    def write(
        self, method: GenerationConfig, rules: Rules, **wants: Any
    ) -> list[GeneratedSequence]:
        """Write all texts together, by kinfolk."""
        prompts = [[0]] * len(SOURCES) if self.reads else PROMPTS
        sources = SOURCES if self.reads else None
        ends = {"eos_ids": ENDS} | wants
        return write(
            self.ours, prompts, method=method, constraints=rules, encoder_ids=sources, **ends
        )

    def generate(self, texts: Sequence[Sequence[int]], **options: Any) -> Any:
        """Write by transformers; return its answer, and the texts without their ends."""
        longest, left = max(map(len, texts)), not self.reads
        rows, masks = [], []
        for text in texts:
            ids, padding = list(text), [0] * (longest - len(text))
            ones = [1] * len(ids)
            rows.append(padding + ids if left else ids + padding)
            masks.append(padding + ones if left else ones + padding)
        given = {"do_sample": False, "pad_token_id": 0, "eos_token_id": sorted(ENDS)} | options
        out = self.theirs.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(masks),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **given,
        )
        begin = 1 if self.reads else longest
        return out, [whole(row) for row in out.sequences[:, begin:].tolist()]


def whole(row: Sequence[int]) -> list[int]:
    """Leave out the end of a text and what comes after it."""
    stop = next((place for place, id in enumerate(row) if id in ENDS), len(row))
    return list(row[:stop])
