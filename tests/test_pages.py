"""README.md and docs/*.md: commands run in the printed order, links and names exist."""

import ast
import io
import json
import random
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.cli import main
from test_architecture import ALLOWED, BASE

ROOT = Path(__file__).parents[1]
README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
GUIDES = [ROOT / "docs" / f"{name}.md" for name in ("text", "tasks", "generation")]
PAGES = [README, CHINESE, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))

BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")

# What makes a printed command quick: smaller values, and options that it does not have.
VALUES = {
    "--epochs": "1",
    "--holdout": "0.2",
    "--max-tokens": "8",
    "--seeds": "2",
    "--shots": "1",
    "--steps": "3",
    "--vocab": "420",
}
OPTIONS = {
    "finetune": {"--epochs": "1", "--batch": "8"},
    "pretrain": {"--steps": "3", "--batch": "4", "--length": "128"},
}
# Private words of earlier versions (as whole words, outside of code and links).
PRIVATE = (
    r"the road|travels?|goes on|go on with|who sees whom|sees whom|brought to life|places|sights?|"
    r"pieces|lessons|ladder|rungs?|members?|learns? by|fresh|all chance|habits|wishes|sheets?|"
    r"solver|bend|holes?|lanes|mend(s|ed)?"
)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each `kinfolk` command in the fenced blocks of a page."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("kinfolk "):
                yield shlex.split(line.partition(" > ")[0], comments=True)[1:]


def quick(words: list[str]) -> list[str]:
    """Return a command with the smallest size, few steps and short outputs."""
    found = [re.sub(r"^(\w+)/tiny$", r"\1/nano", word) for word in words]
    found = ["gpt2/nano" if word == "gpt2" else word for word in found]
    found = [re.sub(r"^(unigram|char|bpe):\d+$", r"\1:150", word) for word in found]
    for place, word in enumerate(found[:-1]):
        found[place + 1] = VALUES.get(word, found[place + 1])
    pairs = "--source" in found  # rows of sentence pairs are as long as their sentences
    for option, value in OPTIONS.get(found[0], {}).items():
        if option not in found and not (pairs and option == "--length"):
            found += [option, value]
    return found


def sentence(chance: random.Random, mood: str | None = None) -> str:
    """Make up a sentence."""
    who = chance.choice(["The court", "A judge", "My sister", "The old man", "The minister"])
    does = chance.choice(["signed", "found", "painted", "lost", "carried"])
    what = chance.choice(["the letter", "a garden", "the contract", "an apple", "the invoice"])
    return f"{who} {does} {what}, and it was {mood or chance.choice(['late', 'cold', 'new'])}."


def write_inputs(folder: Path) -> None:
    """Write every file that a reader of the pages brings along."""
    chance = random.Random(0)

    def documents(count: int) -> str:
        texts = (" ".join(sentence(chance) for _ in range(5)) for _ in range(count))
        return "\n\n".join(texts) + "\n"

    def lines(count: int, *, upper: bool = False) -> str:
        texts = (sentence(chance) for _ in range(count))
        return "".join(f"{text.upper() if upper else text}\n" for text in texts)

    for name in ("notes/a.txt", "notes/b.txt", "cases/a.txt", "tests/a.txt", "chapter.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(documents(2 if name == "chapter.txt" else 60), encoding="utf-8")
    for name, count in {"train": 24, "dev": 12, "test": 12}.items():
        rows = [f"{sentence(chance, mood)}\t{mood}\n" for mood in ("good", "bad") * (count // 2)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    (folder / "new.tsv").write_text("text\n" + lines(4), encoding="utf-8")
    articles = [f"{sentence(chance)} {sentence(chance)}\t{sentence(chance)}\n" for _ in range(24)]
    (folder / "articles.tsv").write_text("article\tsummary\n" + "".join(articles), encoding="utf-8")
    for name, count in {"train": 60, "val": 4}.items():
        (folder / f"{name}.en").write_text(lines(count), encoding="utf-8")
        (folder / f"{name}.de").write_text(lines(count, upper=True), encoding="utf-8")
    for name in ("talk.en", "news.txt"):
        (folder / name).write_text(lines(3), encoding="utf-8")
    prompts = [json.dumps({"prompt": sentence(chance)}) + "\n" for _ in range(2)]
    (folder / "prompts.jsonl").write_text("".join(prompts), encoding="utf-8")


def run(*words: str) -> None:
    """Run the command in this process; a failure shows what it printed."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` sets its own
        patch.setattr(sys, "argv", ["kinfolk", *words])
        patch.setattr(sys, "stdin", io.StringIO(""))
        warnings.simplefilter("always", UserWarning)  # printed, as for a user
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert code == 0, shlex.join(["kinfolk", *words])


def run_python(page: Path) -> None:
    """Run the Python blocks of a page, but for those that need transformers' own models."""
    for block in PYTHON.findall(page.read_text(encoding="utf-8")):
        if "import kinfolk" in block:
            code = block.replace("steps=500", "steps=3").replace("tiny", "nano")
            exec(compile(code, str(page), "exec"), {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with inputs and the quickstart's runs, in which README.md has been run."""
    found = tmp_path_factory.mktemp("reader")
    write_inputs(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        quickstart = "runs/quickstart"
        run("tokenizer", "train", "notes", "--vocab", "420", "-o", f"{quickstart}/tokenizer")
        tokenizer = ("--tokenizer", f"{quickstart}/tokenizer")
        for corpus in (f"{quickstart}/corpus", "news"):  # the second is for docs/text.md
            run("prepare", "notes", *tokenizer, "-o", corpus)
        for name in ("gpt2", "bert", "t5"):
            objective = ["--objective", "mlm"] if name == "bert" else []
            to = ["--corpus", f"{quickstart}/corpus", "-o", f"{quickstart}/{name}", *objective]
            run(*quick(["pretrain", f"{name}/tiny", *to]))
        for words in commands(README):
            run(*quick(words))
        run_python(README)
        yield found


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_order(folder: Path) -> None:
    assert (folder / "answers.tsv").read_text(encoding="utf-8").count("\n") == 5
    assert len((folder / "talk.de").read_text(encoding="utf-8").splitlines()) == 3
    for name in ("gpt2", "bert", "law", "en-de", "summaries", "gpt2-python", "triage-python"):
        assert (folder / "runs" / name / "checkpoints" / "last" / "config.json").is_file(), name


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_commands_of_a_guide_run_after_the_readme(folder: Path, page: Path) -> None:
    assert Path.cwd() == folder
    for words in commands(page):
        short = quick(words)
        if words[0] == "pretrain":  # its tokenizer must be that of both corpora
            run("prepare", "cases", "--tokenizer", "runs/quickstart/tokenizer", "-o", "law2")
            short = [word.replace("law=", "law2=") for word in short]
        if "-o" in short:
            out = Path(short[short.index("-o") + 1])
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        run(*short)
    shutil.rmtree("runs/triage", ignore_errors=True)
    run_python(page)


def test_both_readmes_print_the_same_commands() -> None:
    assert list(commands(README)) == list(commands(CHINESE))
    assert len(list(commands(README))) >= 15


def test_python_blocks_are_python() -> None:
    for page in PAGES:
        for block in PYTHON.findall(page.read_text(encoding="utf-8")):
            ast.parse(block)


def test_links_lead_to_files() -> None:
    for page in PAGES:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


def test_named_source_files_exist() -> None:
    source = ROOT / "src" / "kinfolk"
    for page in PAGES:
        for name in re.findall(r"`([\w/]+\.(?:py|c))`", page.read_text(encoding="utf-8")):
            assert (source / name).exists() or (ROOT / name).exists(), f"{page.name}: {name}"


def test_pages_use_the_words_of_the_field() -> None:
    for page in PAGES:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        text = LINK.sub("]", re.sub(r"`[^`\n]*`", "", text))
        found = re.findall(rf"\b(?:{PRIVATE})\b.*", text)
        assert not found, f"{page.name}: {found[:5]}"


def test_the_architecture_page_has_the_packages_and_their_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| package | may import |")[2].partition("\n\n")[0]
    found = {}
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", row[1])) | (BASE if "foundations" in row[1] else set())
        found |= dict.fromkeys(re.findall(r"`(\w+)`", row[0]), names)
    assert found == {package: set(names) for package, names in ALLOWED.items()}
    tree = set(re.findall(r"^  (\w+)(?:/|\.py) ", text, re.MULTILINE)) - {"__init__"}
    assert tree == set(ALLOWED)
