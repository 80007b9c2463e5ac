"""Which kernel computes the attention of packed rows in a run: `train.attention`."""

from typing import Literal

import torch

from kinfolk.attention_mask import SparseKernel
from kinfolk.errors import UserError
from kinfolk.nn.language_model import (
    HAS_TRITON,
    SPARSE_HEAD_DIMS,
    LanguageModel,
    head_dims,
    uses_varlen_attention,
)

MAX_VARLEN_HEAD = 256  # features of an attention head that FlashAttention can compute
MIN_CAPABILITY = (8, 0)  # of a GPU: older ones have no bfloat16, and too little shared memory


def sparse_kernel(
    model: LanguageModel, chosen: str, *, compiled: bool, half: bool
) -> SparseKernel | None:
    """Return the block-sparse kernel of a run, if any; refuse one that the run cannot use.

    `compiled`: the model is, for rows of one length on CUDA; `half`: it computes in bfloat16 there.
    """
    reason = None
    if chosen in ("triton", "varlen"):
        reason = documents_fault(model, "triton" if chosen == "triton" else "varlen", half=half)
    elif chosen == "flex" and not compiled:
        reason = "is compiled for rows of one length on CUDA: add train.compile=yes"
    if reason is not None:
        setting = f"train.attention={chosen}"
        raise UserError(f"{setting} {reason}; train.attention=auto uses another kernel")
    if chosen == "auto" and not compiled and documents_fault(model, "triton", half=half) is None:
        chosen = "triton"
    if chosen == "triton":
        return "triton"
    return "flex" if compiled and chosen != "sdpa" else None


def documents_fault(
    model: LanguageModel, kernel: Literal["triton", "varlen"], *, half: bool
) -> str | None:
    """Return why attention inside of documents cannot be computed by a kernel, None if it can."""
    if not half:
        return "computes in bfloat16 on CUDA"
    if torch.cuda.get_device_capability() < MIN_CAPABILITY:
        return "needs a GPU of compute capability 8.0 or newer"
    if not uses_varlen_attention(model):
        return f"has no bias or recurrence, which {model.family_name} needs"
    sizes = sorted(head_dims(model))  # those of ELECTRA's generator, too
    if kernel == "varlen" and (wrong := [n for n in sizes if n % 8 or n > MAX_VARLEN_HEAD]):
        return f"needs heads of up to {MAX_VARLEN_HEAD} features, a multiple of 8, not {wrong[0]}"
    if kernel == "triton" and (wrong := [n for n in sizes if n not in SPARSE_HEAD_DIMS]):
        return f"needs heads of {', '.join(map(str, SPARSE_HEAD_DIMS))} features, not {wrong[0]}"
    if kernel == "triton" and not HAS_TRITON:
        return "needs the package triton, which is not installed"
    return None
