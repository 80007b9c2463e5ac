"""Hints for options that a command does not have: names of other libraries, wrong spellings."""

from collections.abc import Collection

from kinfolk.config import describe, is_setting, same_names, suggestions

# Fields whose option has a name that does not follow from the field's.
OPTION_NAMES = {
    "batch_size": "--batch",
    "gradient_accumulation": "--grad-accum",
    "loggers": "--logger",
    "num_return_sequences": "--num-samples",
    "stop_strings": "--stop",
    "allowed_texts": "--choice",
    "truncate_left": "--truncate-prompt",
}

SHORT = {"-o": "--out"}  # how hints name an option
ENTRANT_PANELS = ("Optimizer", "Learning rate schedule")  # of settings that entrants may differ in

# Options for names that other libraries give to them, the first that a command has.
OPTION_HINTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("output_dir", "out_dir", "save_dir", "output", "output_file"), ("-o",)),
    **dict.fromkeys(("resume_from_checkpoint", "resume_from", "restore_file"), ("--resume",)),
    **dict.fromkeys(("overwrite_output_dir", "overwrite"), ("--force",)),
    **dict.fromkeys(("no_cuda", "use_cpu", "cpu", "cuda", "gpu"), ("--device",)),
    **dict.fromkeys(("train_file", "train_data", "train_path"), ("--train", "--corpus")),
    **dict.fromkeys(("dataset_name", "dataset"), ("--train", "--corpus")),
    **dict.fromkeys(("validation_file", "eval_file", "valid", "validation"), ("--dev",)),
    **dict.fromkeys(("test_file", "test_data"), ("--test",)),
    **dict.fromkeys(("text_column_name", "text_column", "label_column_name"), ("--columns",)),
    **dict.fromkeys(("stopping_criteria", "eos_token_id"), ("--stop",)),
    "task_name": ("--task",),
    "text_file": ("--text",),
    "prompt_file": ("--prompts",),
}

# What to do in place of an option of another library, in a command with one of these options or
# arguments.
NO_OPTION: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        ("logging_steps", "log_interval", "log_every", "logging_dir"),
        ("--save-every",),
        "every step is logged, in RUN/log.jsonl",
    ),
    (
        ("overwrite_output_dir", "overwrite", "force"),
        ("--out",),
        "-o must name a folder that is new or empty",
    ),
    (
        ("warmup_ratio", "warmup_proportion"),
        ("--warmup",),
        "--warmup is a number of steps: for a ratio of 0.1, a tenth of --steps",
    ),
    (("minutes",), ("--steps",), "its length is a number of --steps"),
    (
        ("do_train", "do_eval", "do_predict"),
        ("model",),
        "kinfolk finetune, kinfolk evaluate and kinfolk predict are commands of their own",
    ),
    (
        ("test_file", "test_data", "dataset_name", "dataset", "input_file", "text_file"),
        ("--probabilities",),
        "the file is the second argument, without an option",
    ),
    (
        ("load_best_model_at_end", "metric_for_best_model"),
        ("--metric",),
        "the best checkpoint is kept as RUN/checkpoints/best; --metric chooses by what",
    ),
    (("push_to_hub",), ("model",), "kinfolk push uploads a model"),
    (
        ("model", "model_name", "model_name_or_path", "model_path", "pretrained", "arch"),
        ("model",),
        "the model is the first argument, without an option",
    ),
)

# Fields of networks and objectives that are set as KEY=VALUE, without an option.
FIELD_PATHS = {
    **dict.fromkeys(("hidden_size", "num_layers", "num_heads", "intermediate_size"), "model"),
    **dict.fromkeys(("dropout", "attention_dropout", "activation", "init_std"), "model"),
    **dict.fromkeys(("mask_rate", "whole_word_masking", "mean_span_length"), "objective"),
}


def suggested_option(name: str, known: Collection[str], arguments: Collection[str] = ()) -> str:
    """Return the end of a sentence that names the option that a wrong name stands for.

    Of a command with these arguments: some take a model, or fields of a recipe.
    """
    word = name[2:].replace("-", "_").lower()
    fields = {option[2:].replace("-", "_"): option for option in known}
    # A field may have an option of another name: batch_size is --batch.
    fields |= {field: option for field, option in OPTION_NAMES.items() if option in known}
    found = [fields[word]] if word in fields else []
    found = found or [o for o in OPTION_HINTS.get(word, ()) if SHORT.get(o, o) in known][:1]
    parts = {*known, *arguments}
    answers = (answer for words, has, answer in NO_OPTION if word in words and {*has} & parts)
    if not found and (answer := next(answers, "")):
        return f": {answer}"
    found = found or [fields[field] for field in same_names(word, [*fields])]
    if not found and (example := field_example(word, arguments)):
        return f": write {example}"
    if not found:
        # What another library calls so is seldom the option that is spelled alike.
        foreign = word in OPTION_HINTS or any(word in words for words, _, _ in NO_OPTION)
        foreign = foreign or is_setting(word)
        close = suggestions(word, [*fields])
        found = [fields[n] for n in close if not foreign or word in n or n in word]
    return f": did you mean {' or '.join(dict.fromkeys(found))}?" if found else ""


def field_example(word: str, arguments: Collection[str]) -> str:
    """Return how a command sets the field of a recipe that a name stands for; empty for none."""
    from kinfolk.training.config import TrainConfig

    fields, race = describe(TrainConfig), "entrants" in arguments
    # A comparison sets the others itself, alike for all entrants.
    own = [name for name, each in fields.items() if not race or each.panel in ENTRANT_PANELS]
    paths = {name: f"train.{name}" for name in own}
    paths |= {name: f"{group}.{name}" for name, group in FIELD_PATHS.items()}
    path = paths.get(word) or next((paths[name] for name in same_names(word, [*paths])), "")
    if not path or not {"overrides", "entrants"} & {*arguments}:
        return ""
    return f"'gpt2/nano {path}=VALUE'" if race else f"{path}=VALUE"
