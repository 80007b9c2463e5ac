"""A conversation: a text that a user and a model continue in turns."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.generate import stream_text
from kinfolk.generation.prompts import encode_prompt
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import Tokenizer


class ChatSession:
    """The whole conversation is the prompt; its beginning is dropped when it is too long."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        config: GenerationConfig = GenerationConfig(),
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config = replace(config, truncate_left=True)
        self.context: int | None = model.config.max_length
        self.reset()

    def reset(self) -> None:
        """Clear the conversation."""
        self.transcript, self.num_turns, self.truncated = "", 0, False

    def set(self, **options: Any) -> None:
        """Change settings; a new seed starts its random numbers from the first turn."""
        self.config = replace(self.config, **options)
        if "seed" in options:
            self.num_turns = 0

    def answer(self, line: str) -> Iterator[str]:
        """Return the reply to a line, chunk by chunk; an empty line continues the last reply."""
        prompt = self.transcript + line if line else self.transcript.removesuffix("\n")
        config = self.config
        if self.context is not None:  # half of the context is for the conversation
            limit = max(1, self.context // 2)
            config = replace(config, max_new_tokens=min(config.max_new_tokens, limit))
        encoded, dropped = encode_prompt(self.model, self.tokenizer, prompt, config)
        self.truncated |= dropped > 0
        chunks = stream_text(self.model, self.tokenizer, encoded, config, index=self.num_turns)
        first = next(chunks, "")  # an error is raised here, before the transcript changes
        return self._record(prompt, chain([first], chunks))

    def _record(self, prompt: str, chunks: Iterator[str]) -> Iterator[str]:
        """Add the reply to the transcript, also where it is interrupted."""
        self.transcript = prompt
        try:
            for chunk in chunks:
                self.transcript += chunk
                yield chunk
        finally:
            self.transcript += "\n"
            self.num_turns += 1
