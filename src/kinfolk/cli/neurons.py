"""The command `neurons`: feed-forward neurons on which the answer of a fact depends."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Column

from kinfolk.cli.app import (
    DEVICE,
    EVALUATE,
    FORCE,
    JSON,
    MODEL,
    REPORT,
    TOKENIZER,
    command,
    option,
    readable,
)
from kinfolk.cli.output import (
    note,
    numbers,
    print_line,
    print_table,
    publish,
    row_progress,
    saved_on_interrupt,
    short,
    table,
)
from kinfolk.errors import UserError
from kinfolk.workflows.folders import check_input_file, check_model_folder, check_new_file

if TYPE_CHECKING:
    from kinfolk.workflows.knowledge_neurons.neurons import NeuronsResult

SHOWN = 3  # neurons of a fact that are printed


@command(
    'kinfolk neurons runs/bert "The capital of France is [MASK]." --answer Paris', panel=EVALUATE
)
def neurons_command(
    model: Path = MODEL,
    prompt: str | None = typer.Argument(
        None, metavar="PROMPT", help="Text with [MASK] for the answer."
    ),
    answer: str | None = option("TEXT", "Answer to PROMPT."),
    prompts: list[str] | None = option(
        "TEXT", "Another prompt with the same answer; may be repeated.", "--prompt"
    ),
    facts: Path | None = option("FILE", "Facts in place of PROMPT: prompts and answer of each."),
    others: Path | None = option("FILE", "Unrelated facts, on which the neurons are tested."),
    find_on: int | None = option(
        "N", "Find neurons on the first N prompts of a fact, and test on the rest."
    ),
    threshold: float = option("T", "Share of the highest attribution of a prompt.", default=0.2),
    share: float = option("P", "Share of the prompts of a fact.", default=0.7),
    steps: int = option("N", "Points of the integral, at first.", default=20, max=640),
    draws: int = option("N", "Sets of random neurons.", default=20, max=10_000),
    seed: int = option("N", "Seed of random neurons.", default=0, min=0, max=2**32),
    out: Path | None = REPORT,
    force: bool = FORCE,
    tokenizer: Path | None = TOKENIZER,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Find the neurons on which an answer depends, and suppress and amplify them.

    Integrated gradients of the answer's probability over the feed-forward activations where it is
    predicted (knowledge neurons, Dai et al. 2021). Neurons above `--threshold` in a `--share` of
    the prompts are set to 0 and doubled, and the probabilities of this fact and of others are
    compared with those after the same change of random neurons.
    """
    check_model_folder(model)
    if out is not None:
        check_new_file(out, (facts, others, model), force=force)
    given = check_fact(prompt, prompts or [], answer, facts)
    for file in filter(None, (facts, others)):
        check_input_file(file)
    from kinfolk.reports.neurons_page import render
    from kinfolk.workflows.knowledge_neurons.fact_prompts import Fact, read_facts
    from kinfolk.workflows.knowledge_neurons.neurons import neurons
    from kinfolk.workflows.knowledge_neurons.page import neurons_page

    known = [Fact(given, answer or "")] if facts is None else read_facts(facts)
    unrelated = [] if others is None else read_facts(others)
    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        row_progress("facts", len(known)) as progress,
    ):
        result = neurons(
            model,
            tokenizer,
            known,
            others=unrelated,
            find_on=find_on,
            threshold=threshold,
            share=share,
            steps=steps,
            draws=draws,
            seed=seed,
            device=device,
            on_step=progress,
        )
    publish(
        out,
        lambda: render(neurons_page(result)),
        json=json,
        values=result.to_json,
        show=lambda: show_neurons(result),
    )


def check_fact(
    prompt: str | None, prompts: list[str], answer: str | None, facts: Path | None
) -> tuple[str, ...]:
    """Return the prompts of the command line, which have an answer; none where facts are a file."""
    given = [text for text in (prompt, *prompts) if text is not None]
    if facts is not None:
        if given or answer is not None:
            raise UserError("--facts has prompts and answers: remove PROMPT, --prompt and --answer")
        return ()
    if not given:
        raise UserError('there is no fact: give "PROMPT with [MASK]" and --answer, or --facts FILE')
    if answer is None:
        raise UserError("the answer is missing: add --answer TEXT")
    readable(answer, "answer")
    return tuple(readable(text, "prompt") for text in given)


def show_neurons(result: "NeuronsResult") -> None:
    """Print the neurons of the facts, their layers, the effects and the completeness."""
    from kinfolk.reports.charts import significant
    from kinfolk.workflows.knowledge_neurons.page import fact_view

    rows = table("prompt", "answer", *numbers("probability", "neurons"), "highest")
    for fact in map(fact_view, result.facts):
        names = ", ".join(fact.neurons[:SHOWN])
        more = " ..." if len(fact.neurons) > SHOWN else ""
        rows.add_row(
            short(fact.prompt),
            short(fact.answer),
            significant(fact.before),
            str(len(fact.neurons)),
            names + more,
        )
    print_table(rows, "knowledge neurons (L1 N85: layer 1, neuron 85, counted from 0)")
    print_line("")
    rows = table(*numbers("layer", "neurons"))
    for layer, count in result.counts_by_layer:
        rows.add_row(layer.title, str(count))
    print_table(rows)
    if result.effects:
        over = " and ".join(sorted({effect.over for effect in result.effects}))
        first = Column("neurons", no_wrap=True)
        rows = table(first, *numbers("before", "change", "random", "difference", "95 %"))
        for effect in result.effects:
            changes = effect.change, effect.random_change, effect.difference
            rows.add_row(
                f"{effect.operation}, {effect.group}",
                significant(effect.before),
                *(significant(value, signed=True) for value in changes),
                " to ".join(significant(end, signed=True) for end in effect.difference_interval),
            )
        print_table(rows, f"probability of the answer, intervals over {over}")
    print_line(
        "\ncompleteness: attributions of each layer add up to the difference of the outputs within "
        f"{result.completeness_error:.2%}"
    )
    for sentence in result.notes:
        note(sentence)
