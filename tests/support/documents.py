"""The commands and Python blocks that README and docs print, and how a test runs them in order."""

import contextlib
import gzip
import io
import itertools
import json
import lzma
import random
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from typer.core import TyperGroup

from kinfolk.cli import load_app, main
from kinfolk.data import demo_text
from kinfolk.tasks import task
from kinfolk.tasks.formats import base
from kinfolk.workflows import quickstart
from support.runs import parser

ROOT = Path(__file__).parents[2]
README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
PAGES = [README, CHINESE, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# Fields of the quickstart, which has no options: make it small.
QUICKSTART = {
    "MODELS": {f"{name}/nano": ["steps=2", "batch_size=4"] for name in ("gpt2", "bert", "t5")},
    "HOLDOUT": 0.1,
}
# Regular expressions and replacements that make a printed command or Python block small.
# Of an option that is given twice, the last value counts.
NEW_COMPARISON = r"^(kinfolk compare (?!--resume|--repeat).*)$"
REDUCTIONS = (
    (r"^make quickstart$", "kinfolk quickstart -o runs/quickstart"),  # what the target runs
    (r"^(kinfolk pretrain (?!--|ngram).*)$", r"\1 --steps 2 --batch 4"),
    (r"^(kinfolk finetune .*)$", r"\1 --epochs 1 --batch 8"),
    (r"^(kinfolk prefixes (?!--).*)$", r"\1 --steps 2 --batch 4"),
    (NEW_COMPARISON, r"\1 --length 16 --batch-size 4 --labels all --jobs 0"),
    (NEW_COMPARISON, r"\1 --task-steps 2 --max-tokens 32 --samples 2"),
    (NEW_COMPARISON, r"\1 --seeds 1"),
    (r"^(kinfolk lr-find .*)$", r"\1 --steps 10 --length 16 train.batch_size=4"),
    (r"^(kinfolk verify-resume .*)$", r"\1 --steps 4"),
    (r"^(kinfolk plan .*)$", r"\1 --length 32"),
    (r"^(kinfolk probe .*)$", r"\1 --seeds 1"),
    (r"^(kinfolk neurons .*)$", r"\1 --draws 2"),
    (r"--minutes \d+", "--tokens 4000"),
    (r"\bminutes=\d+", "tokens=4000, length=16, batch_size=4, samples=2, jobs=0"),
    (r"/tiny\b", "/nano"),
    (r"--vocab-size \d+", "--vocab-size 420"),
    (r"wordpiece --vocab-size 420", "wordpiece --vocab-size 200"),
    (r"whitespace --vocab-size 420", "whitespace --vocab-size 125"),
    (r"word --vocab-size 420", "word --vocab-size 130"),
    (r"\b(unigram|char):\d+", r"\1:150"),
    (r"--holdout [\d.]+%", "--holdout 20%"),
    (r"--holdout 0\.\d+", "--holdout 0.2"),
    (r"--seeds \d+", "--seeds 2"),
    (r"--num-fewshot \d+", "--num-fewshot 1"),
    (r"(max-new-tokens |max_new_tokens=)\d+", r"\g<1>8"),
    (r"\bsteps=\d+", "steps=2"),
    (r"\bwarmup=\d+", "warmup=1"),
    (r"\bepochs=\d+", "epochs=1"),
    (r" train\.cuda_graph=yes", ""),  # needs CUDA
)
# Printed commands that are not run, by their beginnings, and why.
NOT_RUN = {
    "make setup": "installs packages; .ci/run does",
    "make test": "runs these tests",
    "make check": "runs these tests",
    "make format": "changes the source",
    "make bench": "takes minutes on an idle machine",
    "make soak": "takes ten minutes; tests/test_soak.py runs a part",
    "python tools/soak.py": "takes ten minutes; tests/test_soak.py runs a part",
    ". .venv/bin/activate": "tests run in their own environment",
    "pip install": "needs a network",
    "hf download": "needs a network",
    "python benchmarks/": "takes minutes; tests/test_benchmarks.py runs some in small",
    "python -m kinfolk.families": "writes into the source",
    "python tools/reference.py --write": "tests/test_reference.py makes the pages",
    "python -m tests.measures": "tests/test_house.py calls it",
    "kinfolk prepare notes/ --engine ray": "starts Ray; tests/cli/test_prepare_on_ray.py does",
    "kinfolk pretrain gpt2/tiny --logger": "needs packages; tests/workflows/test_loggers.py does",
    "torchrun": "starts processes; test_distributed, test_sharding and test_grid do",
}
TYPED = {"chat": "The court\n/help\n/quit\n"}  # on standard input

CODE = re.compile(r"^```(\w*)\n(.*?)^```$|`([^`]+)`", re.MULTILINE | re.DOTALL)
PROGRAMS = ("kinfolk", "make", "pip", "hf", "python", "torchrun")
OUT = re.compile(r"(?: -o | > )(\S+)")


@dataclass(frozen=True)
class Code:
    """One command or Python block of a page."""

    page: str
    kind: str  # sh: a line of a shell block; inline: a command in a sentence; python: a block
    text: str

    @property
    def arguments(self) -> list[str]:
        """The words after `kinfolk`, without a redirection; empty for other programs."""
        words = shlex.split(self.text.partition(" > ")[0]) if self.kind != "python" else [""]
        return words[1:] if words[0] == "kinfolk" else []

    @property
    def not_run(self) -> str:
        """Why the command is not run, or the empty string."""
        return next((why for start, why in NOT_RUN.items() if self.text.startswith(start)), "")

    @property
    def names_a_command(self) -> bool:
        """Whether a sentence only names a command, as `kinfolk audit`, without arguments."""
        return self.kind == "inline" and self.arguments != [] and not resolve(self.arguments)[1]

    @property
    def is_run(self) -> bool:
        """Whether `run_page` runs it."""
        return self.kind == "python" or not (self.not_run or self.names_a_command)

    @property
    def reduced(self) -> str:
        """The text with few steps and the smallest sizes."""
        text = self.text
        for pattern, replacement in REDUCTIONS:
            text = re.sub(pattern, replacement, text)
        return text


def printed(page: Path) -> Iterator[Code]:
    """Yield the commands and Python blocks of a page in order."""
    for language, block, inline in CODE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            yield Code(page.name, "python", block)
        elif language == "sh":
            for line in block.splitlines():
                if text := re.sub(r"(^|\s+)# .*", "", line):
                    yield Code(page.name, "sh", text)
        elif len(words := inline.split()) > 1 and words[0] in PROGRAMS:
            yield Code(page.name, "inline", " ".join(words))


def resolve(arguments: list[str]) -> tuple[Any, list[str]]:
    """Return the subcommand that arguments name and the arguments after it."""
    command, rest = parser(load_app()), arguments
    while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def run_page(page: Path, patch: pytest.MonkeyPatch) -> None:
    """Run the commands and Python blocks of a page in the present folder; each must succeed."""
    patch.setattr(torch.cuda, "is_available", lambda: False)  # nothing is compiled, then
    # What a page registers is forgotten after it.
    patch.setattr(base, "_FORMATS", base.all_formats())
    patch.setattr(task, "TASK_KINDS", task.kinds())
    done: set[str] = set()  # a sentence about a command above does not run it again
    for code in printed(page):
        if code.kind == "python":
            exec(compile(code.reduced, code.page, "exec"), {})
        elif code.is_run and code.text not in done:
            done.add(code.text)
            run_command(code.reduced)
            missing = [name for name in OUT.findall(code.reduced) if not Path(name).exists()]
            assert not missing, f"{code.page}: {code.text} did not write {missing}"


def run_command(line: str) -> None:
    """Run one command line in this process; a failure shows what it printed."""
    command, _, out = line.partition(" > ")
    program, *arguments = shlex.split(command)
    assert program == "kinfolk", f"neither run nor listed in NOT_RUN: {line}"
    if "--resume" in arguments:  # a run that was killed after its last step has no report
        page = "race.html" if arguments[0] == "compare" else "report.html"
        (Path(arguments[arguments.index("--resume") + 1]) / page).unlink()
    code: object = 0
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(warnings.catch_warnings())
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` sets its own
        patch.setattr(typer.main, "get_command", parser)
        patch.setattr(sys, "argv", [program, *arguments])
        patch.setattr(sys, "stdin", io.StringIO(TYPED.get(arguments[0], "")))
        for name, value in QUICKSTART.items():
            patch.setattr(quickstart, name, value)
        patch.setattr(demo_text, "demo_documents", few_documents)
        warnings.simplefilter("always", UserWarning)  # printed, as for a user
        if out:
            file = stack.enter_context(Path(out).open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(file))
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert code == 0, f"exit code {code}: {line}"


DOCSTRINGS = demo_text.demo_documents


def few_documents() -> Iterator[str]:
    """Yield the beginnings of a few docstrings of the standard library."""
    return (document[:300] for document in itertools.islice(DOCSTRINGS(), 100))


def sentence(rng: random.Random, ending: str | None = None) -> str:
    """Make up a sentence."""
    subject = rng.choice(["The court", "A judge", "My sister", "The old man", "The minister"])
    verb = rng.choice(["signed", "found", "painted", "lost", "carried"])
    thing = rng.choice(["the letter", "a garden", "the contract", "an apple", "the invoice"])
    return f"{subject} {verb} {thing}, and it was {ending or rng.choice(['late', 'cold', 'new'])}."


def write_inputs(folder: Path) -> None:
    """Write the files that a reader of the pages brings along."""
    rng = random.Random(0)

    def lines(count: int) -> str:
        return "".join(sentence(rng) + "\n" for _ in range(count))

    def documents(count: int) -> str:
        return "\n\n".join(lines(5).replace("\n", " ").strip() for _ in range(count)) + "\n"

    def labelled(count: int) -> str:
        rows = [f"{sentence(rng, label)}\t{label}\n" for label in ("good", "bad") * (count // 2)]
        return "text\tlabel\n" + "".join(rows)

    def tagged(text: str) -> str:
        words = text.split()
        return "\n".join(
            f"{word} {'O' if number else 'B-PER'}" for number, word in enumerate(words)
        )

    def vector(word: str) -> str:
        return " ".join([word, *(f"{rng.random():.3f}" for _ in range(50))]) + "\n"

    articles = [f"{lines(2).replace(chr(10), ' ')}\t{sentence(rng)}\n" for _ in range(24)]
    texts = {f"{name}.txt": documents(60) for name in ("notes/a", "notes/b", "cases/a", "news/a")}
    texts |= {"chapter.txt": documents(2), "news.txt": lines(3), "talk.en": lines(3)}
    texts |= {"train.tsv": labelled(24), "dev.tsv": labelled(12), "test.tsv": labelled(12)}
    texts |= {"new.tsv": "text\n" + lines(4), "eval/test.txt": documents(2)}
    texts |= {"articles.tsv": "article\tsummary\n" + "".join(articles)}
    texts |= {"articles-zh.tsv": texts["articles.tsv"], "en-zh.txt": "letter 信\ngarden 花园\n"}
    scored = (f"{sentence(rng)}\t{sentence(rng)}\t{number % 5}\n" for number in range(12))
    texts["sts.tsv"] = "sentence1\tsentence2\tscore\n" + "".join(scored)
    edge = {"span1": [0, 1], "span2": [1, 2]}
    for name in ("spans.jsonl", "spans-dev.jsonl"):
        texts[name] = "".join(
            json.dumps({"text": sentence(rng), "targets": [{**edge, "label": number % 2}]}) + "\n"
            for number in range(24)
        )
    for name in ("ner.txt", "ner-dev.txt"):
        texts[name] = "\n\n".join(tagged(sentence(rng)) for _ in range(24)) + "\n"
    texts["facts.jsonl"] = "".join(
        json.dumps({"prompts": [f"{sentence(rng)} It was [MASK]."] * 2, "answer": answer}) + "\n"
        for answer in ("late", "new")
    )
    texts["glove.6B.50d.txt"] = "".join(vector(word) for word in {*lines(20).split()})
    for name, count in {"train": 60, "val": 4}.items():
        source = lines(count)
        texts |= {f"{name}.en": source, f"{name}.de": source.upper()}
    for name, count in {"tatoeba": 60, "test-de-zh": 4}.items():
        texts[f"{name}.tsv"] = "".join(
            f"{sentence(rng)}\t{chr(0x4E00 + i) * 3}{chr(0x4F00 + i)}\n" for i in range(count)
        )
    texts["prompts.jsonl"] = "".join(json.dumps({"prompt": sentence(rng)}) + "\n" for _ in range(2))
    for name, count in {"train": 24, "dev": 12}.items():
        texts |= {f"glue/{task}/{name}.tsv": labelled(count) for task in ("cola", "sst2")}
    # The datasets of docs/results.md, which the repository does not have.
    texts |= {"wiki_en/train.txt.xz": documents(60), "imdb/train.tsv.xz": labelled(40)}
    rows = [json.dumps({"text": documents(1)}) + "\n" for _ in range(20)]
    texts |= {"wikinews_en/train.jsonl.xz": "".join(rows), "sst2/train.tsv.gz": labelled(24)}
    texts |= {"sst2/dev.tsv": labelled(12), "sst2/test.tsv": labelled(12)}
    texts["sst2-2000.tsv"] = labelled(40)
    texts |= {"ptb.train.txt": documents(40), "ptb.test.txt": documents(4)}
    compress: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".gz": gzip.compress}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(compress.get(path.suffix, bytes)(text.encode()))
