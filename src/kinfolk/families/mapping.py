"""Two-way maps between our names of parameters and those of transformers."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class ParameterRule:
    """A parameter and its name in transformers, or the names of its parts there."""

    name: str
    hf_names: tuple[str, ...]  # several if ours is their concatenation on the first axis
    transposed: bool = False  # in transformers
    vocab_rows: int | None = None  # number of rows in transformers; ours has padding rows of zeros
    mapped: bool = False  # the tensor is that of the file, not a copy in float32

    def to_hf(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return the tensors of transformers, as views."""
        tensor = tensor[: self.vocab_rows]
        parts = (tensor.T if self.transposed else tensor).chunk(len(self.hf_names))
        return dict(zip(self.hf_names, parts, strict=True))

    def from_hf(self, tensors: Mapping[str, Tensor], rows: int) -> Tensor:
        """Return the parameter, padded to `rows` rows, as a copy in float32; integers stay so."""
        if self.mapped:
            return tensors[self.hf_names[0]]
        tensor = torch.cat([tensors[name] for name in self.hf_names])
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        if self.transposed:
            tensor = tensor.T.contiguous()
        return tensor if len(tensor) == rows else F.pad(tensor, (0, 0, 0, rows - len(tensor)))


def module(
    name: str, *hf_names: str, transposed: bool = False, bias: bool = True
) -> list[ParameterRule]:
    """Return the rules of the weight and, by default, the bias of a module."""
    weights, biases = (tuple(f"{n}.{part}" for n in hf_names) for part in ("weight", "bias"))
    rules = [ParameterRule(f"{name}.weight", weights, transposed=transposed)]
    return [*rules, ParameterRule(f"{name}.bias", biases)] if bias else rules


def per_layer(num_layers: int, rules: Iterable[ParameterRule]) -> list[ParameterRule]:
    """Repeat rules for each layer; `{i}` is the index of the layer."""
    return [
        replace(
            rule,
            name=rule.name.format(i=i),
            hf_names=tuple(name.format(i=i) for name in rule.hf_names),
        )
        for rule in rules
        for i in range(num_layers)
    ]


@dataclass(frozen=True, kw_only=True)
class ParameterMap:
    """The parameter names of one network and of its class in transformers."""

    rules: list[ParameterRule]
    # Of all names except those of heads; a backbone that was saved alone has no prefix.
    base_model_prefix: str = ""
    optional_prefixes: tuple[str, ...] = ()  # of heads that may be missing
    aliases: Mapping[str, str] = field(default_factory=dict)  # second names, in some folders
    duplicates: Mapping[str, str] = field(default_factory=dict)  # second names, in every folder
    fallbacks: Mapping[str, str] = field(default_factory=dict)  # sources of missing parameters
    legacy_suffixes: Mapping[str, str] = field(default_factory=dict)  # old suffix to new suffix
    ignored_pattern: str = "(?!)"  # of unused names in old folders

    def to_hf(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of transformers, as views."""
        difference = {rule.name for rule in self.rules} ^ set(state)
        assert not difference, f"the network or its map lacks {', '.join(sorted(difference))}"
        tensors = {k: v for rule in self.rules for k, v in rule.to_hf(state[rule.name]).items()}
        return tensors | {name: tensors[of] for name, of in self.duplicates.items()}

    def from_hf(
        self, hf_tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """Return our parameters in the shapes of `like`, without those of missing heads."""
        tensors = self.unwrap({self._modern_name(name): t for name, t in hf_tensors.items()})
        prefix = self.base_model_prefix
        if prefix and not any(name.startswith(prefix) for name in tensors):
            return self._without_prefix().from_hf(tensors, like, where)
        self._merge_aliases(tensors, where)
        foreign = self._foreign_heads(tensors)
        missing = self._missing_heads(tensors)
        rules = [rule for rule in self.rules if not missing.issuperset(rule.hf_names)]
        lacking = [rule.name for rule in self.rules if rule.name not in like]
        assert not lacking, f"the network lacks {', '.join(lacking)}, which its map has"
        shapes = {k: v.shape for rule in rules for k, v in rule.to_hf(like[rule.name]).items()}
        _check({k: v.shape for k, v in tensors.items() if k not in foreign}, shapes, where)
        if foreign:
            warnings.warn(
                f"{where} has weights that the network does not use, such as those of another "
                f"head: {', '.join(foreign)}",
                stacklevel=3,
            )
        return {rule.name: rule.from_hf(tensors, len(like[rule.name])) for rule in rules}

    def unwrap(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """Remove what a wrapper put before the names: `module.` of DataParallel, `model.` ..."""
        names = (rule.hf_names[0] for rule in self.rules)
        unique = next(name for name in names if name not in self.aliases.values())
        bare = unique.removeprefix(self.base_model_prefix)
        found = [name.removesuffix(bare) for name in tensors if f".{name}".endswith(f".{bare}")]
        wrapper = min((f.removesuffix(self.base_model_prefix) for f in found), key=len, default="")
        return {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}

    def _modern_name(self, name: str) -> str:
        for old, new in self.legacy_suffixes.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def _without_prefix(self) -> "ParameterMap":
        """Return the map without the prefix, for a backbone that was saved alone."""

        def bare(name: str) -> str:
            return name.removeprefix(self.base_model_prefix)

        return replace(
            self,
            rules=[replace(rule, hf_names=tuple(map(bare, rule.hf_names))) for rule in self.rules],
            base_model_prefix="",
            optional_prefixes=tuple(map(bare, self.optional_prefixes)),
            aliases={bare(name): bare(of) for name, of in self.aliases.items()},
            duplicates={bare(name): bare(of) for name, of in self.duplicates.items()},
            fallbacks={bare(name): bare(of) for name, of in self.fallbacks.items()},
        )

    def _merge_aliases(self, tensors: dict[str, Tensor], where: str) -> None:
        """Keep one name of each tensor, drop ignored ones, and copy fallbacks; in place."""
        needed = {name for rule in self.rules for name in rule.hf_names}
        unneeded = [name for name in tensors if name not in needed]
        for name in [n for n in unneeded if re.fullmatch(self.ignored_pattern, n)]:
            del tensors[name]
        for name, of in (*self.aliases.items(), *self.duplicates.items()):
            if name not in tensors:
                continue
            second = tensors.pop(name)
            if not torch.equal(tensors.setdefault(of, second), second):
                raise UserError(
                    f"{name} and {of} differ in {where}: kinfolk supports only tied weights here"
                )
        for name, of in self.fallbacks.items():
            if name not in tensors and of in tensors:
                warnings.warn(
                    f"{where} has no {name}: it is initialized as a copy of {of}", stacklevel=4
                )
                tensors[name] = tensors[of]

    def _foreign_heads(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the names of weights outside the backbone that the network does not have."""
        needed = {name for rule in self.rules for name in rule.hf_names}
        backbone = {name for name in needed if not name.startswith(self.optional_prefixes)}
        roots = tuple({name.split(".")[0] + "." for name in backbone})
        return [n for n in tensors if n not in needed and not n.startswith(roots)]

    def _missing_heads(self, tensors: Mapping[str, Tensor]) -> set[str]:
        """Return the names of the heads that a folder lacks."""
        prefixes = tuple(
            prefix
            for prefix in self.optional_prefixes
            if not any(name.startswith(prefix) for name in tensors)
        )
        names = [name for rule in self.rules for name in rule.hf_names]
        return {name for name in names if name.startswith(prefixes)}


def _check(
    shapes: Mapping[str, torch.Size], expected: Mapping[str, torch.Size], where: str
) -> None:
    """Check that names and shapes match the network."""
    if missing := [name for name in expected if name not in shapes]:
        raise UserError(f"missing weights in {where}: {', '.join(missing)}; save the model again")
    if unexpected := [name for name in shapes if name not in expected]:
        raise UserError(
            f"unexpected weights in {where}: {', '.join(unexpected)}; check its config.json"
        )
    wrong = [
        f"{name} is {tuple(shapes[name])} and should be {tuple(shape)}"
        for name, shape in expected.items()
        if shapes[name] != shape
    ]
    if wrong:
        raise UserError(f"the weights in {where} do not fit its config.json: {', '.join(wrong)}")


def require(data: Mapping[str, Any], **supported: Any) -> None:
    """Check that fields of config.json have the only supported value."""
    for name, value in supported.items():
        if data.get(name, value) != value:
            raise UserError(
                f"config.json: {name}={data[name]!r} is not supported (supported: {value!r})"
            )
