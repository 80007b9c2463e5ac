"""The code uses the field's words: the private words of an earlier version are gone from names."""

import ast

from measures import PRIVATE, measures, parsed_modules, private_words


def test_no_private_word_is_a_name_in_the_package() -> None:
    found = {
        name: dict(words)
        for name, tree in parsed_modules().items()
        if (words := private_words([tree]))
    }
    assert not found


def test_no_import_cycle_is_left() -> None:
    counted = {what: value for what, value, _ in measures()}
    assert counted["import cycles between modules"] == 0
    assert counted["import cycles between packages"] == 0


def test_a_private_word_would_be_found() -> None:
    tree = ast.parse("def lay(places):\n    return places.sight, Specials(birth=1)")
    assert set(private_words([tree])) == {"places", "sight", "Specials", "birth"} <= PRIVATE
