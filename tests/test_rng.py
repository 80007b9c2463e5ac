"""Random numbers by key: what they are is part of the format of a run, so they are pinned."""

import pickle
from typing import Any

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.rng import (
    ExampleGenerators,
    Stream,
    corpus_seed,
    derive_seed,
    generator,
    keyed_generator,
    sequential,
    text_uniform,
    uniforms,
)

LARGEST = 2**63 - 1


@pytest.mark.parametrize("key", [(0, 0), (LARGEST, 1), (2**64 - 1, (3 << 40) + 9)])
def test_a_key_gives_numpys_philox_without_entropy_of_the_system(
    key: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.random.Philox(key=np.array(key, np.uint64)).random_raw(9)
    monkeypatch.setattr("numpy.random.bit_generator.randbits", None)
    with pytest.raises(TypeError):
        np.random.Philox(key=np.array(key, np.uint64))
    found = keyed_generator(*key)
    assert (found.bit_generator.random_raw(9) == expected).all()
    monkeypatch.undo()
    assert pickle.loads(pickle.dumps(found)).random() == found.random()


def test_one_generator_gives_the_numbers_of_every_example() -> None:
    """Whatever was drawn before, of 32 bits at a time too, of which half of a number stays."""
    for seed in (0, 7, LARGEST):
        generator_of = ExampleGenerators(seed)
        again = pickle.loads(pickle.dumps(generator_of))
        for epoch, index in ((0, 0), (0, 1), (3, 2**40 - 1), (0, 0)):
            expected = generator(seed, Stream.EXAMPLE, epoch, index)
            for found in (generator_of(epoch, index), again(epoch, index)):
                assert type(found) is type(expected)
                state = found.bit_generator.state
                assert str(state) == str(expected.bit_generator.state)
            draws = [rng.integers(7, size=3).tolist() for rng in (found, expected)]
            assert draws[0] == draws[1] and found.random() == expected.random()


def test_choices_are_those_of_numpy() -> None:
    odds = np.array([0.5, 0.2, 0.3])
    ways: list[tuple[Any, dict[str, Any]]] = [
        (7, {}),
        (np.int64(7), {"size": 4}),
        (np.arange(10, 20), {}),
        (np.arange(10, 20), {"size": 5}),
        (np.arange(10, 20), {"size": 5, "replace": False}),
        (3, {"p": tuple(odds)}),
        (3, {"p": odds, "size": 50}),
        (np.array([5, 6, 8]), {"p": tuple(odds), "size": (4, 3)}),
        (("a", "b", "c"), {"p": odds}),
        (np.eye(3), {"size": 2, "axis": 1}),
    ]
    for number, (among, more) in enumerate(ways):
        numpys = np.random.Generator(keyed_generator(3, number).bit_generator)
        ours = keyed_generator(3, number)
        for _ in range(50):
            assert np.array_equal(ours.choice(among, **more), numpys.choice(among, **more))
        assert ours.random() == numpys.random()


def test_orders_are_those_of_every_run_before() -> None:
    keys = [(0, 0), (0, 1), (1, 0), (7, 3), (LARGEST, 5), (123, 0), (123, 1), (123, 2)]
    keys += [(123, 1 << 20), (42, 99)]
    assert [generator(seed, Stream.ORDER, epoch).random() for seed, epoch in keys] == [
        0.011546754286331562, 0.8133540609793564, 0.3035680343067586, 0.4821286018761155,
        0.794043616569435, 0.5170052385149787, 0.8538285001368465, 0.43623908961773017,
        0.09760289712117931, 0.5985817481531732,
    ]  # fmt: skip


def test_examples_are_those_of_every_run_before() -> None:
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (7, 3, 2), (LARGEST, 5, 9)]
    keys += [(123, 0, 2**40 - 1), (123, 9, 4), (123, 2, 2), (42, 99, 10**6)]
    assert [generator(seed, Stream.EXAMPLE, epoch, i).random() for seed, epoch, i in keys] == [
        0.499640696302451, 0.19310274886811907, 0.6043296420658801, 0.8077225651015842,
        0.41993079866696237, 0.8837828439876058, 0.6471050990325066, 0.7141338267004594,
        0.129198774534508, 0.07654995095887274,
    ]  # fmt: skip


def test_splits_and_subsamples_are_those_of_every_run_before() -> None:
    assert [int(generator(seed, Stream.SPLIT).integers(2**62)) for seed in range(10)] == [
        2387542573532878514, 2971533382138716428, 1575966912503991819, 3507850809861170417,
        2526679959955740520, 737230153249335101, 1607984855826804888, 808120262877954525,
        2950563761265070641, 735342707335996729,
    ]  # fmt: skip
    assert [int(generator(seed, Stream.SUBSAMPLE).integers(2**62)) for seed in range(10)] == [
        107435840203147194, 2425350545054856679, 1695969885451148219, 2855223739284215831,
        3998270165969285620, 3864728713445159219, 3752583609174639012, 2914841305671038839,
        1740769861417406619, 3696141858274723361,
    ]  # fmt: skip


def test_seeds_of_corpora_are_those_of_every_run_before() -> None:
    keys = [(0, 0), (0, 1), (0, 2), (1, 1), (7, 3), (LARGEST, 1), (5, 0), (5, 1), (123, 4), (9, 9)]
    assert [corpus_seed(seed, corpus) for seed, corpus in keys] == [
        0, 2918264622725855778, 8597659618385908031, 38901565946305238, 2530781778362038830,
        656986450813952294, 5, 8998383282213416150, 336517433607049942, 1519404197231103621,
    ]  # fmt: skip


def test_derived_seeds_are_those_of_every_run_before() -> None:
    keys = [(0,), (1,), (0, 0), (1, 2), (2, 1), (7, 3, 2), (LARGEST, 5), (123, 456, 789)]
    keys += [(0, 0, 0), (42, 10**6)]
    assert [derive_seed(*numbers) for numbers in keys] == [
        16294208416658607535, 10451216379200822465, 12035550249420947055, 13608149317741381227,
        16171810823986729605, 9552351617786306405, 2372234789319283157, 8818659335861090594,
        2558736989570252433, 16035167062913133589,
    ]  # fmt: skip


def test_uniforms_are_those_of_every_text_before() -> None:
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (7, 3, 2), (2**64 - 1, 5, 9)]
    keys += [(123, 1 << 32, 0), (123, 9, 4), (123, 2, 2), (42, 99, 63)]
    assert [float(uniforms(seed, [text], n + 1)[0, n]) for seed, text, n in keys] == [
        0.011546754286331562, 0.24154919656271812, 0.8133540609793564, 0.3035680343067586,
        0.05025403948627161, 0.25087433283531124, 0.46653709155838186, 0.6651787835224551,
        0.8271893848963264, 0.5980709815344085,
    ]  # fmt: skip
    with pytest.raises(UserError, match="seed=-1: it must be from 0"):
        uniforms(-1, [0], 1)


def test_texts_are_held_out_as_in_every_corpus_before() -> None:
    texts = ["", "a", "b", "The cat sat on the mat.", "猫", "naïve", "x" * 1000, "\n", " a", "A"]
    assert [text_uniform(text) for text in texts] == [
        0.8931675160897388, 0.25379361057584854, 0.5173761181772722, 0.37376595596657086,
        0.21931859882928412, 0.7458863600467514, 0.6023013315389872, 0.31324402449107647,
        0.1249015711528192, 0.10366270546590894,
    ]  # fmt: skip


def test_resampling_draws_as_before() -> None:
    rng = sequential(0)
    assert [int(rng.integers(1000)) for _ in range(10)] == [
        850,
        636,
        511,
        269,
        307,
        40,
        75,
        16,
        175,
        813,
    ]


def test_streams_and_epochs_share_no_generator() -> None:
    found = {
        generator(0, Stream.EXAMPLE, epoch, i).random() for epoch in range(9) for i in range(9)
    }
    found |= {generator(0, Stream.ORDER, epoch).random() for epoch in range(9)}
    found |= {generator(0, stream).random() for stream in (Stream.SPLIT, Stream.SUBSAMPLE)}
    assert len(found) == 81 + 9 + 2
