"""Commands that write text: `generate` and `fill`."""

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli import methods
from kinfolk.cli.app import AsJson, Device, app, console, example, piped, print_json, readable
from kinfolk.cli.methods import SAYING, ModelPath, Precision
from kinfolk.errors import UserError


@app.command(epilog=example('kinfolk generate runs/gpt2 "Once upon" --max-tokens 50 --top-p 0.9'))
def generate(
    model: Annotated[
        Path, typer.Argument(help="A run, a checkpoint, a model folder; of a corpus, its 3-grams.")
    ],
    prompt: Annotated[
        str | None, typer.Argument(help="The text to go on with; - reads what is piped in.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Or many of them, a JSON object a line.")
    ] = None,
    field: Annotated[str, typer.Option(help="The field of --prompts that is text.")] = "prompt",
    batch: Annotated[int, typer.Option(help="Of --prompts, so many at a time.")] = 16,
    max_tokens: Annotated[int, typer.Option(help="At most so many new tokens.")] = 100,
    min_tokens: Annotated[int, typer.Option(help="At least so many.")] = 0,
    num: Annotated[int, typer.Option(help="How many texts.")] = 1,
    method: methods.MethodName = "sample",
    temperature: methods.Temperature = None,
    top_k: methods.TopK = None,
    top_p: methods.TopP = None,
    min_p: methods.MinP = None,
    typical: methods.Typical = None,
    beam_size: methods.BeamSize = None,
    length_penalty: methods.LengthPenalty = None,
    groups: methods.Groups = None,
    diversity: methods.Diversity = None,
    penalty: methods.Penalty = None,
    seed: methods.Seed = 0,
    repetition_penalty: Annotated[
        float,
        typer.Option(help="Above 1, what was said grows unlikely.", rich_help_panel=SAYING),
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Say no so many tokens twice.", rich_help_panel=SAYING)
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text.", rich_help_panel=SAYING)
    ] = None,
    prefix: Annotated[str, typer.Option(help="Begin with this.", rich_help_panel=SAYING)] = "",
    ban: Annotated[
        list[str] | None, typer.Option(help="Never say this word.", rich_help_panel=SAYING)
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Say this, or another allowed text, alone.", rich_help_panel=SAYING),
    ] = None,
    truncate: Annotated[
        str | None, typer.Option(help="left: cut a prompt that is too long.", metavar="left")
    ] = None,
    precision: Precision = "auto",
    device: Device = "auto",
    compile: Annotated[
        bool, typer.Option("--compile", help="Half a minute first, and quicker from then on.")
    ] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Show each token's log-probability.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Go on with a text; an encoder-decoder writes an answer to it.

    The same seed gives the same text, whatever else is written beside it.
    """
    from kinfolk.cli.printing import Printer, read_prompts
    from kinfolk.generation.config import GenerationConfig
    from kinfolk.workflows.generate import load_generator

    if (prompt is None) == (prompts is None):
        raise UserError("give either PROMPT or --prompts FILE.jsonl")
    if num < 1:
        raise UserError(f"--num {num} texts are nothing to write: ask for 1 or more")
    if truncate not in (None, "left"):
        raise UserError(f"--truncate {truncate} is no side that can be cut: use left")
    chosen = methods.method(
        method,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical=typical,
        beam_size=beam_size,
        length_penalty=length_penalty,
        groups=groups,
        diversity=diversity,
        penalty=penalty,
    )
    wishes = GenerationConfig(
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        num_return_sequences=num,
        seed=seed,
        stop_strings=stop or (),
        forced_prefix=prefix,
        bad_words=ban or (),
        allowed_texts=allow or (),
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram,
        truncate_left=truncate is not None,
        compile=compile,
    )
    wishes.check(chosen)
    text = piped("prompt") if prompt == "-" else prompt
    if text is not None:
        readable(text, "prompt")
    network, tokenizer = load_generator(model, device=device, precision=precision)
    printer = Printer(network, tokenizer, wishes, chosen, json=json, logprobs=logprobs)
    if prompts is not None:
        printer.many(read_prompts(prompts, field), batch)
    elif num == 1 and not (json or logprobs):
        printer.stream(text or "")
    else:
        printer.one(text or "")


@app.command(epilog=example('kinfolk fill runs/bert "The [MASK] sat on the mat."'))
def fill(
    model: ModelPath,
    text: Annotated[
        str,
        typer.Argument(
            help="A text with [MASK] where words are missing; for GLM also [sMASK] for a sentence "
            "and [gMASK] for all the rest."
        ),
    ],
    top: Annotated[int, typer.Option(help="Choices shown for each hole.")] = 5,
    max_tokens: Annotated[
        int | None, typer.Option(help="Of spans, at most so many tokens in all.")
    ] = None,
    method: methods.MethodName = "greedy",
    temperature: methods.Temperature = None,
    top_k: methods.TopK = None,
    top_p: methods.TopP = None,
    seed: methods.Seed = 0,
    precision: Precision = "auto",
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Fill the holes of a text: a token each by an encoder, a span each by all others."""
    from kinfolk.generation.fill import fill
    from kinfolk.workflows.generate import to_inference
    from kinfolk.workflows.load import load, require_ability

    chosen = methods.method(method, temperature=temperature, top_k=top_k, top_p=top_p)
    readable(text, "text")
    network, tokenizer = load(model)
    require_ability(network, "fill")
    spans = network.decoding in ("encoder-decoder", "infilling")
    if not spans and (method != "greedy" or max_tokens is not None):
        raise UserError(
            "an encoder has one best token for each hole: leave --method and --max-tokens out, "
            "and choose among the --top"
        )
    to_inference(network, device=device, precision=precision)
    room = 128 if max_tokens is None else max_tokens
    filled = fill(network, tokenizer, text, top=top, tokens=room, method=chosen, seed=seed)
    if json:
        holes = [{"text": hole.text, "choices": hole.candidates} for hole in filled.masks]
        print_json({"text": filled.text, "holes": holes})
        return
    console.print(filled.text, highlight=False, markup=False)
    for hole in filled.masks:
        if hole.candidates:
            shown = "  ".join(f"{word.strip()} {share:.1%}" for word, share in hole.candidates)
            console.print(f"  {shown}", highlight=False, markup=False)
