"""A workload -> the mask that its variant needs, as a tensor, where it needs one at all."""

import math

import torch

from attnprof.workload import Workload


def num_given(workload: Workload) -> int:
    """Keys that the kernel is given: those before the first that any query sees are left out."""
    first = workload.mask.first_visible(workload.q_len, workload.kv_len)
    return workload.kv_len - first


def is_padded(workload: Workload) -> bool:
    """Whether some sequence of the batch ends before ``kv_len``."""
    return min(workload.lengths) < workload.kv_len


def sees_all(workload: Workload) -> bool:
    """Whether every query sees every key that the kernel is given.

    One query at the end of a cache sees all of it; of a window or a chunk it is given the keys
    from the first that it sees.
    """
    q_len, kv_len = workload.q_len, workload.kv_len
    every_pair = workload.mask.attended_pairs(q_len, kv_len) == q_len * num_given(workload)
    return every_pair and not is_padded(workload)


def is_plain_causal(workload: Workload) -> bool:
    """Whether the mask is the lower triangle from the first key on: torch's ``is_causal``."""
    return workload.variant == "causal" and 1 < workload.q_len == workload.kv_len


def ends_causal(workload: Workload) -> bool:
    """Whether the mask is a triangle that ends at the last key, after keys that all queries see."""
    return workload.variant == "causal" and 1 < workload.q_len < workload.kv_len


def allowed(workload: Workload, device: torch.device) -> torch.Tensor | None:
    """True where a query may look; None where it may look everywhere.

    ``[q_len, keys given]``, or ``[batch, 1, 1, kv_len]`` of a padded batch, whose variant is full.
    """
    if sees_all(workload):
        return None
    kv_pos = torch.arange(workload.kv_len, device=device)
    if is_padded(workload):
        lengths = torch.tensor(workload.lengths, device=device)
        return (kv_pos < lengths[:, None])[:, None, None]
    q_pos = kv_pos[workload.kv_len - workload.q_len :]
    kv_pos = kv_pos[workload.kv_len - num_given(workload) :]
    mask: torch.Tensor = workload.mask.allows(q_pos[:, None], kv_pos[None, :])
    return mask


def merged(mask: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    """One tensor that a kernel takes as its mask: the bias, and −∞ where nobody may look."""
    if mask is None or bias is None:
        return mask if bias is None else bias
    return torch.where(mask, bias, -math.inf)
