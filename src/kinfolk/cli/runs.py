"""Commands about runs: `members`, `pretrain`, `evaluate`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from kinfolk.cli import learning as asked
from kinfolk.cli.app import AsJson, Device, app, console, example, print_json
from kinfolk.errors import UserError

# What is measured of samples: how it is called, and how written.
MEASURES = {
    "texts": ("texts", ",d"),
    "empty": ("empty texts", ",d"),
    "words": ("words a text", ",.1f"),
    **{f"distinct_{size}": (f"distinct-{size}", ".3f") for size in (1, 2, 3, 4)},
    "repetition_rate": ("words in phrases said before", ".1%"),
    "loop_rate": ("texts that end in a loop", ".1%"),
    "self_bleu": ("self-BLEU", ".3f"),
    "perplexity": ("3-gram perplexity a token", ",.1f"),
}


@app.command(epilog=example("kinfolk members"))
def members(json: AsJson = False) -> None:
    """Show the family: who is here, what each learns by, and what it can do."""
    from kinfolk.families import index

    found = [entry for entry in index().values() if entry.objectives]
    if json:
        fields = (
            "name",
            "title",
            "paper",
            "year",
            "architecture",
            "objectives",
            "sizes",
            "capabilities",
        )
        # "kind" and "can" are what programs have read so far.
        earlier = {"kind": "architecture", "can": "capabilities"}
        rows = [{field: getattr(m, field) for field in fields} for m in found]
        print_json([row | {old: row[new] for old, new in earlier.items()} for row in rows])
        return
    headings = ("paper", "kind", "learns by", "sizes", "can")
    table = Table(Column("name", no_wrap=True), *headings, box=None, pad_edge=False)
    for m in found:
        lists = (", ".join(m.objectives), ", ".join(m.sizes), ", ".join(m.capabilities))
        table.add_row(f"[bold]{m.name}[/]", f"{m.title}, {m.paper}", m.architecture, *lists)
    console.print(table)


@app.command(
    epilog=example("kinfolk pretrain gpt2/tiny --corpus corpus -o runs/gpt2 train.lr=2e-3")
)
def pretrain(
    name: Annotated[str | None, typer.Argument(metavar="MEMBER[/SIZE]|FOLDER")] = None,
    settings: Annotated[list[str] | None, typer.Argument(metavar="FIELD.PATH=VALUE...")] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="A corpus folder; several as FOLDER=WEIGHT, by their shares of rows."),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The run folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run.")] = None,
    objective: Annotated[str | None, typer.Option(help="What to learn by.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows in an update.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a row.")] = None,
    seed: Annotated[int | None, typer.Option(help="What all chance follows from.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that make batches.")] = None,
    source: Annotated[Path | None, typer.Option(help="Texts to read, one a line.")] = None,
    target: Annotated[Path | None, typer.Option(help="What to write about each.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Or both, with a tab between.")] = None,
    dev_source: Annotated[Path | None, typer.Option(help="The same to measure BLEU on.")] = None,
    dev_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    dev_pairs: Annotated[Path | None, typer.Option(help="Or both.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Ids that both sides share.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Or a tokenizer for both.")] = None,
    prefix: Annotated[str | None, typer.Option(help="What stands before every source.")] = None,
    json: AsJson = False,
) -> None:
    """Pretrain a member of the family on a corpus, or go on with a run that was stopped.

    In place of a member a model folder, kinfolk's or Hugging Face's, lends its weights to a new
    run, on text of another kind: `prepare` that text with `--tokenizer FOLDER` first.

    Several corpora are mixed by their weights: `--corpus news=0.7 --corpus law=0.3` takes seven
    rows of ten from `news`, whatever the sizes of the two.

    An encoder-decoder also learns from pairs of texts: `pretrain transformer --source train.en
    --target train.de --dev-source val.en --dev-target val.de` makes a vocabulary and a corpus in
    the run folder, learns to translate, and ends with BLEU on the last two files.
    """
    from kinfolk.families import check_name

    if name is not None and not Path(name).exists():
        check_name(name)  # before torch is imported
    from kinfolk.cli.run_progress import print_message, run_progress
    from kinfolk.training.log import speed
    from kinfolk.workflows import pretrain as pretrain_module
    from kinfolk.workflows import translate
    from kinfolk.workflows.recipe import Recipe, make_recipe, parse_corpora

    texts = translate.parallel_data(
        source=source,
        target=target,
        pairs=pairs,
        dev_source=dev_source,
        dev_target=dev_target,
        dev_pairs=dev_pairs,
        vocab=vocab,
        tokenizer=tokenizer,
        prefix=prefix,
    )
    if resume is not None:
        others = (name, out, objective, steps, batch, length, seed, device, workers, texts)
        if corpus or settings or any(other is not None for other in others):
            raise UserError("--resume goes on with a run as it was begun: give it alone")
        Recipe.read(resume / "recipe.json")  # refuses a fine-tuning run
        with run_progress(str(resume), f"kinfolk pretrain --resume {resume}") as progress:
            folder = pretrain_module.resume(resume, callbacks=[progress])
    else:
        if name is None or out is None or not (corpus or texts):
            raise UserError("give MEMBER or FOLDER, --corpus and -o, or --resume RUN")
        if corpus and texts:
            raise UserError("give either --corpus or pairs of texts, not both")
        given = {
            "steps": steps,
            "batch_size": batch,
            "seed": seed,
            "device": device,
            "workers": workers,
        }
        all_settings = [f"train.{k}={v}" for k, v in given.items() if v is not None]
        all_settings += settings or []
        resuming = f"kinfolk pretrain --resume {out}"
        if texts is not None:
            chosen = translate.prepare_translation_run(
                name,
                texts,
                out,
                objective=objective,
                length=length,
                settings=all_settings,
                on_message=print_message,
            )
            with run_progress(chosen.name, resuming) as progress:
                folder = pretrain_module.resume(out, callbacks=[progress])
        else:
            chosen = make_recipe(
                name,
                parse_corpora(corpus or []),
                objective=objective,
                length=length,
                settings=all_settings,
            )
            with run_progress(chosen.name, resuming) as progress:
                folder = pretrain_module.pretrain(chosen, out, callbacks=[progress])
    page = folder / "report.html"
    score = translate.score(folder)
    if json:
        values = {"run": str(folder), "report": str(page), "tokens_per_second": speed(folder)}
        print_json({**values, **(score or {})})
        return
    print(f"the model is in {folder}/checkpoints/last, its curve in {page}")
    if score is not None:
        print(f"BLEU {score['bleu']:.1f} on {score['pairs']:,} pairs ({score['signature']})")


@app.command(epilog=example("kinfolk evaluate runs/gpt2 --text chapter.txt --json"))
def evaluate(
    model: Annotated[
        Path | None, typer.Argument(help="A run, a checkpoint or a model folder.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="A corpus folder.")] = None,
    text: Annotated[Path | None, typer.Option(help="A text file.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Texts that were written: .jsonl, lines or blocks.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens seen at a time, at most.")] = None,
    source: Annotated[Path | None, typer.Option(help="Texts to translate, one a line.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Or both, with a tab between.")] = None,
    prefix: Annotated[str | None, typer.Option(help="What stands before every source.")] = None,
    test: asked.Test = None,
    columns: asked.TestColumns = None,
    task_number: asked.TaskNumber = 1,
    out: asked.PageOut = None,
    way: asked.TestWay = None,
    shots: asked.Shots = None,
    train: asked.ShotsFrom = None,
    task: asked.TestKind = None,
    pattern: asked.TestPattern = None,
    words: asked.TestWords = None,
    seed: asked.ShotsSeed = None,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Score a model on text: loss, perplexity, bits per byte; or on labelled rows.

    A decoder is scored by the likelihood of the text. An encoder has none: it is scored by its
    pseudo-likelihood, each token predicted from all the others; an encoder-decoder likewise, by
    spans. One that translates is scored by BLEU on `--source` and `--target`.

    With `--samples` and no model, texts that were written are measured: how many words running are
    different, how much is said again, how alike the texts are. With `--corpus`, also how likely its
    3-grams make them; and the same of text that it holds out, cut to their length.

    With `--test`, a fine-tuned model answers labelled rows: its metric with an interval, what it
    takes for what, its worst mistakes, and a page about them. A plain generative one is asked by
    `--way prompt`, with no solved rows or with some: `--shots 4 --train FILE`.
    """
    from kinfolk.cli import verdicts as labelled
    from kinfolk.workflows import translate
    from kinfolk.workflows.evaluate import open_evaluation

    prompt = labelled.Prompt(
        way=way,
        shots=shots,
        train=train,
        task=task,
        pattern=pattern,
        words=words,
        seed=seed,
        length=None if test is None else length,
    )
    if test is not None:
        if model is None or any(o is not None for o in (corpus, text, samples, source, pairs)):
            raise UserError("--test is for a MODEL: give it without --corpus, --text or --samples")
        question = labelled.Question(
            test=test, target=target, columns=columns, number=task_number, device=device
        )
        labelled.test(model, question, prompt, out=out, json=json)
        return
    if prompt.said or columns is not None or out is not None:
        raise UserError("labelled rows are missing: give --test FILE, too")
    texts = translate.parallel_data(source=source, target=target, pairs=pairs, prefix=prefix)
    if samples is not None:
        if any(other is not None for other in (model, text, length, texts)):
            raise UserError("--samples are measured without a model: give --corpus beside, or none")
        show_samples(samples, corpus, json=json)
        return
    if model is None:
        raise UserError("give MODEL, or --samples FILE to measure what one wrote")
    if texts is not None and (corpus is not None or text is not None):
        raise UserError("give pairs of texts alone, without --corpus or --text")
    values: dict[str, float | int | str]
    if texts is not None:
        values = translate.evaluate(model, texts, device=device)
    else:
        found = open_evaluation(model, corpus, text, length, device)
        score, kind = found.likelihood()
        values = {
            "loss": score.loss,
            "perplexity": score.perplexity,
            "bits_per_byte": score.bits_per_byte,
            "tokens": score.tokens,
            "bytes": score.bytes,
            "kind": kind,
            **found.auxiliary_metrics(),
        }
    if json:
        print_json(values)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in values.items():
        form = {float: ",.4f", int: ","}.get(type(value), "")
        table.add_row(name.replace("_", " "), format(value, form))
    console.print(table)


def show_samples(samples: Path, corpus: Path | None, *, json: bool) -> None:
    """Measure written texts, and print them beside real ones."""
    from kinfolk.workflows.evaluate import measure_samples, samples_as_dict

    measured = zip(("samples", "real"), measure_samples(samples, corpus), strict=True)
    columns = {name: samples_as_dict(found) for name, found in measured if found is not None}
    if json:
        earlier = {"repetition": "repetition_rate", "loops": "loop_rate"}  # names of before
        print_json(
            {name: c | {old: c[new] for old, new in earlier.items()} for name, c in columns.items()}
        )
        return
    headings = [Column(name, justify="right") for name in ("samples", "real text")[: len(columns)]]
    table = Table("", *headings, box=None, pad_edge=False)
    for name in columns["samples"]:
        values = [column[name] for column in columns.values()]
        shown = ["-" if v is None else format(v, MEASURES[name][1]) for v in values]
        table.add_row(MEASURES[name][0], *shown)
    console.print(table)
