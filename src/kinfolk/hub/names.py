"""Two-way tables of names: ours against Hugging Face's, written once, read in both directions."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.nn.language_model import ModelConfig
from kinfolk.text.tokenizer import Specials


@dataclass(frozen=True)
class Rule:
    """One of our tensors, and what Hugging Face calls it or the parts of it."""

    ours: str
    theirs: tuple[str, ...]  # several where ours stacks them on its first axis
    turned: bool = False  # theirs is the transpose
    rows: int | None = None  # theirs ends with the vocabulary; ours goes on, with zeros

    def give(self, tensor: Tensor) -> dict[str, Tensor]:
        """Turn ours into theirs, as views."""
        tensor = tensor[: self.rows]
        parts = (tensor.T if self.turned else tensor).chunk(len(self.theirs))
        return dict(zip(self.theirs, parts, strict=True))

    def take(self, theirs: Mapping[str, Tensor], rows: int) -> Tensor:
        """Turn theirs into ours, as a copy in float32 with so many rows."""
        tensor = torch.cat([theirs[name] for name in self.theirs]).float()
        if self.turned:
            tensor = tensor.T.contiguous()
        return tensor if len(tensor) == rows else F.pad(tensor, (0, 0, 0, rows - len(tensor)))


def part(ours: str, *theirs: str, turned: bool = False, bias: bool = True) -> list[Rule]:
    """Name the weight of a module, and its bias where it has one."""
    weight = Rule(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), turned=turned)
    return [weight, Rule(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))][: 1 + bias]


def layers(depth: int, rules: Iterable[Rule]) -> list[Rule]:
    """Write rules out for each layer: `{i}` is its number."""
    return [
        replace(
            rule,
            ours=rule.ours.format(i=i),
            theirs=tuple(name.format(i=i) for name in rule.theirs),
        )
        for rule in rules
        for i in range(depth)
    ]


@dataclass(frozen=True, kw_only=True)
class Names:
    """All names of one network."""

    rules: list[Rule]
    prefix: str = ""  # before each name but the heads'; a network saved without heads has none
    heads: tuple[str, ...] = ()  # how the names begin that a folder may lack altogether
    aliases: Mapping[str, str] = field(default_factory=dict)  # second names that some folders have
    twins: Mapping[str, str] = field(default_factory=dict)  # second names that every folder has
    copies: Mapping[str, str] = field(default_factory=dict)  # what a tensor is where it is lacking
    endings: Mapping[str, str] = field(default_factory=dict)  # how names used to end
    ignored: str = "(?!)"  # a pattern of what old folders hold and nothing needs

    def give(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn all of ours into theirs, as views."""
        assert {rule.ours for rule in self.rules} == set(ours), "the table misses a parameter"
        given = {k: v for rule in self.rules for k, v in rule.give(ours[rule.ours]).items()}
        return given | {name: given[of] for name, of in self.twins.items()}

    def take(
        self, theirs: Mapping[str, Tensor], like: Mapping[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """Turn theirs into ours, in the shapes of `like`; heads that are lacking are left out."""
        found = {self._current(name): tensor for name, tensor in theirs.items()}
        if self.prefix and not any(name.startswith(self.prefix) for name in found):
            return self._headless().take(found, like, where)
        self._settle(found, where)
        fresh = self._fresh(found, where)
        wanted = [rule for rule in self.rules if not fresh.issuperset(rule.theirs)]
        assert all(rule.ours in like for rule in self.rules), "the table names no parameter"
        shapes = {k: v.shape for rule in wanted for k, v in rule.give(like[rule.ours]).items()}
        _compare({k: v.shape for k, v in found.items()}, shapes, where)
        return {rule.ours: rule.take(found, len(like[rule.ours])) for rule in wanted}

    def _current(self, name: str) -> str:
        for old, new in self.endings.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def _headless(self) -> "Names":
        """Return the names without the prefix, as they are where only the body was saved."""

        def bare(name: str) -> str:
            return name.removeprefix(self.prefix)

        return replace(
            self,
            rules=[replace(rule, theirs=tuple(map(bare, rule.theirs))) for rule in self.rules],
            prefix="",
            heads=tuple(map(bare, self.heads)),
            aliases={bare(name): bare(of) for name, of in self.aliases.items()},
            twins={bare(name): bare(of) for name, of in self.twins.items()},
            copies={bare(name): bare(of) for name, of in self.copies.items()},
        )

    def _settle(self, found: dict[str, Tensor], where: str) -> None:
        """Leave one name for each tensor, and drop what nothing needs."""
        needed = {name for rule in self.rules for name in rule.theirs}
        for name in [n for n in found if n not in needed and re.fullmatch(self.ignored, n)]:
            del found[name]
        for name, of in (*self.aliases.items(), *self.twins.items()):
            if name not in found:
                continue
            second = found.pop(name)
            if not torch.equal(found.setdefault(of, second), second):
                raise UserError(
                    f"{name} and {of} differ in {where}: kinfolk's network has one tensor for both"
                )
        for name, of in self.copies.items():
            if name not in found and of in found:
                warnings.warn(f"{where} has no {name}: it starts as a copy of {of}", stacklevel=4)
                found[name] = found[of]

    def _fresh(self, found: Mapping[str, Tensor], where: str) -> set[str]:
        """Return the names of the heads that are lacking."""
        names = [name for rule in self.rules for name in rule.theirs]
        lacking = [head for head in self.heads if not any(n.startswith(head) for n in found)]
        fresh = [name for name in names if name.startswith(tuple(lacking))]
        if fresh:
            warnings.warn(
                f"{where} was saved without {', '.join(fresh)}: they start fresh, so train them "
                "before you trust them",
                stacklevel=4,
            )
        return set(fresh)


def _compare(found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size], where: str) -> None:
    """Refuse names and shapes that are not those of the network."""
    if missing := [name for name in wanted if name not in found]:
        raise UserError(f"{where} lacks the weights {', '.join(missing)}")
    if left := [name for name in found if name not in wanted]:
        raise UserError(f"{where} holds weights that have no place: {', '.join(left)}")
    wrong = [
        f"{name} is {tuple(found[name])} and should be {tuple(shape)}"
        for name, shape in wanted.items()
        if found[name] != shape
    ]
    if wrong:
        raise UserError(f"the weights in {where} do not fit its config.json: {', '.join(wrong)}")


class Member(Protocol):
    """What a file in this package says of a family member."""

    @property
    def TYPE(self) -> str:  # noqa: N802  # a constant, where a module says it
        """Hugging Face's `model_type`."""
        ...

    @property
    def CONFIG(self) -> type[ModelConfig]:  # noqa: N802
        """What describes its network."""
        ...

    @property
    def FRAME(self) -> str | None:  # noqa: N802
        """What its tokenizer puts around a text."""
        ...

    def to_config(self, c: Any, specials: Specials | None) -> dict[str, Any]:
        """Write config.json."""
        ...

    def from_config(self, data: Mapping[str, Any]) -> ModelConfig:
        """Read config.json."""
        ...

    def names(self, c: Any) -> Names:
        """Name every parameter."""
        ...


@runtime_checkable
class Parted(Protocol):
    """A member with networks that Hugging Face keeps apart: each has a sub-folder.

    Their weights are named with the sub-folder and a slash before, as in `generator/norm.bias`.
    """

    @property
    def PARTS(self) -> tuple[str, ...]:  # noqa: N802
        """The names of the sub-folders."""
        ...

    def parts(self, c: Any, specials: Specials | None) -> dict[str, dict[str, Any]]:
        """Write config.json of each sub-folder; that of the folder is read with these in it."""
        ...


def given(config: Any, fields: Mapping[str, str]) -> dict[str, Any]:
    """Write the fields of a config under their foreign names."""
    return {theirs: getattr(config, ours) for ours, theirs in fields.items()}


def taken(data: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Read fields by their foreign names; what is not said keeps its default."""
    return {ours: data[theirs] for ours, theirs in fields.items() if theirs in data}


def refuse(data: Mapping[str, Any], **supported: Any) -> None:
    """Refuse options that change the network in a way ours cannot follow."""
    for name, value in supported.items():
        if data.get(name, value) != value:
            raise UserError(
                f"config.json says {name}={data[name]!r}, which kinfolk does not build: "
                f"it knows {name}={value!r} alone"
            )
