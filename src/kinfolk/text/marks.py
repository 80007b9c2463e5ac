"""The marks of blank infilling (GLM): which ids of a tokenizer play their parts."""

from dataclasses import dataclass

from kinfolk.text.tokenizer import SpecialTokens


@dataclass(frozen=True)
class GLMTokens:
    """The id of each mark."""

    mask: int  # [MASK], for a few tokens
    sentence: int  # [sMASK], for a sentence
    gmask: int  # [gMASK], for all the rest of a text
    start: int  # before a span
    end: int  # after a span

    @property
    def masks(self) -> tuple[int, int, int]:
        """The three that stand for a span."""
        return self.mask, self.sentence, self.gmask


def glm_tokens(special_tokens: SpecialTokens) -> GLMTokens:
    """Find the marks among what a tokenizer has, or complain that it has none to spare.

    A vocabulary of ours has one [MASK], and sentinels that GLM needs for nothing else: the first
    two are [sMASK] and [gMASK]. T5's has no mask, so that all three are sentinels; BERT's has no
    sentinels, so that [MASK] is all three, as where the released code tells no tasks apart.
    A start is only read and an end only predicted, so that <|endoftext|> may be both.
    """
    free = [id for id in (special_tokens.mask, *special_tokens.sentinels[:3]) if id is not None]
    free = free or [special_tokens.require("mask")]
    mask, sentence, tail = (*free, free[-1], free[-1])[:3]
    ends = [id for id in (special_tokens.eos, special_tokens.sep) if id is not None]
    end = ends[0] if ends else special_tokens.require("eos")
    starts = [id for id in (special_tokens.bos, special_tokens.cls) if id is not None]
    start = starts[0] if starts else end
    return GLMTokens(mask, sentence, tail, start, end)
