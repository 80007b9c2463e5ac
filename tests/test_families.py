"""The registry of families: one file each, an index that needs no torch, families from outside."""

import json
import pkgutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinfolk.families
from kinfolk.config import TYPES, type_name
from kinfolk.errors import UserError
from kinfolk.families import (
    INDEX_FILE,
    check_name,
    families,
    family,
    family_of,
    index,
    index_text,
    register,
)
from kinfolk.families.__main__ import package_families
from kinfolk.families.base import STANDARD_SIZES
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.tasks.dataset import task_dataset
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.load import load, logits
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import recipe
from support.loops import every_case
from support.runs import Home


def test_the_index_is_that_of_the_family_files() -> None:
    """`python -m kinfolk.families` writes it."""
    expected = index_text(package_families())
    assert INDEX_FILE.read_text(encoding="utf-8") == expected
    years = [entry.year for entry in index().values()]
    assert years == sorted(years)


def test_a_family_file_is_named_after_its_family() -> None:
    files = {m.name for m in pkgutil.iter_modules(kinfolk.families.__path__)}
    assert {f.name for f in package_families()} == files - {"__main__", "base", "mapping"}
    assert set(families()) == {f.name for f in package_families() if f.objectives}
    assert set(index()) - set(families()) == {"bilstm", "cvt"}


def test_names_and_sizes_are_checked_without_torch_and_one_family_imports_no_other() -> None:
    code = """
import sys
from kinfolk.errors import UserError
from kinfolk.families import check_name, family, index
check_name("gpt2"), check_name("gpt2/tiny"), index()["bert"].sizes
for wrong in ("brt", "bert/tinny"):
    try:
        check_name(wrong)
    except UserError:
        continue
    raise AssertionError(wrong)
assert "torch" not in sys.modules
own = {m for m in sys.modules if m.startswith("kinfolk.families.")}
family("gpt")
new = {m for m in sys.modules if m.startswith("kinfolk.families.")} - own
assert new & {f"kinfolk.families.{name}" for name in index()} == {"kinfolk.families.gpt"}, new
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    "arguments", ["members", "pretrain brt/tiny", f"finetune bert/tinny --train {__file__} -o new"]
)
def test_a_command_lists_families_and_refuses_unknown_ones_without_torch(arguments: str) -> None:
    code = f"""
import sys
from kinfolk.cli import main
sys.argv = ["kinfolk", *{arguments.split()!r}]
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    shown = {"members": "transformer_xl", "pretrain brt/tiny": "did you mean bert"}
    assert shown.get(arguments, "bert has no size 'tinny'") in run.stdout + run.stderr


def test_a_family_describes_itself() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                assert who.title and who.paper.endswith(str(who.year)) and 1948 <= who.year <= 2100
                assert who.architecture == who.config("nano").network.architecture
                generates = who.architecture in ("decoder", "encoder-decoder")
                generates |= who.name in ("xlnet", "ulmfit")
                assert ("generate" in who.capabilities) == generates
                fills = who.architecture == "encoder" or {"spans", "blanks"} & {*who.objectives}
                assert ("fill" in who.capabilities) == (bool(fills) or who.name == "ngram")
                assert {config.network for config in who.sizes.values()} == {who.model}


def test_the_objectives_of_a_family_have_their_registered_names() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                assert who.objectives
                assert who.objective() is who.objective(next(iter(who.objectives)))
                assert [type_name(who.objective(name)) for name in who.objectives] == [
                    *who.objectives
                ]


def test_a_published_size_has_the_settings_of_its_paper() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                published = [size for size in who.sizes if size not in STANDARD_SIZES]
                assert list(who.paper_training) == published
                for size in STANDARD_SIZES:
                    train = who.train(size)
                    assert train == replace(who.training, lr=train.lr) and train.lr <= 2e-2
                assert all(isinstance(who.train(size), TrainConfig) for size in published)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("electra/electra-small", {"lr": 5e-4, "batch_size": 128, "steps": 1_000_000}),
        ("electra/electra-base", {"lr": 2e-4, "batch_size": 256, "steps": 766_000}),
        ("electra/electra-large", {"lr": 2e-4, "batch_size": 2048, "steps": 400_000}),
        ("roberta/roberta-base", {"lr": 6e-4, "warmup": 24_000}),
        ("roberta/roberta-large", {"lr": 4e-4, "warmup": 30_000}),
        ("gpt2/gpt2", {"lr": 6e-4, "batch_size": 512}),
        ("gpt2/gpt2-xl", {"lr": 2e-4, "batch_size": 512}),
        ("gpt3/gpt3-125m", {"lr": 6e-4, "batch_size": 256, "steps": 572_000, "warmup": 715}),
        ("gpt3/gpt3-1.3b", {"lr": 2e-4, "batch_size": 512, "steps": 286_000, "warmup": 358}),
        ("gpt3/gpt3-13b", {"lr": 1e-4, "batch_size": 1024}),
        ("gpt3/gpt3-175b", {"lr": 0.6e-4, "batch_size": 1600, "steps": 92_000}),
        ("transformer/transformer-base", {"lr": 512**-0.5 * 4000**-0.5, "steps": 100_000}),
        ("transformer/transformer-big", {"lr": 1024**-0.5 * 4000**-0.5, "steps": 300_000}),
    ],
)
def test_each_published_size_trains_by_its_own_row_of_the_paper(
    name: str, fields: dict[str, float]
) -> None:
    family_name, _, size = name.partition("/")
    train = family(family_name).train(size)
    assert replace(train, **fields) == train  # type: ignore[arg-type]


def test_every_family_has_the_standard_sizes() -> None:
    for who in families().values():
        assert list(who.sizes)[: len(STANDARD_SIZES)] == list(STANDARD_SIZES)


def test_the_family_of_a_network_is_found_with_a_head_and_without() -> None:
    config = family("gpt2").config("nano")
    assert family_of(config).name == family_of(config.build()).name == "gpt2"


def test_every_objective_is_one_of_a_family() -> None:
    names = {name for name in TYPES["objective"] if not name.endswith("_pll")}
    assert names == {name for m in families().values() for name in m.objectives}


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown family 'brt': did you mean bert"):
        family("brt")
    with pytest.raises(UserError, match=r"brt/tiny is neither a folder nor a family: .*bert"):
        check_name("brt/tiny")
    with pytest.raises(UserError, match=r"bert has no objective 'clm' \(supported: nsp, mlm"):
        family("bert").objective("clm")
    with pytest.raises(UserError, match=r"bilstm is a baseline without a pretraining objective"):
        family("bilstm").objective()
    with pytest.raises(UserError, match=r"cvt has no pretraining objective: .* kinfolk finetune"):
        family("cvt").objective()
    with pytest.raises(UserError, match=r"bert has no size 'bert-base'.*bert-base-uncased"):
        family("bert").config("bert-base")
    with pytest.raises(UserError, match=r"bert has no size 'bert-base'.*bert-base-uncased"):
        check_name("bert/bert-base")


def test_a_family_from_outside_the_package_is_trained_saved_opened_and_gets_a_task_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import own_family

    monkeypatch.setattr(kinfolk.families, "_loaded", dict(kinfolk.families._loaded))
    with pytest.raises(UserError, match="unknown family 'own_family'"):
        family("own_family")
    register(own_family.FAMILY)
    assert family("own_family") is own_family.FAMILY and "own_family" in families()
    check_name("own_family/tiny")

    home = Home.make(tmp_path / "home")
    settings = ["train.steps=1", "train.batch_size=2", "train.device=cpu", "train.eval_batches=1"]
    run = pretrain(
        recipe("own_family/nano", home.corpus, length=32, settings=settings), tmp_path / "run"
    )
    model, tokenizer = load(run)
    assert isinstance(model, own_family.OwnModel) and family_of(model) is own_family.FAMILY
    data = json.loads((run / "checkpoints" / "last" / "config.json").read_text())
    assert data["model_type"] == "kinfolk_own_family"
    assert logits(model, [1, 2, 3]).shape == (3, tokenizer.vocab_size)

    labelled = tmp_path / "train.tsv"
    labelled.write_text("text\tlabel\n" + "the cat saw\tgood\na dog found\tbad\n" * 8)
    steps = ["train.steps=1", "train.device=cpu"]
    tuned = finetune(str(run), [task_dataset(str(labelled))], tmp_path / "tuned", settings=steps)
    headed, _ = load(tuned)
    assert isinstance(headed, ModelWithHead) and headed.config.labels == ("bad", "good")
    assert isinstance(headed.backbone, own_family.OwnModel)
    assert family_of(headed) is own_family.FAMILY


def test_a_second_family_of_one_name_and_a_config_of_another_are_refused() -> None:
    from support import own_family

    with pytest.raises(ValueError, match="family 'gpt2' already exists"):
        register(replace(family("gpt2")))
    with pytest.raises(ValueError, match="'other' has configs registered as own_family"):
        replace(own_family.FAMILY, name="other")


def test_a_family_file_without_a_line_in_the_index_is_told_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("")
    monkeypatch.setattr(kinfolk.families, "INDEX_FILE", tmp_path / "index.json")
    for check in (check_name, family):
        with pytest.raises(UserError, match=r"own.py is not in .*: run python -m kinfolk.families"):
            check("own")


def test_a_map_and_a_network_that_differ_are_told_by_the_parameter() -> None:
    gpt2: Any = family("gpt2")
    c = gpt2.sizes["nano"]
    state = c.build().state_dict()
    del state["final_norm.bias"]
    with pytest.raises(AssertionError, match=r"the network or its map lacks final_norm\.bias"):
        gpt2.hf.parameters(c).to_hf(state)


@pytest.mark.parametrize("size", ["nano", "tiny", "mini", "small", "base", "large"])
def test_wide_networks_of_the_standard_sizes_have_lower_rates(size: str) -> None:
    """At 1e-3, BERT of hidden size 256 never left the loss of a unigram model."""
    width = families()["bert"].config(size).hidden_size
    encoder, decoder = families()["bert"].train(size).lr, families()["gpt2"].train(size).lr
    assert encoder == pytest.approx(min(1e-3, 0.128 / width), rel=0.05)
    assert decoder == pytest.approx(min(1e-3, 0.256 / width), rel=0.05)
    assert families()["bert"].train("bert-base-uncased").lr == 1e-4
