"""The catalogue: found by the files there are, and true to them."""

import pkgutil

import pytest

import kinfolk.models
from kinfolk.config import TYPES
from kinfolk.errors import UserError
from kinfolk.recipes.catalogue import families, family, family_of
from kinfolk.training.config import TrainConfig
from loops import every_case


def test_the_family_is_what_lies_in_models() -> None:
    assert set(families()) == {m.name for m in pkgutil.iter_modules(kinfolk.models.__path__)}
    years = [m.year for m in families().values()]
    assert years == sorted(years)


def test_a_member_says_who_it_is() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                assert who.title and who.paper.endswith(str(who.year)) and 1948 <= who.year <= 2100
                assert who.model.__name__ == f"kinfolk.models.{who.name}"
                assert who.architecture == who.config("nano").network().architecture
                assert who.sizes == tuple(who.model.SIZES)
                writes = who.architecture in ("decoder", "encoder-decoder") or who.name == "xlnet"
                assert ("generate" in who.capabilities) == writes
                fills = who.architecture in ("encoder", "encoder-decoder") or who.name == "glm"
                assert ("fill" in who.capabilities) == fills


def test_a_member_learns_by_what_lies_in_objectives() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                assert who.objectives and set(who.objectives) <= set(TYPES["objective"])
                assert who.objective() is who.objective(who.objectives[0])
                for name in who.objectives:
                    assert who.objective(name).__module__ == TYPES["objective"][name]


def test_a_published_size_has_the_settings_of_its_paper() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                for size in who.sizes:
                    published = size not in kinfolk_ladder()
                    assert who.train(size) == (who.recipe.PAPER if published else who.recipe.TRAIN)
                    assert isinstance(who.train(size), TrainConfig)


def kinfolk_ladder() -> set[str]:
    return {"nano", "tiny", "mini", "small", "medium", "base", "large"}


def test_every_rung_of_the_ladder_is_there() -> None:
    with every_case() as case:
        for who in families().values():
            with case(who.name):
                assert kinfolk_ladder() <= set(who.sizes)


def test_a_network_finds_its_member() -> None:
    assert family_of(family("gpt2").config("nano").build()).name == "gpt2"


def test_every_objective_has_somebody_who_learns_by_it() -> None:
    known = {name for name in TYPES["objective"] if not name.endswith("_pll")}
    assert known == {way for m in families().values() for way in m.objectives}


def test_unknown_names_are_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no member 'brt'.*bert"):
        family("brt")
    with pytest.raises(UserError, match=r"bert cannot learn by 'clm': it learns by nsp or mlm"):
        family("bert").objective("clm")
    with pytest.raises(UserError, match=r"bert has no size 'bert-base'.*bert-base-uncased"):
        family("bert").config("bert-base")
