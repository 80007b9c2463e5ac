"""Tell the family of a folder whose config.json has no `model_type`."""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.families import family, index
from kinfolk.families.base import HuggingFace


def detect_family(data: Mapping[str, Any], names: Collection[str], path: Path) -> HuggingFace:
    """Return the family of transformers whose parameters the weights are named after.

    Configs of before 2020 have no `model_type`. A warning says which family was recognized.
    """
    candidates: dict[str, HuggingFace] = {}
    for name, entry in index().items():
        hf = family(name).hf if entry.model_type else None
        if hf is not None and (match := _matches(hf, data, names)):
            if match == "with prefix":
                candidates = {name: hf}
                break
            candidates[name] = hf
    if not candidates:
        raise UserError(
            f"{path / 'config.json'} has no model_type, and its weights are not named after any "
            "supported family: add the model_type that transformers uses"
        )
    # A backbone of BERT, RoBERTa or ELECTRA that was saved alone has the same names in all three.
    bpe = (path / "merges.txt").is_file()
    name = "roberta" if bpe and "roberta" in candidates else next(iter(candidates))
    warnings.warn(
        f"{path / 'config.json'} has no model_type: its weights are named after {name}'s, so it "
        f'is loaded as one; add "model_type": "{candidates[name].model_type}" to be sure',
        stacklevel=2,
    )
    return candidates[name]


def _matches(hf: HuggingFace, data: Mapping[str, Any], names: Collection[str]) -> str | None:
    """Return how the names of the backbone are found among the weights, or None."""
    try:
        parameters = hf.parameters(hf.from_config(data))
    except (UserError, LookupError, TypeError, ValueError):
        return None
    found = parameters.unwrap(dict.fromkeys(names))
    backbone = [
        hf_name
        for rule in parameters.rules
        for hf_name in rule.hf_names
        if not hf_name.startswith(parameters.optional_prefixes)
    ]
    if all(name in found for name in backbone):
        return "with prefix"
    prefix = parameters.base_model_prefix
    bare = (name.removeprefix(prefix) in found for name in backbone)
    return "without prefix" if prefix and all(bare) else None
