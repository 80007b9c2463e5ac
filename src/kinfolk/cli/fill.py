"""The command `fill`."""

from pathlib import Path
from typing import Any

import typer

from kinfolk.cli.app import DEVICE, JSON, MODEL, USE, command, readable
from kinfolk.cli.generate import METHOD, PRECISION, generation_config
from kinfolk.cli.options import field_options
from kinfolk.cli.output import console, print_json
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.workflows.folders import check_model_folder


@command('kinfolk fill runs/bert "The [MASK] sat on the mat."', panel=USE)
@field_options(
    "settings",
    GenerationConfig,
    only=("max_new_tokens", "temperature", "top_k", "top_p", "seed"),
    defaults={"max_new_tokens": "128"},
    help={"max_new_tokens": "Maximum tokens generated for all spans together"},
)
def fill(
    model: Path = MODEL,
    text: str = typer.Argument(
        ...,
        help="Text with [MASK] where words are missing; GLM also has [sMASK] for a sentence and "
        "[gMASK] for the rest of the text.",
    ),
    candidates: int = typer.Option(5, help="Candidates shown per mask."),
    method: str | None = METHOD,
    precision: str = PRECISION,
    device: str = DEVICE,
    json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Fill each [MASK].

    Encoders predict one token per mask; T5, Transformer and GLM generate a span (by default the
    most likely token each time).
    """
    config = generation_config(method, {"max_new_tokens": 128} | settings, default="greedy")
    check_model_folder(model)
    readable(text, "text")

    from kinfolk.generation.fill import fill_text
    from kinfolk.workflows.generate import to_inference
    from kinfolk.workflows.load import load, require_ability

    network, tokenizer = load(model)
    require_ability(network, "fill")
    spans = network.decoding in ("encoder-decoder", "infilling")
    if not spans and (method is not None or settings):
        raise UserError(
            "--method and --max-new-tokens do not apply to encoder models, which predict one token "
            "per mask: use --candidates"
        )
    network = to_inference(network, device=device, precision=precision)
    filled = fill_text(network, tokenizer, text, config, candidates=candidates)
    if json:
        masks = [{"text": mask.text, "choices": mask.candidates} for mask in filled.masks]
        print_json({"text": filled.text, "holes": masks})
        return
    console.print(filled.text, highlight=False, markup=False)
    for mask in filled.masks:
        if mask.candidates:
            row = "  ".join(f"{word.strip()} {prob:.1%}" for word, prob in mask.candidates)
            console.print(f"  {row}", highlight=False, markup=False)
