"""The command `probe`: what each frozen layer of a model holds."""

from pathlib import Path
from typing import TYPE_CHECKING

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
)
from kinfolk.cli.output import (
    note,
    numbers,
    print_line,
    print_table,
    publish,
    row_progress,
    saved_on_interrupt,
    table,
)
from kinfolk.workflows.folders import check_input_file, check_model_folder, check_new_page

if TYPE_CHECKING:
    from kinfolk.workflows.probing.curves import ProbeCurve, ProbeCurves


@command("kinfolk probe runs/bert --train train.conllu --dev dev.conllu", panel=EVALUATE)
def probe_command(
    model: Path = MODEL,
    train: Path = option("FILE", "Labelled rows that probes are trained on.", default=...),
    dev: Path = option("FILE", "Labelled rows that choose penalties.", default=...),
    test: Path | None = option("FILE", "Labelled rows that are scored (default: half of dev)."),
    task: str | None = option(
        "NAME", "classification, regression, tagging or spans (default: found in the file)."
    ),
    columns: str | None = option("LIST", "Text columns and label column: a,b,label."),
    seeds: int = option("N", "Seeds of control tasks and probes.", default=3, max=100),
    max_train: int = option("N", "Training rows that are used.", default=2000, min=1),
    max_test: int = option("N", "Dev and test rows that are used, each.", default=1000, min=1),
    out: Path | None = REPORT,
    force: bool = FORCE,
    tokenizer: Path | None = TOKENIZER,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Train small classifiers on the vectors of every layer, which stay as they are.

    Linear probes and probes with one hidden layer, on each layer and on a learned mix of all
    layers, beside control tasks with random labels (Hewitt & Liang 2019) and the same network with
    random weights. Rows are texts, pairs, tagged sentences, or spans: pairs of words and senses of
    words. `--task spans` reads the relation of every word and its head from a CoNLL-U file.
    """
    check_model_folder(model)
    if out is not None:
        check_new_page(out, (train, dev, test, model), force=force)
    for file in filter(None, (train, dev, test)):
        check_input_file(file)
    from kinfolk.reports.probe_page import render
    from kinfolk.workflows.probing.curves import probe, probe_page

    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        row_progress("probes") as progress,
    ):
        result = probe(
            model,
            train,
            dev,
            test,
            task=task,
            columns=columns,
            seeds=seeds,
            max_train=max_train,
            max_test=max_test,
            tokenizer=tokenizer,
            device=device,
            watch=progress,
        )
    publish(
        out,
        lambda: render(probe_page(result)),
        json=json,
        values=result.to_json,
        show=lambda: show_probes(result),
    )


def show_probes(result: "ProbeCurves") -> None:
    """Print the score of every layer and probe, and the selectivity."""
    for sentence in result.notes:
        note(sentence)
    scores = [(curve.name, curve) for curve in result.scores]
    selectivity = [(f"selectivity, {curve.name}", curve) for curve in result.selectivity]
    in_accuracy = result.metric == "accuracy"
    show_curves(f"{result.task}: {result.metric}", scores + (selectivity if in_accuracy else []))
    if selectivity and not in_accuracy:
        print_line("")
        # Selectivity is a difference of accuracies, whatever the metric of the task.
        accuracy = [(curve.name, curve) for curve in result.accuracy]
        show_curves(f"{result.task}: accuracy", accuracy + selectivity)
    show_mixes(result)
    if result.majority is not None:
        print_line(f"most frequent label: accuracy {result.majority:.3f}")


def show_mixes(result: "ProbeCurves") -> None:
    """Print a row for each probe on the mix of all layers."""
    from kinfolk.workflows.probing.curves import mix_columns

    columns = mix_columns(result)
    rows = table("probe", *numbers(*(heading for heading, _ in columns)))
    for mix in result.mixes:
        values = [value(mix) for _, value in columns]
        cells = ("" if i is None else f"{i.score:.3f} ±{(i.high - i.low) / 2:.3f}" for i in values)
        rows.add_row(mix.name, *cells)
    print_table(rows, "mix of all layers")


def show_curves(title: str, curves: "list[tuple[str, ProbeCurve]]") -> None:
    """Print a table with a row per layer and a column per curve."""
    rows = table(*numbers("layer", *(name for name, _ in curves)))
    for layer in range(len(curves[0][1].layers)):
        found = [curve.layers[layer] for _, curve in curves]
        rows.add_row(str(layer), *(f"{i.score:.3f} ±{(i.high - i.low) / 2:.3f}" for i in found))
    print_table(rows, title)
