"""Load models and tokenizers from runs, checkpoints and model folders."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk import hub
from kinfolk.batch import Inputs
from kinfolk.config import read_json, read_type
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.families.ngram import NGram
from kinfolk.files import new_folder
from kinfolk.generation.prompts import check_prompts, device_of, eval_mode
from kinfolk.hub.arpa import write_arpa
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text import Tokenizer
from kinfolk.text.vectors import read_vectors, vector_size
from kinfolk.workflows.folders import check_new_folder, find_model_folder, load_tokenizer
from kinfolk.workflows.model_use import no_ability


def load(
    path: Path | str, tokenizer: Tokenizer | Path | str | None = None
) -> tuple[LanguageModel, Tokenizer]:
    """Load the model and the tokenizer of a run, a checkpoint or a Hugging Face folder.

    The model is on the CPU, in float32 and evaluation mode. Of a pretraining run it is the newest
    checkpoint, of a fine-tuning run the best one. `tokenizer` is a tokenizer, its folder or its
    file where it lies elsewhere. `path` may also be a checkpoint file of fairseq, or an
    ARPA file of an n-gram model.
    """
    if not isinstance(path, Path | str):
        raise UserError(
            f"the model is of type {type(path).__name__}: give its folder; a model of transformers "
            "is written to one with its save_pretrained, and its tokenizer too"
        )
    if isinstance(tokenizer, Path | str):
        tokenizer = load_tokenizer(tokenizer)
    elif not isinstance(tokenizer, Tokenizer | None):
        raise UserError(
            f"the tokenizer is of type {type(tokenizer).__name__}: give its folder or file, or a "
            "kinfolk.Tokenizer; one of transformers is written to a folder with save_pretrained"
        )
    folder = find_model_folder(path)
    model, found = hub.load(folder, tokenizer)
    model.untrained_modules = untrained_modules_of(folder)
    return model, found


@contextmanager
def restored(model: LanguageModel) -> Iterator[None]:
    """Evaluate a model; put each module back into its mode, and the model onto its device."""
    device = device_of(model)
    with eval_mode(model):
        try:
            yield
        finally:
            model.to(device)


def untrained_modules_of(folder: Path) -> tuple[str, ...]:
    """Return the modules of a pretrained model folder whose weights are still random."""
    path = folder / "kinfolk.json"
    if not path.is_file() or read_type(path) != "pretrain":
        return ()
    recipe: Any = read_json(path)
    if not recipe.objective.encoder_alone:
        return ()
    if recipe.init_from and not untrained_modules_of(Path(recipe.init_from)):
        return ()
    modules: tuple[str, ...] = recipe.model.network.decoder_modules
    return modules


def load_with_vectors(
    path: Path | str, tokenizer: Path | str, vectors: Path | str
) -> tuple[LanguageModel, Tokenizer, str]:
    """Load an encoder that was published without its word vectors (CoVe), and those of a file.

    The third value says how many words were found.
    """
    from kinfolk.families.cove import CoVe

    words, published = load_tokenizer(tokenizer), hub.load_model(find_model_folder(path))
    if not isinstance(published, CoVe) or not published.config.encoder_only:
        raise UserError(f"--vectors does not apply to {path}, which has embeddings: remove it")
    size = vector_size(vectors)
    if size != published.config.embedding_size:
        raise UserError(
            f"{vectors} has vectors of {size} numbers, but {path} reads "
            f"{published.config.embedding_size}: use the vectors that it was trained with"
        )
    model = CoVe(replace(published.config, vocab_size=words.vocab_size)).eval()
    model.encoder.load_state_dict(published.encoder.state_dict())
    found = read_vectors(vectors, words)
    model.token_embeddings.set_rows(found.ids, found.values)
    return model, words, f"{vectors}: {found.summary}"


def save(model: LanguageModel, tokenizer: Tokenizer, out: Path | str) -> Path:
    """Write a model and its tokenizer to a new folder, in Hugging Face's layout; return it."""
    if not isinstance(model, LanguageModel) or not isinstance(tokenizer, Tokenizer):
        raise UserError("call kinfolk.save(model, tokenizer, out), with the values of kinfolk.load")
    out = Path(out)
    check_new_folder(out)
    with new_folder(out) as folder:
        hub.save(folder, model, tokenizer, length=model.config.max_length)
    return out


def require_ability(model: Any, ability: str) -> Any:
    """Return the model; refuse a family without this capability."""
    family = family_of(model)
    if ability not in family.capabilities:
        raise no_ability(family.name, ability)
    if ability in ("generate", "prefixes", "fill"):
        check_trained(model)
    if ability in ("generate", "prefixes", "fill") and model.pretrained is not model:
        raise UserError(
            f"the model was fine-tuned: its task head predicts labels, so it cannot {ability}; use "
            "kinfolk predict, or the pretrained model"
        )
    return model


def check_trained(model: LanguageModel) -> None:
    """Refuse to generate with a network whose decoder was not trained."""
    if model.untrained_modules:
        raise UserError(
            f"the {' and '.join(model.untrained_modules)} of the model was not trained, only its "
            "encoder: continue it on pairs first, kinfolk pretrain RUN --objective pairs --pair "
            "SOURCE TARGET"
        )


def exportable(model: LanguageModel) -> LanguageModel:
    """Return a network with the same outputs that transformers has; refuse where there is none."""
    if isinstance(model, NGram):
        raise UserError("ngram models are exported as an ARPA file: use -o NAME.arpa")
    hf = family_of(require_ability(model, "export")).hf
    assert hf is not None
    equivalent: LanguageModel = hf.equivalent(model)
    return equivalent


def export_arpa(model: LanguageModel, tokenizer: Tokenizer, out: Path | str) -> Path:
    """Write an n-gram model as an ARPA file; return it."""
    if not isinstance(model, NGram):
        raise UserError(
            f"{out} is an ARPA file, which has n-gram models only: give a folder for "
            f"{model.family_name}"
        )
    return write_arpa(model, tokenizer, Path(out))


@torch.no_grad()
def logits(
    model: LanguageModel, ids: Sequence[int] | Tensor, source: Sequence[int] | None = None
) -> Tensor:
    """Return the (length, vocabulary) scores of one sequence, in evaluation mode.

    An encoder scores each token from all tokens, a decoder the token after each. An
    encoder-decoder encodes `source` and scores each of `ids` from those before it; without a
    source it encodes the ids themselves. No gradient flows: docs/python.md trains a network in a
    loop of your own.
    """
    if isinstance(ids, Tensor):
        ids = ids.tolist()
    if not all(isinstance(token, Integral) for token in ids):
        raise UserError("ids must be token ids: call kinfolk.logits(model, tokenizer(text))")
    model.check_lm_head()
    check_prompts(model, [ids], "sequence")
    device = next(model.parameters()).device
    kind = family_of(model).architecture
    row = torch.tensor([list(ids)], device=device)
    if kind == "encoder-decoder":
        encoded = row if source is None else torch.tensor([list(source)], device=device)
        start = torch.full((1, 1), model.config.decoder_start_token_id, device=device)
        row = torch.cat([start, row[:, :-1]], dim=1)
        inputs = Inputs.from_ids(
            row, causal=True, encoder_inputs=Inputs.from_ids(encoded, causal=False)
        )
    elif source is not None:
        raise UserError(f"source applies to encoder-decoder models, not to {kind}s: remove it")
    else:
        inputs = Inputs.from_ids(row, causal=kind == "decoder")
    with eval_mode(model):
        scores: Tensor = model.lm_logits(model.forward_lm(inputs).hidden[0]).logits()
    return scores
