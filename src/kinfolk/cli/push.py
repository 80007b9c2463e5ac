"""The command `push`: upload a model to the Hugging Face hub."""

from pathlib import Path

import typer

from kinfolk.cli.app import MODEL, MODELS, command, flag
from kinfolk.workflows.folders import check_hub_name, check_model_folder


@command("kinfolk push runs/bert me/small-bert", panel=MODELS)
def push_command(
    model: Path = MODEL,
    name: str = typer.Argument(..., metavar="OWNER/NAME", help="Name of the model on the hub."),
    private: bool = flag("--private", "Only the owner can see the model."),
) -> None:
    """Upload a model folder to the Hugging Face hub, with a model card.

    The card is written from the recipe, the data and the scores of the run. Log in with
    `hf auth login` first.
    """
    check_hub_name(name)
    check_model_folder(model)
    from kinfolk.workflows.push import push as upload

    print(f"uploaded to {upload(model, name, private=private)}")
