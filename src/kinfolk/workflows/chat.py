"""A text that a person and a model write in turns."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.sampling import Sampling
from kinfolk.text import Tokenizer
from kinfolk.workflows.generate import stream_text


class ChatSession:
    """All that was said so far is the prompt; where it is too long, its beginning is forgotten."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        sampling: Sampling = Sampling(),
        tokens: int = 100,  # of an answer, at most
        seed: int = 0,
    ) -> None:
        self.model, self.tokenizer, self.sampling = model, tokenizer, sampling
        self.wishes = GenerationConfig(max_new_tokens=tokens, seed=seed, truncate_left=True)
        self.context: int | None = model.config.max_length
        self.reset()

    def reset(self) -> None:
        """Forget all that was said."""
        self.said, self.num_turns, self.truncated = "", 0, False

    def seed(self, seed: int) -> None:
        """Let chance follow from another seed, as if nothing had been drawn yet."""
        self.wishes, self.num_turns = replace(self.wishes, seed=seed), 0

    def answer(self, line: str) -> Iterator[str]:
        """Return what the model says to a line, piece by piece; to an empty one, it goes on."""
        prompt = self.said + line if line else self.said.removesuffix("\n")
        wishes = self.wishes
        if self.context is not None:  # half of it is for what was said
            wishes = replace(
                wishes, max_new_tokens=min(wishes.max_new_tokens, max(1, self.context // 2))
            )
        asked, over = wishes.encode(self.model, self.tokenizer, prompt)
        self.truncated |= over > 0
        chunks = stream_text(
            self.model, self.tokenizer, asked, wishes, self.sampling, number=self.num_turns
        )
        first = next(chunks, "")  # a mistake shows itself here, before anything is remembered
        return self._record(prompt, chain([first], chunks))

    def _record(self, prompt: str, chunks: Iterator[str]) -> Iterator[str]:
        """Keep what is said, also where it is broken off."""
        self.said = prompt
        try:
            for chunk in chunks:
                self.said += chunk
                yield chunk
        finally:
            self.said += "\n"
            self.num_turns += 1
