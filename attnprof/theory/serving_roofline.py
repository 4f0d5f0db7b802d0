"""The least time that serving steps take: FLOP, bytes and messages over a GPU's three roofs."""

from dataclasses import dataclass

ALL_REDUCES_PER_LAYER = 2
"""After attention and after the FFN, under tensor parallelism."""


@dataclass(frozen=True)
class Roofs:
    """What one GPU can do at most; None is unknown."""

    flops_per_s: float | None
    bytes_per_s: float | None
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class StepTime:
    """The least time of a step under each roof; None where a roof is unknown. [s]"""

    compute_s: float | None
    memory_s: float | None
    link_s: float | None

    @property
    def total_s(self) -> float | None:
        """Arithmetic and traffic overlap, messages do not: max(compute, memory) + link. [s]"""
        if self.compute_s is None or self.memory_s is None:
            return None
        return max(self.compute_s, self.memory_s) + (self.link_s or 0.0)

    @property
    def binding(self) -> str:
        """``compute``, ``bandwidth`` or ``interconnect``: the longest of the three."""
        times = {
            "compute": self.compute_s or 0.0,
            "bandwidth": self.memory_s or 0.0,
            "interconnect": self.link_s or 0.0,
        }
        return max(times, key=lambda name: times[name])


def step_time(
    roofs: Roofs,
    *,
    flops_per_rank: float,
    bytes_per_rank: float,
    tp: int,
    message_bytes: float,
) -> StepTime:
    """The least time of a step on one of ``tp`` ranks.

    ``message_bytes`` is what all all-reduces of the step carry; a ring sends each byte
    2 · (tp − 1) / tp times over one rank's link.
    """
    ring = 2 * (tp - 1) / tp
    link = None
    if tp > 1 and roofs.link_bytes_per_s:
        link = message_bytes * ring / roofs.link_bytes_per_s
    return StepTime(
        flops_per_rank / roofs.flops_per_s if roofs.flops_per_s else None,
        bytes_per_rank / roofs.bytes_per_s if roofs.bytes_per_s else None,
        link if tp > 1 else 0.0,
    )
