"""The initial weights of residual branches are scaled by the type of a module, not by its name."""

import pytest
import torch
from torch import nn

from kinfolk.nn.attention import Attention
from kinfolk.nn.init import scale_residual_init_
from kinfolk.nn.layers import FeedForward


def test_the_last_matrix_of_every_branch_is_scaled_and_no_other() -> None:
    blocks = nn.ModuleDict({"one": Attention(8, 2), "two": FeedForward(8, 16, "relu")})
    blocks["down_proj"] = nn.Linear(8, 8)  # no branch, whatever it is called
    before = {name: weight.clone() for name, weight in blocks.state_dict().items()}
    scale_residual_init_(blocks, 2)
    scaled = {n for n, w in blocks.state_dict().items() if not torch.equal(w, before[n])}
    assert scaled == {"one.out_proj.weight", "two.down_proj.weight"}
    for name in scaled:
        torch.testing.assert_close(blocks.state_dict()[name], before[name] / 2**0.5)


def test_branches_that_are_not_found_are_an_error() -> None:
    with pytest.raises(AssertionError, match="1 residual branches, not 2"):
        scale_residual_init_(nn.ModuleList([Attention(8, 2), nn.Linear(8, 8)]), 2)
