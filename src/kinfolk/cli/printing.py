"""How `generate` prints what is written: as it comes, as a whole, or for a program to read."""

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from kinfolk.cli.app import print_json
from kinfolk.data.documents import read_jsonl
from kinfolk.data.files import STDIN, open_input
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.methods import DecodingMethod
from kinfolk.text import Tokenizer
from kinfolk.workflows.generate import (
    GeneratedText,
    build_prompt,
    check,
    generate_batched,
    generate_many,
    stream_text,
)


class Printer:
    """A model that writes, and the form in which its texts are printed."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        wishes: GenerationConfig,
        method: DecodingMethod,
        *,
        json: bool,
        logprobs: bool,
    ) -> None:
        self.model, self.tokenizer, self.wishes, self.method = model, tokenizer, wishes, method
        self.json, self.logprobs = json, logprobs

    def stream(self, prompt: str) -> None:
        """Print a text as it comes."""
        asked = build_prompt(self.model, self.tokenizer, prompt, self.wishes)
        chunks = stream_text(self.model, self.tokenizer, asked, self.wishes, self.method)
        first = next(chunks, "")  # before anything is printed: a mistake shows itself here
        try:
            for chunk in chain((self.opening(prompt), first), chunks):
                sys.stdout.write(chunk)
                sys.stdout.flush()
        finally:  # also where the user has read enough
            sys.stdout.write("\n")

    def one(self, prompt: str) -> None:
        """Print all texts of one prompt."""
        check(self.model, self.wishes, self.method)
        asked = [build_prompt(self.model, self.tokenizer, prompt, self.wishes)]
        (found,) = generate_batched(
            self.model, self.tokenizer, asked, self.wishes, self.method, batch=1
        )
        if self.json:
            rows = [{"text": t.text, "ids": t.ids, "logprobs": t.logprobs} for t in found]
            print_json([row | self.more(t) for row, t in zip(rows, found, strict=True)])
        else:
            print("\n\n".join(self.plain(prompt, text) for text in found))

    def many(self, prompts: Iterator[str], batch: int) -> None:
        """Print the texts of each prompt as soon as those before are there."""
        seen: list[str] = []  # those that are not yet answered
        found = generate_many(
            self.model, self.tokenizer, noted(prompts, seen), self.wishes, self.method, batch=batch
        )
        for index, own in enumerate(found):
            prompt = seen.pop(0)
            if not self.json:
                between = "" if index == 0 else "\n"
                print(between + "\n\n".join(self.plain(prompt, text) for text in own), flush=True)
                continue
            for number, text in enumerate(own):
                row: dict[str, Any] = {"index": index, "prompt": prompt}
                if len(own) > 1:
                    row["number"] = number
                print_json({**row, "text": text.text, **self.more(text)})

    def more(self, text: GeneratedText) -> dict[str, Any]:
        """Return what else JSON says of a text."""
        more: dict[str, Any] = {"ended": text.ended}
        if self.logprobs:
            tokens = text.tokens(self.tokenizer)
            more["tokens"] = [{"text": chunk, "logprob": logprob} for chunk, logprob in tokens]
        return more

    def plain(self, prompt: str, text: GeneratedText) -> str:
        """Return a text after its prompt; its tokens below, where they are asked for."""
        lines = [self.opening(prompt) + text.text]
        if self.logprobs:
            tokens = text.tokens(self.tokenizer)
            lines += [f"{logprob:10.4f}  {chunk!r}" for chunk, logprob in tokens]
        return "\n".join(lines)

    def opening(self, prompt: str) -> str:
        """Return what stands before a text: nothing where it is an answer."""
        return "" if self.model.decoding == "encoder-decoder" else prompt


def read_prompts(path: Path, field: str) -> Iterator[str]:
    """Read the prompts of a file."""
    if path != STDIN and not path.is_file():
        raise UserError(f"{path} does not exist: give a file with a JSON object a line")
    with open_input(path) as source:
        yield from read_jsonl(source, field)


def noted(prompts: Iterator[str], seen: list[str]) -> Iterator[str]:
    """Note down every prompt that passes."""
    for prompt in prompts:
        seen.append(prompt)
        yield prompt
