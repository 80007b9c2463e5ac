"""Arguments, paths and combinations of options are checked before torch is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.runs import Home

# The words of a command, and its exit code.
COMMANDS = [
    ("--help", 0),
    ("--version", 0),
    ("members", 0),
    ("members --json", 0),
    ("members brt", 2),
    ("pretrain --help", 0),
    ("finetune --help", 0),
    ("evaluate --help", 0),
    ("tokenizer show {tok} word", 0),
    ("prepare {text} --tokenizer {tok} -o {tmp}/corpus", 0),
    ("tokenizer train {text} --kind byte -o {tmp}/tok", 0),
    ("audit {text}", 0),
    ("evaluate {tmp}/none --text {text}", 2),
    ("evaluate {tmp} --text {text}", 2),
    ("evaluate --text {text}", 2),
    ("generate {tmp}/none The", 2),
    ("generate {tmp}/none The --num-beams 0", 2),
    ("fill {tmp}/none [MASK]", 2),
    ("chat {tmp}", 2),
    ("translate {tmp}/none {text}", 2),
    ("export {tmp}/none -o {tmp}/new", 2),
    ("finetune {tmp} --train {text} -o {tmp}/new", 2),
    ("finetune bert --train {tmp}/none -o {tmp}/new", 2),
    ("finetune bert --train {text} -o {tmp}/new --limit 3", 2),
    ("finetune bert --train {text} -o {tmp}/new train.learning_rate=1", 2),
    ("finetune brt --train {text} -o {tmp}/new", 2),
    ("finetune --resume {tmp}", 2),
    ("predict {tmp}/none {text}", 2),
    ("prepare {text} --tokenizer {tmp}/none -o {tmp}/new", 2),
    ("prepare {text} --tokenizer {tok} -o {tmp}/new --holdout 2", 2),
    ("prepare {text} --tokenizer {tok} -o {tmp}/new --dedup foo", 2),
    ("prepare {text} --tokenizer {tok} -o {tmp}/new --shard 3/2", 2),
    ("merge {tmp}/none -o {tmp}/new", 2),
    ("merge {corpus} -o {tmp}/new", 2),
    ("pretrain gtp2 --corpus {corpus} -o {tmp}/new", 2),
    ("pretrain gpt2/tyni --corpus {corpus} -o {tmp}/new", 2),
    ("pretrain gpt2 --corpus {corpus}=0 -o {tmp}/new", 2),
    ("pretrain gpt2 --corpus {tmp}/none -o {tmp}/new", 2),
    ("pretrain gpt2 --corpus {corpus} -o {corpus}", 2),
    ("pretrain gpt2 --corpus {corpus} -o {tmp}/new --learning-rate 1", 2),
    ("pretrain gpt2 --corpus {corpus} -o {tmp}/new --lr high", 2),
    ("pretrain gpt2 --corpus {corpus} -o {tmp}/new train.lr=high", 2),
    ("pretrain gpt2 --corpus {corpus} -o {tmp}/new fast", 2),
    ("pretrain gpt2 --source {text} -o {tmp}/new", 2),
    ("pretrain gpt2 --pairs {tmp}/none -o {tmp}/new", 2),
    ("pretrain gpt2 --corpus {corpus}", 2),
    ("pretrain --resume {tmp}", 2),
    ("quickstart -o {corpus}", 2),
    ("lr-find --help", 0),
    ("lr-find gpt2 --corpus {tmp}/none", 2),
    ("lr-find gpt2 --corpus {corpus} --from 1 --to 1e-3", 2),
    ("lr-find gpt2 --corpus {corpus} --steps 9", 2),
    ("lr-find gpt2 --corpus {corpus} -o {text}", 2),
    ("inspect --help", 0),
    ("inspect words gtp2 -o {tmp}/page.html", 2),
    ("inspect words {tmp} -o {tmp}/page.html", 2),
    ("inspect words -o {text}", 2),
    ("prefixes --help", 0),
    ("prefixes {tmp} --text {text} -o {tmp}/new", 2),
    ("prefixes --text {text} -o {tmp}/new", 2),
    ("prefixes {run} --train {tmp}/none -o {tmp}/new", 2),
    ("prefixes {run} --text {tmp}/none -o {tmp}/new", 2),
    ("embed {run} {text} -o {tmp}/v.npz --transform {tmp}/none", 2),
    ("embed {run} {tmp}/none -o {tmp}/v.npz", 2),
    ("isotropy {run} --text {tmp}/none", 2),
    ("probe {run} --train {tmp}/none --dev {text}", 2),
    ("probe {run} --train {text} --dev {tmp}", 2),
    ("neurons {run} [MASK]", 2),
    ("neurons {run} --facts {tmp}/none", 2),
    ("neurons {run} [MASK] --answer a --others {tmp}/none", 2),
    ("verify-resume --help", 0),
    ("verify-resume gtp2", 2),
    ("verify-resume gpt2 --corpus {tmp}/none", 2),
    ("verify-resume gpt2 --steps 0", 2),
    ("plan gpt2/bas --tokens 3B", 2),
    ("plan gpt2/base --tokens 3B --gpu h1000", 2),
    ("generate gpt2/nano The", 2),
    ("translate {corpus} {corpus}", 2),
]
COMMANDS += [
    ("predict {run} {bad}/empty.tsv", 2),
    ("predict {run} {bad}/program", 2),
    ("evaluate {run} --test {bad}/empty.tsv", 2),
    ("evaluate {run} --test {bad}/program", 2),
    ("evaluate {run} --test {bad}/unlabelled.tsv", 2),
    ("evaluate {run} --text {bad}/program", 2),
    ("evaluate {run} --text {bad}/empty.tsv", 2),
    ("pretrain gpt2 --corpus {corpus} -o {tmp}/new --steps 9 --minutes 2", 2),
    ("pretrain gpt2 --corpus {corpus} -o {tmp}/new train.steps=9 train.minutes=2", 2),
    ("pretrain gpt2 --corpus {corpus} -o /proc/new", 2),
    ("finetune bert --train {bad}/rows.tsv --task clasify -o {tmp}/new", 2),
    ("finetune bert --train {bad}/rows.tsv --columns body,label -o {tmp}/new", 2),
    ("finetune bert --train {bad}/program -o {tmp}/new", 2),
    ("finetune bert --train {bad} -o {tmp}/new", 2),
    ("compare gtp2 --corpus {text} --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2/tyni --corpus {text} --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2 gpt2 --corpus {text} --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --minutes 0 -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --tokens 1M --seeds 0 -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --tokens 1M --jobs -1 -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --tokens 1M --labels 0 -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --tokens 1M --labels= -o {tmp}/new", 2),
    ("compare gpt2 --corpus {tmp}/none --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2 --corpus {bad}/empty.tsv --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2 --corpus {bad}/program --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --task {tmp}/none --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --task {bad}/empty.tsv --tokens 1M -o {tmp}/new", 2),
    ("compare gpt2 --corpus {text} --task {bad}/program --tokens 1M -o {tmp}/new", 2),
    ("compare --resume {tmp}", 2),
    ("compare --repeat {tmp} -o {tmp}/new", 2),
]
COMMANDS += [
    ("pretrain {corpus} --corpus {corpus} -o {tmp}/new", 2),
    ("pretrain gpt2 --corpus {corpus} -o {tmp}/new --objective mlm", 2),
    ("finetune {run} --train {bad}/rows.tsv --dev {bad}/unlabelled.tsv -o {tmp}/new", 2),
    ("finetune {run} --train {bad}/rows.tsv --dev {bad}/columns.tsv -o {tmp}/new", 2),
    ("predict {run} {bad}/columns.tsv", 2),
    ("predict {pretrained} {bad}/rows.tsv", 2),
    ("evaluate {pretrained} --test {bad}/rows.tsv", 2),
    ("generate {pretrained} The", 2),
    ("generate {run} --prompts {tmp}/none", 2),
    ("chat {pretrained}", 2),
    ("fill {decoder} [MASK]", 2),
    ("translate {decoder} {text}", 2),
    ("summarize {decoder} {text}", 2),
    ("push {run} name", 2),
    ("push {tmp}/none me/name", 2),
    ("import {tmp}/none -o {tmp}/new", 2),
    ("embed {tmp}/none {text} -o {tmp}/v.npz", 2),
    ("summarize {tmp}/none {text}", 2),
    ("claims none", 2),
]
CHILD = """
import sys
from kinfolk.cli import main
sys.argv = ["kinfolk", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
else:
    code = 0
print(code, "torch" in sys.modules, file=sys.stderr)
"""
# For each line of arguments, run the code above in a copy of a process that has imported what most
# commands import, and reply with what it printed.
SERVER = """
import contextlib, functools, io, json, os, sys, tempfile
import typer.main
from kinfolk.cli import main
typer.main.get_command = functools.cache(typer.main.get_command)
sys.argv = ["kinfolk", "compare", "--resume", "nowhere"]
with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
    main()
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if not child:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            words = json.loads(line)
            sys.argv = ["-c", *words["arguments"]]
            exec(words["code"], {})
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        os.waitpid(child, 0)
        printed.seek(0)
        print(json.dumps(printed.read()), flush=True)
"""

RUN = {
    "type": "finetune",
    "datasets": [
        {
            "file_spec": {
                "task": "classify",
                "format": "table",
                "description": "",
                "columns": {"type": "columns", "texts": ["text"], "label": "label"},
                "header": True,
            }
        }
    ],
    "formulations": [{"task": {"labels": ["good", "poor"]}}],
}
PRETRAINED = {"type": "pretrain", "model": {"type": "bert"}}
DECODER = {"type": "pretrain", "model": {"type": "gpt2"}}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the recipes of runs, and labelled files that are wrong."""
    runs = {"run": RUN, "pretrained": PRETRAINED, "decoder": DECODER}
    folders = {name: tmp_path_factory.mktemp(name) for name in (*runs, "bad")}
    for name, recipe in runs.items():
        (folders[name] / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    bad = folders["bad"]
    (bad / "empty.tsv").touch()
    (bad / "program").write_bytes(b"\x7fELF\0\0\xff\xfe")
    rows = ["a fine day\tgood", "a bad day\tpoor"] * 4
    (bad / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    without = [row.partition("\t")[0] + "\t" for row in rows]
    (bad / "unlabelled.tsv").write_text("\n".join(["text\tlabel", *without]), encoding="utf-8")
    (bad / "columns.tsv").write_text("a\tb\n1\n2\t3\t4\n", encoding="utf-8")
    return folders


@pytest.fixture(scope="module")
def run_alone() -> Iterator[Callable[..., str]]:
    """Return a function that runs a command in a process without torch and returns its output."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        requests, replies = server.stdin, server.stdout

        def run(*arguments: str, code: str = CHILD) -> str:
            print(json.dumps({"code": code, "arguments": arguments}), file=requests, flush=True)
            said: str = json.loads(replies.readline())
            return said

        yield run


def test_an_import_of_torch_is_noticed(run_alone: Callable[..., str]) -> None:
    """The mistake that the other tests look for, planted."""
    assert run_alone("members", code=f"import torch\n{CHILD}").splitlines()[-1] == "0 True"
    assert run_alone("members").splitlines()[-1] == "0 False"


@pytest.mark.parametrize(("words", "code"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_torch_is_not_imported(
    words: str,
    code: int,
    home: Home,
    inputs: dict[str, Path],
    tmp_path: Path,
    run_alone: Callable[..., str],
) -> None:
    folders = {"tmp": tmp_path, "text": home.text, "tok": home.tokenizer, "corpus": home.corpus}
    folders |= inputs
    arguments = [word.format(**folders) for word in words.split()]
    found = run_alone(*arguments)
    assert found.splitlines()[-1] == f"{code} False", found


# What the commands that run a model may import besides torch.
COMPILER = ("torch._dynamo", "torch._inductor", "sympy")
OTHERS = ("tensorboard", "scipy", "sacrebleu", "transformers", "datasets", "jinja2")
LISTED = """
import sys
from kinfolk.cli import main
sys.argv = ["kinfolk", *sys.argv[1:]]
main()
print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def trained(home: Home) -> dict[str, Path]:
    """Train two small models."""
    return {name: home.run(name) for name in ("gpt2", "bert")}


def listed(arguments: list[str]) -> set[str]:
    """Run a command in a process of its own; return the modules that it imported."""
    found = subprocess.run(
        [sys.executable, "-c", LISTED, *arguments], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return {*found.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        ("members xlnet", (*COMPILER, *OTHERS)),
        ("generate {gpt2} The --max-new-tokens 3", (*COMPILER, *OTHERS)),
        ("fill {bert} [MASK]", (*COMPILER, *OTHERS)),
        ("evaluate {gpt2} --text {text}", (*COMPILER, *OTHERS)),
        ("embed {bert} {text} -o {tmp}/v.npz", (*COMPILER, *OTHERS)),
        ("export {bert} -o {tmp}/new", (*COMPILER, *OTHERS)),
        (
            "finetune {bert} --train {bad}/rows.tsv --dev {bad}/rows.tsv -o {tmp}/new --epochs 1",
            (*COMPILER, "sacrebleu", "transformers", "datasets"),
        ),
    ],
)
def test_a_command_imports_what_it_uses(
    words: str,
    unused: tuple[str, ...],
    home: Home,
    inputs: dict[str, Path],
    trained: dict[str, Path],
    tmp_path: Path,
) -> None:
    folders = {"tmp": tmp_path, "text": home.text, **inputs, **trained}
    modules = listed([word.format(**folders) for word in words.split()])
    assert "torch" in modules
    assert modules.isdisjoint(unused), sorted(modules & {*unused})


PRETRAIN = """
import sys, kinfolk
settings = ["train.batch_size=2", "train.device=cpu"]
recipe = kinfolk.recipe("bert/nano", sys.argv[1], length=16, steps=2, settings=settings)
kinfolk.pretrain(recipe, sys.argv[2])
print(*sys.modules)
"""


def test_a_run_that_compiles_nothing_imports_no_compiler(home: Home, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PRETRAIN, str(home.corpus), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {*found.stdout.split()}
    assert "kinfolk.training.eager_optimizers" in modules
    assert modules.isdisjoint(COMPILER)


@pytest.mark.parametrize(
    ("load", "given", "spins"),
    [
        (1e6, {}, "2000"),
        (1e6, {"OMP_NUM_THREADS": "2"}, "2000"),
        (1e6, {"GOMP_SPINCOUNT": "7"}, "7"),
        (1e6, {"OMP_WAIT_POLICY": "active"}, "None"),
        (0.0, {}, "None"),
    ],
)
def test_waiting_threads_sleep_soon_on_a_busy_machine_unless_the_user_chose(
    load: float, given: dict[str, str], spins: str
) -> None:
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    code = f"import os\nos.getloadavg = lambda: ({load}, 0.0, 0.0)\n{CHILD}"
    code += "\nprint(os.environ.get('GOMP_SPINCOUNT'), file=sys.stderr)"
    found = subprocess.run(
        [sys.executable, "-c", code, "members"],
        capture_output=True,
        text=True,
        check=True,
        env=inherited | given,
    )
    # Set where torch, whose library of threads reads it once, is not imported yet.
    assert found.stderr.splitlines()[-2:] == ["0 False", spins]
