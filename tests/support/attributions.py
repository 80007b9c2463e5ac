"""captum, which `make setup-test` puts into a folder of its own, without what it draws with."""

import sys
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from support.packages import file_of

# What its module of drawings imports.
DRAWING = ("", ".axes", ".collections", ".colors", ".figure", ".image", ".pyplot")


def open_captum(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import captum.attr, or skip the test; matplotlib is not needed to compute."""
    folder = file_of("captum", "captum").parent
    for name in DRAWING:
        monkeypatch.setitem(sys.modules, f"matplotlib{name}", MagicMock())
    for name in ("mpl_toolkits", "mpl_toolkits.axes_grid1"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.syspath_prepend(folder)
    import captum.attr

    return captum.attr
