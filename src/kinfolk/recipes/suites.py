"""Every labelled set of a folder in turn, scored as GLUE scores (Wang et al., 2018).

A set's score is in percent, the mean of its metrics where GLUE averages them; that of a suite is
the mean of its sets.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinfolk.config import config, did_you_mean, field
from kinfolk.errors import UserError
from kinfolk.recipes.answering import blank, likened, solver
from kinfolk.recipes.seeds import ordered, scores, several
from kinfolk.recipes.tuning import Say, Sheet, Tuning, labelled, read, sheet, spread
from kinfolk.rng import Stream, generator
from kinfolk.tasks.guess import guess
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.scoring import score
from kinfolk.tasks.suites import Files, Set, suite
from kinfolk.tasks.task import FALLING, HUNDREDS

AVERAGED = ("classify", "regress")  # accuracy and F1, Pearson and Spearman; else the first counts
Tune = Callable[[Sequence[Sheet], Path, str | None], Path]  # of files, a run folder, a metric


@config("labelled_sample")
class Part(Sheet):
    """A labelled file of which some rows are enough, drawn from all over it."""

    most: int = field(help="number of rows to draw")

    def learned(self, notes: Notes) -> list[Any]:
        """Read what is learned from."""
        return some(super().learned(notes), self.most)

    def parted(self, notes: Notes) -> tuple[list[Any], list[Any]]:
        """Return the rows to learn from and those to choose by."""
        learned, dev = super().parted(notes)
        return learned, some(dev, self.most)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one set: its scores, or why it has none."""

    name: str
    task: str
    way: str = ""
    learned: int = 0  # rows
    asked: int = 0
    on: str = ""  # the rows it is scored on: test, dev, or some held out
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    spreads: dict[str, float] = dataclasses.field(
        default_factory=dict
    )  # where there are several seeds
    reason: str = ""  # why it was left out

    @property
    def score(self) -> float:
        """One number for the set, in percent."""
        values = [percent(name, value) for name, value in self.scores.items()]
        return sum(values) / len(values) if self.task in AVERAGED else values[0]


def chosen(folder: Path, only: str | None) -> list[Set]:
    """List the sets of a folder, or those that are named."""
    sets = suite(folder)
    if only is None:
        return sets
    known = {one.name: one for one in sets}
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--only {name}: no set is called so: {did_you_mean(name, [*known])}")
    return [known[name] for name in names]


def unread(folder: Path, sets: Sequence[Set]) -> list[Result]:
    """Name the folders that hold no set, and say why."""
    known = {one.name.partition("/")[0] for one in sets}
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in known)
    return [
        Result(name=path.name, task="", reason=why(path))
        for path in inner
        if not path.name.startswith(".") and any(path.iterdir())
    ]


def why(folder: Path) -> str:
    """Say why a folder holds no set: what its first file is taken for."""
    file = next((path for path in sorted(folder.rglob("*")) if path.is_file()), None)
    if file is None:
        return "it holds no file"
    try:
        return f"{file.name} is {guess(file).sentence}"
    except UserError as error:
        return str(error)


def run(
    sets: Sequence[Set],
    tune: Tune,
    out: Path,
    *,
    limit: int | None = None,
    device: str = "auto",
    say: Say = lambda sentence: None,
    left: Sequence[Result] = (),
) -> list[Result]:
    """Fine-tune on every set and score it; one that cannot be solved is left out, with a reason."""
    if limit is not None and limit < 2:
        raise UserError(f"--limit {limit} leaves nothing to learn from: use 2 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o")
    for none in left:
        say(f"{none.name} is left out: {none.reason}")
    results = [*left]
    for one in sets:
        say(f"{one.name}: {one.guess.sentence}")
        try:
            results.append(solved(one, tune, out / one.name, limit, device, say))
        except UserError as error:
            say(f"{one.name} is left out: {error}")
            results.append(Result(name=one.name, task=one.task, reason=str(error)))
    if any(result.scores for result in results):
        values = [asdict(one) | ({"score": one.score} if one.scores else {}) for one in results]
        text = json.dumps({"mean": mean(results), "sets": values}, indent=2, ensure_ascii=False)
        (out / "suite.json").write_text(text + "\n", encoding="utf-8")
    return results


def solved(one: Set, tune: Tune, out: Path, limit: int | None, device: str, say: Say) -> Result:
    """Fine-tune on one set, and score it on its test rows, else on its dev rows."""
    learned, dev = (one.train, one.dev) if one.train else (one.dev, ())
    if not learned:
        raise UserError("it has no rows to learn from, only a test")
    file = sheeted(learned, dev, limit)
    made = tune([file], out, one.metrics[0])
    runs = ordered(made) if several(made) else [made]
    tuning = Tuning.read(runs[0] / "recipe.json")
    rows = final_rows(one.test, file, limit, say)
    if rows:
        found = [asked(path, rows, device) for path in runs]
        on, size = "test", len(rows)
    else:
        found = list(scores(made).runs.values())
        on = "dev" if dev else "held out"
        size = len(file.parted(Notes())[1])
    names = [name for name in one.metrics if name in found[0] and name not in FALLING]
    if not names:
        raise UserError("none of its rows could be scored: give it more, or a test")
    means = {name: spread([values[name] for values in found]) for name in names}
    return Result(
        name=one.name,
        task=one.task,
        way=tuning.ways[0].name,
        learned=len(file.parted(Notes())[0]),
        asked=size,
        on=on,
        scores={name: value for name, (value, _) in means.items()},
        spreads={name: apart for name, (_, apart) in means.items()} if len(runs) > 1 else {},
    )


def sheeted(learned: Files, dev: Files, limit: int | None) -> Sheet:
    """Describe the files of a set."""
    targets = [files[1] if len(files) > 1 else None for files in (learned, dev)]
    found = sheet(learned[0], dev[0] if dev else None, target=targets[0], dev_target=targets[1])
    if limit is None:
        return found
    return Part(**{name: getattr(found, name) for name in Sheet.__dataclass_fields__}, most=limit)


def final_rows(files: Files, file: Sheet, limit: int | None, say: Say) -> list[Any]:
    """Read the rows that a set is scored on; some tests keep their labels to themselves.

    One that cannot be read at all is named, and the set is scored without it.
    """
    if not files:
        return []
    target = files[1] if len(files) > 1 else None
    try:
        rows = read(files[0], file.guess, target=target)
    except UserError as error:
        try:
            read(files[0], blank(likened(files[0], file.guess, labelled=False)), target=target)
        except UserError:
            say(f"{files[0]} cannot be read, so that dev rows are scored instead: {error}")
        return []
    rows = [row for row in rows if labelled(file.guess.task, row)]
    return rows if limit is None else some(rows, limit)


def asked(run: Path, rows: list[Any], device: str) -> dict[str, float]:
    """Score the best model of a run on rows."""
    found = solver(run, device=device)
    return score(found.task, rows, found.answers(rows))


def some(rows: list[Any], most: int) -> list[Any]:
    """Draw some rows, always the same, in their order: files are often sorted by label."""
    if len(rows) <= most:
        return rows
    kept = generator(0, Stream.SUBSAMPLE).permutation(len(rows))[:most]
    return [rows[place] for place in sorted(kept.tolist())]


def mean(results: Sequence[Result]) -> float:
    """Return the mean of the sets that have a score."""
    values = [result.score for result in results if result.scores]
    return sum(values) / len(values)


def percent(name: str, value: float) -> float:
    """Return a score in percent."""
    return value if name in HUNDREDS else 100 * value
