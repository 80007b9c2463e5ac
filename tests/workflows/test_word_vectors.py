"""A run starts from the word vectors of a file, and a resume notices that the file changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk import hub
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import Recipe
from support.runs import Home


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    file = tmp_path / "vectors.txt"
    file.write_text(f"garden{' 0.5' * 64}\nzebra{' 1' * 64}\n", encoding="utf-8")
    return file


def with_vectors(home: Home, vectors: Path) -> Recipe:
    return replace(home.recipe("gpt2"), vectors=str(vectors))


class Messages(Callback):
    """Keep the messages, and stop after a step."""

    def __init__(self, stop: int) -> None:
        self.stop, self.messages = stop, list[str]()

    def on_message(self, message: str) -> None:
        self.messages.append(message)

    def on_step(self, progress: Progress) -> None:
        if progress.step == self.stop:
            raise KeyboardInterrupt


def test_the_embeddings_of_known_words_start_from_their_vectors(home: Home, vectors: Path) -> None:
    work, plain = (PretrainWorkload(r) for r in (with_vectors(home, vectors), home.recipe("gpt2")))
    known = Tokenizer.load(home.tokenizer).token_to_id("Ġgarden")
    assert known is not None
    tables: list[Any] = [w.model.token_embeddings for w in (work, plain)]
    filled, drawn = (table.weight.detach() for table in tables)
    assert torch.equal(filled[known], torch.full((64,), 0.5))
    others = torch.arange(len(filled)) != known
    assert torch.equal(filled[others], drawn[others])


def test_a_resumed_run_with_vectors_equals_one_that_was_not_stopped(
    home: Home, vectors: Path, tmp_path: Path
) -> None:
    recipe = with_vectors(home, vectors)
    messages = Messages(stop=6)
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, tmp_path / "run", callbacks=[messages])
    assert any("vectors of 1 of " in message for message in messages.messages)
    resume(tmp_path / "run")
    whole: Any = hub.load_model(pretrain(recipe, tmp_path / "whole") / "checkpoints" / "last")
    again: Any = hub.load_model(tmp_path / "run" / "checkpoints" / "last")
    saved = again.state_dict()
    assert all(torch.equal(t, saved[n]) for n, t in whole.state_dict().items())


def test_a_resume_refuses_vectors_that_changed_or_are_gone(
    home: Home, vectors: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretrain(with_vectors(home, vectors), tmp_path / "run", callbacks=[Messages(stop=6)])
    vectors.write_text(f"garden{' 0.25' * 64}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"vectors\.txt changed since the run started"):
        resume(tmp_path / "run")
    vectors.unlink()
    with pytest.raises(UserError, match="no such file"):
        resume(tmp_path / "run")
