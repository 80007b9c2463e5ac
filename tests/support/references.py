"""Every member that writes, tiny and in double precision, and how each scores without a state."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.families.glm import GLMConfig
from kinfolk.families.gpt import GPTConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.gpt3 import GPT3Config
from kinfolk.families.ngram import NGram
from kinfolk.families.t5 import T5Config
from kinfolk.families.transformer import TransformerConfig
from kinfolk.families.transformer_xl import TransformerXLConfig
from kinfolk.families.xlnet import XLNetConfig
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.sampling import sample_next_ids
from kinfolk.rng import uniforms
from kinfolk.workflows.baselines import fit_documents
from support.decoding import asked

VOCAB = 23
ENDS = frozenset({1, 5, 9})  # enough for texts to end at different lengths
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
NAMES = (
    "gpt",
    "gpt2",
    "gpt3",
    "glm",
    "t5",
    "transformer",
    "transformer_xl",
    "xlnet",
    "ngram",
)
PROMPTS = ((3, 4, 6, 7, 8, 10, 11), (12,), (20, 21, 22), (3, 4))
SOURCES = ((9, 8, 7, 1), (12, 1), (2, 6, 7, 8, 9, 10, 11, 1), (20, 21, 1))
# How large the weights of each are, and the seed they are drawn by: its texts have much in them.
WEIGHTS = {
    "gpt": (0.4, 2),
    "gpt2": (0.4, 1),
    "gpt3": (0.8, 1),
    "glm": (0.4, 2),
    "t5": (0.4, 3),
    "transformer": (1.2, 1),
    "transformer_xl": (0.8, 5),
    "xlnet": (0.4, 5),
}
# What GLM reads, where it writes, and one blank that is filled already.
BLANKED = ((10, 6, 2), (11, 12, 13, 6, 2), (4, 20, 21, 6, 2, 14, 15, 2), (6, 2))
BLANKS = (((1, 1),), ((3, 1),), ((0, 3), (3, 1)), ((0, 1),))


@dataclass(frozen=True, eq=False, repr=False)
class Scribe:
    """A member with prompts that it can go on with."""

    name: str
    model: Any
    prompts: Sequence[Sequence[int]] = PROMPTS
    sources: Sequence[Sequence[int]] | None = None
    blanks: Sequence[Sequence[tuple[int, int]]] | None = None
    known: dict[tuple[int, tuple[int, ...]], Tensor] = field(default_factory=dict)

    def request(self, *only: int, **wants: Any) -> GenerationRequest:
        """Ask for texts after some of the prompts, or after all."""
        rows = only or tuple(range(len(self.prompts)))
        sources = None if self.sources is None else [self.sources[row] for row in rows]
        blanks = None if self.blanks is None else [self.blanks[row] for row in rows]
        prompts = [self.prompts[row] for row in rows]
        given: dict[str, Any] = {"max_new_tokens": 9, "eos_ids": ENDS, "first": rows[0]} | wants
        return asked(prompts, encoder_ids=sources, blanks=blanks, **given)

    def turned(self, order: Sequence[int] = (3, 2, 1, 0)) -> "Scribe":
        """Put the prompts in another order."""
        return replace(
            self,
            prompts=[self.prompts[row] for row in order],
            sources=self.sources and [self.sources[row] for row in order],
            blanks=self.blanks and [self.blanks[row] for row in order],
            known={},
        )

    def scores(self, number: int, written: Sequence[int]) -> Tensor:
        """Score what comes after a prompt and what was written, by a pass over all of it."""
        key = (number, tuple(written))
        if key not in self.known:
            with torch.no_grad():
                hidden = self.hidden(number, written)
                self.known[key] = self.model.lm_logits(hidden[0, -1:]).logits()[0].float()
        return self.known[key]

    def hidden(self, number: int, written: Sequence[int]) -> Tensor:
        """Return what the model makes of a prompt and what was written: (1, length, width)."""
        ids = torch.tensor([[*self.prompts[number], *written]])
        if self.name == "transformer_xl":
            return self.remembered(ids, len(written))
        found: Tensor = self.model(self.laid(number, ids, len(written))).hidden
        return found

    def laid(self, number: int, ids: Tensor, written: int) -> Inputs:
        """Lay one text out by hand."""
        if self.blanks is not None:
            return blanked(ids, self.blanks[number], written)
        if self.name == "xlnet":  # any token at all stands where one is asked for
            asked = Inputs.from_ids(torch.cat([ids, ids[:, :1]], dim=1), causal=True)
            last = torch.tensor([[ids.shape[1]]])
            return replace(
                asked, token_type_ids=torch.zeros_like(asked.input_ids), target_positions=last
            )
        source = None
        if self.sources is not None:
            source = Inputs.from_ids(torch.tensor([self.sources[number]]), causal=False)
        return Inputs.from_ids(ids, causal=True, encoder_inputs=source)

    def remembered(self, ids: Tensor, written: int) -> Tensor:
        """Read the prompt as one row and every token after it as another, with a memory."""
        memory, begin = self.model.init_memory(1), ids.shape[1] - written
        whole, rows = Inputs.from_ids(ids, causal=True), []
        for start, stop in [(0, begin), *((n, n + 1) for n in range(begin, ids.shape[1]))]:
            document, time = (
                x[:, start:stop]
                for x in (whole.attention_mask.document_ids, whole.attention_mask.key_order)
            )
            row = Inputs(
                input_ids=ids[:, start:stop],
                attention_mask=AttentionMask(document, time, time),
                position_ids=time,
                memory=memory,
            )
            output = self.model(row)
            rows.append(output.hidden)
            memory = output.memory
        return torch.cat(rows, dim=1)

    def slowly(
        self, number: int, sampling: GenerationConfig, *, tokens: int = 9, seed: int = 0
    ) -> tuple[list[int], list[float]]:
        """Write one text by a whole pass a token; return its ids and their log-probabilities."""
        chances, ids, costs = (
            torch.from_numpy(uniforms(seed, [number], tokens)),
            list[int](),
            list[float](),
        )
        for token in range(tokens):
            scores = self.scores(number, ids)
            id = int(sample_next_ids(scores[None], sampling, chances[:, token]))
            if id in ENDS:
                break
            ids.append(id)
            costs.append(float(scores.log_softmax(-1)[id]))
        return ids, costs


def blanked(ids: Tensor, blanks: Sequence[tuple[int, int]], written: int) -> Inputs:
    """Lay out a text, and behind it its blanks, the last of which goes on."""
    spans = [size + (written if n + 1 == len(blanks) else 0) for n, (_, size) in enumerate(blanks)]
    text = ids.shape[1] - sum(spans)
    places, within = list(range(text)), [0] * text
    for (place, _), size in zip(blanks, spans, strict=True):
        places += [place] * size
        within += range(1, size + 1)
    time = [max(0, slot - text + 1) for slot in range(ids.shape[1])]
    rows = [torch.tensor([line]) for line in (places, within, time)]
    attention_mask = AttentionMask(torch.zeros_like(rows[2]), rows[2], rows[2])
    return Inputs(
        input_ids=ids,
        attention_mask=attention_mask,
        position_ids=rows[0],
        block_position_ids=rows[1],
    )


def scribe(name: str, *, context: int = 40, scale: float | None = None) -> Scribe:
    """Build a member whose weights are large enough to have opinions."""
    if name == "ngram":
        return Scribe(name, counts())
    placed = SIZES | {"max_length": context}
    configs: dict[str, Any] = {
        "gpt": lambda: GPTConfig(**placed),
        "gpt2": lambda: GPT2Config(**placed),
        "gpt3": lambda: GPT3Config(**placed, attention_window=3),
        "glm": lambda: GLMConfig(**placed),
        "t5": lambda: T5Config(**SIZES, num_buckets=8, max_distance=12),
        "transformer": lambda: TransformerConfig(**SIZES),
        "transformer_xl": lambda: TransformerXLConfig(**SIZES, mem_len=4, cutoffs=(), div_val=1),
        "xlnet": lambda: XLNetConfig(**SIZES),
    }
    torch.manual_seed(0)  # what is not drawn anew below starts by chance
    usual, seed = WEIGHTS[name]
    model = stirred(configs[name]().build(), scale or usual, seed).double().eval()
    if name in ("t5", "transformer"):
        return Scribe(name, model, prompts=((0,), (0, 3), (0,), (0, 4, 6)), sources=SOURCES)
    if name == "glm":
        return Scribe(name, model, prompts=BLANKED, blanks=BLANKS)
    return Scribe(name, model)


@torch.no_grad()
def stirred(model: nn.Module, scale: float, seed: int) -> nn.Module:
    """Draw every matrix anew and move all else, so that the best token changes with the place."""
    draws = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        drawn = scale * torch.randn(weight.shape, generator=draws)
        if weight.dim() > 1:
            weight.copy_(drawn)
        else:
            weight.add_(drawn / 2)
    return model


def counts() -> NGram:
    """Count the grams of a few texts with much in common."""
    draws = np.random.default_rng(4)
    texts = [draws.zipf(1.3, draws.integers(3, 9)).clip(max=VOCAB - 2) + 1 for _ in range(40)]
    return fit_documents(texts, vocab_size=VOCAB, order=3, bos=0, eos=1)


def method_name(method: GenerationConfig) -> str:
    """Name a method after what it was told."""
    told = {k: v for k, v in vars(method).items() if v != getattr(type(method)(), k)}
    return type(method).__name__ + "".join(f"-{k}-{v}" for k, v in told.items())
