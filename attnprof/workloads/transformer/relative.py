"""T5's and ALiBi's relative positions -> what is added to the scores of every layer."""

import torch
from torch import nn

from attnprof.models.architecture import AttentionBlock
from attnprof.workloads.positions.biases import Alibi, T5Bias
from attnprof.workloads.transformer.step import Segment


class RelativePositions(nn.Module):
    """A bias a head and bucket of distances; encoders tell later keys from earlier ones.

    Source:
        Raffel et al. 2020, "T5", arXiv:1910.10683, section 2.1: one table for all layers.
    """

    def __init__(self, block: AttentionBlock) -> None:
        super().__init__()
        assert block.relative is not None
        self.table = nn.Parameter(torch.empty(block.relative.num_buckets, block.num_q_heads))
        self.max_distance = block.relative.max_distance
        self.bidirectional = block.variant == "full"

    def forward(self, segment: Segment, x: torch.Tensor) -> torch.Tensor:
        """``[1, num_q_heads, num_tokens, kv_len]`` of the new tokens of a segment.

        Args:
            x: Hidden states, of whose dtype and on whose device it is.
        """
        bias = T5Bias(self.table, self.bidirectional, self.max_distance)
        q_first, q_len = segment.first_pos, segment.num_tokens
        return bias.constant_bias(q_first, q_len, 0, segment.kv_len)


class AlibiPositions(nn.Module):
    """A slope a head times the distance; nothing is trained.

    Source:
        Press et al. 2022, "ALiBi", arXiv:2108.12409, section 3.
    """

    def __init__(self, block: AttentionBlock) -> None:
        super().__init__()
        self.num_q_heads = block.num_q_heads
        self._made: dict[tuple[torch.device, torch.dtype], Alibi] = {}

    def forward(self, segment: Segment, x: torch.Tensor) -> torch.Tensor:
        """As of :class:`RelativePositions`."""
        key = (x.device, x.dtype)
        if key not in self._made:
            self._made[key] = Alibi(self.num_q_heads, *key)
        q_first, q_len = segment.first_pos, segment.num_tokens
        return self._made[key].constant_bias(q_first, q_len, 0, segment.kv_len)


def new_relative(block: AttentionBlock) -> RelativePositions | AlibiPositions | None:
    """What a stack of such layers adds to its scores, None where it adds nothing."""
    if block.alibi:
        return AlibiPositions(block)
    return None if block.relative is None else RelativePositions(block)
