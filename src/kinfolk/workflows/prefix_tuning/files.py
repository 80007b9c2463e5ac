"""Prefixes on disk: RUN/prefixes.safetensors, with the names of the attributes and the model."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kinfolk.config import read_type
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.prefixes import KeyValuePrefix
from kinfolk.workflows.load import require_ability

PREFIXES_FILE = "prefixes.safetensors"
FACTS = "kinfolk"  # the one key of the metadata: the order of several is random in the file


@dataclass(frozen=True, eq=False)
class SavedPrefixes:
    """The prefixes of a run by attribute, and the model that they belong to."""

    path: Path
    attributes: tuple[str, ...]
    keys: Tensor  # (attributes, layers, heads, length, head_dim)
    values: Tensor
    model_name: str  # its folder, when they were learned
    model_hash: str

    @classmethod
    def read(cls, run: Path | str) -> "SavedPrefixes":
        """Read the prefixes of a run, or a file of them."""
        path = Path(run)
        file = path / PREFIXES_FILE if path.is_dir() else path
        if not file.is_file():
            recipe, advice = path / "recipe.json", "give a run of kinfolk prefixes"
            if recipe.is_file() and read_type(recipe) == "prefixes":
                advice = f"finish the run with kinfolk prefixes --resume {path}"
            raise UserError(f"{path} has no {PREFIXES_FILE}: {advice}")
        try:
            with safe_open(file, framework="pt") as opened:
                facts = json.loads((opened.metadata() or {})[FACTS])
                keys, values = (opened.get_tensor(name) for name in ("keys", "values"))
            attributes = tuple(map(str, facts["attributes"]))
            found = cls(path, attributes, keys, values, facts["model"], facts["model_hash"])
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{file} is damaged ({reason}): learn the prefixes again") from error
        if keys.ndim != 5 or keys.shape != values.shape or len(keys) != len(attributes):
            raise UserError(
                f"{file} is damaged (tensors of wrong shapes): learn the prefixes again"
            )
        return found

    def write(self, file: Path) -> None:
        """Write the prefixes to a file."""
        facts = {
            "attributes": self.attributes,
            "model": self.model_name,
            "model_hash": self.model_hash,
        }
        save_file({"keys": self.keys, "values": self.values}, file, {FACTS: json.dumps(facts)})

    def prefix(self, attribute: str) -> KeyValuePrefix:
        """Return the prefix of an attribute."""
        if attribute not in self.attributes:
            known = ", ".join(self.attributes)
            raise UserError(f"{self.path} has no attribute {attribute!r}: choose one of {known}")
        index = self.attributes.index(attribute)
        return KeyValuePrefix(self.keys[index], self.values[index])

    def check_model(self, model: LanguageModel) -> None:
        """Refuse a family that takes no prefixes, and another model than that of the prefixes."""
        require_ability(model, "prefixes")
        if self.model_hash != weights_hash(model):
            raise UserError(
                f"the prefixes of {self.path} were learned for another model, {self.model_name}: "
                "use that model, or learn prefixes for this one with kinfolk prefixes"
            )


def open_prefix(
    model: LanguageModel,
    runs: Sequence[Path | str] | Path | str,
    attributes: Sequence[str] | str,
) -> KeyValuePrefix:
    """Return the prefix of an attribute for a model; those of several attributes in their order."""
    runs = [runs] if isinstance(runs, Path | str) else [*runs]
    attributes = [attributes] if isinstance(attributes, str) else [*attributes]
    if len(runs) != len(attributes):
        raise UserError(
            f"got {len(runs)} runs of prefixes and {len(attributes)} attributes: pass one "
            "attribute for each run, in the same order"
        )
    found: list[KeyValuePrefix] = []
    for run, attribute in zip(runs, attributes, strict=True):
        saved = SavedPrefixes.read(run)
        saved.check_model(model)
        found.append(saved.prefix(attribute))
    first, *others = found
    return sum(others, first)


def weights_hash(model: LanguageModel) -> str:
    """Return the SHA-256 of all weights, rounded to bfloat16: the same in either precision."""
    digest = hashlib.sha256(model.family_name.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        rounded = tensor.detach().to("cpu", torch.bfloat16).contiguous()
        digest.update(rounded.view(torch.int16).numpy())
    return digest.hexdigest()
