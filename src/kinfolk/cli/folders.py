"""Commands about model folders: `export` and `import`."""

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.app import app, example

Out = Annotated[Path, typer.Option("-o", "--out", help="The folder to write.")]


@app.command(epilog=example("kinfolk export runs/bert -o my-bert"))
def export(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint or a model folder.")], out: Out
) -> None:
    """Write a model folder for Hugging Face: weights, config and tokenizer, and nothing else.

    The checkpoints of a run are such folders already; this leaves out what only a resume needs.
    """
    from kinfolk.workflows.load import export_folder, load, require_ability

    require_ability(load(model)[0], "export")
    export_folder(model, out)
    print(f"AutoModel.from_pretrained({str(out)!r}) opens it")


@app.command("import", epilog=example("kinfolk import bert-base-uncased -o models/bert"))
def import_(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face model folder.")], out: Out
) -> None:
    """Read a Hugging Face folder and write it as kinfolk does, checking every weight."""
    from kinfolk.workflows.load import export_folder

    export_folder(folder, out)
    print(f"kinfolk.load({str(out)!r}) opens it")
