"""What fine-tuning starts from: a saved model, or a network with fresh weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kinfolk.errors import UserError
from kinfolk.families import check_name, family
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes.opening import find_model_folder, load, load_tokenizer
from kinfolk.recipes.tuning import row_text
from kinfolk.tasks.rows import (
    CompletionRow,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    SourceTarget,
)
from kinfolk.text import vocabulary
from kinfolk.text.tokenizer import Tokenizer

VOCAB = 8192  # of a tokenizer that is learned from the labelled text itself


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """A folder, or the name of a network whose weights are fresh."""

    folder: str = ""  # of a saved model
    name: str = ""  # or member/size
    tokenizer: str = ""  # of a network that is named
    from_scratch: bool = False  # forget the weights of the folder
    seed: int = 0

    @property
    def fresh(self) -> bool:
        """Whether the weights are drawn here."""
        return self.from_scratch or not self.folder

    def open(self, rows: Sequence[Sequence[Any]]) -> tuple[Any, Tokenizer]:
        """Return the network and its tokenizer; one may be learned from the rows."""
        if self.folder:
            model, tokenizer = load(self.folder)
            body: Any = model.backbone if isinstance(model, ModelWithHead) else model
            if self.from_scratch:
                torch.manual_seed(self.seed)
                body = body.config.build()
            return body, tokenizer
        tokenizer = self.open_tokenizer(rows)
        torch.manual_seed(self.seed)
        return self.config(tokenizer).build(), tokenizer

    def open_tokenizer(self, rows: Sequence[Sequence[Any]]) -> Tokenizer:
        """Open the tokenizer, or learn one from the texts."""
        if self.tokenizer:
            return load_tokenizer(self.tokenizer)
        texts = [text for some in rows for row in some for text in (row_text(row), *row_texts(row))]
        return vocabulary.train_tokenizer(
            iter(texts), kind="wordpiece", vocab_size=VOCAB, fewer=True
        )

    def config(self, tokenizer: Tokenizer) -> Any:
        """Return the network that is named."""
        name, _, size = self.name.partition("/")
        config = family(name).config(size or "tiny")
        return config.with_fields(
            vocab_size=tokenizer.vocab_size,
            decoder_start_token_id=tokenizer.special_tokens.pad,
            padding_idx=tokenizer.special_tokens.pad,
        )


def row_texts(row: Any) -> tuple[str, ...]:
    """Return the other texts of a row: what may have to be written about the first."""
    match row:
        case LabelledText(label=str(label)):
            return (label,)
        case MultipleChoiceRow(options=options, question=question):
            return question, *options
        case QuestionRow(question=question):
            return (question,)
        case CompletionRow(target=target, options=options):
            return *(options or ()), target or ""
        case SourceTarget(target=str(target)):
            return (target,)
    return ()


def parse_initial_weights(
    model: str, *, tokenizer: Path | None = None, scratch: bool = False, seed: int = 0
) -> InitialWeights:
    """Tell a folder from a name."""
    wanted = "" if tokenizer is None else str(tokenizer)
    if Path(model).exists():
        if wanted:
            raise UserError(f"{model} has its own tokenizer: leave --tokenizer out")
        return InitialWeights(
            folder=str(find_model_folder(model).resolve()), from_scratch=scratch, seed=seed
        )
    check_name(model)
    return InitialWeights(name=model, tokenizer=wanted, seed=seed)
