"""A workload -> the mask that its variant needs, as a tensor, where it needs one at all."""

import torch

from attnprof.workload import Workload


def is_plain_causal(workload: Workload) -> bool:
    """Whether the mask is the lower triangle from the first key on: torch's ``is_causal``."""
    return workload.variant == "causal" and workload.q_len == workload.kv_len


def sees_all(workload: Workload) -> bool:
    """Whether every query sees every key that the kernel is given.

    One query at the end of the cache sees all of it; of a window it is given the last
    ``window_len`` keys and no more.
    """
    return workload.q_len == 1 or workload.variant == "full"


def allowed(workload: Workload, device: torch.device) -> torch.Tensor | None:
    """True where a query may look, ``[q_len, kv_len]``; None where it may look everywhere."""
    if sees_all(workload):
        return None
    kv_pos = torch.arange(workload.kv_len, device=device)
    q_pos = kv_pos[workload.kv_len - workload.q_len :]
    mask: torch.Tensor = workload.mask.allows(q_pos[:, None], kv_pos[None, :])
    return mask
