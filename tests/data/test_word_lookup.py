"""Words are found by all of their bytes, and never one in place of another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.data import encode
from kinfolk.data.encode import MAX_KEY_BYTES, WordKeys, WordTable, word_keys

WORDS = st.text(st.sampled_from("ab ,"), min_size=1, max_size=MAX_KEY_BYTES + 4)


def packed(words: list[str]) -> WordKeys:
    lengths = np.array([len(word) for word in words], np.int64)
    characters = np.frombuffer("".join(words).encode(), np.uint8)
    return word_keys(characters, np.cumsum(lengths) - lengths, lengths)


@given(words=st.lists(WORDS, min_size=1, max_size=12, unique=True))
def test_each_short_word_has_a_key_of_its_own_wherever_it_stands(words: list[str]) -> None:
    found, back = packed(words), packed(words[::-1])
    assert found.low.tolist() == back.low.tolist()[::-1]
    assert found.high.tolist() == back.high.tolist()[::-1]
    pairs = list(zip(found.low.tolist(), found.high.tolist(), strict=True))
    short = [pair for pair, word in zip(pairs, words, strict=True) if len(word) <= MAX_KEY_BYTES]
    assert len(set(short)) == len(short)
    assert (0, 0) not in short
    assert pairs.count((0, 0)) == len(pairs) - len(short)


@given(words=st.lists(WORDS, min_size=2, max_size=12, unique=True))
def test_a_word_is_found_with_its_own_tokens_or_not_at_all(words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "TABLE_SIZE", 8)  # so that many words want one slot
        known = WordTable()
        tokens = {word: np.arange(len(word), dtype=np.uint32) + 7 for word in words}
        for some in (words[: len(words) // 2], words[len(words) // 2 : -1]):
            free = np.flatnonzero(known.free(packed(some)))
            assert known.add(packed(some)[free], [tokens[some[i]].tobytes() for i in free])
        places, sizes = known.find(packed(words))
        assert sizes[-1] < 0
        assert (sizes >= 0).any() or all(len(word) > MAX_KEY_BYTES for word in words[:-1])
        for word, place, size in zip(words, places, sizes, strict=True):
            if size >= 0:
                found = known.tokens(np.array([place]), np.array([size]))
                assert found.tolist() == tokens[word].tolist()
        known.clear()
        assert (known.find(packed(words))[1] < 0).all()


def test_a_full_pool_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "POOL_TOKENS", 3)
    known = WordTable()
    assert known.add(packed(["a"]), [b"11112222"])
    assert not known.add(packed(["b"]), [b"33334444"])
    assert known.find(packed(["a", "b"]))[1].tolist() == [2, -1]
