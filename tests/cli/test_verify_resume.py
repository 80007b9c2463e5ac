"""The command prints the proof, and ends with 1 where the runs differ."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kinfolk.workflows import verify_resume as workflow
from support.runs import Kinfolk, one_sentence

PROOF = workflow.ResumeProof(
    name="gpt2/nano",
    objective="clm",
    device="cpu",
    steps=24,
    save_every=8,
    killed_at=12,
    resumed_from=8,
    losses=(5.25, 5.25),
    parts=tuple(
        workflow.ComparedPart(part, "9 tensors", "ab" * 32, "ab" * 32) for part in workflow.PARTS
    ),
)


@pytest.mark.slow
def test_the_proof_is_printed(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    said = kinfolk("verify-resume", runs["t5"], "--steps", 4)
    assert said.code == 0, said
    assert f"{runs['t5']} (spans) on cpu: 4 steps, a checkpoint every 2" in said.out
    assert "killed (SIGKILL) after step 3, resumed from step 2" in said.out
    assert said.out.rstrip().endswith("equal to the bit")
    assert "trained 4 steps without interruption" in said.err


def test_a_difference_is_printed_and_the_exit_code_is_1(
    kinfolk: Kinfolk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = "model.safetensors: transformer.wte.weight differs in 1 of 9 values, by up to 1e-09"
    wrong = replace(PROOF.parts[0], resumed="cd" * 32, difference=tensor)
    differing = replace(PROOF, parts=(wrong, *PROOF.parts[1:]), notes=("CUDA: a note",))
    monkeypatch.setattr(workflow, "verify_resume", lambda *a, **k: differing)
    said = kinfolk("verify-resume", "gpt2/nano")
    assert said.code == 1
    assert f"first difference: {tensor}" in said.out and "CUDA: a note" in said.out
    assert "equal to the bit" not in said.out
    assert "abababababababab" in said.out and "cdcdcdcdcdcdcdcd" in said.out
    said = kinfolk("verify-resume", "gpt2/nano", "--json")
    assert said.code == 1
    values = json.loads(said.out)
    assert values["equal"] is False and values["differences"] == [tensor]
    assert values["parts"][0]["resumed"] == "cd" * 32


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("gtp2", "gtp2 is neither a folder nor a family: did you mean gpt2"),
        ("gpt2/nano --steps 3", "--steps must be at least 4"),
        ("gpt2/nano --objective mlm", "gpt2 has no objective 'mlm'"),
        ("gpt2/nano --device gpu", "unknown device 'gpu'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, sentence: str, kinfolk: Kinfolk) -> None:
    assert sentence in one_sentence(kinfolk("verify-resume", *arguments.split()))
