"""`kinfolk plan` on the command line: a table that fits 50 columns, JSON, a check by real steps."""

import json

import pytest

from kinfolk.cli.plan import device_time, elapsed
from support.runs import Kinfolk

ASKED = ("plan", "gpt2/nano", "--tokens", "3M", "--vocab-size", "500", "--devices", "2")


def test_a_plan_is_readable_at_50_columns(
    kinfolk: Kinfolk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinfolk.cli.output.console.width", 50)
    said = kinfolk(*ASKED, "--gpu", "a100-80", "--price-per-hour", 2, "--parallel", "fsdp")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    sentences = [line for line in lines if line.startswith(("- ", "! "))]
    assert all(len(line) <= 50 for line in lines if line not in sentences), said.out
    begun = [line for line in lines[: lines.index("")] if not line.startswith(" ")]
    facts = dict(line.split(maxsplit=1) for line in begun)
    assert facts["model"].strip() == "gpt2/nano, clm, adamw, bfloat16"
    assert facts["tokens"].startswith("3M, ")
    assert facts["steps"].strip() == "733 of 32 rows of 128 tokens"
    assert facts["device"].strip() == "2 x NVIDIA A100 80GB (SXM)"
    assert facts["vocabulary"].strip() == "500 tokens"
    assert "! does not fit" not in lines
    assert any(line.startswith("cost ") for line in lines)
    rows = {line.rsplit(maxsplit=4)[0] for line in lines[lines.index("") + 3 : -2]}
    assert rows == {"ddp", "fsdp", "tensor 2", "pipeline 2"}
    assert "GPT-2 nano on one H200 (docs/benchmarks.md)" in " ".join(said.out.split())


def test_json_has_every_figure(kinfolk: Kinfolk) -> None:
    said = kinfolk(*ASKED, "--mfu", "0.3", "--json")
    found = json.loads(said.out)
    assert (said.code, said.err) == (0, "")
    assert (found["model"], found["tokens"], found["mfu"]) == ("gpt2/nano", 3e6, 0.3)
    assert found["flops"] == pytest.approx(found["flops_per_token"] * 3e6)
    memory = found["memory"]
    parts = ("weights", "gradients", "moments", "gathered", "activations", "logits")
    assert memory["total"] == sum(memory[part] for part in parts)
    assert memory["fits"] is found["fits"] is True
    assert [way["words"] for way in found["strategies"][::2]] == [
        *("ddp", "fsdp", "tensor 2", "pipeline 2")
    ]


def test_a_check_prints_estimates_beside_measurements(kinfolk: Kinfolk) -> None:
    said = kinfolk(*ASKED, "--gpu", "cpu", "--batch", 8, "--check", "--json")
    check = json.loads(said.out)["check"]
    assert check["rows"] == 4  # of one of two devices
    for part in ("flops", "weights", "gradients", "moments"):
        assert check[part] == check["estimated"][part] > 0
    assert check["activations"] > 0
    assert check["seconds"] > 0
    shown = kinfolk(*ASKED, "--gpu", "cpu", "--batch", 8, "--check").out.splitlines()
    flops = [line.split() for line in shown if line.startswith("FLOPs ")][-1]
    assert flops[1] == flops[2]


@pytest.mark.parametrize(("text", "number"), [("3B", 3e9), ("1.5t", 1.5e12), ("2e6", 2e6)])
def test_tokens_may_have_a_suffix(text: str, number: float, kinfolk: Kinfolk) -> None:
    said = kinfolk("plan", "gpt2/nano", "--tokens", text, "--vocab-size", 200, "--json")
    assert json.loads(said.out)["tokens"] == number


def test_what_does_not_fit_is_marked_and_a_sentence_says_what_does(kinfolk: Kinfolk) -> None:
    said = kinfolk(
        *("plan", "gpt2/mini", "--tokens", "1B", "--devices", 4, "--memory", 1.06),
        *("--vocab-size", 8192),
    )
    assert said.code == 0
    assert "!" in next(line for line in said.out.splitlines() if line.startswith("ddp "))
    assert "\n! does not fit\n" in said.out
    assert "\n- ddp does not fit: " in said.out
    assert "--devices 4 --parallel fsdp" in said.out


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        (16332.4, "16,332 device-hours"),
        (244.2, "244 device-hours"),
        (0.5, "30 device-minutes"),
        (0.0003875, "1.4 device-seconds"),
        (1 / 3600, "1 device-second"),
        (1e-12, "under 0.01 device-seconds"),
    ],
)
def test_the_time_of_devices_has_no_exponent(hours: float, words: str) -> None:
    assert device_time(hours) == words


def test_days_are_written_in_the_unit_that_they_are_read_in() -> None:
    shown = [elapsed(days) for days in (1e6, 5.321, 0.25, 0.01, 1e-5, 1 / 86400)]
    assert shown[:4] == ["2,740 years", "5.32 days", "6 hours", "14.4 minutes"]
    assert shown[4:] == ["0.864 seconds", "1 second"]


def test_what_was_not_given_is_said_to_be_assumed(kinfolk: Kinfolk) -> None:
    said = " ".join(kinfolk("plan", "gpt2/nano", "--tokens", "3M").out.split())
    assert "vocabulary 50,257 tokens, of the paper; --vocab-size N for yours tokens 3M" in said
    assert "device 1 x NVIDIA H200 (SXM), the default; --gpu NAME for yours time " in said
    assert "device-" not in said  # of one device the time is the elapsed one
    assert ", of the steps alone share of peak " in said
    given = kinfolk("plan", "gpt2/nano", "--tokens", "3M", "--gpu", "cpu", "--vocab-size", 500)
    assert " for yours" not in given.out


def test_one_of_a_thing_is_singular_and_names_are_those_of_families_with_a_plan(
    kinfolk: Kinfolk,
) -> None:
    said = " ".join(kinfolk("plan", "ulmfit/nano", "--tokens", "1M", "--batch", 1).out.split())
    assert " 1 epoch " in said
    assert " of 1 row of " in said
    assert " 1 micro-batch of 1 row: " in said
    unknown = kinfolk("plan", "runs/gpt2", "--tokens", "1M").err
    assert "gpt2" in unknown
    assert "bilstm" not in unknown
    assert "ngram" not in unknown
