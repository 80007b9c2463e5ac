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
    from kinfolk.recipes.seeds import Scores
    from kinfolk.recipes.suites import Result


def newest(run: Path) -> str:
    """Say what a run scored last: `accuracy 0.9120`."""
    from kinfolk.comparison.answers import figure, titled
    from kinfolk.recipes.tuning import Tuning
    from kinfolk.training.log import read

    tuning = Tuning.read(run / "recipe.json")
    line = [line for line in read(run) if "held_out" in line][-1]
    mains = [way.task.main for way in tuning.ways]
    names = mains if len(mains) == 1 else [f"{n}_{main}" for n, main in enumerate(mains, 1)]
    return "  ".join(f"{titled(name)} {figure(name, line[name])}" for name in names if name in line)


def show(run: Path, *, json: bool) -> None:
    """Print what a run scored on dev rows, and where its best model is."""
    from kinfolk.recipes.opening import model_folder
    from kinfolk.recipes.seeds import finite, scores

    found, best = scores(run), model_folder(run)
    if json:
        means = {name: found.mean(name) for name in found.names}
        values: dict[str, Any] = {
            "run": str(run),
            "model": str(best),
            "metric": found.metric,
            "dev": {name: finite(mean) for name, (mean, _) in means.items()},
        }
        if len(found.runs) > 1:
            values["spread"] = {name: finite(apart) for name, (_, apart) in means.items()}
            values["seeds"] = [
                {name: finite(one[name]) for name in found.names} for one in found.runs.values()
            ]
        print_json(values)
        return
    if found.names:
        console.print(score_table(found))
    print(f"the best model is in {best}")


def score_table(found: "Scores") -> Table:
    """Lay out the dev scores, a column a run where there are several, then mean and spread."""
    from kinfolk.comparison.answers import figure, titled

    several = len(found.runs) > 1
    names = [run.name for run in found.runs] if several else ["dev"]
    headings = [*names, *(("mean", "spread") if several else ())]
    table = Table("", *(Column(name, justify="right") for name in headings), box=None,
                  pad_edge=False)  # fmt: skip
    for name in found.names:
        values = [run[name] for run in found.runs.values()]
        values += [*found.mean(name)] if several else []
        table.add_row(titled(name), *(figure(name, value) for value in values))
    return table


def show_suite(name: str, results: Sequence["Result"], *, json: bool) -> None:
    """Print a table of all sets, and their mean at its end."""
    from kinfolk.comparison.answers import titled
    from kinfolk.recipes.suites import mean, percent

    scored = [result for result in results if result.scores]
    if not scored:
        raise UserError(f"no set of {name} could be solved: {results[0].reason}")
    if json:
        found = [{**asdict(one), **({"score": one.score} if one.scores else {})} for one in results]
        print_json({"suite": name, "mean": mean(results), "sets": found})
        return
    headings = [Column(title, justify="right") for title in ("rows", "scored on", "score")]
    table = Table(name, "task", "way", *headings, "", box=None, pad_edge=False)
    for one in scored:
        each = [
            f"{titled(key)} {percent(key, value):.1f}"
            + (f" ± {percent(key, one.spreads[key]):.1f}" if one.spreads else "")
            for key, value in one.scores.items()
        ]
        where = f"{one.asked:,} {one.on}"
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
    table.add_row("mean", "", "", "", "", f"[bold]{mean(results):.1f}[/]", "")
    console.print(table)
