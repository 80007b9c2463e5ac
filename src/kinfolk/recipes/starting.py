"""What fine-tuning starts from: a saved model, or a network with fresh weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.nn import bilstm
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes.catalogue import member, members
from kinfolk.recipes.opening import load, model_folder, tokenizer_of
from kinfolk.recipes.tuning import sample
from kinfolk.tasks.rows import Asked, Choice, Completion, Labelled, Written
from kinfolk.text import vocabulary
from kinfolk.text.tokenizer import Tokenizer

VOCAB = 8192  # of a tokenizer that is learned from the labelled text itself
BASELINE = "bilstm"


@dataclass(frozen=True, kw_only=True)
class Start:
    """A folder, or the name of a network whose weights are fresh."""

    folder: str = ""  # of a saved model
    name: str = ""  # or member/size
    tokenizer: str = ""  # of a network that is named
    scratch: bool = False  # forget the weights of the folder
    seed: int = 0

    @property
    def fresh(self) -> bool:
        """Whether the weights are drawn here."""
        return self.scratch or not self.folder

    def open(self, rows: Sequence[Sequence[Any]]) -> tuple[Any, Tokenizer]:
        """Return the network and its tokenizer; one may be learned from the rows."""
        if self.folder:
            model, tokenizer = load(self.folder)
            body: Any = model.backbone if isinstance(model, ModelWithHead) else model
            if self.scratch:
                torch.manual_seed(self.seed)
                body = body.config.build()
            return body, tokenizer
        tokenizer = self.words(rows)
        torch.manual_seed(self.seed)
        return self.config(tokenizer).build(), tokenizer

    def words(self, rows: Sequence[Sequence[Any]]) -> Tokenizer:
        """Open the tokenizer, or learn one from the texts."""
        if self.tokenizer:
            return tokenizer_of(self.tokenizer)
        texts = [text for some in rows for row in some for text in (sample(row), *said(row))]
        return vocabulary.train(iter(texts), kind="wordpiece", vocab=VOCAB, fewer=True)

    def config(self, tokenizer: Tokenizer) -> Any:
        """Return the network that is named."""
        family, _, size = self.name.partition("/")
        size = size or "tiny"
        if family == BASELINE:
            if size not in bilstm.SIZES:
                raise UserError(
                    f"{BASELINE} has no size {size!r}: {did_you_mean(size, [*bilstm.SIZES])}"
                )
            config: Any = bilstm.SIZES[size]
        else:
            config = member(family).config(size)
        return config.with_fields(
            vocab_size=tokenizer.vocab,
            decoder_start_token_id=tokenizer.specials.pad,
            padding_idx=tokenizer.specials.pad,
        )


def said(row: Any) -> tuple[str, ...]:
    """Return the other texts of a row: what may have to be written about the first."""
    match row:
        case Labelled(label=str(label)):
            return (label,)
        case Choice(options=options, question=question):
            return question, *options
        case Asked(question=question):
            return (question,)
        case Completion(target=target, options=options):
            return *(options or ()), target or ""
        case Written(target=str(target)):
            return (target,)
    return ()


def started(
    model: str, *, tokenizer: Path | None = None, scratch: bool = False, seed: int = 0
) -> Start:
    """Tell a folder from a name."""
    wanted = "" if tokenizer is None else str(tokenizer)
    family = model.partition("/")[0]
    if Path(model).exists():
        if wanted:
            raise UserError(f"{model} has its own tokenizer: leave --tokenizer out")
        return Start(folder=str(model_folder(model).resolve()), scratch=scratch, seed=seed)
    if family == BASELINE or family in members():
        return Start(name=model, tokenizer=wanted, seed=seed)
    names = [BASELINE, *members()]
    raise UserError(
        f"{model} is neither a folder nor a member of the family: {did_you_mean(family, names)}"
    )
