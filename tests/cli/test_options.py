"""Options are made from the fields of configurations: names, help, values and errors."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from kinfolk.cli import load_app
from kinfolk.cli.app import flag, option
from kinfolk.cli.options import Command, UsageError, field_options, option_group
from kinfolk.config import as_settings, config, field
from kinfolk.training.config import FineTuneConfig, TrainConfig

Run = Callable[..., dict[str, Any]]


@config("test_texts", group="test")
class Texts:
    stop_strings: tuple[str, ...] = field(default=(), help="texts that end the output")
    num_return_sequences: int = field(default=1, ge=1, help="number of outputs")


app = typer.Typer()


@app.command(cls=Command)
@field_options("train", TrainConfig, defaults={"lr": "by width"})
@field_options("finetune", FineTuneConfig, panel="Fine-tuning", without=["evals_per_epoch"])
@field_options("texts", Texts)
def demo(
    name: Annotated[str, typer.Argument()],
    train: dict[str, Any],
    finetune: dict[str, Any],
    texts: dict[str, Any],
) -> dict[str, Any]:
    return {"name": name, **train, **finetune, **texts}


def run(*arguments: str) -> dict[str, Any]:
    found = app(["x", *arguments], prog_name="kinfolk demo", standalone_mode=False)
    assert isinstance(found, dict)
    return found


def test_values_are_those_of_the_fields() -> None:
    given = run("--weight-decay", "0.1", "--batch=4", "--betas", "0.8,0.9", "--compile", "on")
    assert given == {
        "name": "x",
        "weight_decay": 0.1,
        "batch_size": 4,
        "betas": (0.8, 0.9),
        "compile": "yes",
    }
    assert as_settings({"lr": 1e-3, "betas": (0.8, 0.9)}, "train.") == [
        "train.lr=0.001",
        "train.betas=0.8,0.9",
    ]
    assert run("--gradual-unfreezing", "--stop", "a", "--stop", "b,c") == {
        "name": "x",
        "gradual_unfreezing": True,
        "stop_strings": ("a", "b,c"),
    }


def test_earlier_names_of_options_are_accepted() -> None:
    given = run("--rate", "2", "--accumulate=2", "--thaw", "--num", "3")
    assert given.pop("name") == "x"
    assert given == {
        "lr": 2.0,
        "gradient_accumulation": 2,
        "gradual_unfreezing": True,
        "num_return_sequences": 3,
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--learning-rate 1", "unknown option --learning-rate: did you mean --lr?"),
        ("--batch-size 1", "unknown option --batch-size: did you mean --batch?"),
        ("--max_steps 1", "unknown option --max_steps: did you mean --steps?"),
        ("--gradient-accumulation-steps=2", "did you mean --grad-accum?"),
        ("--evals-per-epoch 2", "unknown option --evals-per-epoch"),
        ("--wramup 5", "unknown option --wramup: did you mean --warmup?"),
        ("--lr high", "--lr=high: it must be a number"),
        ("--lr 0", "--lr=0: it must be above 0"),
        ("--precision half", "--precision=half: it must be auto, float32 or bfloat16"),
        ("--batch", "Option '--batch' requires an argument"),
        ("y", "(y)"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_names_the_help(arguments: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*arguments.split())
    assert sentence in str(caught.value)
    assert caught.value.command == "kinfolk demo"


def test_help_shows_help_text_type_default_and_panel_of_every_field() -> None:
    shown = CliRunner().invoke(app, ["--help"], terminal_width=120, env={"COLUMNS": "120"}).output
    words = " ".join(shown.split())
    assert "--weight-decay X Weight decay, of matrices only (default: 0.01)." in words
    assert "--lr X Peak learning rate (default: by width)." in words
    assert "--steps N Number of optimizer steps (default: 10,000)." in words
    assert "--class-weights none|balanced" in words
    assert all(f"─ {panel} ─" in shown for panel in ("Optimizer", "Batches", "Fine-tuning"))
    assert "--rate" not in shown and "--evals-per-epoch" not in shown


@dataclass(frozen=True)
class Sources:
    text: list[str] | None = option("FILE", "Text to read.")
    length: int = option("N", "Tokens per row.", panel="Rows", default=8)
    quiet: bool = flag("--quiet", "Print nothing.")


groups = typer.Typer()


@groups.command(cls=Command)
@option_group("sources", Sources, panel="Input")
@field_options("texts", Texts)
def grouped(
    name: str = typer.Argument(...), *, texts: dict[str, Any], sources: Sources, last: int = 0
) -> list[Any]:
    return [name, texts, sources, last]


def test_a_group_of_options_is_an_instance_of_its_dataclass() -> None:
    def run_grouped(*arguments: str) -> Any:
        return groups(["x", *arguments], prog_name="kinfolk demo", standalone_mode=False)

    assert run_grouped() == ["x", {}, Sources(text=None, length=8, quiet=False), 0]
    arguments = ["--text", "a", "--text", "b", "--length", "4", "--quiet", "--num", "2"]
    given = Sources(text=["a", "b"], length=4, quiet=True)
    assert run_grouped(*arguments, "--last=1") == ["x", {"num_return_sequences": 2}, given, 1]


def test_the_options_of_a_group_stand_in_the_place_of_its_parameter() -> None:
    shown = CliRunner().invoke(groups, ["--help"], terminal_width=99, env={"COLUMNS": "99"}).output
    names = ("--stop ", "--num-samples", "--last", "─ Input ─", "--text", "--quiet", "─ Rows ─")
    places = [shown.index(name) for name in (*names, "--length")]
    assert places == sorted(places)


def test_options_import_no_torch() -> None:
    code = "import sys, kinfolk.cli.options, kinfolk.training.config as c; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in found.stdout.split()


HINTS = {
    "pretrain": [
        ("--output_dir", "did you mean -o?"),
        ("--checkpoint-every", "did you mean --save-every?"),
        ("--per_device_train_batch_size", "did you mean --batch?"),
        ("--num_train_epochs", "did you mean --steps?"),
        ("--max_update", "did you mean --steps?"),
        ("--warmup_ratio", "--warmup is a number of steps: for a ratio of 0.1, a tenth of --steps"),
        ("--max_seq_length", "did you mean --length?"),
        ("--block_size", "did you mean --length?"),
        ("--save_steps", "did you mean --save-every?"),
        ("--eval_steps", "did you mean --eval-every?"),
        ("--validate_interval", "did you mean --eval-every?"),
        ("--logging_steps", "every step is logged, in RUN/log.jsonl"),
        ("--fp16", "did you mean --precision?"),
        ("--gradient_accumulation_steps", "did you mean --grad-accum?"),
        ("--update_freq", "did you mean --grad-accum?"),
        ("--weight_decay", "did you mean --weight-decay?"),
        ("--max_grad_norm", "did you mean --grad-clip?"),
        ("--lr_scheduler_type", "did you mean --schedule?"),
        ("--report_to", "did you mean --logger?"),
        ("--overwrite_output_dir", "-o must name a folder that is new or empty"),
        ("--resume_from_checkpoint", "did you mean --resume?"),
        ("--do_train", "are commands of their own"),
        ("--train_file", "did you mean --corpus?"),
        ("--n_layer", "write model.num_layers=VALUE"),
        ("--dropout", "write model.dropout=VALUE"),
        ("--use_cpu", "did you mean --device?"),
        ("--model_name_or_path", "the model is the first argument"),
    ],
    "finetune": [
        ("--minutes", "its length is a number of --steps"),
        ("--output_dir", "did you mean -o?"),
        ("--train_file", "did you mean --train?"),
        ("--validation_file", "did you mean --dev?"),
        ("--num_train_epochs", "did you mean --epochs or --steps?"),
        ("--max_epoch", "did you mean --epochs or --steps?"),
        ("--metric_for_best_model", "--metric chooses by what"),
        ("--hidden_size", "write model.hidden_size=VALUE"),
    ],
    "lr-find": [("--minutes", "its length is a number of --steps")],
    "evaluate": [
        ("--test_file", "did you mean --test?"),
        ("--overwrite_output_dir", "did you mean --force?"),
        ("--max_length", "did you mean --length"),
    ],
    "generate": [
        ("--max_length", "did you mean --max-new-tokens?"),
        ("--num_beams", "did you mean --num-beams?"),
        ("--bf16", "did you mean --precision?"),
        ("--stopping_criteria", "did you mean --stop?"),
        ("--eos_token_id", "did you mean --stop?"),
    ],
    "predict": [
        ("--output_file", "did you mean -o?"),
        ("--test_file", "the file is the second argument"),
        ("--no_cuda", "did you mean --device?"),
    ],
    "compare": [
        ("--learning_rate", "write 'gpt2/nano train.lr=VALUE'"),
        ("--lr", "write 'gpt2/nano train.lr=VALUE'"),
        ("--per_device_train_batch_size", "did you mean --batch-size?"),
    ],
}
NO_HINTS = [("predict", "--learning_rate"), ("generate", "--output_file"), ("compare", "--top_p")]


def unknown(command: str, name: str) -> str:
    """Return the sentence about an option that a command of kinfolk does not have."""
    with pytest.raises(UsageError) as caught:
        load_app()([command, name, "1"], prog_name="kinfolk", standalone_mode=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("command", "name", "hint"),
    [(command, name, hint) for command, hints in HINTS.items() for name, hint in hints],
)
def test_an_option_of_another_library_is_answered_with_what_does_it_here(
    command: str, name: str, hint: str
) -> None:
    sentence = unknown(command, name)
    assert sentence.startswith(f"unknown option {name}: ") and hint in sentence


@pytest.mark.parametrize(("command", "name"), NO_HINTS)
def test_an_option_without_a_counterpart_is_not_answered_by_its_letters(
    command: str, name: str
) -> None:
    assert "did you mean" not in unknown(command, name)
