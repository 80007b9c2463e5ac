"""The code uses the field's words: the private words of an earlier version are gone from names."""

import ast
from pathlib import Path

from measures import PRIVATE, TREES, private_words

TESTS = Path(__file__).parent


def test_no_private_word_is_a_name_in_the_package() -> None:
    found = {name: dict(words) for name, tree in TREES.items() if (words := private_words([tree]))}
    assert not found


def test_a_private_word_would_be_found() -> None:
    tree = ast.parse("def lay(places):\n    return places.sight, Specials(birth=1)")
    assert set(private_words([tree])) == {"places", "sight", "Specials", "birth"} <= PRIVATE
