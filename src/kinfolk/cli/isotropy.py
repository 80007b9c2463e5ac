"""The command `isotropy`: how evenly vectors fill their space, by layer and after transforms."""

from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.cli.app import (
    COLUMN,
    DEVICE,
    EVALUATE,
    FIELD,
    FORCE,
    JSON,
    MODEL,
    REPORT,
    TOKENIZER,
    command,
    flag,
    option,
)
from kinfolk.cli.embed import LAYERS, MAX_LENGTH, POOLING, read_texts
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
from kinfolk.errors import UserError
from kinfolk.workflows.folders import check_model_folder, check_new_page
from kinfolk.workflows.vectors.choices import check_choices

if TYPE_CHECKING:
    from kinfolk.workflows.vectors.isotropy import IsotropyResult


@command("kinfolk isotropy runs/bert --text texts.txt -o isotropy.html", panel=EVALUATE)
def isotropy_command(
    model: Path = MODEL,
    text: Path = option("FILE", "Texts to measure and to fit transforms on.", default=...),
    sts: Path | None = option("FILE", "Pairs of texts with a similarity score each."),
    columns: str | None = option("LIST", "Columns of the pairs: sentence1,sentence2,score."),
    out: Path | None = REPORT,
    force: bool = FORCE,
    pooling: str | None = POOLING,
    layers: str | None = LAYERS,
    remove_components: int = option(
        "K", "Principal components that are removed.", default=2, min=0
    ),
    no_flow: bool = flag("--no-flow", "Leave out the flow, which takes longest to fit."),
    length: int | None = MAX_LENGTH,
    field: str | None = FIELD,
    column: str | None = COLUMN,
    tokenizer: Path | None = TOKENIZER,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Measure the isotropy of every layer, and text similarity before and after each transform.

    Mean cosine, IsoScore, uniformity and the spectrum of the covariance, for tokens and texts. With
    `--sts`, alignment and the Spearman correlation of cosine and score: by layer, and after
    standardization, component removal, whitening and a flow, which are fitted on `--text`.
    """
    check_choices(pooling, layers)
    check_model_folder(model)
    if out is not None:
        check_new_page(out, (text, sts, model), force=force)
    if columns is not None and sts is None:
        raise UserError("--columns are those of the pairs: add --sts FILE")
    if sts is not None and not sts.is_file():
        raise UserError(f"no such file: {sts}")
    texts = [each for each in read_texts(text, field, column) if each.strip()]
    from kinfolk.reports.isotropy_page import render
    from kinfolk.workflows.vectors.isotropy import isotropy, isotropy_page, read_pairs

    pairs = [] if sts is None else read_pairs(sts, columns)
    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        row_progress("isotropy") as progress,
    ):
        result = isotropy(
            model,
            texts,
            pairs,
            pooling="mean" if pooling is None else pooling,
            layers="last" if layers is None else layers,
            remove_components=remove_components,
            flow=not no_flow,
            length=length,
            tokenizer=tokenizer,
            device=device,
            watch=lambda stage: progress.stage(stage, 0, None),
        )
    publish(
        out,
        lambda: render(isotropy_page(result)),
        json=json,
        values=result.to_json,
        show=lambda: show_isotropy(result),
    )


def show_isotropy(result: "IsotropyResult") -> None:
    """Print the measures by layer, then those of each transform."""
    heads = ["layer", "", "cosine", "IsoScore", "uniformity", "dimensions"]
    rows = table(*numbers(*heads, *(["alignment", "Spearman"] if result.pairs else [])))
    for layer in result.layers:
        for kind, own in (("tokens", layer.tokens), ("texts", layer.texts)):
            cells = [own.mean_cosine, own.iso_score, own.uniformity]
            row = [str(layer.layer), kind, *(f"{cell:.3f}" for cell in cells)]
            row.append(f"{own.effective_dimensions:.1f}")
            if kind == "texts" and layer.spearman is not None and layer.alignment is not None:
                row += [f"{layer.alignment:.3f}", f"{layer.spearman.score:.3f}"]
            rows.add_row(*row)
    print_table(rows)
    if result.transforms:
        print_line("")
        rows = table("transform", *numbers("Spearman", "95 %", "difference", "95 %", "cosine"))
        for each in result.transforms:
            change = each.difference
            rows.add_row(
                each.name,
                f"{each.spearman.score:.3f}",
                f"{each.spearman.low:.3f}-{each.spearman.high:.3f}",
                "" if change is None else f"{change.score:+.3f}",
                "" if change is None else f"{change.low:+.3f} to {change.high:+.3f}",
                f"{each.isotropy.mean_cosine:.3f}",
            )
        print_table(rows)
    for sentence in result.notes:
        note(sentence)
