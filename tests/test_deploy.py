"""The templates of deploy/: their syntax, the options of their commands, and runs without SLURM."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser
from typer.core import TyperGroup
from typer.main import get_command

from kinfolk.cli import load_app
from support.plans import PAGE, cost_row, plan_commands
from support.runs import Home

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
# Programs of SLURM, as a machine with one node would answer.
FAKES = {
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$STATE/scontrol"; fi',
    "srun": """while [ "${1#--}" != "$1" ]; do shift; done
echo $$ > "$STATE/step"
exec "$@" """,
    "scancel": 'echo "$@" >> "$STATE/scancel"; kill -TERM "$(cat "$STATE/step")"',
    "sbatch": """echo "$@" >> "$STATE/sbatch"
count=1
while [ "${1#--}" != "$1" ]; do
  case "$1" in --array=*) count="${1#--array=1-}" ;; --parsable) echo "42;one" ;; esac
  shift
done
i=0
while [ $i -lt "$count" ]; do
  i=$((i + 1))
  SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=$count bash "$@" >> "$STATE/out" 2>&1 || exit 1
done""",
}


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a job on a machine whose SLURM is made up."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in FAKES.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node", "SLURM_NNODES": "1"}
    own = {"STATE": str(tmp_path), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **job, **own, "PATH": f"{folder}:{os.environ['PATH']}"}


def embedded(manifest: Path) -> list[dict[str, Any]]:
    """Return the containers of a manifest."""
    spec = yaml.safe_load(manifest.read_text("utf-8"))["spec"]
    replicas = spec.get("pytorchReplicaSpecs", {"only": spec})
    templates = [replica["template"] for replica in replicas.values()]
    return [c for template in templates for c in template["spec"]["containers"]]


def shell_texts() -> dict[str, str]:
    """Return every shell script of the templates, by a name."""
    texts = {script.name: script.read_text("utf-8") for script in SCRIPTS}
    for manifest in MANIFESTS:
        for container in embedded(manifest):
            texts[manifest.name] = container["args"][0]
    return texts


def commands(text: str) -> list[list[str]]:
    """Return the words of the lines of a script that start kinfolk, or name its arguments."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line for line in joined.splitlines() if not line.lstrip().startswith("#")]
    starts = re.compile(r"(?:\bkinfolk |arguments=\()((?:pretrain|prepare|merge)\b.*)")
    found = (starts.search(line) for line in lines)
    return [shlex.split(match[1].rstrip(")")) for match in found if match is not None]


@pytest.mark.parametrize("name", sorted(shell_texts()))
def test_scripts_are_bash_and_fail_on_errors(name: str) -> None:
    text = shell_texts()[name]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if name.endswith(".sh"):
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "\nset -euo pipefail\n" in text
        assert os.access(DEPLOY / "slurm" / name, os.X_OK)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    subprocess.run(["shellcheck", *map(str, SCRIPTS)], check=True)


def test_every_option_of_a_command_exists() -> None:
    group = get_command(load_app())
    assert isinstance(group, TyperGroup)
    texts, checked = shell_texts(), 0
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    texts["Dockerfile"] = re.sub(r"^#( +docker run)", r"\1", image, flags=re.M)
    for name, text in texts.items():
        for verb, *words in commands(text):
            known = {o for p in group.commands[verb].params for o in (*p.opts, *p.secondary_opts)}
            options = [word for word in words if re.match(r"--?[a-z]", word)]
            assert {option.partition("=")[0] for option in options} <= known, name
            checked += len(options)
    assert checked > 12


@pytest.mark.parametrize("name", ["pretrain.sh", "pretrain.yaml"])
def test_every_option_of_torchrun_exists(name: str) -> None:
    text = re.sub(r"\\\n\s*", " ", shell_texts()[name])
    found = re.search(r"(?:torch\.distributed\.run|torchrun)\s+(--.*?)\s-m kinfolk", text)
    assert found is not None
    known = {option for action in get_args_parser()._actions for option in action.option_strings}
    options = re.findall(r"--[a-z-]+", found[1])
    assert len(options) > 4
    assert set(options) <= known


def test_jobs_of_slurm_go_on_after_their_time() -> None:
    settings = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", shell_texts()["pretrain.sh"], re.M))
    assert settings["signal"] == "B:USR1@600"
    assert settings["ntasks-per-node"] == "1"  # of torchrun, which starts the processes
    assert {"requeue", "nodes", "gpus-per-node", "time"} <= settings.keys()
    assert settings["open-mode"] == "append"


def test_manifests_have_what_kubernetes_requires() -> None:
    for manifest in MANIFESTS:
        value = yaml.safe_load(manifest.read_text("utf-8"))
        assert {"apiVersion", "kind", "metadata", "spec"} <= value.keys()
        assert re.fullmatch(r"[a-z-]+", value["metadata"]["name"])
        kinds = {"Job": "batch/v1", "PyTorchJob": "kubeflow.org/v1"}
        assert value["apiVersion"] == kinds[value["kind"]]
        for container in embedded(manifest):
            assert {"name", "image", "command", "args", "resources"} <= container.keys()
            assert "limits" in container["resources"]
    job = yaml.safe_load((DEPLOY / "kubernetes" / "pretrain.yaml").read_text("utf-8"))["spec"]
    replicas = job["pytorchReplicaSpecs"]
    assert replicas.keys() == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1  # as the operator demands
    for replica in replicas.values():
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"  # which the operator looks for
        assert job["nprocPerNode"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
        saving = int(re.findall(r"--shutdown-timeout (\d+)", container["args"][0])[0])
        assert saving < pod["terminationGracePeriodSeconds"]
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    shards = yaml.safe_load((DEPLOY / "kubernetes" / "prepare.yaml").read_text("utf-8"))["spec"]
    (container,) = shards["template"]["spec"]["containers"]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (shards["completionMode"], values["SHARDS"]) == ("Indexed", str(shards["completions"]))


def test_the_image_is_built_from_files_that_exist_and_runs_without_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    steps = [line.split() for line in re.sub(r"\\\n", " ", text).splitlines() if line[:1].isupper()]
    for _, *sources, _ in (step for step in steps if step[0] == "COPY"):
        assert all((ROOT / source).exists() for source in sources)
    users = [step[1] for step in steps if step[0] == "USER"]
    assert users[-1] not in ("root", "0")
    assert ["ENTRYPOINT", '["kinfolk"]'] in steps
    assert {step[1].partition("=")[0] for step in steps if step[0] == "ARG"} >= {"BUILD", "PYTHON"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = re.search(r"'\.\[([a-z,]+)\]'", text)
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()


def recorded(slurm: dict[str, str], tmp_path: Path, body: str) -> dict[str, str]:
    """Replace Python by a program that records its arguments."""
    program = tmp_path / "bin" / "recorder"
    program.write_text(f'#!/bin/sh\necho "$@" >> "$STATE/arguments"\n{body}\n', encoding="utf-8")
    program.chmod(0o755)
    return {**slurm, "PYTHON": str(program), "CORPUS": "corpus", "RUN": str(tmp_path / "run")}


def test_a_run_is_started_once_and_then_resumed(slurm: dict[str, str], tmp_path: Path) -> None:
    job, run = recorded(slurm, tmp_path, "exit 0"), tmp_path / "run"
    script = [str(DEPLOY / "slurm" / "pretrain.sh"), "--batch", "512"]
    subprocess.run(script, env={**job, "PROCESSES": "4"}, check=True)
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    subprocess.run(script, env=job, check=True)
    first, second = (tmp_path / "arguments").read_text("utf-8").splitlines()
    assert first.startswith("-m torch.distributed.run --nnodes 1 --nproc-per-node 4 --rdzv-id 42 ")
    assert "--rdzv-endpoint 127.0.0.1:29500" in first
    assert first.endswith(f"-m kinfolk pretrain gpt2/base --corpus corpus -o {run} --batch 512")
    assert second.endswith(f"-m kinfolk pretrain --resume {run}")
    failed = subprocess.run(script, env=recorded(slurm, tmp_path, "exit 7"), check=False)
    assert failed.returncode == 7
    assert not (tmp_path / "scontrol").exists()


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_saves_and_only_the_time_limit_puts_the_job_back(
    sent: signal.Signals, slurm: dict[str, str], tmp_path: Path
) -> None:
    body = """trap 'echo saved >> "$STATE/arguments"; exit 1' TERM
touch "$STATE/ready"
while :; do sleep 0.05; done"""
    job = recorded(slurm, tmp_path, body)
    with subprocess.Popen([str(DEPLOY / "slurm" / "pretrain.sh")], env=job) as process:
        wait_for(tmp_path / "ready", process)
        process.send_signal(sent)
        code = process.wait(timeout=60)
    assert (tmp_path / "arguments").read_text("utf-8").splitlines()[-1] == "saved"
    assert (tmp_path / "scancel").read_text("utf-8") == "--signal=TERM 42\n"
    requeued = (tmp_path / "scontrol").exists()
    assert requeued is (sent == signal.SIGUSR1)
    assert code == (0 if requeued else 1)


def wait_for(file: Path, process: "subprocess.Popen[Any]", seconds: float = 120) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + seconds
    while not file.exists():
        assert process.poll() is None, "the job ended before"
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_two_processes_are_stopped_put_back_and_finish(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    home, run = Home.make(tmp_path / "home"), tmp_path / "run"
    job = {
        **slurm,
        "MODEL": "gpt2/nano",
        "CORPUS": str(home.corpus),
        "RUN": str(run),
        "PROCESSES": "2",
        "PORT": "0",
    }
    script = [str(DEPLOY / "slurm" / "pretrain.sh"), "--length", "32", "--batch", "4"]
    script += ["--steps", "120", "--save-every", "20", "--warmup", "2", "--device", "cpu"]
    script += ["--schedule", "constant"]
    with subprocess.Popen(script, env=job) as process:
        wait_for(run / "checkpoints" / "last", process, 300)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=120) == 0
    assert (tmp_path / "scontrol").read_text("utf-8") == "requeue 42\n"
    stopped = (run / "checkpoints" / "last").readlink().name
    assert "step-00000020" <= stopped < "step-00000120"
    subprocess.run(script, env=job, check=True, timeout=300)
    assert (run / "checkpoints" / "last").readlink().name == "step-00000120"
    assert (run / "report.html").is_file()


@pytest.mark.slow
def test_an_array_of_shards_is_joined_to_the_corpus_of_one_process(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    home, corpus = Home.make(tmp_path / "home"), tmp_path / "corpus"
    job = {**slurm, "TEXT": str(home.text), "TOKENIZER": str(home.tokenizer)}
    job |= {"CORPUS": str(corpus), "SLURM_CPUS_PER_TASK": "1"}
    script = [str(DEPLOY / "slurm" / "corpus.sh"), "2", "--holdout", "0.2"]
    subprocess.run(script, env=job, check=True, timeout=300)
    for name in ("tokens.bin", "tokens.idx", "holdout/tokens.bin"):
        assert (corpus / name).read_bytes() == (home.corpus / name).read_bytes()
    submitted = (tmp_path / "sbatch").read_text("utf-8").splitlines()
    assert submitted[0].startswith("--parsable --array=1-2 ")
    assert submitted[1].startswith("--dependency=afterok:42 ")


@pytest.mark.parametrize(
    "line",
    [pytest.param(x, marks=[pytest.mark.slow] * ("gpt2/base" not in x)) for x in plan_commands()],
)
def test_the_cost_table_is_what_its_commands_print(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cost_row(line, monkeypatch, capsys) in PAGE.read_text("utf-8").splitlines()


def test_the_cost_table_has_a_row_for_each_command() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if " x h100 |" in line]
    assert [row.split("|")[1].strip() for row in rows] == [c.split()[1] for c in plan_commands()]
