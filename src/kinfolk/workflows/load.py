"""Opening what a run left behind, or what came from elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk import hub
from kinfolk.batch import Inputs
from kinfolk.config import read_json
from kinfolk.errors import UserError
from kinfolk.families import family_of, index
from kinfolk.files import new_folder
from kinfolk.generation.prompts import check_prompts
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text import Tokenizer
from kinfolk.workflows.folders import check_new_folder, find_model_folder
from kinfolk.workflows.recipe import Recipe


def load(path: Path | str) -> tuple[Any, Tokenizer]:
    """Open a run, a checkpoint or a Hugging Face folder: the model and its tokenizer."""
    return hub.load(find_model_folder(path))


def recipe_of(folder: Path) -> Recipe | None:
    """Return the recipe that made a model; none where it came from elsewhere, or was fine-tuned."""
    notes = folder / "kinfolk.json"
    found = read_json(notes) if notes.is_file() else None
    return found if isinstance(found, Recipe) else None


def export_folder(path: Path | str, out: Path) -> None:
    """Write a model and its tokenizer to a new folder, in Hugging Face's layout."""
    check_new_folder(out)
    model, tokenizer = load(path)
    with new_folder(out) as folder:
        hub.save(folder, model, tokenizer, length=model.config.max_length)


def require_ability(model: Any, ability: str) -> Any:
    """Return a model that can do something, or say who could."""
    who = family_of(model)
    if ability not in who.capabilities:
        others = [name for name, m in index().items() if ability in m.capabilities]
        raise UserError(f"{who.name} cannot {ability}: {', '.join(others)} can")
    return model


def scoring_objective(
    model: LanguageModel, tokenizer: Tokenizer, path: Path | str, length: int | None = None
) -> Any:
    """Return the objective that scores a model: every token of a text predicted exactly once."""
    before, config = recipe_of(find_model_folder(path)), model.config
    if before is not None:
        objective = before.objective
        longest = objective.max_length
    else:
        objective = family_of(model).objective()(
            special_tokens=tokenizer.special_tokens, vocab_size=tokenizer.vocab_size
        )
        longest = min(objective.max_length, 512 if config.max_length is None else config.max_length)
    length = longest if length is None else length
    if length < 8:
        raise UserError(f"--length {length} is too short to see anything: use 8 or more")
    limit = config.max_length
    if limit is not None and length > limit:
        raise UserError(f"--length {length} is more than the model's context of {limit} tokens")
    return replace(objective, max_length=length).for_evaluation()


@torch.no_grad()
def logits(model: Any, ids: Sequence[int], source: Sequence[int] | None = None) -> Tensor:
    """Return the (length, vocabulary) scores of one sequence, in evaluation mode.

    An encoder scores each token from all of them, a decoder the token after each. An
    encoder-decoder reads `source` and scores each of `ids` from those before it; without a source
    it reads the ids themselves.
    """
    check_prompts(model, [ids], "sequence")
    device = next(model.parameters()).device
    kind = family_of(model).architecture
    row = torch.tensor([list(ids)], device=device)
    if kind == "encoder-decoder":
        read = row if source is None else torch.tensor([list(source)], device=device)
        start = torch.full((1, 1), model.config.decoder_start_token_id, device=device)
        row = torch.cat([start, row[:, :-1]], dim=1)
        inputs = Inputs.from_ids(
            row, causal=True, encoder_inputs=Inputs.from_ids(read, causal=False)
        )
    elif source is not None:
        raise UserError(f"{kind}s read no source: give the ids alone")
    else:
        inputs = Inputs.from_ids(row, causal=kind == "decoder")
    was = model.training
    model.eval()
    scores: Tensor = model.lm_logits(model.forward_lm(inputs).hidden[0]).logits()
    model.train(was)
    return scores
