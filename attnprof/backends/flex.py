"""FlexAttention, compiled for one workload; what is hidden by the mask is skipped block by block.

Never run without compiling: that path writes all scores to memory and is another algorithm.
"""

from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from attnprof.backends import Attention
from attnprof.backends.masks import is_padded, num_given, sees_all
from attnprof.errors import UnsupportedError
from attnprof.workload import Workload

_MANY = 2**20


def prepare(
    workload: Workload, device: torch.device, *, scale: float, bias: torch.Tensor | None
) -> Attention:
    """The compiled kernel and its block mask; compiling itself happens in the first call.

    Every shape is compiled for itself, a few seconds each. Torch's limit on how often a function
    is compiled is lifted, as a sweep has more shapes than that. A soft cap and a bias change the
    scores as they are made; learned logits enter the sum of each row afterwards.

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
    compiled = torch.compile(_kernel(workload, block_mask, scale), dynamic=False, fullgraph=True)
    constant_bias = bias

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None = constant_bias,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return compiled(q, k, v, bias, sinks)

    mask_bytes = 0 if block_mask is None else _tensor_bytes(block_mask)
    if bias is not None:
        mask_bytes += bias.nbytes
    return Attention(attend=attend, compiles=True, mask_bytes=mask_bytes)


Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None],
    torch.Tensor,
]


def _kernel(workload: Workload, block_mask: BlockMask | None, scale: float) -> Kernel:
    softcap = workload.softcap
    shared = workload.num_kv_heads != workload.num_q_heads

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        def changed(
            score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor
        ) -> torch.Tensor:
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            if bias is not None:
                score = score + bias[b if bias.shape[0] > 1 else 0, h, i, j]
            return score

        modifies = softcap is not None or bias is not None
        found = flex_attention(
            q, k, v, score_mod=changed if modifies else None, block_mask=block_mask, scale=scale,
            enable_gqa=shared, return_aux=None if sinks is None else AuxRequest(lse=True),
        )  # fmt: skip
        if sinks is None:
            assert isinstance(found, torch.Tensor)
            return found
        out, aux = found
        return with_sinks(out, aux, sinks)

    return attend


def with_sinks(
    out: torch.Tensor, aux: torch.Tensor | AuxOutput, sinks: torch.Tensor
) -> torch.Tensor:
    """An output whose rows' sums have one more term each, e to the power of the head's logit.

    out · e^lse / (e^lse + e^sink) = out · sigmoid(lse − sink)
    """
    assert isinstance(aux, AuxOutput) and aux.lse is not None
    share = torch.sigmoid(aux.lse - sinks.view(1, -1, 1))
    return out * share[..., None].to(out.dtype)


def _block_mask(workload: Workload, device: torch.device) -> BlockMask | None:
    if sees_all(workload):
        return None
    variant, padded = workload.mask, is_padded(workload)
    given = num_given(workload)
    first_q, first_kv = workload.kv_len - workload.q_len, workload.kv_len - given
    lengths = torch.tensor(workload.lengths, device=device)

    def allows(
        batch: torch.Tensor, head: torch.Tensor, q_index: torch.Tensor, kv_index: torch.Tensor
    ) -> torch.Tensor:
        if padded:
            return kv_index < lengths[batch]
        allowed: torch.Tensor = variant.allows(q_index + first_q, kv_index + first_kv)
        return allowed

    batch = workload.batch_size if padded else None
    return create_block_mask(allows, batch, None, workload.q_len, given, device=str(device))


def _tensor_bytes(block_mask: BlockMask) -> int:
    return sum(part.nbytes for part in block_mask.as_tuple() if isinstance(part, torch.Tensor))
