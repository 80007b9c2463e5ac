"""The registry of families: one file each, an index that needs no torch, families from outside."""

import pkgutil

import pytest

import kinfolk.objectives
from kinfolk.errors import UserError
from kinfolk.families import check_name, families, family, family_of
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.training.config import TrainConfig
from loops import every_case


def test_a_family_describes_itself() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                assert who.title and who.paper.endswith(str(who.year)) and 1948 <= who.year <= 2100
                assert who.architecture == who.config("nano").network().architecture
                generates = who.architecture in ("decoder", "encoder-decoder")
                assert ("generate" in who.capabilities) == (generates or who.name == "xlnet")
                fills = who.architecture in ("encoder", "encoder-decoder") or who.name == "glm"
                assert ("fill" in who.capabilities) == fills
                assert {config.network() for config in who.sizes.values()} == {who.model}


def test_the_objectives_of_a_family_lie_in_objectives() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                files = {m.name for m in pkgutil.iter_modules(kinfolk.objectives.__path__)}
                assert who.objectives and set(who.objectives) <= files
                assert who.objective() is who.objective(next(iter(who.objectives)))
                for name in who.objectives:
                    assert who.objective(name).__module__ == f"kinfolk.objectives.{name}"


def test_a_published_size_has_the_settings_of_its_paper() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                published = [size for size in who.sizes if size not in STANDARD_SIZES]
                assert list(who.paper_training) == published
                assert all(who.train(size) is who.training for size in STANDARD_SIZES)
                assert all(isinstance(who.train(size), TrainConfig) for size in published)


def test_every_family_has_the_standard_sizes() -> None:
    for who in families().values():
        assert list(who.sizes)[: len(STANDARD_SIZES)] == list(STANDARD_SIZES)


def test_the_family_of_a_network_is_found_with_a_head_and_without() -> None:
    config = family("gpt2").config("nano")
    assert family_of(config).name == family_of(config.build()).name == "gpt2"


def test_every_objective_is_one_of_a_family() -> None:
    files = {m.name for m in pkgutil.iter_modules(kinfolk.objectives.__path__)}
    assert files == {name for m in families().values() for name in m.objectives}


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown family 'brt': did you mean bert"):
        family("brt")
    with pytest.raises(UserError, match=r"brt/tiny is neither a folder nor a family: .*bert"):
        check_name("brt/tiny")
    with pytest.raises(UserError, match=r"bert has no objective 'clm': there are nsp, mlm"):
        family("bert").objective("clm")
    with pytest.raises(UserError, match=r"bilstm is a baseline that is never pretrained"):
        family("bilstm").objective()
    with pytest.raises(UserError, match=r"bert has no size 'bert-base'.*bert-base-uncased"):
        family("bert").config("bert-base")
    with pytest.raises(UserError, match=r"bert has no size 'bert-base'.*bert-base-uncased"):
        check_name("bert/bert-base")
