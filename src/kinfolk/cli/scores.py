"""How `finetune` prints what was reached: of one run, of several seeds, of a suite."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from kinfolk.cli.app import console, print_json
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.workflows.seeds import SeedResults
    from kinfolk.workflows.suites import SuiteResult


def newest(run: Path) -> str:
    """Say what a run scored last: `accuracy 0.9120`."""
    from kinfolk.tasks.task import format_score, metric_title
    from kinfolk.training.log import read
    from kinfolk.workflows.finetune_recipe import FineTuneRecipe

    tuning = FineTuneRecipe.read(run / "recipe.json")
    line = [line for line in read(run) if "eval_loss" in line][-1]
    mains = [way.task.main_metric for way in tuning.formulations]
    names = mains if len(mains) == 1 else [f"{n}_{main}" for n, main in enumerate(mains, 1)]
    return "  ".join(
        f"{metric_title(name)} {format_score(name, line[name])}" for name in names if name in line
    )


def show(run: Path, *, json: bool) -> None:
    """Print what a run scored on dev rows, and where its best model is."""
    from kinfolk.workflows.load import find_model_folder
    from kinfolk.workflows.seeds import finite_or_none, read_scores

    found, best = read_scores(run), find_model_folder(run)
    if json:
        means = {name: found.mean(name) for name in found.names}
        values: dict[str, Any] = {
            "run": str(run),
            "model": str(best),
            "metric": found.metric,
            "dev": {name: finite_or_none(mean) for name, (mean, _) in means.items()},
        }
        if len(found.runs) > 1:
            values["spread"] = {name: finite_or_none(apart) for name, (_, apart) in means.items()}
            values["seeds"] = [
                {name: finite_or_none(one[name]) for name in found.names}
                for one in found.runs.values()
            ]
        print_json(values)
        return
    if found.names:
        console.print(score_table(found))
    print(f"the best model is in {best}")


def score_table(found: "SeedResults") -> Table:
    """Lay out the dev scores, a column a run where there are several, then mean and spread."""
    from kinfolk.tasks.task import format_score, metric_title

    several = len(found.runs) > 1
    names = [run.name for run in found.runs] if several else ["dev"]
    headings = [*names, *(("mean", "spread") if several else ())]
    table = Table("", *(Column(name, justify="right") for name in headings), box=None,
                  pad_edge=False)  # fmt: skip
    for name in found.names:
        values = [run[name] for run in found.runs.values()]
        values += [*found.mean(name)] if several else []
        table.add_row(metric_title(name), *(format_score(name, value) for value in values))
    return table


def show_suite(name: str, results: Sequence["SuiteResult"], *, json: bool) -> None:
    """Print a table of all sets, and their mean at its end."""
    from kinfolk.tasks.task import metric_title
    from kinfolk.workflows.suites import as_percent, suite_mean

    scored = [result for result in results if result.scores]
    if not scored:
        raise UserError(f"no set of {name} could be solved: {results[0].skip_reason}")
    if json:
        found = [{**asdict(one), **({"score": one.score} if one.scores else {})} for one in results]
        print_json({"suite": name, "mean": suite_mean(results), "sets": found})
        return
    headings = [Column(title, justify="right") for title in ("rows", "scored on", "score")]
    table = Table(name, "task", "way", *headings, "", box=None, pad_edge=False)
    for one in scored:
        each = [
            f"{metric_title(key)} {as_percent(key, value):.1f}"
            + (f" ± {as_percent(key, one.stds[key]):.1f}" if one.stds else "")
            for key, value in one.scores.items()
        ]
        where = f"{one.num_eval_rows:,} {one.split}"
        words = ", ".join(each)
        table.add_row(
            escape(one.name),
            one.task,
            one.way,
            f"{one.learned:,}",
            where,
            f"{one.score:.1f}",
            words,
        )
    table.add_section()
    table.add_row("mean", "", "", "", "", f"[bold]{suite_mean(results):.1f}[/]", "")
    console.print(table)
