"""The files of tested claims: results for readers and for programs, and the settings of each."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kinfolk.data.documents import DocumentUnit
from kinfolk.files import new_file
from kinfolk.reports import claims_page
from kinfolk.reports.page import write
from kinfolk.version import __version__
from kinfolk.workflows.claims.catalog import Scale
from kinfolk.workflows.claims.scores import ClaimEffect
from kinfolk.workflows.comparison.plan import write_finite_json

CLAIMS_SCHEMA = 1
SETTINGS_FILE = "claim.json"
CLAIM_COLUMNS = (
    "claim",
    "part",
    "first",
    "second",
    "unit",
    "value",
    "low",
    "high",
    "seeds",
    "verdict",
)


@dataclass(frozen=True)
class ClaimResult:
    """What the experiment of a claim has shown, or why it was not run."""

    name: str
    sentence: str
    source: str
    setting: str
    budget: str  # in words
    command: str
    verdict: str  # holds, reversed, undecided, or not run
    words: str
    effects: tuple[ClaimEffect, ...] = ()
    races: tuple[str, ...] = ()  # folders, from that of all claims
    text: str = ""  # how much was read, in words


@dataclass(frozen=True)
class ClaimsSettings:
    """What all claims of a folder share."""

    scale: Scale
    corpus: tuple[Path, ...]
    tasks: tuple[str, ...] = ()
    seeds: int = 3
    document: DocumentUnit = "block"
    device: str = "auto"

    def write(self, claim: Path) -> None:
        """Write the settings into the folder of a claim."""
        paths = [str(path) for path in self.corpus]
        write_finite_json({**asdict(self), "corpus": paths}, claim / SETTINGS_FILE)

    @classmethod
    def read(cls, claim: Path) -> Self:
        """Read the settings of the call that has tested a claim."""
        values = json.loads((claim / SETTINGS_FILE).read_text(encoding="utf-8"))
        return cls(
            **values
            | {
                "scale": Scale(**values["scale"]),
                "corpus": tuple(Path(path) for path in values["corpus"]),
                "tasks": tuple(values["tasks"]),
            }
        )


def write_claims(out: Path, settings: ClaimsSettings, results: Sequence[ClaimResult]) -> None:
    """Write claims.json, claims.csv and claims.html."""
    out.mkdir(parents=True, exist_ok=True)
    values = {
        "schema": CLAIMS_SCHEMA,
        "kinfolk": __version__,
        "scale": asdict(settings.scale),
        "corpus": [str(path) for path in settings.corpus],
        "seeds": settings.seeds,
        "claims": [asdict(result) for result in results],
    }
    write_finite_json(values, out / "claims.json")
    with new_file(out / "claims.csv", newline="") as file:
        csv.writer(file).writerows([CLAIM_COLUMNS, *claim_csv_lines(results)])
    write(claims_page.render(values), out / "claims.html")


def claim_csv_lines(results: Sequence[ClaimResult]) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each effect; a claim that was not run has one line without numbers."""
    for result in results:
        if not result.effects:
            yield result.name, "", "", "", "", "", "", "", "", result.verdict
        for e in result.effects:
            numbers = (e.unit, e.value, e.low, e.high, e.seeds)
            yield (result.name, e.stage, e.first, e.second, *numbers, e.verdict)
