"""Commands that write text: `generate` and `fill`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.app import AsJson, Device, app, console, example, print_json
from kinfolk.errors import UserError

ModelPath = Annotated[Path, typer.Argument(help="A run, a checkpoint or a model folder.")]


@app.command(epilog=example('kinfolk generate runs/gpt2 "Once upon" --max-tokens 50 --top-p 0.9'))
def generate(
    model: ModelPath,
    prompt: Annotated[str, typer.Argument(help="The text to go on with.")],
    max_tokens: Annotated[int, typer.Option(help="At most so many new tokens.")] = 100,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among so many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among so much probability.")] = None,
    seed: Annotated[int, typer.Option(help="What chance follows from.")] = 0,
    num: Annotated[int, typer.Option(help="How many texts.")] = 1,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Go on with a text; an encoder-decoder writes an answer to it."""
    from kinfolk.generation import Sampling, answers, collect, question, spell
    from kinfolk.recipes.opening import able, load
    from kinfolk.recipes.pretraining import pick

    if num < 1:
        raise UserError(f"--num {num} texts are nothing to write: ask for 1 or more")
    network, tokenizer = load(model)
    able(network, "generate").to(pick(device))
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    asked = question(network, tokenizer, prompt)
    steps = answers(network, asked, tokens=max_tokens, sampling=sampling, seed=seed, texts=num)
    opening = "" if asked.source else prompt
    if num == 1 and not json:
        ids = (step.id for turn in steps for step in turn if not step.ends)
        pieces = spell(tokenizer, asked.prompt, ids)
        first = next(pieces, "")  # before anything is printed: a mistake shows itself here
        for piece in (opening, first, *pieces):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return
    texts = collect(steps, num)
    spelled = ["".join(spell(tokenizer, asked.prompt, text.ids)) for text in texts]
    if json:
        both = zip(spelled, texts, strict=True)
        print_json([{"text": s, "ids": t.ids, "logprobs": t.logprobs} for s, t in both])
        return
    print("\n\n".join(opening + text for text in spelled))


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
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Fill the holes of a text: a token each by an encoder, a span each by all others."""
    from kinfolk.generation import fill_text
    from kinfolk.recipes.opening import able, load
    from kinfolk.recipes.pretraining import pick

    network, tokenizer = load(model)
    able(network, "fill").to(pick(device))
    filled = fill_text(network, tokenizer, text, top=top)
    if json:
        holes = [{"text": hole.text, "choices": hole.choices} for hole in filled.holes]
        print_json({"text": filled.text, "holes": holes})
        return
    console.print(filled.text, highlight=False, markup=False)
    for hole in filled.holes:
        if hole.choices:
            shown = "  ".join(f"{word.strip()} {share:.1%}" for word, share in hole.choices)
            console.print(f"  {shown}", highlight=False, markup=False)
