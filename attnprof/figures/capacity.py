"""Documents of estimates -> users against context on each GPU, with what binds at each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.figures.axes import counts_axis, lengths_axis
from attnprof.figures.base import MOST_PANELS, Axis, Figure, Key, Panel, Theme
from attnprof.figures.words import and_more
from attnprof.serving.latency import Limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]
# What binds: its words, the name of a colour, a marker.
_BINDS = {
    "kv_memory": ("KV memory binds", "blue", "o"),
    "scheduler": ("the scheduler binds (max_num_seqs)", "green", "s"),
    "latency": ("latency binds", "orange", "^"),
    "weights": ("does not fit", "purple", "X"),
}
_VARIED = ("engine", "tp", "pp", "dp", "quantization", "kv_dtype", "gpu_memory_utilization")


@dataclass(frozen=True)
class _Point:
    context: int
    users: int
    binds: str


def capacity_figure(documents: Sequence[Document]) -> Figure | None:
    """Users against the tokens that each of them has, prompt and answer; a panel a deployment.

    Args:
        documents: Those of ``estimate --format json``, each of one deployment at one length.
    """
    found = _by_deployment(documents)
    if not found:
        return None
    shown = dict(list(found.items())[:MOST_PANELS])
    points = [point for mine in shown.values() for point in mine]
    if all(point.binds == "weights" for point in points):
        return None
    binds = [kind for kind in _BINDS if any(point.binds == kind for point in points)]
    y = _users_axis(point.users for point in points)
    models = list(dict.fromkeys(document["model"]["name"] for document in documents))
    said = [
        f"{name}: "
        + ", ".join(
            f"{point.users:,} at {units.tokens(point.context)} ({_BINDS[point.binds][0]})"
            if point.binds != "weights"
            else f"at {units.tokens(point.context)} it does not fit"
            for point in (mine[0], mine[-1])
        )
        for name, mine in shown.items()
    ]
    return Figure(
        name="capacity",
        title=f"How many users at which context: {', '.join(models)}",
        alt=f"Users against context on logarithmic axes, and what binds. {'. '.join(said)}.",
        source=f"Estimated: memory by the rules of {_engines(documents)}"
        + _limits_words(documents)
        + "."
        + and_more(len(shown), len(found), "deployments"),
        x=lengths_axis(
            "Context of each user, prompt and answer [tokens]", [point.context for point in points]
        ),
        y=y,
        panels=tuple(
            _panel(name, mine, [other for key, other in shown.items() if key != name], y)
            for name, mine in shown.items()
        ),
        keys=(
            *(Key(_BINDS[kind][0], _BINDS[kind][1], "point", _BINDS[kind][2]) for kind in binds),
            *([Key("other deployments", "ghost")] if len(shown) > 1 else []),
        ),
    )


def _users_axis(users: Iterable[int]) -> Axis:
    """A logarithmic axis of users; below one of them a place for none."""
    counts = list(users)
    axis = counts_axis(
        "Users at once [sequences]", [1.0, *map(float, filter(None, counts))], _count
    )
    if all(counts):
        return axis
    none = 1 / max(1.8, axis.high ** (1 / 8))  # an axis of powers has no zero
    ticks = (none, *(tick for tick in axis.ticks if tick >= 1))
    return replace(
        axis, low=none / 1.3, ticks=ticks, show=lambda n: "0" if n == none else _count(n)
    )


def _engines(documents: Sequence[Document]) -> str:
    settings = [document["settings"] for document in documents]
    names = [f"{one['engine']} {one['engine_version'] or ''}".rstrip() for one in settings]
    return ", ".join(dict.fromkeys(names))


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _limits_words(documents: Sequence[Document]) -> str:
    slo: Mapping[str, Any] = next(
        (document["slo"] for document in documents if document.get("slo")), {}
    )
    limits = Limits(slo.get("ttft_limit_s"), slo.get("tpot_limit_s"))
    if not limits.are_given:
        return ""
    how = "by the upper ends of its intervals" if slo.get("safely") else "by its middle"
    return f", latency within {limits.words} {how}"


def _by_deployment(documents: Sequence[Document]) -> dict[str, list[_Point]]:
    names = [_values(document) for document in documents]
    varied = {key for key in ("model", *_VARIED) if len({str(one[key]) for one in names}) > 1}
    found: dict[str, list[_Point]] = {}
    for document, values in zip(documents, names, strict=True):
        words = [str(values["gpu"]), *(_word(key, values[key]) for key in values if key in varied)]
        found.setdefault(", ".join(words), []).append(_point(document))
    return {name: sorted(points, key=lambda point: point.context) for name, points in found.items()}


def _values(document: Document) -> dict[str, Any]:
    settings = document["settings"]
    gpus = settings["num_gpus"]
    return {
        "gpu": settings["gpu"] if gpus == 1 else f"{gpus} × {settings['gpu']}",
        "model": document["model"]["name"],
        **{key: settings.get(key) for key in _VARIED},
    }


def _word(key: str, value: Any) -> str:
    return str(value) if key in ("model", "engine") else f"{key} {value}"


def _point(document: Document) -> _Point:
    settings, slo = document["settings"], document.get("slo") or {}
    context = settings["users_len"]
    if not document["capacity"]["fits"]:
        return _Point(context, 0, "weights")
    held, within = settings["batch_size"], slo.get("batch_size", slo.get("max_batch_size"))
    if within is not None and within < held:
        return _Point(context, within, "latency")
    return _Point(context, held, str(document["binding"]))


def _panel(
    name: str, points: Sequence[_Point], others: Sequence[Sequence[_Point]], y: Axis
) -> Panel:
    def draw(axes: "Axes", theme: Theme) -> None:
        for other in others:
            axes.plot(*_line(other), color=theme.ghost, lw=1.3, zorder=1)
        axes.plot(*_line(points), color=theme.muted, lw=1.3, zorder=2)
        for kind, (_, colour, marker) in _BINDS.items():
            mine = [point for point in points if point.binds == kind]
            axes.plot(
                [point.context for point in mine],
                [point.users or y.ticks[0] for point in mine],
                marker, color=getattr(theme, colour), ms=5, markeredgecolor=theme.background,
                mew=0.5, zorder=3, clip_on=False,
            )  # fmt: skip

    ends = [
        f"{point.users:,} at {units.tokens(point.context)}" for point in (points[0], points[-1])
    ]
    return Panel(name, ", ".join(ends), draw)


def _line(points: Sequence[_Point]) -> tuple[list[int], list[float]]:
    """Contexts and users; a gap where there are none."""
    return [point.context for point in points], [
        float(point.users) if point.users else float("nan") for point in points
    ]
