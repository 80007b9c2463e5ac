"""Upload a model to the Hugging Face hub, with a model card from its recipe, data and scores."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from kinfolk.config import read_json
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.hub.folder import format_of
from kinfolk.hub.formats import Native
from kinfolk.nn.language_model import LanguageModel
from kinfolk.training.log import read
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.folders import check_hub_name, find_model_folder
from kinfolk.workflows.load import exportable, load, save
from kinfolk.workflows.report import finetuning_report, pretraining_facts


def push(path: Path | str, name: str, *, private: bool = False) -> str:
    """Upload a run, a checkpoint or a model folder as OWNER/NAME; return its address.

    A network that transformers has is uploaded as its class, another one in our own format.
    """
    check_hub_name(name)
    model, tokenizer = load(path)
    with suppress(UserError):  # transformers may lack the network
        model = exportable(model)
    with TemporaryDirectory() as scratch:
        folder = save(model, tokenizer, Path(scratch) / "model")
        card = model_card(name, model, Path(path))
        (folder / "README.md").write_text(card, encoding="utf-8")
        return _upload(folder, name, private)


def _upload(folder: Path, name: str, private: bool) -> str:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise UserError("push needs huggingface_hub: pip install huggingface_hub") from error
    try:
        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Upload a model with kinfolk"
        )
    except Exception as error:  # of the library and of its HTTP client
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name} could not be uploaded ({reason}): log in with hf auth login, or write the "
            f"folder with kinfolk export and upload it with hf upload {name} FOLDER"
        ) from error
    return str(address)


def model_card(name: str, model: LanguageModel, path: Path) -> str:
    """Return the README.md of a model: what it is, its use, its data, training and scores."""
    family, in_transformers = family_of(model), not isinstance(format_of(model.config), Native)
    count = sum(parameter.numel() for parameter in model.parameters())
    library = "transformers" if in_transformers else "kinfolk"
    facts, scores = _run_facts(path)
    lines = [
        *("---", f"library_name: {library}", "tags:", "- kinfolk", f"- {family.name}", "---"),
        f"# {name.rpartition('/')[2]}",
        "",
        f"{family.title} ({family.paper}), {count:,} parameters, trained with kinfolk.",
        *("", "```python", "import kinfolk", ""),
        f'model, tokenizer = kinfolk.load("{name}")',
        "```",
    ]
    if in_transformers:
        lines += ["", "The folder also opens in `transformers`: its class is in `config.json`."]
    lines += _table("Training and data", ("setting", "value"), facts)
    lines += _table("Scores", ("metric", "value"), scores)
    if not facts:
        lines += ["", "The data and the training settings are not recorded in the folder."]
    return "\n".join(lines) + "\n"


def _run_facts(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the settings and the scores of the run that a model is from; empty for no run."""
    folder = find_model_folder(path).resolve()
    candidates = (path, *folder.parents[:2])
    run = next((c for c in candidates if (c / "recipe.json").is_file()), None)
    if run is None:
        return [], []
    recipe = read_json(run / "recipe.json")
    if isinstance(recipe, FineTuneRecipe):
        report = finetuning_report(recipe, run)
        files = [("labelled file", Path(dataset.train).name) for dataset in recipe.datasets]
        return [("model", recipe.name), *files, *report.facts], [
            (row[0], row[1]) for row in report.results
        ]
    losses = [line["eval_loss"] for line in read(run) if "eval_loss" in line]
    scores = [("held-out loss (nats)", f"{losses[-1]:.3f}")] if losses else []
    return [("model", recipe.name), *pretraining_facts(recipe, run)], scores


def _table(title: str, header: tuple[str, str], rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return a Markdown table under its title; nothing without rows."""
    cells = [header, ("---", "---"), *rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return ["", f"## {title}", "", *lines] if len(lines) > 2 else []
