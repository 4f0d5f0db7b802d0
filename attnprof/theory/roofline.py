"""The least time that work can take on a machine with two roofs."""


def roofline_s(
    flops: float, bytes_moved: float, flops_per_s: float | None, bytes_per_s: float | None
) -> float | None:
    """The larger of the times that arithmetic and traffic need, each at its roof. [s]

        t = max(F / P, Q / W)

    None when a roof is unknown.

    Source:
        Williams et al. 2009, "Roofline: An Insightful Visual Performance Model", section 3.

    >>> roofline_s(1e9, 1e6, flops_per_s=1e12, bytes_per_s=1e9)
    0.001
    """
    if not flops_per_s or not bytes_per_s:
        return None
    return max(flops / flops_per_s, bytes_moved / bytes_per_s)


def ridge_point(flops_per_s: float, bytes_per_s: float) -> float:
    """The arithmetic intensity where the two roofs meet. [FLOP/byte]

    >>> ridge_point(1e12, 1e11)
    10.0
    """
    return flops_per_s / bytes_per_s
