"""The recipe of a run that learns prefixes: the frozen model, the texts, the settings."""

from pathlib import Path
from typing import Any

from kinfolk.config import config, field, write_json
from kinfolk.errors import UserError
from kinfolk.tasks.dataset import TaskDataset
from kinfolk.tasks.prefix_config import PrefixConfig
from kinfolk.tasks.unlabelled import TextLines
from kinfolk.training.config import TrainConfig

# Settings of a step whose forward pass is that of the frozen model alone.
STEP_SETTINGS: dict[str, tuple[str, ...]] = {
    "parallel": ("ddp",),
    "compile": ("auto", "no"),
    "cuda_graph": ("auto", "no"),
    "checkpoint_activations": ("no",),
}


@config("prefixes")
class PrefixRecipe:
    """The frozen model, the labelled rows or the text, and the settings of a run."""

    name: str = field(help="model family")
    init_from: str = field(help="folder of the model that the prefixes are for")
    model_hash: str = field(help="hash of its weights")
    attributes: tuple[str, ...] = field(help="names of the attributes, one for each prefix")
    dataset: TaskDataset | None = field(default=None, help="rows labelled with attributes")
    text: TextLines | None = field(default=None, help="text without labels")
    prefixes: PrefixConfig = field(default=PrefixConfig(), help="settings of the prefixes")
    train: TrainConfig = field(help="training settings")

    def __post_init__(self) -> None:
        if (self.dataset is None) == (self.text is None):
            raise UserError("a run learns from labelled rows or from text: give one of the two")
        if len(self.attributes) < 2:
            raise UserError(
                f"{len(self.attributes)} attribute: prefixes are told apart, which needs at least 2"
            )
        values = vars(self.train)
        for name, allowed in STEP_SETTINGS.items():
            if values[name] not in allowed:
                raise UserError(
                    f"train.{name}={values[name]} does not apply to prefixes, which are small: "
                    f"leave it at {allowed[0]}"
                )

    @property
    def source(self) -> TaskDataset | TextLines:
        """What the run learns from."""
        source = self.text if self.dataset is None else self.dataset
        assert source is not None
        return source

    @property
    def file(self) -> Path:
        """The file of the training texts."""
        return Path(self.source.path if isinstance(self.source, TextLines) else self.source.train)

    @property
    def splits(self) -> tuple[list[Any], list[Any]]:
        """The training rows and the dev rows."""
        return self.source.splits

    def write(self, path: Path) -> None:
        """Write the recipe as JSON."""
        write_json(self, path)
