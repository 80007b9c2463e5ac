"""Loggers of other services follow a run, are resumed with it, and never end it.

Stand-ins have the signatures of the packages. The packages themselves are used, without a network,
where they are installed.
"""

import importlib.machinery
import importlib.util
import inspect
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.training import loggers as module
from kinfolk.training.log import read
from kinfolk.training.loggers import Loggers, leaf_fields
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.pretrain import pretrain, resume
from support.learnable import opinions, tune
from support.processes import train_together
from support.runs import Home, OnStep

WANTED = ("loss", "lr", "grad_norm", "eval_loss", "speed/tokens_per_second", "speed/seconds")


class Messages(Callback):
    def __init__(self) -> None:
        self.all: list[str] = []

    def on_message(self, message: str) -> None:
        self.all.append(message)

    @property
    def failures(self) -> list[str]:
        return [message for message in self.all if "failed and is off" in message]


class Service:
    """What a service has received."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.alarms: dict[str, str] = {}
        self.ends: list[Any] = []
        self.summary: dict[str, Any] = {}
        self.fail_at: str = ""  # the name of the call that fails
        self.threads: set[str] = set()

    def call(self, name: str) -> None:
        self.threads.add(threading.current_thread().name)
        if name == self.fail_at:
            raise ConnectionError("no route to host\nsecond line")


def wandb_module(service: Service) -> ModuleType:
    def login(*, prompt: bool = True) -> bool:
        assert not prompt, "a run must not wait for a key"
        return False

    def init(**settings: Any) -> Any:
        service.call("init")
        service.runs.append(settings)
        return SimpleNamespace(
            id=settings["id"] or "run-1", log=log, alert=alert, summary=service.summary, finish=end
        )

    def log(data: dict[str, float], step: int) -> None:
        service.call("log")
        service.lines.append((step, data))

    def alert(title: str, text: str) -> None:
        service.alarms[title] = text

    def end(exit_code: int) -> None:
        service.call("finish")
        service.ends.append(exit_code)

    made = ModuleType("wandb")
    made.__dict__.update(login=login, init=init, Settings=lambda **settings: settings)
    return made


def mlflow_modules(service: Service) -> dict[str, ModuleType]:
    class MlflowClient:
        def __init__(self, tracking_uri: str) -> None:
            service.call("init")
            self.uri = tracking_uri

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return name

        def create_run(self, experiment_id: str, run_name: str) -> Any:
            service.runs.append({"project": experiment_id, "name": run_name, "uri": self.uri})
            return SimpleNamespace(info=SimpleNamespace(run_id="run-2"))

        def update_run(self, run_id: str, status: str) -> None:
            service.runs.append({"id": run_id, "status": status})

        def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
            service.call("log")
            assert len(metrics) <= 1000 and len(params) <= 100
            service.summary |= dict(params)
            service.lines += [(step, {name: value}) for name, value, _, step in metrics]

        def set_tag(self, run_id: str, key: str, value: str) -> None:
            service.summary[key] = value

        def set_terminated(self, run_id: str, status: str) -> None:
            service.call("finish")
            service.ends.append(status)

    made, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    made.__dict__.update(MlflowClient=MlflowClient, is_tracking_uri_set=lambda: False)
    entities.__dict__.update(
        Metric=lambda key, value, timestamp, step: (key, value, timestamp, step),
        Param=lambda key, value: (key, value),
    )
    return {"mlflow": made, "mlflow.entities": entities}


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Service]]:
    found = {"wandb": Service(), "mlflow": Service()}
    modules = {"wandb": wandb_module(found["wandb"]), **mlflow_modules(found["mlflow"])}
    for name, made in modules.items():
        made.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, made)
    clear(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield found
    assert not [thread for thread in threading.enumerate() if "logger" in thread.name]


def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that the loggers would set, so that they are restored."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("WANDB_PROJECT", "WANDB_DIR", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def merged(service: Service) -> dict[int, dict[str, float]]:
    values: dict[int, dict[str, float]] = {}
    for step, line in service.lines:
        values.setdefault(step, {}).update(line)
    return values


LOGGERS = "train.loggers=wandb,mlflow"


def test_loggers_get_every_number_the_recipe_and_the_report(
    services: dict[str, Service], home: Home, tmp_path: Path
) -> None:
    run = pretrain(home.recipe("bert", LOGGERS), tmp_path / "runs" / "bert")
    log = read(run)
    for service in services.values():
        values = merged(service)
        assert [*values] == [entry["step"] for entry in log]
        for entry in log:
            line = values[entry["step"]]
            assert (line["loss"], line["lr"]) == (entry["loss"], entry["lr"])
            assert line["losses/mlm"] == entry["losses"]["mlm"]
            assert set(WANTED) - {"eval_loss"} <= line.keys()
            assert line.get("eval_loss") == entry.get("eval_loss")
        assert service.summary["report"] == str(run / "report.html")
        assert service.runs[0]["name"] == "runs/bert"
        assert service.runs[0]["project"] == "kinfolk"
        assert "MainThread" not in service.threads
    wandb, mlflow = services["wandb"], services["mlflow"]
    assert wandb.runs[0]["config"] == json.loads((run / "recipe.json").read_text())
    assert wandb.runs[0]["dir"] == str(run)
    assert mlflow.summary["train.lr"] == "0.003"
    assert mlflow.summary["train.betas"] == "[0.9, 0.999]"
    assert mlflow.runs[0]["uri"] == (run / "mlruns").as_uri()
    assert (wandb.ends, mlflow.ends) == ([0], ["FINISHED"])


def end_of_threads() -> None:
    for thread in threading.enumerate():
        if "logger" in thread.name:
            thread.join(10)


def stop(progress: Progress) -> None:
    if progress.step == 6:
        raise KeyboardInterrupt


def test_a_resume_continues_the_run_of_the_same_id(
    services: dict[str, Service], home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        pretrain(home.recipe("gpt2", LOGGERS), out, callbacks=[OnStep(stop)])
    wandb, mlflow = services["wandb"], services["mlflow"]
    assert (wandb.ends, mlflow.ends) == ([1], ["KILLED"])
    assert wandb.summary["report"] == mlflow.summary["report"] == str(out / "report.html")
    resume(out)
    assert [run["id"] for run in wandb.runs] == [None, "run-1"]
    assert mlflow.runs[1] == {"id": "run-2", "status": "RUNNING"}
    assert (wandb.ends, mlflow.ends) == ([1, 0], ["KILLED", "FINISHED"])
    assert [step for step, _ in wandb.lines] == [entry["step"] for entry in read(out)]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        *(("wandb", "init"), ("mlflow", "log"), ("wandb", "finish")),
        *(pytest.param("mlflow", call, marks=pytest.mark.slow) for call in ("init", "finish")),
        pytest.param("wandb", "log", marks=pytest.mark.slow),
    ],
)
def test_a_logger_that_fails_is_reported_once_and_changes_no_number(
    services: dict[str, Service], home: Home, tmp_path: Path, name: str, call: str
) -> None:
    services[name].fail_at = call
    messages = Messages()
    run = pretrain(
        home.recipe("gpt2", f"train.loggers={name}"), tmp_path / "run", callbacks=[messages]
    )
    assert messages.failures == [
        f"{name} failed and is off from here on (no route to host); the run continues, and "
        "log.jsonl has every number"
    ]
    plain = home.run("gpt2")
    assert (run / "log.jsonl").read_bytes() == (plain / "log.jsonl").read_bytes()
    assert (run / "report.html").is_file()


def test_a_logger_that_hangs_does_not_hold_up_the_end(
    services: dict[str, Service], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, messages = threading.Event(), Messages()
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    monkeypatch.setattr(services["wandb"], "call", lambda name: released.wait())
    pretrain(home.recipe("gpt2", "train.loggers=wandb"), tmp_path / "run", callbacks=[messages])
    assert [text for text in messages.failures if "did not end in 0.1 s" in text]
    released.set()
    end_of_threads()


def test_a_logger_that_takes_no_lines_is_off(
    services: dict[str, Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, said = threading.Event(), []
    monkeypatch.setattr(module, "MAX_WAITING", 5)
    monkeypatch.setattr(services["wandb"], "call", lambda name: released.wait())
    (tmp_path / "recipe.json").write_text("{}")
    with Loggers(["wandb"], tmp_path, said.append) as loggers:
        for step in range(10):
            loggers.write(step, {"loss": 1.0})
        released.set()
    assert len(said) == 1 and "it has not taken 5 lines" in said[0]
    end_of_threads()


def test_alarms_and_numbers_that_are_not_finite(
    services: dict[str, Service], tmp_path: Path
) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    with (
        pytest.raises(ZeroDivisionError),
        Loggers(["wandb", "mlflow", "wandb"], tmp_path, print) as loggers,
    ):
        loggers.write(1, {"loss": float("nan"), "lr": 0.5})
        loggers.write_alarm(7, "spike", "loss rose")
        raise ZeroDivisionError
    wandb, mlflow = services["wandb"], services["mlflow"]
    assert wandb.lines == mlflow.lines == [(1, {"lr": 0.5})]
    assert wandb.alarms == {"spike at step 7": "loss rose"}
    assert wandb.summary["alarms/spike"] == "loss rose"
    assert mlflow.summary["alarm.spike"] == "step 7: loss rose"
    assert (wandb.ends, mlflow.ends) == ([1], ["FAILED"])
    assert "report" not in wandb.summary


def test_fine_tuning_logs_its_scores(services: dict[str, Service], tmp_path: Path) -> None:
    found = opinions(tmp_path, 32, 16)
    tune("bert/nano", found, tmp_path / "run", "train.batch_size=8", LOGGERS, epochs=1)
    for service in services.values():
        last = merged(service)[max(merged(service))]
        assert {"eval_loss", "accuracy", "lr", "grad_norm"} <= last.keys()
        assert service.summary["report"] == str(tmp_path / "run" / "report.html")


def test_no_logger_is_imported_unless_it_is_asked_for(
    services: dict[str, Service], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGGERS", {})
    run = pretrain(home.recipe("gpt2"), tmp_path / "run")
    assert not (run / "loggers").exists()
    assert not services["wandb"].runs and not services["mlflow"].runs


def test_a_missing_package_is_refused_at_the_start_and_reported_at_a_resume(
    services: dict[str, Service], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe = tmp_path / "run", home.recipe("gpt2", "train.loggers=wandb")
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, out, callbacks=[OnStep(stop)])
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package wandb: pip install 'kinfolk\[wandb\]'"):
        pretrain(recipe, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    messages = Messages()
    resume(out, callbacks=[messages])
    assert len(messages.failures) == 1 and "pip install 'kinfolk[wandb]'" in messages.failures[0]


def test_wandb_without_a_key_never_asks_for_one(
    services: dict[str, Service], home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    messages = Messages()
    recipe = home.recipe("gpt2", "train.loggers=wandb")
    pretrain(recipe, tmp_path / "run", callbacks=[messages])
    assert len(messages.failures) == 1
    assert "no API key: run wandb login, or set WANDB_MODE=offline" in messages.failures[0]


def test_an_unknown_logger_is_one_sentence(home: Home) -> None:
    with pytest.raises(UserError, match=r"^train\.loggers=wandbb: it must be wandb or mlflow"):
        home.recipe("gpt2", "train.loggers=wandbb")


def test_fields_of_a_recipe_have_paths() -> None:
    recipe = {"train": {"lr": 1, "betas": [0, 1]}, "corpus": [{"weight": 2}], "name": ""}
    assert dict(leaf_fields(recipe)) == {
        "train.lr": 1,
        "train.betas": [0, 1],
        "corpus.0.weight": 2,
        "name": "",
    }


@pytest.mark.slow
def test_process_0_alone_logs(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages"
    package.mkdir()
    (package / "wandb.py").write_text(
        "import os, pathlib\nfrom types import SimpleNamespace\n"
        "def Settings(**settings): pass\n"
        "def init(dir, **settings):\n"
        "    pathlib.Path(dir, f'rank-{os.environ[\"RANK\"]}').touch()\n"
        "    return SimpleNamespace(id='a', log=nothing, summary={}, finish=nothing)\n"
        "def nothing(*arguments, **named): pass\n"
    )
    recipe = home.recipe("gpt2", "train.loggers=wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.syspath_prepend(package)
    assert train_together(2, tmp_path / "run", recipe) == [0, 0]
    assert [file.name for file in (tmp_path / "run").glob("rank-*")] == ["rank-0"]


def test_wandb_itself_writes_an_offline_run_that_resumes(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install 'kinfolk[wandb]'")
    clear(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert "prompt" in inspect.signature(wandb.login).parameters
    out, messages = tmp_path / "run", Messages()
    with pytest.raises(KeyboardInterrupt):
        recipe = home.recipe("gpt2", "train.loggers=wandb")
        pretrain(recipe, out, callbacks=[messages, OnStep(stop)])
    resume(out, callbacks=[messages])
    assert not messages.failures
    run_id = json.loads((out / "loggers" / "wandb.json").read_text())["id"]
    stored = [*(out / "wandb").glob(f"offline-run-*/run-{run_id}.wandb")]
    assert stored
    data = b"".join(file.read_bytes() for file in stored)
    for text in (b"eval_loss", b"grad_norm", b"speed/tokens_per_second", b"report.html"):
        assert text in data


def test_mlflow_itself_writes_a_folder_that_resumes(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'kinfolk[mlflow]'")
    clear(monkeypatch)
    out, messages = tmp_path / "run", Messages()
    with pytest.raises(KeyboardInterrupt):
        recipe = home.recipe("gpt2", "train.loggers=mlflow")
        pretrain(recipe, out, callbacks=[messages, OnStep(stop)])
    client = mlflow.MlflowClient(tracking_uri=(out / "mlruns").as_uri())
    run_id = json.loads((out / "loggers" / "mlflow.json").read_text())["id"]
    assert client.get_run(run_id).info.status == "KILLED"
    resume(out, callbacks=[messages])
    assert not messages.failures
    found, log = client.get_run(run_id), read(out)
    assert found.info.status == "FINISHED"
    assert found.data.params["train.lr"] == "0.003"
    assert found.data.tags["report"] == str(out / "report.html")
    history = client.get_metric_history(run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(e["step"], e["loss"]) for e in log]
    evaluated = client.get_metric_history(run_id, "eval_loss")
    assert len(evaluated) == sum("eval_loss" in entry for entry in log)
