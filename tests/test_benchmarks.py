"""The benchmarks run, compare the same work, and end with the figures that are asked of them."""

import argparse
import gzip
import importlib.util
import json
import lzma
import random
import re
import runpy
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.objectives.clm import CLM
from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.rtd import RTD
from support.learnable import classify
from support.runs import Home, text

pytest.importorskip("transformers")

FILE = Path(__file__).parents[1] / "benchmarks" / "training.py"
PREPARING = FILE.with_name("preparing.py")
PLAN_CHECK = FILE.with_name("plan_check.py")
SMALL = "--json --device cpu --size nano --vocab 200 --batch 2 --length 32 --seconds 0 --pool 2"


@pytest.fixture(scope="module")
def training() -> ModuleType:
    """Open the benchmark as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_of_training", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def figures(training: ModuleType, capsys: Any, *more: str) -> dict[str, Any]:
    """Run the benchmark, a step at a time, and read the JSON it ends with."""
    training.main([*SMALL.split(), *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


@pytest.fixture(autouse=True)
def single_steps(training: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block of steps be one step."""
    monkeypatch.setattr(training, "BLOCK", 0.0)


@pytest.mark.parametrize("names", [("gpt2", "t5"), pytest.param((), marks=pytest.mark.slow)])
def test_every_workload_does_what_its_peer_does_and_the_smallest_ratio_is_told(
    names: tuple[str, ...], training: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    found = figures(training, capsys, *(["--workloads", *names] if names else []))
    works = {name: found[name] for name in names or training.WORKS}
    assert found["ratio"] == min(work["ratio"] for work in works.values())
    assert found["ceiling"] > 0
    for name, work in works.items():
        if name == "transformer_xl":  # both sides have the same rows
            assert work["loss"] is None
        else:
            assert work["loss"][0] == pytest.approx(work["loss"][1], abs=1e-3)
            assert work["grad_norm"][0] == pytest.approx(work["grad_norm"][1], rel=1e-3)
        assert work["rounds"] >= 5
        assert work["sides"].keys() == {"peer", "kinfolk", "kinfolk, no feed"}
        for side in work["sides"].values():
            assert side["tokens_per_second"] > 0
            assert side["of_ceiling"] > 0
            assert 0 < side["filled"] <= 1
            assert 0 <= side["data_wait"] < 1
            assert side["start_seconds"] > 0


def test_a_workload_and_a_variant_of_its_settings_are_in_one_table(
    training: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL.split(), "--workloads", "bert", "--variant", "optimizer=adamw_rms,eps=1e-6"]
    found = training.main([*arguments, "--grouped"])
    variant, grouped = "kinfolk, optimizer=adamw_rms, eps=1e-6", "peer, grouped by length"
    sides = found["bert"]["sides"]
    assert sides.keys() == {"peer", grouped, "kinfolk", "kinfolk, no feed", variant}
    assert sides[grouped]["filled"] > sides["peer"]["filled"]
    out = capsys.readouterr().out
    table = [line.split("|") for line in out.splitlines() if line.startswith("|")]
    assert [row[2].strip() for row in table[2:]] == [
        *("BertForMaskedLM", "BertForMaskedLM, grouped by length"),
        *("kinfolk", "kinfolk, no feed", variant),
    ]


def test_a_variant_that_cannot_run_is_left_out_and_finished_workloads_are_lines_of_a_file(
    training: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    more = ["--workloads", "glm", "--variant", "attention=flex", "--out", str(out)]
    found = figures(training, capsys, *more)["glm"]
    assert "train.attention=flex" in found["left_out"]["attention=flex"]
    assert found["sides"].keys() == {"peer", "kinfolk", "kinfolk, no feed"}
    assert found["sides"]["kinfolk"]["batch_ms"] > 0
    (line,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert line["workload"] == "glm" and line["caches_warm"] is False
    assert line["sides"] == found["sides"]


@pytest.mark.slow
def test_workloads_that_are_prepared_at_the_same_time_are_timed_one_after_the_other(
    tmp_path: Path,
) -> None:
    words = [*SMALL.split(), "--workloads", "glm", "bert", "--parallel", "2"]
    command = [sys.executable, str(FILE), *words, "--out", str(tmp_path / "out.jsonl")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, lines = json.loads(out.splitlines()[-1]), (tmp_path / "out.jsonl").read_text("utf-8")
    assert [json.loads(line)["workload"] for line in lines.splitlines()] == ["glm", "bert"]
    assert "start, 2 at once" in out and found["glm"]["ceiling"] == found["bert"]["ceiling"]
    wrong = subprocess.run([*command, "--model", "depth=3"], capture_output=True, text=True)
    assert wrong.returncode and wrong.stderr.count("no field 'depth'") >= 2


def test_kernels_are_counted_by_kind(training: ModuleType) -> None:
    kinds = {
        "void flash_fwd_kernel<bf16>": "attention",
        "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_TNT": "matrix products",
        "triton_red_fused_native_layer_norm_backward_7": "norms",
        "triton_poi_fused__to_copy_gelu_2": "activations",
        "Memcpy HtoD (Pinned -> Device)": "copies",
        "something_else": "other",
    }
    assert {name: training.kind_of(name) for name in kinds} == kinds
    profile = {"kernels_ms": 2.5, "launches": 7, "kinds": {"attention": 1.5, "norms": 1.0}}
    sides = {"kinfolk": {}, "kinfolk, no feed": {"profile": profile}}
    assert training.profile_table("bert", {"sides": sides}) == (
        "bert, kinfolk, no feed: kernels 2.50 ms, 7 launches: attention 1.50, norms 1.00"
    )


def test_on_a_cpu_networks_are_the_published_ones_that_are_small_enough(
    training: ModuleType,
) -> None:
    configs = {}
    for name, (size, fields) in training.SMALL_SHAPES.items():
        work = training.WORKS[name]()
        configs[name] = training.shaped(work, size, fields, work.vocab, 128)
    gpt2 = configs["gpt2"]
    assert (gpt2.num_layers, gpt2.hidden_size, gpt2.vocab_size) == (6, 384, 50257)
    assert configs["electra"].embedding_size == 128 and configs["electra"].num_layers == 12
    assert configs["t5"].hidden_size == 512 and configs["t5"].dropout == 0


def test_fields_of_a_network_are_changed_by_name(
    training: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    wider = figures(training, capsys, "--workloads", "glm", "--model", "num_layers=3")["glm"]
    plain = figures(training, capsys, "--workloads", "glm")["glm"]
    assert wider["size"] == "nano, num_layers=3" and plain["size"] == "nano"
    assert wider["parameters"] > plain["parameters"]
    with pytest.raises(UserError, match="no field 'depth'"):
        training.main([*SMALL.split(), "--workloads", "glm", "--model", "depth=3"])


def test_the_peer_of_electra_has_one_table_of_embeddings_and_draws_its_own_tokens(
    training: ModuleType,
) -> None:
    work = training.WORKS["electra"]()
    model = training.shaped(work, "nano", (), 128, 32).build()
    peer = training.open_peer(work, model)
    assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in model.parameters())
    objective = RTD(special_tokens=training.SPECIALS, vocab_size=128, max_length=32)
    texts = training.documents(500, longest=30, vocab=128)
    dataset = training.PackedDataset(objective, texts, batch_size=2, seed=0)
    reading = work.pad([text for row in training.rows_of_texts(dataset, 0) for text in row])
    given = [peer(**reading.arguments, **reading.drawn)["rtd"].item() for _ in range(2)]
    drawn = [peer(**reading.arguments)["rtd"].item() for _ in range(4)]
    assert given[0] == given[1] and len({*drawn}) > 1


def test_on_a_cpu_only_peers_with_batches_of_one_shape_are_compiled(
    training: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: model)
    found = figures(training, capsys, "--workloads", "gpt2", "bert", "--compiled")
    assert "peer, compiled" in found["gpt2"]["sides"] and found["gpt2"]["ratio_compiled"] > 0
    assert "peer, compiled" not in found["bert"]["sides"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    training.main([*SMALL.split(), "--workloads", "gpt2", "--compiled"])
    said = capsys.readouterr()
    assert "no-such-compiler" in said.err and "peer, compiled" not in said.out


def test_time_of_the_process_leaves_out_what_others_take(
    training: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(number: int) -> torch.Tensor:
        time.sleep(0.05)
        return torch.zeros(())

    speeds = [
        training.Side(
            name="waits",
            step=waits,
            tokens=lambda number: 1,
            states=list,
            device=torch.device("cpu"),
            clock=clock,
            pool=1,
            filled=1.0,
            slots_per_token=1.0,
        ).run(4)[0]
        for clock in (time.perf_counter, time.process_time)
    ]
    assert speeds[0] < 20 and speeds[1] > 3 * speeds[0]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(SystemExit):
        training.main([*SMALL.split(), "--cpu-time"])


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")
def test_memory_on_a_cpu_is_what_the_resident_set_rises_by(training: ModuleType) -> None:
    with training.peak_resident() as peak:
        torch.ones(2**24).sum()
    assert 60e6 < peak[0] < 100e6  # 64 MB
    with training.peak_resident() as peak:
        torch.ones(2**10).sum()
    assert peak[0] < 10e6


def test_a_setting_that_does_not_exist_is_not_measured(training: ModuleType) -> None:
    with pytest.raises(UserError, match="no field 'speed'"):
        training.main([*SMALL.split(), "--workloads", "bert", "--variant", "speed=2"])


def packed(training: ModuleType, work: Any, way: Any) -> list[Any]:
    """Return the texts of two batches."""
    objective = way(special_tokens=training.SPECIALS, vocab_size=200, max_length=32)
    documents = training.documents(1000, longest=30, vocab=200)
    dataset = training.PackedDataset(objective, documents, batch_size=2, seed=0)
    rows = [row for number in range(2) for row in training.rows_of_texts(dataset, number)]
    assert sum(training.text_tokens(dataset, n) for n in range(2)) == sum(
        text.tokens for row in rows for text in row
    )
    return [text for row in rows for text in row]


def test_both_sides_count_the_tokens_of_the_texts_and_nothing_else(training: ModuleType) -> None:
    work = training.WORKS["bert"]()
    texts = packed(training, work, MLM)
    for reading in training.readings(work, texts, 2, 32):
        # [CLS] and [SEP] fill two slots of each of the two rows.
        assert reading.filled == reading.tokens + 4
        assert reading.slots == reading.arguments["input_ids"].numel()


def test_the_peer_of_gpt2_gets_full_rows_of_the_same_texts(training: ModuleType) -> None:
    work = training.WORKS["gpt2"]()
    texts = packed(training, work, CLM)
    found = training.readings(work, texts, 2, 32)
    assert all(r.slots == r.filled == 64 for r in found)
    assert sum(t.tokens for t in texts) - 64 <= sum(r.tokens for r in found)
    assert sum(r.tokens for r in found) <= sum(t.tokens for t in texts)


def test_networks_that_differ_are_not_timed_and_the_others_are(
    training: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = training.open_peer

    def bent(work: Any, model: Any) -> Any:
        peer = honest(work, model)
        peer.transformer.h[0].attn.c_proj.weight.data *= 1.5
        return peer

    monkeypatch.setattr(training, "open_peer", bent)
    with pytest.raises(SystemExit, match="do not compute the same"):
        training.main([*SMALL.split(), "--workloads", "gpt2"])
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit, match="gpt2: the two sides do not compute the same"):
        training.main([*SMALL.split(), "--workloads", "gpt2", "glm"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "glm" in found and "gpt2" not in found


@pytest.mark.skipif(torch.cuda.is_available(), reason="the benchmarks would run")
@pytest.mark.parametrize(
    "command",
    [
        "activation_memory",
        "finetuning_speed",
        "generation",
        "plan_check",
        "recurrent_speed",
        "scaling -o out",
        "start --corpus corpus",
        "time_to_quality --corpus corpus -o out",
        "training",
    ],
)
def test_a_device_that_is_missing_is_told_in_a_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command.split()
    monkeypatch.setattr(sys, "argv", [name, *options, "--device", "cuda"])
    monkeypatch.syspath_prepend(FILE.parent)  # as Python does for a script
    monkeypatch.delitem(sys.modules, "training", raising=False)  # a folder of tests
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FILE.with_name(f"{name}.py")), run_name="__main__")
    said = f"{ended.value} {capsys.readouterr().err}"
    assert "use --device cpu" in said and "Traceback" not in said


def test_rounding_of_the_peer_on_a_gpu_is_told_from_other_work(training: ModuleType) -> None:
    exact = training.Pass([2.0, 2.0], [5.0, 5.0], 1.0)
    rounds = training.Pass([2.0, 2.0001], [5.0, 5.006], 1.0)
    assert training.does_same_work(exact, None)
    assert not training.does_same_work(rounds, None)
    assert training.does_same_work(rounds, exact)
    assert not training.does_same_work(rounds, rounds)
    kinfolk_differs = training.Pass([2.0, 2.0], [5.006, 5.0], 1.0)
    assert not training.does_same_work(kinfolk_differs, exact)
    assert not training.does_same_work(training.Pass([2.1, 2.0], [5.0, 5.0], 1.0), exact)


@pytest.fixture(scope="module")
def preparing() -> ModuleType:
    """Open the other benchmark as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_of_preparing", PREPARING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_preparing_ends_with_its_ratios(
    preparing: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # the benchmark changes both
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    (tmp_path / "text.txt").write_text(text(), encoding="utf-8")
    preparing.main([str(tmp_path / "text.txt"), "--json", "--vocab", "420", "--workers", "1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["ratio"] == found["420"]["ratio"] > 0
    assert found["ratio_datasets"] == found["420"]["ratio_datasets"] > 0
    assert found["420"]["sides"].keys() == {"tokenizers", "datasets", "kinfolk"}
    assert found["420"]["documents"] == 80
    assert found["420"]["rounds"] == 3


def test_other_ids_are_not_timed(preparing: ModuleType, tmp_path: Path) -> None:
    from kinfolk.data.prepare import prepare

    texts = text().strip().split("\n\n")
    (tmp_path / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    tokenizer, other = preparing.learn(texts, 420), preparing.learn(texts, 400)
    corpus = prepare([tmp_path / "text.txt"], tokenizer=tokenizer, out=tmp_path / "corpus")
    preparing.check(corpus, texts, tokenizer._backend)
    with pytest.raises(SystemExit, match="the same ids"):
        preparing.check(corpus, texts, other._backend)
    with pytest.raises(SystemExit, match="the same tokens and documents"):
        preparing.check(corpus, texts[:-1], tokenizer._backend)


@pytest.fixture
def ngrams(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "benchmark_of_ngrams", FILE.with_name("ngrams.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_real_text_is_copied_with_a_quarter_of_its_words_changed(
    ngrams: ModuleType, tmp_path: Path
) -> None:
    lines = [f"the number {i} of the long line {i * i} is {i % 7}\n" for i in range(3000)]
    (tmp_path / "text.txt").write_text("".join(lines), encoding="utf-8")
    text, held, names = ngrams.real_text([tmp_path / "text.txt"], 1)
    assert len(text.ids) + len(held.ids) == 10 * 3000 and names[-1] == "<unk>"
    blocks = [ids for ids, _ in text.blocks()]
    ids = np.concatenate(blocks)
    assert text.tokens <= len(ids) < text.tokens + 10_000
    first, second = ids[: len(text.ids)], ids[len(text.ids) : 2 * len(text.ids)]
    assert np.array_equal(first, text.ids)
    changed = (first != second).mean()
    assert 0.2 < changed < 0.25  # some are drawn as they were


@pytest.mark.slow
def test_ngrams_are_counted_and_scored_in_small(
    ngrams: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ngrams, "HELD_OUT", 2000)
    ngrams.main(["--megabytes", "1", "--order", "3", "--out", str(tmp_path / "out.jsonl")])
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text("utf-8").splitlines())
    assert row["tokens"] > 100_000 and len(row["sizes"]) == 3
    assert row["peak_mb"] > 50 and row["query_us"] > 0 and row["perplexity"] < 1000
    assert "count_cpu_s" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of the bare loop, on a CPU
@pytest.mark.parametrize(
    ("family", "rows"), [("ulmfit", 4), pytest.param("elmo", 2, marks=pytest.mark.slow)]
)
def test_lstm_training_is_timed_beside_a_bare_loop(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    family: str,
    rows: int,
) -> None:
    small = f"--family {family} --hidden 8 --lstm 12 --vocab 60 --batch 3 --length 9 --seconds 0"
    results = tmp_path / "speed.jsonl"
    arguments = ["benchmark", *small.split(), "--profile", "--results", str(results)]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(FILE.with_name("recurrent_speed.py")), run_name="__main__")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(lines) == rows
    for line in lines:
        assert line["speed"] > 0 and line["bare"] > 0 and line["ratio"] > 0
        assert line["operations"] > 50 and line["bare_operations"] > 50
        for found in line["profile"].values():
            assert found["step_ms"] >= found["host_ms"] > 0
            assert found["top_host_ms"]
    printed = capsys.readouterr().out
    assert printed.count("| float32 |") == rows and "host_ms" in printed


def test_fine_tuning_is_timed_beside_transformers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = "--device cpu --sizes nano --vocab 60 --batch 4 --texts 40 --ready 3 --seconds 0"
    results = tmp_path / "speed.jsonl"
    monkeypatch.setattr(sys, "argv", ["benchmark", *small.split(), "--results", str(results)])
    runpy.run_path(str(FILE.with_name("finetuning_speed.py")), run_name="__main__")
    (line,) = [json.loads(line) for line in results.read_text().splitlines()]
    assert line["tokens_per_second"].keys() == {"transformers", "eager"}
    assert line["ratio"]["eager"] > 0 and line["ratio"]["transformers"] == 1
    assert line["rounds"] >= 5 and line["loss"][0] == pytest.approx(line["loss"][1], abs=1e-3)
    assert "| `nano` |" in capsys.readouterr().out


def test_cvt_is_compared_with_itself_without_unlabelled_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("cross_view", FILE.with_name("cross_view.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    lines = ["Anna B-PER", "lives O", "in O", "Rome B-LOC", "", "Otto B-PER", "sleeps O", ""]
    file = tmp_path / "tags.txt"
    file.write_text("\n".join(lines * 20), encoding="utf-8")
    options = f"--train {file} --test {file} --sentences 20 --model cvt/nano --steps 2 --device cpu"
    for arm in module.ARMS:
        words = ["cross_view.py", *options.split(), "--only", arm, "1"]
        monkeypatch.setattr(sys, "argv", words)
        module.main()
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["arm"] == arm and found["seed"] == 1 and 0 <= found["f1"] <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own profiler
def test_checkpointed_and_sharded_steps_have_the_losses_of_plain_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = FILE.with_name("activation_memory.py")
    small = "--json --device cpu --size test --batch 2 --length 64 --vocab 300"
    monkeypatch.setattr(sys, "argv", ["benchmark", *small.split()])
    runpy.run_path(str(file), run_name="__main__")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    plain, checkpointed, sharded, both = (figures["peak_bytes"] for figures in found)
    assert checkpointed < 0.6 * plain and both < 0.6 * sharded
    for figures in found:
        assert figures["losses"] == pytest.approx(found[0]["losses"], rel=1e-6)
        assert len(figures["losses"]) == 5
        assert figures["tokens_per_second"] > 0


def test_the_time_of_a_batch_is_measured_for_every_objective(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home.make(tmp_path / "home")
    main = runpy.run_path(str(FILE.with_name("data_path.py")))["main"]
    small = f"{home.corpus} --shapes 2x64 --batches 2 --rounds 2 --loaded 5"
    small += f" --out {tmp_path / 'out.jsonl'}"
    found = main(small.split())
    objectives = {way for member in families().values() for way in member.objectives}
    assert {line["objective"] for line in found} == objectives
    assert [*map(json.loads, (tmp_path / "out.jsonl").read_text("utf-8").splitlines())] == found
    for line in found:
        assert line["batch_ms"] > 0 and line["tokens_per_second"] > 0
        assert line["worker_ms"] > 0 and line["main_ms"] > 0
    out = capsys.readouterr().out
    assert out.count("| 2x64 |") == len(found)
    main([*small.split(), "--objectives", "nsp", "--profile"])
    out = capsys.readouterr().out
    assert "Ordered by: internal time" in out and "kinfolk/data/" in out


def test_estimates_of_a_plan_are_printed_beside_real_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = runpy.run_path(str(PLAN_CHECK))
    check["main"](["--device", "cpu", "--only", "bert/nano", "--json"])
    found = json.loads(capsys.readouterr().out)
    (work,) = found["works"]
    assert (work["model"], found["left_out"]) == ("bert/nano", [])
    assert work["flops_ratio"] == 1
    assert found["ratios"] == [work["ratio"]] * 2
    assert 0.85 < work["ratio"] < 1.15
    assert check["peak_speed"]("NVIDIA H200") == 989e12
    assert check["peak_speed"]("NVIDIA A100-SXM4-80GB") == 312e12
    assert check["peak_speed"]("Unknown") is None


@pytest.mark.slow
def test_knowledge_neurons_of_learned_facts_are_printed_for_every_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"neurons.py --folder {tmp_path / 'runs'} --out {tmp_path / 'out.jsonl'} --steps 2"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--models", "gpt2/nano", "--facts", "3"])
    runpy.run_path(str(FILE.with_name("neurons.py")), run_name="__main__")
    rows = [*map(json.loads, (tmp_path / "out.jsonl").read_text("utf-8").splitlines())]
    one = ["prompts", "other prompts", "other facts"]
    groups = [group for group in (*one, "prompts", "other facts") for _ in range(2)]
    assert [row["group"] for row in rows] == 2 * groups
    assert all(row["completeness_error"] <= 0.01 for row in rows)
    assert "| gpt2/nano | capital | one prompt |" in capsys.readouterr().out


def test_a_dictionary_is_learned_from_pairs_of_sentences(tmp_path: Path) -> None:
    names, verbs = {"cat": "猫", "dog": "狗", "bird": "鸟"}, {"sleeps": "睡", "sings": "唱"}
    lines = [
        f"The {name} {verb}.\t{names[name]}{verbs[verb]}。\tnote\n"
        for name in names
        for verb in verbs
    ]
    table, out = tmp_path / "pairs.tsv", tmp_path / "en-zh.txt"
    table.write_text("".join(lines), encoding="utf-8")
    main = runpy.run_path(str(FILE.with_name("bilingual_dictionary.py")))["main"]
    main([str(table), "-o", str(out)])
    found = dict(line.split("\t") for line in out.read_text(encoding="utf-8").splitlines())
    assert {word: found[word] for word in names} == names


def write_translation_data(folder: Path) -> None:
    """Write the files that the benchmark of zero-shot translation reads, in small."""
    rng = random.Random(0)
    words = {
        "en": ["the", "cat", "dog", "sees", "hears", "big", "old", "house"],
        "de": ["das", "Tier", "Hund", "sieht", "hört", "groß", "alt", "Haus"],
        "zh": ["这", "猫", "狗", "看", "听", "大", "老", "房"],
    }
    drawn = [[rng.randrange(8) for _ in range(rng.randint(4, 8))] for _ in range(260)]

    def lines(language: str) -> list[str]:
        joint, end = ("", "。") if language == "zh" else (" ", ".")
        return [joint.join(words[language][i] for i in row) + end for row in drawn]

    def questions(language: str) -> bytes:
        rows = [{"id": str(n), "question": line} for n, line in enumerate(lines(language)[:20])]
        return gzip.compress(json.dumps({"data": [{"paragraphs": [{"qas": rows}]}]}).encode())

    texts = {x: "\n".join(lines(x)) + "\n" for x in words}
    table = "".join(f"{a}\t{b}\tnote\n" for a, b in zip(lines("en"), lines("zh"), strict=True))
    files = {
        "multi30k_en_de/train.en": texts["en"].encode(),
        "multi30k_en_de/train.de": texts["de"].encode(),
        "wmt_en_de_10k/train.en": texts["en"].encode(),
        "wmt_en_de_10k/train.de": texts["de"].encode(),
        "wmt_en_de_10k/val.de": texts["de"].encode(),
        "tatoeba_en_zh/cmn.txt.xz": lzma.compress(table.encode()),
        "wiki_en/train.txt.xz": lzma.compress(texts["en"].encode()),
        "wiki_zh/train.txt.xz": lzma.compress(texts["zh"].encode()),
        "squad/dev-v1.1.json.gz": questions("en"),
        "xquad/xquad.de.json.gz": questions("de"),
        "xquad/xquad.zh.json.gz": questions("zh"),
        "flores200/dev/eng_Latn.dev": texts["en"].encode(),
        "flores200/dev/deu_Latn.dev": texts["de"].encode(),
        "flores200/dev/zho_Hans.dev": texts["zh"].encode(),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.slow
def test_zero_shot_arms_side_by_side_end_in_time_with_a_score_for_every_way(tmp_path: Path) -> None:
    write_translation_data(tmp_path / "data")
    folders = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    sizes = "--size nano --vocab 400 --batch 2 --test-rows 5 --denoise 50 --jobs 2"
    limits = "--minutes 0.1 --pretrain-minutes 0.1 --warmup 5"
    variants = ["--variants", "pairs alone; spans, then pairs and denoising"]
    script = [sys.executable, str(FILE.with_name("zero_shot.py"))]
    command = [*script, *folders, *sizes.split(), *limits.split(), *variants]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    text = (tmp_path / "out" / "scores.jsonl").read_text("utf-8")
    scores = [*map(json.loads, text.splitlines())]
    ways = {(score["variant"], score["test"], score["direction"], score["way"]) for score in scores}
    assert len(ways) == 2 * 2 * (4 * 3 + 2 * 4)  # trained directions are not taken through English
    assert len(scores) == 2 * len(ways)
    # Seconds of training may or may not be enough: what is not above copying is named, each.
    found = {
        tuple(s[k] for k in ("variant", "test", "direction", "metric", "way")): s["score"]
        for s in scores
    }
    zero_shot = runpy.run_path(str(FILE.with_name("zero_shot.py")))["ZERO_SHOT"]
    behind = [
        place
        for *place, way in found
        if way == "direct" and place[2] in zero_shot
        if found[*place, "copied sources"] >= found[*place, "direct"]
    ]
    assert ran.stdout.count("- not above copied sources: ") == len(behind)
    for run in ("pairs-alone-0", "spans-then-pairs-and-denoising-0"):
        steps = [*map(json.loads, (tmp_path / "out" / run / "log.jsonl").read_text().splitlines())]
        assert steps[-1]["lr"] < max(step["lr"] for step in steps)
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == ran.stdout[ran.stdout.index("| test |") :]


@pytest.mark.slow
def test_prefixes_ends_with_a_line_for_each_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    rows = [classify(rng) for _ in range(240)]
    names = {"good": "1", "bad": "0"}

    def table(header: str, rows: list[dict[str, Any]], *, label_first: bool = False) -> bytes:
        cells = [(row["sentence"], names[row["label"]]) for row in rows]
        lines = ["\t".join(pair[::-1] if label_first else pair) for pair in cells]
        return "\n".join([header, *lines]).encode() + b"\n"

    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress(table("sentence\tlabel", rows)))
    for name in ("dev.tsv", "test.tsv"):
        (tmp_path / name).write_bytes(table("sentence\tlabel", rows[:60]))
    reviews = table("label\ttext", rows, label_first=True)
    (tmp_path / "train.tsv.xz").write_bytes(lzma.compress(reviews))
    (tmp_path / "wiki.txt").write_text(text(), encoding="utf-8")
    sizes = "--model gpt2/nano --vocab 400 --steps 20 --prefix-steps 5 --texts 1 --new-tokens 6"
    sizes += " --max-ratio 9"  # so that one of the arms is chosen
    folders = f"--sst2 {tmp_path} --imdb {tmp_path} --wiki {tmp_path}/wiki.txt --out {tmp_path}/out"
    module = runpy.run_path(str(FILE.with_name("prefixes.py")))
    module["main"]([*sizes.split(), *folders.split()])
    lines = capsys.readouterr().out.splitlines()
    found = {row["arm"]: row for row in (json.loads(x) for x in lines if x.startswith("{"))}
    assert found.keys() == {"real sentences", *module["ARMS"]}
    for row in found.values():
        assert 0 <= row["tfidf"][1] <= row["tfidf"][0] <= row["tfidf"][2] <= 1
        assert row["perplexity"][0] > 1
        # Longer n-grams are rarer; of short texts all of them may be distinct.
        assert 0 < row["distinct-1"] <= row["distinct-2"] <= row["distinct-3"] <= 1
    heads = next(line for line in lines if "perplexity" in line and "TF-IDF" in line)
    assert heads.split()[-3:] == ["d-1", "d-2", "d-3"]
    arms = lines[lines.index(heads) + 1 :]
    assert len(arms) == len(found) and lines[-1].startswith("latent")
    for line, row in zip(arms, found.values(), strict=True):
        variety = [f"{row[f'distinct-{n}']:.2f}" for n in (1, 2, 3)]
        assert line.startswith(row["arm"]) and line.split()[-3:] == variety
    chosen = next((line for line in lines if line.startswith("chosen by A")), None)
    assert chosen is not None and "perplexity ratio" in chosen
    plain, best = found["no prefix"], found[chosen.split(": ")[1].partition("; ")[0]]
    for n in (1, 2, 3):
        values = (row[f"distinct-{n}"] for row in (best, plain))
        assert "distinct-{} {:.3f} (no prefix {:.3f})".format(n, *values) in chosen


# Benchmarks that run without arguments and are not in `make bench`.
NOT_IN_BENCH = {
    "engines.py": "a part of generation.py",
    "preparing.py": "needs text",
}


class ArgumentsReadError(Exception):
    """The command line of a benchmark was read: nothing else is run."""


@pytest.fixture
def stops_after_arguments(training: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every benchmark end when it has read its command line."""
    read = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *given: Any) -> None:
        read(self, *given)
        raise ArgumentsReadError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setitem(sys.modules, "training", training)  # which scaling.py imports
    monkeypatch.syspath_prepend(FILE.parent)  # for the other imports of a script


MAKEFILE = (FILE.parents[1] / "Makefile").read_text(encoding="utf-8")


def bench_commands(target: str) -> list[list[str]]:
    """Return the benchmarks that `make bench` or `bench-gpu` runs, each with its arguments."""
    lines = re.findall(rf"^\t(?:-?timeout -k 5 \d+ )?\$\({target}\)/(.*)$", MAKEFILE, re.M)
    commands = [shlex.split(re.sub(r"\$\(\w+\)", "folder", line)) for line in lines]
    assert "training.py" in [command[0] for command in commands]
    return commands


def test_each_part_of_the_gpu_benchmarks_ends_within_nine_minutes(training: ModuleType) -> None:
    (parts,) = re.findall(r"^GPU_PARTS := (.*)$", MAKEFILE, re.M)
    rules = {
        name: MAKEFILE.partition(f"\n{name}: ")[2].partition("\n\n")[0].splitlines()[1:]
        for name in parts.split()
    }
    commands = [command for lines in rules.values() for command in lines]
    assert len(commands) == len(bench_commands("BENCH_GPU"))
    for lines in rules.values():
        limits = [re.match(r"\t-?timeout -k 5 (\d+) \$\(BENCH_GPU\)/", line) for line in lines]
        assert all(limits) and sum(int(limit[1]) for limit in limits if limit) <= 540
        # One that is ended does not stop those after it.
        assert [line.startswith("\t-") for line in lines] == [True] * (len(lines) - 1) + [False]
    trained = re.findall(r"--workloads ((?:[a-z]\w+ )+)", "".join(commands))
    assert " ".join(trained).split() == [*training.WORKS]


@pytest.mark.parametrize(
    "command",
    [*bench_commands("BENCH"), *bench_commands("BENCH_GPU")],
    ids=lambda command: "-".join(command[:5:2]),
)
def test_make_bench_runs_commands_that_their_benchmarks_accept(
    command: list[str], stops_after_arguments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(ArgumentsReadError):
        runpy.run_path(str(FILE.with_name(command[0])), run_name="__main__")


def test_make_bench_runs_every_benchmark_that_needs_no_data(
    stops_after_arguments: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = {command[0] for command in bench_commands("BENCH")}
    for file in sorted(FILE.parent.glob("*.py")):
        if file.name in run or file.name in NOT_IN_BENCH:
            continue
        monkeypatch.setattr(sys, "argv", [file.name])
        with pytest.raises(SystemExit):  # an argument is required
            runpy.run_path(str(file), run_name="__main__")
        assert "required" in capsys.readouterr().err
    assert NOT_IN_BENCH.keys() <= {file.name for file in FILE.parent.glob("*.py")}


@pytest.mark.slow
def test_scaling_writes_a_line_for_each_point_and_a_page(
    training: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "training", training)
    scaling = runpy.run_path(str(FILE.with_name("scaling.py")))
    small = (
        "--device cpu --sizes nano tiny --lengths 16 32 --rows 1 2 --usual nano 32 2 --vocab 200"
    )
    scaling["main"]([*small.split(), "--seconds", "0", "-o", str(tmp_path)])
    machine, *points = map(json.loads, (tmp_path / "scaling.jsonl").read_text().splitlines())
    assert machine["product_flops"] > 0 and machine["copy_bytes"] > 0
    assert [(p["sweep"], p["size"], p["length"], p["rows"]) for p in points] == [
        *(("size", "nano", 32, 2), ("size", "tiny", 32, 2)),
        *(("length", "nano", 16, 4), ("length", "nano", 32, 2)),
        *(("rows", "nano", 32, 1), ("rows", "nano", 32, 2)),
    ]
    for point in points:
        assert point["tokens_per_second"] > 0 and point["parameters"] > 0
        by_product = machine["product_flops"] / point["flops_per_token"]
        by_copy = machine["copy_bytes"] / point["bytes_per_token"]
        assert point["bound"] == min(by_product, by_copy)
    assert points[1]["flops_per_token"] > 1.5 * points[0]["flops_per_token"]
    page = (tmp_path / "scaling.html").read_text(encoding="utf-8")
    assert page.count('<figure class="chart line">') == 4
    assert "Roofline" in page and "http-equiv" in page
