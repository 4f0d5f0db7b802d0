"""T5's relative positions: one trained table -> what is added to the scores of every layer."""

import torch
from torch import nn

from attnprof.models.architecture import AttentionBlock
from attnprof.workloads.positions.biases import T5Bias
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

    def forward(self, segment: Segment) -> torch.Tensor:
        """``[1, num_q_heads, num_tokens, kv_len]`` of the new tokens of a segment."""
        bias = T5Bias(self.table, self.bidirectional, self.max_distance)
        q_first, q_len = segment.first_pos, segment.num_tokens
        return bias.constant_bias(q_first, q_len, 0, segment.kv_len)
