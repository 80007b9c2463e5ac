"""Test well-known claims by small comparisons: effect, interval and verdict of each.

FOLDER/text-1000000.jsonl   the text, cut to the bytes that a claim reads
FOLDER/NAME/                the comparison of a claim; NAME/early and NAME/late where it has two
FOLDER/NAME/claim.json      the settings of its call
FOLDER/claims.json          results; also claims.csv and claims.html
"""

import hashlib
import json
import math
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.data.documents import DocumentUnit, ReadOptions, read_documents
from kinfolk.data.files import find_files
from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.reports.page import plural
from kinfolk.reports.race_tables import byte_count
from kinfolk.training.workload import select_device
from kinfolk.types import OnMessage
from kinfolk.workflows.claims.catalog import NEEDS, Claim, Scale, TaskNeed, scale_of, select_claims
from kinfolk.workflows.claims.files import (
    SETTINGS_FILE,
    ClaimResult,
    ClaimsSettings,
    write_claims,
)
from kinfolk.workflows.claims.scores import ClaimEffect, claim_effects
from kinfolk.workflows.comparison.compare import (
    PLAN_FILE,
    RESULT_FILE,
    plan_only,
    resume_race,
    start_race,
)
from kinfolk.workflows.comparison.data import read_task
from kinfolk.workflows.comparison.options import (
    OPTIONS_FILE,
    check_document_unit,
    race_options,
)
from kinfolk.workflows.comparison.plan import ALL_LABELS, Plan, RaceOptions
from kinfolk.workflows.comparison.pool import RaceCallback
from kinfolk.workflows.folders import check_in_folder

SHARED_OPTIONS = ("length", "batch_size", "train_rows", "test_rows", "task_steps", "max_tokens")


def run_claims(
    out: Path | str,
    corpus: Path | str | Sequence[Path | str],
    names: Sequence[str] = (),
    *,
    tasks: Path | str | Sequence[Path | str] = (),
    scale: str | Scale = "nano",
    seeds: int = 3,
    document: DocumentUnit = "block",
    device: str = "auto",
    jobs: int | None = None,
    on_message: OnMessage = lambda message: None,
    callbacks: Sequence[RaceCallback] = (),
) -> list[ClaimResult]:
    """Test claims, all without names; the same call continues after an interruption.

    `run_claims("claims", "notes/", ["electra"], tasks="triage.tsv", scale="tiny")`

    Each task file serves the claims that need its kind: a classification of texts, one of pairs of
    texts, tagged words. Without such a file a claim that was named is an error; else it is listed
    as not run.
    """
    paths = [corpus] if isinstance(corpus, Path | str) else [*corpus]
    files = [tasks] if isinstance(tasks, Path | str) else [*tasks]
    settings = ClaimsSettings(
        scale=scale if isinstance(scale, Scale) else scale_of(scale),
        corpus=tuple(Path(path) for path in paths),
        tasks=tuple(str(file) for file in files),
        seeds=seeds,
        document=document,
        device=device,
    )
    out = Path(out)
    check_in_folder(out)
    if out.is_file():
        raise UserError(f"{out} is a file: -o must name a folder")
    chosen, by_need = checked_claims(settings, names)
    found = {claim.name: read_claim(claim, settings, out) for claim in select_claims()}
    results = []
    for claim in chosen:
        on_message(f"{claim.name}: {claim.sentence}")
        results.append(run_claim(claim, settings, by_need, out, jobs, callbacks))
        found[claim.name] = results[-1]
        write_claims(out, settings, [result for result in found.values() if result is not None])
        on_message(f"{claim.name}: {results[-1].words}")
    return results


def checked_claims(
    settings: ClaimsSettings, names: Sequence[str]
) -> tuple[list[Claim], dict[TaskNeed, str]]:
    """Return claims by their names and the files of their tasks, with the settings checked."""
    check_document_unit(settings.document)
    if settings.seeds < 2:
        raise UserError(f"--seeds {settings.seeds}: a verdict needs the spread of at least 2 seeds")
    select_device(settings.device)
    chosen = select_claims(names)
    check_corpus(settings.corpus)
    by_need = tasks_by_need(settings)
    for claim in chosen if names else ():
        require_tasks(claim, by_need)
    return chosen, by_need


def plan_claims(
    settings: ClaimsSettings,
    names: Sequence[str] = (),
    *,
    jobs: int | None = None,
    on_message: OnMessage = lambda message: None,
) -> Iterator[tuple[Claim, str, Plan | None]]:
    """Yield each comparison of claims with its stage and plan; None without its kind of task.

    Nothing is trained, and nothing is kept.
    """
    chosen, by_need = checked_claims(settings, names)
    with tempfile.TemporaryDirectory(prefix="kinfolk-claims-") as folder:
        for claim in chosen:
            if missing_tasks(claim, by_need):
                yield claim, "", None
                continue
            for stage, share in claim.stages.items():
                options = claim_options(claim, settings, by_need, Path(folder), share)
                yield claim, stage, plan_only(options, jobs=jobs, on_message=on_message)


def check_corpus(paths: Sequence[Path]) -> None:
    """Refuse a corpus that is missing, or prepared, before anything is written."""
    if not paths:
        raise UserError("no corpus is given: name text files or folders with --corpus")
    for path in paths:
        if (path / "corpus.json").is_file():
            raise UserError(
                f"{path} is a prepared corpus, and claims have their own tokenizers: give the text"
            )
    find_files(paths)


def tasks_by_need(settings: ClaimsSettings) -> dict[TaskNeed, str]:
    """Return the first task file of each kind that claims need."""
    found: dict[TaskNeed, str] = {}
    probe = RaceOptions((), (), "tokens", 1.0, tasks=settings.tasks)
    for text in settings.tasks:
        task = read_task(text, probe).task
        if task.output == "tags":
            found.setdefault("tags", text)
        elif task.output == "label":
            found.setdefault("pair" if task.is_pair else "text", text)
    return found


def missing_tasks(claim: Claim, by_need: Mapping[TaskNeed, str]) -> str | None:
    """Return which kind of task a claim lacks; None if it has all."""
    lacking = [NEEDS[need] for need in claim.tasks if need not in by_need]
    return " and ".join(lacking) or None


def require_tasks(claim: Claim, by_need: Mapping[TaskNeed, str]) -> None:
    """Refuse a claim whose kind of task no file has."""
    if lacking := missing_tasks(claim, by_need):
        raise UserError(f"the claim {claim.name} needs {lacking}: give it with --task FILE")


def run_claim(
    claim: Claim,
    settings: ClaimsSettings,
    by_need: Mapping[TaskNeed, str],
    out: Path,
    jobs: int | None,
    callbacks: Sequence[RaceCallback],
) -> ClaimResult:
    """Run the comparisons of a claim, or read those that are done."""
    if lacking := missing_tasks(claim, by_need):
        words = f"not run: it needs {lacking}, which --task FILE gives"
        return result_of(claim, settings, (), "not run", words)
    for stage, race in race_folders(claim, out).items():
        options = claim_options(claim, settings, by_need, out, claim.stages[stage])
        finish_race(options, race, jobs, callbacks)
    needed = tuple(dict.fromkeys(by_need[need] for need in claim.tasks))
    replace(settings, tasks=needed).write(out / claim.name)
    result = read_claim(claim, settings, out)
    assert result is not None
    return result


def race_folders(claim: Claim, out: Path) -> dict[str, Path]:
    """Return the folder of each comparison of a claim."""
    return {
        stage: out / claim.name / stage if stage else out / claim.name for stage in claim.stages
    }


def read_claim(claim: Claim, settings: ClaimsSettings, out: Path) -> ClaimResult | None:
    """Return the result of a claim whose comparisons are done; None where they are not.

    Its command, tasks and device are those of its own call.
    """
    races = race_folders(claim, out)
    if not all(is_race_complete(race) for race in races.values()):
        return None
    if not (out / claim.name / SETTINGS_FILE).is_file():
        return None  # stopped after its comparisons: the same call continues
    for stage, race in races.items():
        done = RaceOptions.read(race / OPTIONS_FILE)
        budget = claim_budget(claim, settings, claim.stages[stage])
        text = text_path(settings, text_size(claim, settings), out)
        if (done.budget_amount, done.seeds, *done.corpus) != (budget, settings.seeds, str(text)):
            return None  # of an earlier call, at another scale or with another text
    effects = claim_effects(claim, races)
    verdict = joint_verdict(effects)
    folders = [str(race.relative_to(out)) for race in races.values()]
    corpus = Plan.read([*races.values()][-1] / PLAN_FILE).corpus
    own, words = ClaimsSettings.read(out / claim.name), verdict_words(verdict, effects)
    return replace(result_of(claim, own, effects, verdict, words, folders), text=text_words(corpus))


def text_words(corpus: Mapping[str, Any]) -> str:
    """Return how much text the entrants of a claim read, and how much was held out."""
    trained, held_out = byte_count(corpus["bytes"]), byte_count(corpus["held_out_bytes"])
    documents = plural(corpus["documents"], "document")
    return f"{trained} of text for training ({documents}), {held_out} held out"


def claim_options(
    claim: Claim,
    settings: ClaimsSettings,
    by_need: Mapping[TaskNeed, str],
    out: Path,
    share: float,
) -> RaceOptions:
    """Return the comparison of a claim, with a share of the scale's budget."""
    scale = settings.scale
    options: dict[str, Any] = {name: vars(scale)[name] for name in SHARED_OPTIONS}
    own_tokenizers = any("tokenizer=" in entrant for entrant in claim.entrants)
    options |= {"vocab_size": None if own_tokenizers else scale.vocab_size}
    options |= {"probes": False, "samples": 0, "baselines": False, "device": settings.device}
    return race_options(
        claim.entrants_at(scale),
        sample_text(settings, text_size(claim, settings), out),
        {claim.budget_kind: claim_budget(claim, settings, share)},
        tasks=[by_need[need] for need in claim.tasks],
        seeds=settings.seeds,
        labels=[ALL_LABELS],
        **{**options, **claim.options},
    )


def text_size(claim: Claim, settings: ClaimsSettings) -> int:
    """Return how many bytes of text a claim reads."""
    return round(claim.corpus_share * settings.scale.corpus_bytes)


def claim_budget(claim: Claim, settings: ClaimsSettings, share: float = 1.0) -> float:
    """Return what each pretraining of a claim may spend."""
    scale = settings.scale
    return share * (scale.flops if claim.budget_kind == "flops" else scale.tokens)


def text_path(settings: ClaimsSettings, size: int, out: Path) -> Path:
    """Return the file for a part of the text; another corpus has another one."""
    given = [*(str(path.resolve()) for path in settings.corpus), settings.document]
    return out / f"text-{size}-{hashlib.sha256(json.dumps(given).encode()).hexdigest()[:8]}.jsonl"


def sample_text(settings: ClaimsSettings, size: int, out: Path) -> Path:
    """Write the first documents of the text, up to a size in bytes; return the file."""
    path = text_path(settings, size, out)
    if path.is_file():
        return path
    out.mkdir(parents=True, exist_ok=True)
    reading = ReadOptions(settings.document)
    written = 0
    with new_file(path) as file:
        for document in read_documents(list(settings.corpus), reading):
            if written >= size:
                break
            file.write(json.dumps({"text": document.text}, ensure_ascii=False) + "\n")
            written += len(document.text.encode())
    return path


def finish_race(
    options: RaceOptions, race: Path, jobs: int | None, callbacks: Sequence[RaceCallback]
) -> None:
    """Run a comparison, or continue it where it was interrupted."""
    if (race / OPTIONS_FILE).is_file():
        if RaceOptions.read(race / OPTIONS_FILE) != options:
            raise UserError(
                f"{race} was started with other settings: choose another folder, or remove it"
            )
        if not is_race_complete(race):
            resume_race(race, jobs=jobs, callbacks=callbacks)
        return
    start_race(options, race, jobs=jobs, callbacks=callbacks)


def is_race_complete(race: Path) -> bool:
    """Return whether all jobs of a comparison have a result."""
    path = race / RESULT_FILE
    return path.is_file() and bool(json.loads(path.read_text(encoding="utf-8"))["complete"])


# Verdicts


def joint_verdict(effects: Sequence[ClaimEffect]) -> str:
    """Return the verdict of a claim: it holds if all its parts do, and not if one is reversed."""
    verdicts = {effect.verdict for effect in effects if not effect.secondary}
    if "reversed" in verdicts:
        return "reversed"
    return "holds" if verdicts == {"holds"} else "undecided"


def verdict_words(verdict: str, effects: Sequence[ClaimEffect]) -> str:
    """Return the verdict of a claim in a sentence."""
    start = "undecided at this scale" if verdict == "undecided" else verdict
    return f"{start}: {'; '.join(effect.words for effect in effects if not effect.secondary)}"


def result_of(
    claim: Claim,
    settings: ClaimsSettings,
    effects: Sequence[ClaimEffect],
    verdict: str,
    words: str,
    races: Sequence[str] = (),
) -> ClaimResult:
    """Return the result of a claim with its description."""
    scale = settings.scale
    amount = claim_budget(claim, settings)
    unit = "FLOPs" if claim.budget_kind == "flops" else "tokens"
    return ClaimResult(
        name=claim.name,
        sentence=claim.sentence,
        source=claim.source,
        setting=claim.setting,
        budget=f"{scale.size}, {short_number(amount)} {unit} each, {settings.seeds} seeds",
        command=claim_command(claim, settings),
        verdict=verdict,
        words=words,
        effects=tuple(effects),
        races=tuple(races),
    )


def claim_command(claim: Claim, settings: ClaimsSettings) -> str:
    """Return the command that tests a claim again."""
    words = ["kinfolk", "claims", claim.name, "--scale", settings.scale.size]
    words += [part for path in settings.corpus for part in ("--corpus", str(path))]
    words += [part for file in settings.tasks for part in ("--task", file)]
    if settings.document != "block":
        words += ["--document", settings.document]
    if settings.device != "auto":
        words += ["--device", settings.device]
    words += ["--seeds", str(settings.seeds), "-o", "claims"]
    return shlex.join(words)


def short_number(value: float) -> str:
    """Write 1200000 as 1.2e6, and numbers below a million with commas."""
    if value < 1e6:
        return f"{value:,.0f}"
    exponent = math.floor(math.log10(value))
    return f"{value / 10**exponent:.3g}e{exponent}"
