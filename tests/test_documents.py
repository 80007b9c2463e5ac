"""README and docs: commands run in the printed order, links, names and words are right."""

import ast
import pkgutil
import re
import shutil
from itertools import chain
from pathlib import Path

import pytest
from typer import Exit
from typer.core import TyperGroup

from kinfolk.families import families
from kinfolk.hub import importers
from kinfolk.hub.weights import WEIGHT_FILES
from kinfolk.tasks.formats.base import all_formats
from kinfolk.text.formats import BPE_FILES, FAIRSEQ_FILE, MARIAN_FILE, MARIAN_TARGET_FILE
from support.documents import (
    CHINESE,
    CODE,
    NOT_RUN,
    PAGES,
    README,
    ROOT,
    printed,
    resolve,
    run_page,
    write_inputs,
)
from test_architecture import ALLOWED, BASE

GUIDES = [p for p in PAGES if p not in (README, CHINESE) and any(c.is_run for c in printed(p))]
PROSE = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
FENCE = re.compile(r"^```.*$", re.MULTILINE)
# Private words of earlier versions (as whole words, outside of code and links).
PRIVATE = (
    r"the road|travels?|goes on|go on with|who sees whom|sees whom|brought to life|places|sights?|"
    r"pieces|lessons|ladder|rungs?|members?|learns? by|fresh|all chance|habits|wishes|sheets?|"
    r"solver|bend|holes?|lanes|mend(s|ed)?|births?|clock|presets?|raced?|races|readings|peers?"
)


# How the weights page names what modules of `hub.importers` read; others by their own name.
IMPORTED = {
    "deepspeed": r"mp_rank_00_model_states\.pt",
    "fairseq": r"fairseq's `\.pt`: RoBERTa[\s\S]*fairseq's `\.pt`: Transformer",
    "fastai": r"fastai's `\.pth`: AWD-LSTM",
    "hdf5": r"\.hdf5",
    "mt_lstm": r"wmtlstm-\w+\.pth",
    "tensorflow": r"bert_model\.ckpt\.index[\s\S]*model\.ckpt-N\.index",
    "transfo_xl": r"transfo-xl`, and the state dict of its authors",
}


@pytest.fixture(scope="module")
def after_readme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a reader's files in which the commands of README.md have been run."""
    folder = tmp_path_factory.mktemp("readme")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_page(README, patch)
    return folder


def test_the_commands_of_the_readme_run_in_order(after_readme: Path) -> None:
    assert (after_readme / "answers.tsv").read_text(encoding="utf-8").count("\n") == 5
    assert len((after_readme / "talk.de").read_text(encoding="utf-8").splitlines()) == 3
    for name in ("gpt2", "bert", "law", "again", "en-de", "summaries", "gpt2-python"):
        last = after_readme / "runs" / name / "checkpoints" / "last"
        assert (last / "config.json").is_file(), name


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_in_order(
    after_readme: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(after_readme, tmp_path, symlinks=True, dirs_exist_ok=True)
    if page.stem == "tasks":  # it predicts with a folder that transformers saved
        transformers = pytest.importorskip("transformers")
        source = tmp_path / "runs" / "triage-python" / "checkpoints" / "best"
        for auto in (transformers.AutoModelForSequenceClassification, transformers.AutoTokenizer):
            auto.from_pretrained(source).save_pretrained(tmp_path / "their-folder")
    monkeypatch.chdir(tmp_path)
    run_page(page, monkeypatch)


def test_pages_have_commands_that_run() -> None:
    count = {page.stem: sum(code.is_run for code in printed(page)) for page in [README, *GUIDES]}
    assert count.pop("README") >= 25
    pages = {"compare", "deploy", "embed", "generation", "inspect", "results", "resume", "tasks"}
    assert count.keys() == pages | {"neurons", "python", "text"}
    assert count.pop("python") >= 4
    assert count.pop("neurons") >= 4
    assert count.pop("inspect") >= 4
    assert count.pop("compare") >= 4
    assert count.pop("resume") >= 2
    assert count.pop("deploy") >= 3
    assert min(count.values()) >= 7


def test_both_readmes_print_the_same_code() -> None:
    def commands(page: Path) -> list[str]:
        shell = [code.text for code in printed(page) if code.kind != "python"]
        return [text.replace("bert-base-chinese", "bert-base-uncased") for text in shell]

    def python(page: Path) -> list[str]:
        blocks = [ast.parse(code.text) for code in printed(page) if code.kind == "python"]
        return [
            ast.dump(b).replace("发票一直没有支付。", "The invoice was never paid.") for b in blocks
        ]

    assert commands(README) == commands(CHINESE)
    assert python(README) == python(CHINESE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_line_parses_what_is_printed(page: Path) -> None:
    for code in printed(page):
        if code.arguments and not code.names_a_command:
            command, rest = resolve(code.arguments)
            if isinstance(command, TyperGroup):  # only its own options are left
                assert rest and rest[0].startswith("-"), f"unknown command: {code.text}"
            try:
                command.make_context(code.arguments[0], rest)
            except Exit as ended:  # --help and --version
                assert ended.exit_code == 0


def test_a_command_that_is_not_run_is_listed_and_exists() -> None:
    every = [code for page in PAGES for code in printed(page) if code.kind != "python"]
    other = [code for code in every if not code.arguments and code.text != "make quickstart"]
    assert not [code for code in other if not code.not_run]
    assert not [start for start in NOT_RUN if not any(c.text.startswith(start) for c in every)]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for code in every:
        words = code.text.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), code
        if words[:1] == ["python"] and words[1].endswith(".py"):
            script = (ROOT / words[1]).read_text(encoding="utf-8")
            assert not [w for w in words if w.startswith("-") and f'"{w}"' not in script], code


def test_every_block_has_a_language() -> None:
    for page in PROSE:
        fences = FENCE.findall(page.read_text(encoding="utf-8"))
        assert set(fences[::2]) <= {"```sh", "```python", "```text"}, page.name
        assert set(fences[1::2]) <= {"```"}, page.name


def test_the_index_of_the_docs_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {link for link in LINK.findall(index) if "/" not in link} == pages
    for readme in (README, CHINESE):
        assert "docs/README.md" in LINK.findall(readme.read_text(encoding="utf-8"))


def test_links_lead_to_files() -> None:
    for page in PROSE:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


def test_named_source_files_exist() -> None:
    source = ROOT / "src" / "kinfolk"
    for page in PROSE:
        for name in re.findall(r"`([\w/]+\.(?:py|c))`", page.read_text(encoding="utf-8")):
            assert (source / name).exists() or (ROOT / name).exists(), f"{page.name}: {name}"


def test_pages_use_the_words_of_the_field() -> None:
    for page in PROSE:
        text = LINK.sub("]", CODE.sub("", page.read_text(encoding="utf-8")))
        private = re.findall(rf"\b(?:{PRIVATE})\b.*", text)
        assert not private, f"{page.name}: {private[:5]}"


def test_the_architecture_page_has_the_packages_and_their_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| package | may import |")[2].partition("\n\n")[0]
    imports: dict[str, set[str]] = {}
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", row[1])) | (BASE if "foundations" in row[1] else set())
        imports |= dict.fromkeys(re.findall(r"`(\w+)`", row[0]), names)
    assert imports == {package: set(names) for package, names in ALLOWED.items()}
    tree = set(re.findall(r"^  (\w+)(?:/|\.py) ", text, re.MULTILINE)) - {"__init__"}
    assert tree == set(ALLOWED)


def test_the_tasks_page_has_every_file_format() -> None:
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    table = text.partition("### What is read")[2].partition("\n`predict` and")[0]
    rows = re.findall(r"^\| .* \| (.*?) \| `(\w+)` \|$", table, re.MULTILINE)
    stored = "rows"  # that commands write for themselves
    assert {*(name for _, name in rows), stored} == {format.name for format in all_formats()}
    known = {task for format in all_formats() for task in format.tasks}
    assert {word for cell, _ in rows for word in re.findall(r"`(\w+)`", cell)} >= known


def test_the_weights_page_has_every_model_type_head_and_importer() -> None:
    text = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
    with_hf = [family.hf for family in families().values() if family.hf is not None]
    for model_type in (*(hf.model_type for hf in with_hf), *importers.FOLDERS):
        assert re.search(rf"`(model_type: )?{model_type}`", text), model_type
    for hf in with_hf:
        for head in hf.heads.values():
            assert f"`{head.name[head.name.index('For') :]}`" in text, head.name
    for name in (*WEIGHT_FILES, FAIRSEQ_FILE, MARIAN_FILE, MARIAN_TARGET_FILE, *chain(*BPE_FILES)):
        assert name in text + (ROOT / "docs" / "text.md").read_text(encoding="utf-8"), name
    for importer in pkgutil.iter_modules(importers.__path__):
        assert re.search(IMPORTED.get(importer.name, f"`{importer.name}`"), text), importer.name
