"""Settings every test shares: one thread, no network, real data where it is at hand."""

import os
import signal
from pathlib import Path

# A background job of a shell ignores Ctrl-C, and so would the runs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"  # tests of two threads share cores with other tests

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

# The same examples in every run and on every machine, however slow; HYPOTHESIS_PROFILE=search
# draws new ones, and ten times as many where a test does not say how many.
for profile, drawn in {"suite": {"derandomize": True}, "search": {"max_examples": 1000}}.items():
    hypothesis.settings.register_profile(
        profile,
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        **drawn,
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

NO_DATA = "no real data"
REAL = Path(__file__).parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew (one process)"
    )


@pytest.fixture(scope="session")
def real() -> Path:
    """Return the folder of real data that lies beside the repository."""
    if not REAL.is_dir():
        pytest.skip(f"{NO_DATA} at {REAL}")
    return REAL


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many tests were skipped because the real data is not there."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_DATA in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests skipped: {NO_DATA} at {REAL}", yellow=True)
