"""What a law is held against: growth with n² alone, the longest roof, the bare roof, neighbours."""

import numpy as np

from attnprof.laws.base import Columns, Floats, Hardware, Law, latency
from attnprof.laws.fitting import most_probable
from attnprof.laws.residual import NEIGHBOURS

WORK_ONLY = "work alone"
ROOFLINE = "roofline"
LONGEST_ROOF = "t0 + max"
NEIGHBOURING = "log interpolation"
BASELINES = (WORK_ONLY, LONGEST_ROOF, ROOFLINE, NEIGHBOURING)
_MAX_OVERLAP = 16.0  # of the exponent: the longer of two roofs to 4 %


def work_of(law: Law, shapes: Columns) -> tuple[Floats, Floats]:
    """FLOP, and bytes that have to move, of each call."""
    if law.name == "gemm":
        m, n, k = shapes["m"], shapes["n"], shapes["k"]
        return 2 * m * n * k, (m * k + n * k) * shapes["size"] + 2 * m * n
    if law.name == "all-reduce":
        return np.zeros_like(shapes["bytes"]), shapes["bytes"]
    return shapes["flops"], shapes["bytes"]


def roofline_s(law: Law, shapes: Columns, hardware: Hardware) -> Floats:
    """The uncalibrated roofline: all of the peaks, and nothing else. [s]"""
    flops, moved = work_of(law, shapes)
    if law.name == "all-reduce":
        ranks = shapes["ranks"]
        return np.asarray(2 * (ranks - 1) / ranks * moved / (hardware.link_bytes_per_s or 1e9))
    return np.maximum(flops / hardware.flops_per_s, moved / hardware.bytes_per_s)


def work_only_s(law: Law, shapes: Columns, latencies_s: Floats, asked: Columns) -> Floats:
    """``c·F``, the growth with n² of a textbook (bytes where no FLOP count), by relative errors."""
    place = 1 if law.phase in ("all-reduce", "decode") else 0
    factor = np.exp(np.median(np.log(latencies_s / work_of(law, shapes)[place])))
    return np.asarray(factor * work_of(law, asked)[place])


def longest_roof_s(
    law: Law, shapes: Columns, latencies_s: Floats, asked: Columns, hardware: Hardware
) -> Floats:
    """``t₀ + max(c·F/P, m·B/W)``, its three coefficients fitted; for all-reduce ``α + β·bytes``."""
    form = Law("t0 + max", law.coefficients[:3], law.terms, ((1,), (2,)), _MAX_OVERLAP, law.axes)
    form = form.expecting(
        {
            one.name: (median, 2.0)
            for one, median in zip(form.coefficients, (10e-6, 1.5, 1.5), strict=True)
        }
    )

    def terms(columns: Columns) -> Floats:
        flops, moved = work_of(law, columns)
        if law.name == "all-reduce":
            flops, moved = moved * 0, roofline_s(law, columns, hardware) * hardware.bytes_per_s
        return np.stack(
            [np.ones_like(moved), flops / hardware.flops_per_s, moved / hardware.bytes_per_s]
        )

    log_s = np.log(latencies_s)[None]
    logs, _ = most_probable(form, terms(shapes), log_s, np.log(form.medians)[None])
    return latency(form, terms(asked), np.exp(logs[0]))


def neighbours_s(places: Floats, latencies_s: Floats, asked: Floats) -> Floats:
    """Log latency between the nearest measured shapes, weighted by inverse square distance."""
    logs = np.log(latencies_s)
    few = min(NEIGHBOURS, len(logs))
    own = (places**2).sum(axis=1)
    found = np.empty(len(asked))
    for start in range(0, len(asked), 1024):
        block = asked[start : start + 1024]
        squares = (block**2).sum(axis=1)[:, None] + own[None] - 2 * block @ places.T
        near = np.argpartition(squares, few - 1, axis=1)[:, :few]
        weights = 1.0 / (np.maximum(np.take_along_axis(squares, near, axis=1), 0.0) + 1e-6)
        found[start : start + 1024] = (weights * logs[near]).sum(axis=1) / weights.sum(axis=1)
    return np.exp(found)
