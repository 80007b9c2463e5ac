"""Settings every test shares: one thread, no network, real data where it is at hand."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

torch.set_num_threads(1)

REAL = Path(__file__).parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew (one process)"
    )


@pytest.fixture(scope="session")
def real() -> Path:
    """Return the folder of real data that lies beside the repository."""
    if not REAL.is_dir():
        pytest.skip(f"no real data at {REAL}")
    return REAL
