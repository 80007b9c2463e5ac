"""Load models and tokenizers from runs, checkpoints and model folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk import hub
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families import family_of, index
from kinfolk.files import new_folder
from kinfolk.generation.prompts import check_prompts
from kinfolk.text import Tokenizer
from kinfolk.training import checkpoint
from kinfolk.training.run import check_new_folder


def find_model_folder(path: Path | str) -> Path:
    """Find the model folder: of a run its newest whole checkpoint, else the folder itself.

    Of a run that was fine-tuned it is the best on dev rows, of runs with several seeds their best.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not there: give a run, a checkpoint or a model folder")
    if (path / "config.json").is_file():
        return path
    best = path / "best" if (path / "best").is_dir() else path / "checkpoints" / "best"
    if (path / "scores.json").is_file() and best.is_dir():
        return find_model_folder(best.resolve())
    if (path / "recipe.json").is_file():
        newest = checkpoint.latest_valid(path)
        if newest is None:
            raise UserError(f"{path} has no checkpoint yet: go on with it by --resume {path}")
        return newest
    raise UserError(f"{path} is neither a run (no recipe.json) nor a model folder (no config.json)")


def load(path: Path | str) -> tuple[Any, Tokenizer]:
    """Open a run, a checkpoint or a Hugging Face folder: the model and its tokenizer."""
    return hub.load(find_model_folder(path))


def export_folder(path: Path | str, out: Path) -> None:
    """Write a model and its tokenizer to a new folder, in Hugging Face's layout."""
    check_new_folder(out)
    model, tokenizer = load(path)
    with new_folder(out) as folder:
        hub.save(folder, model, tokenizer, length=model.config.max_length)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Open a tokenizer's own folder, or that of a run, a model or a corpus."""
    path = Path(path)
    if (path / "tokenizer.json").is_file() or not path.is_dir():
        return Tokenizer.load(path)
    if (path / "corpus.json").is_file():
        return Tokenizer.load(path / "tokenizer")
    return Tokenizer.load(find_model_folder(path))


def require_ability(model: Any, ability: str) -> Any:
    """Return a model that can do something, or say who could."""
    who = family_of(model)
    if ability not in who.capabilities:
        others = [name for name, m in index().items() if ability in m.capabilities]
        raise UserError(f"{who.name} cannot {ability}: {', '.join(others)} can")
    return model


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
