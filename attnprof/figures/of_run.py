"""A run and its fits -> all figures that it has the numbers for."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.figures.base import Figure
from attnprof.figures.caches import kv_figure, kv_growth_figure
from attnprof.figures.growth import decode_figure, latency_figure, memory_figure
from attnprof.figures.parts import parts_figure
from attnprof.figures.rooflines import roofline_figure
from attnprof.run_header import Header
from attnprof.series import Record


def run_figures(header: Header, records: Sequence[Record], fits: Mapping[str, Any]) -> list[Figure]:
    """Time first, then memory, then what explains them.

    Args:
        fits: What ``fit.json`` holds of these records.
    """
    made = [
        latency_figure(header, records, fits),
        decode_figure(header, records, fits),
        memory_figure(header, records, fits),
        kv_figure(header, records),
        kv_growth_figure(header, records),
        parts_figure(header, records),
        roofline_figure(header, records),
    ]
    return [figure for figure in made if figure is not None]
