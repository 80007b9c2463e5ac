"""What is held out may be too little to be asked about; the run goes on all the same."""

import json
from pathlib import Path

import pytest

from kinfolk.data.corpus import Corpus
from kinfolk.data.prepare import prepare
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import CorpusShare
from support.runs import Home, text


def test_one_document_held_out_stops_no_run_of_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.make(tmp_path / "home")
    single = tmp_path / "single.txt"
    single.write_text(text(documents=1), encoding="utf-8")
    tokenizer = Corpus.open(home.corpus).tokenizer()
    prepare([single], tokenizer=tokenizer, out=tmp_path / "single")
    monkeypatch.setattr(CorpusShare, "held_out", lambda share: Corpus.open(tmp_path / "single"))
    with pytest.warns(UserWarning, match="held-out documents are not evaluated.* has one document"):
        run = pretrain(home.recipe("bert", "train.steps=2", "train.warmup=1"), tmp_path / "run")
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and not any("eval_loss" in line for line in lines)
