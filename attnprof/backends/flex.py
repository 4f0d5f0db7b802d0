"""FlexAttention, compiled for one workload; what is hidden by the mask is skipped block by block.

Never run without compiling: that path writes all scores to memory and is another algorithm.
"""

from functools import partial

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from attnprof.backends import Attention
from attnprof.backends.masks import sees_all
from attnprof.errors import UnsupportedError
from attnprof.workload import Workload

_MANY = 2**20


def prepare(workload: Workload, device: torch.device) -> Attention:
    """The compiled kernel and its block mask; compiling itself happens in the first call.

    Every shape is compiled for itself, a few seconds each. Torch's limit on how often a function
    is compiled is lifted, as a sweep has more shapes than that.

    Raises:
        UnsupportedError: Compiling is switched off.
    """
    import torch._dynamo

    if torch._dynamo.config.disable:
        raise UnsupportedError(
            "flex is measured compiled, and torch.compile is switched off",
            "unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE",
        )
    torch._dynamo.config.recompile_limit = _MANY
    torch._dynamo.config.accumulated_recompile_limit = _MANY
    block_mask = _block_mask(workload, device)
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    attend = partial(
        compiled, block_mask=block_mask, enable_gqa=workload.num_kv_heads != workload.num_q_heads
    )
    mask_bytes = 0 if block_mask is None else _tensor_bytes(block_mask)
    return Attention(attend=attend, compiles=True, mask_bytes=mask_bytes)


def _block_mask(workload: Workload, device: torch.device) -> BlockMask | None:
    if sees_all(workload):
        return None
    variant, before = workload.mask, workload.kv_len - workload.q_len

    def allows(
        batch: torch.Tensor, head: torch.Tensor, q_index: torch.Tensor, kv_pos: torch.Tensor
    ) -> torch.Tensor:
        allowed: torch.Tensor = variant.allows(q_index + before, kv_pos)
        return allowed

    return create_block_mask(
        allows, None, None, workload.q_len, workload.kv_len, device=str(device)
    )


def _tensor_bytes(block_mask: BlockMask) -> int:
    return sum(part.nbytes for part in block_mask.as_tuple() if isinstance(part, torch.Tensor))
