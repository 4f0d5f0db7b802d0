"""The document of an estimate -> throughput against latency, with the limits asked for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.figures.axes import linear_axis, seconds_axis
from attnprof.figures.base import Axis, Figure, Key, Panel, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]
_LATENCIES = {
    "tpot_s": ("Time per output token", "tpot_limit_s", "TPOT"),
    "ttft_loaded_s": ("Time to first token, under load", "ttft_limit_s", "TTFT"),
}


def serving_figure(document: Document) -> Figure | None:
    """Output of all users together against what one of them waits, as the batch grows; None where
    latency is unknown.

    Args:
        document: That of ``estimate --format json``.
    """
    curve = [
        point
        for point in document.get("curve") or ()
        if all(point[name]["mid"] for name in (*_LATENCIES, "output_tokens_per_s"))
    ]
    if not curve:
        return None
    slo = document.get("slo") or {}
    limits = {name: slo.get(key) for name, (_, key, _) in _LATENCIES.items()}
    top = max(point["output_tokens_per_s"]["mid"] for point in curve)
    y = linear_axis("Output [tokens/s], all users", 0, 1.08 * top, "{:,.0f}".format)
    users = document["settings"].get("users")
    panels = tuple(_panel(name, curve, limits[name], slo, y, users) for name in _LATENCIES)
    said = _words(document, curve, slo)
    has_limits = any(limits.values())
    return Figure(
        name="serving",
        title=f"Throughput against latency: {_deployment(document)}",
        alt=f"Output tokens a second against latency, for batches that double. {said}",
        source=f"Estimated ({_how(document)}): prompts of "
        f"{units.tokens(document['settings']['prompt_len'])}, answers of "
        f"{units.tokens(document['settings']['output_len'])}. {said}",
        x=_times_axis(_LATENCIES, curve, limits),
        y=y,
        panels=panels,
        keys=(
            *_point_keys(curve, slo),
            *([Key("limit asked for", "orange", "dashes")] if has_limits else []),
            *([Key(f"{units.counted(users, 'user')} asked for", "ink", "ring")] if users else []),
        ),
    )


_WITHIN = {
    "all": ("so many sequences at once, with 80 % interval", "blue"),
    "safely": ("sequences at once, safely: by the whole 80 % interval", "green"),
    "yes": ("within the limits by the middle", "blue"),
    "no": ("beyond a limit", "grey"),
}


def _within(point: Mapping[str, Any], slo: Mapping[str, Any]) -> str:
    """Whether a point of the curve holds the limits that were asked for, if any."""
    if not slo:
        return "all"
    if point["batch_size"] <= slo["safe_batch_size"]:
        return "safely"
    return "yes" if point["batch_size"] <= slo["max_batch_size"] else "no"


def _point_keys(curve: Sequence[Mapping[str, Any]], slo: Mapping[str, Any]) -> list[Key]:
    there = {_within(point, slo) for point in curve}
    return [Key(*_WITHIN[kind], "point") for kind in _WITHIN if kind in there]


def _times_axis(
    names: Iterable[str], curve: Sequence[Mapping[str, Any]], limits: Mapping[str, float | None]
) -> Axis:
    times_s = [point[name][end] for point in curve for name in names for end in ("low", "high")]
    return seconds_axis("Latency [s]", times_s + [limit for n in names if (limit := limits[n])])


def _labelled(heights: Sequence[float], apart: float) -> set[int]:
    """The points that have room for a label beside them: the last, and those well below it.

    >>> _labelled([1, 2, 8, 20, 21], 4)
    {1, 2, 4}
    """
    chosen = {len(heights) - 1}
    above = heights[-1]
    for index in range(len(heights) - 2, -1, -1):
        if above - heights[index] >= apart:
            chosen.add(index)
            above = heights[index]
    return chosen


def _deployment(document: Document) -> str:
    settings = document["settings"]
    gpus = settings["num_gpus"]
    return (
        f"{document['model']['name']} on {f'{gpus} × ' if gpus > 1 else ''}{settings['gpu']}, "
        f"{settings['engine']} {settings['engine_version'] or ''}".rstrip()
    )


def _how(document: Document) -> str:
    return str(document["provenance"].get("curve") or "computed")


def _words(document: Document, curve: Sequence[Mapping[str, Any]], slo: Mapping[str, Any]) -> str:
    users = document["settings"].get("users")
    point = next((one for one in curve if one["batch_size"] == users), curve[-1])
    said = (
        f"With {point['batch_size']:,.0f} at once, {point['output_tokens_per_s']['mid']:,.0f} "
        f"tokens/s at {units.seconds(point['tpot_s']['mid'])} a token."
    )
    if (most := slo.get("max_batch_size")) is not None:
        limits = [
            f"{short} {units.seconds(slo[key])}"
            for _, key, short in _LATENCIES.values()
            if slo.get(key)
        ]
        said += f" Within {' and '.join(limits)}: {most:,} at once"
        safe = slo.get("safe_batch_size")
        said += f", {safe:,} by the upper ends." if safe is not None else "."
    return said


def _panel(
    name: str, curve: Sequence[Mapping[str, Any]], limit_s: float | None, slo: Mapping[str, Any],
    y: Axis, users: int | None,
) -> Panel:  # fmt: skip
    title, _, _ = _LATENCIES[name]

    def draw(axes: "Axes", theme: Theme) -> None:
        times_s = [point[name]["mid"] for point in curve]
        output = [point["output_tokens_per_s"]["mid"] for point in curve]
        axes.plot(times_s, output, color=theme.ghost, lw=1.4, zorder=1)
        labelled = _labelled(output, 0.05 * y.high)
        for index, (point, time_s, tokens_per_s) in enumerate(
            zip(curve, times_s, output, strict=True)
        ):
            axes.errorbar(
                [time_s], [tokens_per_s], fmt="o", ms=4.2, elinewidth=0.9, capsize=1.8, zorder=3,
                xerr=[[time_s - point[name]["low"]], [point[name]["high"] - time_s]],
                color=getattr(theme, _WITHIN[_within(point, slo)][1]),
            )  # fmt: skip
            if point["batch_size"] == users:
                axes.plot(
                    [time_s], [tokens_per_s], "o", ms=9, color=theme.ink, mfc="none", mew=1.2,
                    zorder=4,
                )  # fmt: skip
            if index in labelled:
                axes.annotate(
                    f"{point['batch_size']:,.0f}", (point[name]["low"], tokens_per_s),
                    xytext=(-4, 0), textcoords="offset points", fontsize=7, color=theme.ink,
                    ha="right", va="center", zorder=4,
                )  # fmt: skip
        if limit_s:
            axes.axvline(limit_s, color=theme.orange, lw=1.4, ls=(0, (4, 2)))
            axes.annotate(
                f"≤ {units.seconds(limit_s)}", (limit_s, y.high * 0.02), xytext=(-3, 0),
                textcoords="offset points", fontsize=7, color=theme.orange, ha="right",
            )  # fmt: skip

    limit = f"limit {units.seconds(limit_s)}" if limit_s else "no limit asked for"
    return Panel(title, limit, draw, x=_times_axis([name], curve, {name: limit_s}))
