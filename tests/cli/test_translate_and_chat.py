"""`kinfolk translate`, `kinfolk summarize` and `kinfolk chat`."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinfolk as package
from kinfolk.data.parallel_text import ParallelText
from kinfolk.generation import generate as chat_module
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.generate import ChatSession
from kinfolk.generation.prompts import EncodedPrompt
from kinfolk.workflows import pretrain
from kinfolk.workflows.generate import PREFIX_FILE
from kinfolk.workflows.translation import translate
from kinfolk.workflows.translation.parallel import ParallelData
from support.runs import Kinfolk

LINES = ["The cat saw a ball.", "", "A dog", "  ", "The old man found the river again.", "The"]
TASK = "answer: "

Chat = Callable[..., tuple[str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Lines of several lengths, some of them empty, the last without its end."""
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned from pairs, made once."""
    folder = tmp_path_factory.mktemp("pairs")
    table = folder / "pairs.tsv"
    table.write_text("".join(f"{word} cat\tchat {word}\n" for word in "abcdefgh" * 8))
    few = ["train.steps=1", "train.batch_size=2", "train.device=cpu"]
    texts = ParallelData(train=ParallelText(table), vocab_size=370)
    translate.prepare_translation_run(
        "transformer/nano", texts, folder / "run", length=16, settings=few
    )
    return pretrain.resume(folder / "run")


def written(kinfolk: Kinfolk, *words: object) -> list[str]:
    said = kinfolk(*words)
    assert (said.code, said.err) == (0, "")
    assert said.out.endswith("\n")
    return said.out[:-1].split("\n")


def test_a_line_is_written_for_a_line(kinfolk: Kinfolk, runs: dict[str, Path], file: Path) -> None:
    asked = ("translate", runs["t5"], file, "--prefix", TASK)
    found = written(kinfolk, *asked)
    assert [bool(line) for line in found] == [bool(line.strip()) for line in LINES]
    model, tokenizer = package.load(runs["t5"])
    sources = [TASK + line for line in LINES if line.strip()]
    expected = [translate.generate_texts(model, tokenizer, [source])[0] for source in sources]
    assert [line for line in found if line] == expected and len(set(expected)) > 1
    assert written(kinfolk, *asked, "--batch", 1) == found
    assert written(kinfolk, *asked, "--max-tokens", 1) != found


@pytest.mark.parametrize("options", [("--method", "beam"), ("--method", "beam", "--beam-size", 2)])
def test_beams_translate(
    options: tuple[object, ...], kinfolk: Kinfolk, runs: dict[str, Path], file: Path
) -> None:
    asked = ("translate", runs["t5"], file, "--prefix", TASK, "--max-tokens", 6, *options)
    assert written(kinfolk, *asked) == written(kinfolk, *asked, "--batch", 1)


def test_lines_go_to_a_file_once_all_are_there(
    kinfolk: Kinfolk, runs: dict[str, Path], file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    asked = ("summarize", runs["t5"], file, "--max-tokens", 8)
    refused = kinfolk(*asked, "-o", out, "--batch", 0)
    assert refused.code == 2 and "batch_size must be at least 1 (got 0)" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    said = kinfolk(*asked, "-o", out)
    assert (said.code, said.out, said.err) == (0, "", "")
    assert out.read_text(encoding="utf-8")[:-1].split("\n") == written(kinfolk, *asked)
    again = kinfolk(*asked, "-o", out)
    assert again.code == 2 and f"{out} already exists" in again.err


def test_lines_may_be_piped(
    kinfolk: Kinfolk, runs: dict[str, Path], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(kinfolk, "summarize", runs["t5"], file)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert written(kinfolk, "summarize", runs["t5"], "-") == found


def test_a_summary_is_asked_for_as_t5_was(
    kinfolk: Kinfolk, runs: dict[str, Path], file: Path
) -> None:
    asked = ("summarize", runs["t5"], file, "--max-tokens", 12)
    assert written(kinfolk, *asked) == written(kinfolk, *asked, "--prefix", "summarize: ")
    assert written(kinfolk, *asked) != written(kinfolk, *asked, "--prefix", "")


def test_who_learned_from_pairs_needs_no_prefix(kinfolk: Kinfolk, pairs: Path, file: Path) -> None:
    for command in ("translate", "summarize"):
        asked = (command, pairs, file, "--max-tokens", 12)
        found = written(kinfolk, *asked)
        assert found == written(kinfolk, *asked, "--prefix", "")
        assert found != written(kinfolk, *asked, "--prefix", "summarize: ")


def test_a_run_remembers_its_prefix(kinfolk: Kinfolk, pairs: Path, file: Path) -> None:
    path = pairs / PREFIX_FILE
    path.write_text("h cat b ", encoding="utf-8")
    try:
        for command in ("translate", "summarize"):
            asked = (command, pairs, file, "--max-tokens", 12)
            found = written(kinfolk, *asked)
            assert found == written(kinfolk, *asked, "--prefix", "h cat b ")
            assert found != written(kinfolk, *asked, "--prefix", "")
            last = (command, pairs / "checkpoints" / "last", file, "--max-tokens", 12)
            assert found == written(kinfolk, *last)
    finally:
        path.unlink()


MISTAKES = {
    "translate {gpt2} {file}": "gpt2 models do not support translate",
    "summarize {bert} {file}": "kinfolk finetune MODEL --task extract trains models that choose",
    "translate {t5} {empty} --prefix a": "{empty} is empty: pass a file with text",
    "summarize {t5} {empty}": "{empty} is empty: pass a file with text",
    "summarize {t5} {blank}": "{blank} is empty: pass a file with text",
    "translate {t5} {file}": "pass --source-prefix, for example",
    "translate {t5} {tmp}/none --prefix a": "no such file: {tmp}/none",
    "translate {t5} {tmp} --prefix a": "{tmp} is a folder: give one of its files",
    "translate {t5} {latin} --prefix a": "{latin} is not UTF-8 at byte 2",
    "translate {t5} {file} --prefix a --method greedy --beam-size 2": "--num-beams requires --",
    "translate {t5} {file} --prefix a --method bean": "did you mean beam?",
    "translate {t5} {file} --prefix a --max-tokens 0": "--max-new-tokens=0: it must be at least 1",
    "translate {corpus} {file}": "neither a run",
    "chat {bert}": "bert models do not support generate",
    "chat {gpt2} --top-p 0": "--top-p=0: it must be above 0",
    "chat {gpt2} --max-tokens 0": "--max-new-tokens=0: it must be at least 1",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_wrong_file_is_one_sentence(
    words: str, kinfolk: Kinfolk, runs: dict[str, Path], file: Path, tmp_path: Path
) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"ca\xe9\n")
    corpus = runs["gpt2"].parents[1] / "corpus"
    known = {**runs, "file": file, "latin": latin, "tmp": tmp_path, "corpus": corpus}
    for name, text in {"empty": "", "blank": "\n \n"}.items():
        known[name] = tmp_path / f"{name}.txt"
        known[name].write_text(text, encoding="utf-8")
    said = kinfolk(*(word.format(**known) for word in words.split()))
    assert (said.code, said.out) == (2, "")
    sentence, *rest = said.err.splitlines()
    assert sentence.startswith("error: ") and MISTAKES[words].format(**known) in sentence
    assert rest in ([], [f"Try: kinfolk {words.split()[0]} --help"])


@pytest.fixture
def chat(kinfolk: Kinfolk, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Chat:
    """`kinfolk chat` as a function of what is typed: what was printed, and said beside."""

    def talk(*lines: str, options: tuple[object, ...] = ("--max-tokens", 4)) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        said = kinfolk("chat", runs["gpt2"], *options)
        assert said.code == 0
        return said.out, said.err

    return talk


def test_a_conversation_goes_on(chat: Chat, runs: dict[str, Path]) -> None:
    out, err = chat("The cat saw", "again", "")
    model, tokenizer = package.load(runs["gpt2"])
    talk = ChatSession(model, tokenizer, GenerationConfig(max_new_tokens=4))
    turns = ["".join(talk.answer(line)) for line in ("The cat saw", "again", "")]
    assert (out, err) == ("".join(f"{turn}\n" for turn in turns), "")
    assert talk.transcript == f"The cat saw{turns[0]}\nagain{turns[1]}{turns[2]}\n"
    assert turns[0] == "".join(package.stream(model, tokenizer, "The cat saw", max_new_tokens=4))
    alone = "".join(
        ChatSession(model, tokenizer, GenerationConfig(max_new_tokens=4)).answer("again")
    )
    assert turns[1] != alone


def test_commands_change_what_is_said(chat: Chat) -> None:
    first, err = chat("The cat")
    assert chat("/seed 0", "The cat", "/reset", "The cat") == (first * 2, "")
    seeded = chat("The cat", options=("--max-tokens", 4, "--seed", 5))
    assert chat("/seed 5", "The cat") == seeded != first
    cold = chat("/temperature 0", "The cat")[0]
    assert cold == chat("/top-k 1", "The cat")[0] == chat("/top-p 0.00001", "The cat")[0] != first
    longer = chat("/tokens 9", "/temperature 0", "The cat")[0]
    assert longer.startswith(cold[:-1]) and len(longer) > len(cold)
    assert chat("/quit", "The cat") == ("", "")
    out, err = chat("/help")
    assert out == "" and "/temperature X" in err and "Ctrl-C" in err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/tempreature 1", "unknown command /tempreature: did you mean temperature?"),
        ("/", "unknown command /: "),
        ("/top-p 0", "/top-p=0: it must be above 0 and at most 1"),
        ("/top-p", "/top-p=: it must be a number"),
        ("/seed x", "/seed=x: it must be a whole number"),
        ("/tokens 0", "/max-new-tokens=0: it must be at least 1"),
    ],
)
def test_a_wrong_command_changes_nothing(chat: Chat, line: str, sentence: str) -> None:
    first, _ = chat("The cat")
    out, err = chat(line, "The cat")
    assert out == first
    assert err.startswith("error: ") and sentence in err and err.count("\n") == 1


def test_a_full_context_is_told_once(chat: Chat) -> None:
    out, err = chat(*["The old man found the river"] * 4, options=("--max-tokens", 100))
    assert err == "the context of 32 tokens is full: the beginning of the conversation is dropped\n"
    assert out.count("\n") >= 4


def test_ctrl_c_stops_the_text_and_not_the_conversation(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []

    def speak(
        model: object, tokenizer: object, asked: EncodedPrompt, *rest: object, index: int
    ) -> Iterator[str]:
        heard.append(asked.prompt)
        yield from (" one", " two")
        if index == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat_module, "stream_text", speak)
    assert chat("The cat", "again") == (" one two\n one two\n", "")
    first, second = heard
    assert len(second) > len(first)
