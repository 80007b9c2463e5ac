"""Generation with a saved model: open it, then generate, stream or fill."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import torch

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.fill import FILL_CONFIG, FillResult, fill_text
from kinfolk.generation.generate import generate_many, stream_text
from kinfolk.nn.int8 import quantize_int8
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.prefixes import KeyValuePrefix
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.text import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.workflows.baselines import load_or_fit
from kinfolk.workflows.folders import find_model_folder, load_tokenizer
from kinfolk.workflows.load import check_trained, load, require_ability
from kinfolk.workflows.model_use import no_seq2seq
from kinfolk.workflows.prefix_tuning.files import open_prefix
from kinfolk.workflows.recipe import recipe_of

PRECISIONS = ("auto", "fp32", "bf16", "int8")
PREFIX_FILE = "prefix.txt"  # in a run trained on pairs: the prefix of every source
# Settings of generation that do not apply to masks.
NOT_FOR_FILL = (
    "num_return_sequences",
    "stop_strings",
    "forced_prefix",
    "bad_words",
    "allowed_texts",
    "add_bos_token",
    "truncate_left",
)

Model = LanguageModel | Path | str
PrefixRuns = Path | str | Sequence[Path | str] | None
Attributes = str | Sequence[str] | None


@overload
def generate(
    model: Model, tokenizer: Tokenizer | Path | str, prompt: str, **options: Any
) -> str: ...


@overload
def generate(
    model: Model, tokenizer: Tokenizer | Path | str, prompt: list[str], **options: Any
) -> list[str]: ...


@overload
def generate(model: Path | str, tokenizer: str | list[str], **options: Any) -> Any: ...


def generate(
    model: Any,
    tokenizer: Any = None,
    prompt: Any = None,
    *,
    prefix_from: PrefixRuns = None,
    attribute: Attributes = None,
    **options: Any,
) -> Any:
    """Return the text generated for a prompt, or a list of texts for a list of prompts.

    `generate(model, tokenizer, "Once upon", max_new_tokens=50, top_p=0.9)`. The model is what
    `kinfolk.load` returns or a folder; with a folder the tokenizer may be left out:
    `generate("runs/gpt2", "Once upon")`. The keyword arguments are the fields of
    `GenerationConfig`. With `num_return_sequences` above 1 a list is returned, the outputs of the
    first prompt first. `prefix_from` is a run of `learn_prefixes` for this model, and `attribute`
    one of its attributes; or lists of as many of both.
    """
    config = GenerationConfig.from_options(options)
    network, tokenizer, prompt = _open_for("generate", model, tokenizer, prompt)
    prefix = given_prefix(network, prefix_from, attribute)
    outputs = generate_many(network, tokenizer, prompt, config, prefix=prefix)
    texts = [output.text for group in outputs for output in group]
    return texts[0] if isinstance(prompt, str) and len(texts) == 1 else texts


def stream(
    model: Any,
    tokenizer: Any = None,
    prompt: Any = None,
    *,
    prefix_from: PrefixRuns = None,
    attribute: Attributes = None,
    **options: Any,
) -> Iterator[str]:
    """Return the text generated for one prompt as it comes, chunk by chunk.

    The arguments are those of `generate`.
    """
    config = GenerationConfig.from_options(options)
    if config.num_return_sequences > 1:
        raise UserError("stream gives one output: use generate for num_return_sequences above 1")
    network, tokenizer, prompt = _open_for("stream", model, tokenizer, prompt)
    if not isinstance(prompt, str):
        raise UserError("stream takes one prompt: use generate for a list of prompts")
    prefix = given_prefix(network, prefix_from, attribute)
    return stream_text(network, tokenizer, prompt, config, prefix=prefix)


def fill(
    model: Any, tokenizer: Any = None, text: Any = None, *, candidates: int = 5, **options: Any
) -> FillResult:
    """Fill every [MASK] of a text: `fill(model, tokenizer, "It was [MASK].").text`.

    Encoders predict one token for each mask, with `candidates` and their probabilities. The other
    families generate spans; the keyword arguments are then fields of `GenerationConfig`.
    """
    for name in NOT_FOR_FILL:
        if name in options:
            raise UserError(f"fill does not support {name}")
    defaults = {"do_sample": FILL_CONFIG.do_sample, "max_new_tokens": FILL_CONFIG.max_new_tokens}
    config = GenerationConfig.from_options(defaults | options)
    network, tokenizer, text = _open_for("fill", model, tokenizer, text)
    if not isinstance(text, str):
        raise UserError(f"fill takes one text, not {type(text).__name__}")
    if options and network.decoding not in ("encoder-decoder", "infilling"):
        raise UserError(
            f"{next(iter(options))} does not apply to encoder models, which predict one token for "
            "each mask: use candidates"
        )
    return fill_text(network, tokenizer, text, config, candidates=candidates)


def given_prefix(
    model: LanguageModel, runs: PrefixRuns, attributes: Attributes
) -> KeyValuePrefix | None:
    """Return the prefix of the given attributes, None where none is given."""
    if not runs and not attributes:
        return None
    if not runs or not attributes:
        raise UserError(
            "a prefix is named by its run and its attribute: pass both, --prefix-from RUN and "
            "--attribute NAME"
        )
    return open_prefix(model, runs, attributes)


def _open_for(verb: str, model: Any, tokenizer: Any, text: Any) -> tuple[Any, Tokenizer, Any]:
    """Return the network, the tokenizer and the text of a call; errors show its signature."""
    usage = f"kinfolk.{verb}(model, tokenizer, text) or kinfolk.{verb}(folder, text)"
    if isinstance(model, Path | str):
        if text is None:
            tokenizer, text = None, tokenizer
        network, loaded = (load if verb == "fill" else load_generator)(model)
        tokenizer = loaded if tokenizer is None else tokenizer
        if verb == "fill":
            network = to_inference(require_ability(network, "fill"))
    elif isinstance(model, LanguageModel):
        network = require_ability(model, "fill" if verb == "fill" else "generate")
    else:
        hint = ", with the two values of kinfolk.load" if isinstance(model, tuple) else ""
        raise UserError(f"model is a {type(model).__name__}: call {usage}{hint}")
    if isinstance(tokenizer, Path | str) and text is not None:
        tokenizer = load_tokenizer(tokenizer)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"the tokenizer is missing: call {usage}")
    texts = text if isinstance(text, list) else [text]
    wrong = next((type(item).__name__ for item in texts if not isinstance(item, str)), None)
    if wrong is not None:
        raise UserError(f"the text must be a str or a list of str, not {wrong}: call {usage}")
    return network, tokenizer, text


def load_generator(
    path: Path | str,
    *,
    device: str = "auto",
    precision: str = "auto",
    tokenizer: Tokenizer | Path | str | None = None,
) -> tuple[Any, Tokenizer]:
    """Open a model that generates, or a corpus for its 3-gram model."""
    model, tokenizer = load_or_fit(path, tokenizer)
    require_ability(model, "generate")
    return to_inference(model, device=device, precision=precision), tokenizer


def load_with_prefix(
    path: Path | str,
    runs: Sequence[Path],
    attributes: Sequence[str],
    *,
    device: str = "auto",
    precision: str = "auto",
    tokenizer: Tokenizer | Path | str | None = None,
) -> tuple[Any, Tokenizer, KeyValuePrefix | None]:
    """Open a model that generates and the prefix of its attributes, if any are given."""
    model, loaded = load_generator(path, device="cpu", precision="fp32", tokenizer=tokenizer)
    prefix = given_prefix(model, runs, attributes)  # before weights are quantized
    return to_inference(model, device=device, precision=precision), loaded, prefix


def load_seq2seq(
    path: Path | str,
    verb: str,
    *,
    device: str = "auto",
    precision: str = "auto",
    tokenizer: Tokenizer | Path | str | None = None,
) -> tuple[Any, Tokenizer]:
    """Open an encoder-decoder."""
    model, tokenizer = load(path, tokenizer)
    if model.decoding != "encoder-decoder":
        raise no_seq2seq(family_of(model).name, verb)
    check_trained(model)
    return to_inference(model, device=device, precision=precision), tokenizer


def to_inference(model: Any, *, device: str = "auto", precision: str = "auto") -> Any:
    """Move a model to its device and precision."""
    precision = {"float32": "fp32", "bfloat16": "bf16"}.get(precision, precision)
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: {did_you_mean(precision, PRECISIONS)}")
    target = select_device(device)
    if model.gradient_free is not None:
        if precision not in ("auto", "fp32"):
            family_name = model.family_name
            raise UserError(
                f"precision {precision} does not apply to {family_name} models: remove it"
            )
        return model
    if precision == "int8":
        if target.type != "cpu":
            raise UserError("int8 runs on the CPU only: use --device cpu, or bf16 on CUDA")
        return quantize_int8(model)
    half = precision == "bf16" or (precision == "auto" and target.type == "cuda")
    return model.to(target, torch.bfloat16 if half else torch.float32)


def task_prefix(path: Path | str, prefix: str | None, default: str | None = None) -> str:
    """Return the prefix of every source: as given, as in training, or the default."""
    if prefix is not None:
        return prefix
    folder = find_model_folder(path).resolve()
    saved, recipe = folder.parent.parent / PREFIX_FILE, recipe_of(folder)
    if saved.is_file():
        return saved.read_text(encoding="utf-8")
    if recipe is not None and isinstance(recipe.objective, Seq2Seq):
        return ""
    if default is None:
        raise UserError(
            f"{path} was not trained on sentence pairs: pass --source-prefix, for example "
            "'translate English to German: ', or '' for none"
        )
    return default
