"""``calibration.yaml`` <-> laws with their intervals, errors and domain; and what they foretell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnprof.errors import UsageError, nearest
from attnprof.fields import Fields
from attnprof.laws.base import Columns, Floats, Hardware
from attnprof.laws.fitting import Z80, Z90, Fitted, coordinates
from attnprof.laws.kernels import attention_columns
from attnprof.laws.known import LAWS
from attnprof.laws.residual import LocalResidual
from attnprof.profiles import find_profile, list_profiles, read_yaml

FORMAT = 1
KIND = "calibrations"
WIDER_BEYOND = 0.10  # of a log latency, for each doubling beyond what was measured
HOLDS_MEDIAN, HOLDS_P90 = 0.15, 0.40  # a law that misses more of what was held out does not hold
OTHER_KIND = 0.10  # for each thing that the nearest law was not measured with, as a head width
OVERHEADS = ("first_s", "step_s")
LONGEST_OVERHEAD_S = 10.0
_SMALLEST, _LARGEST = 1e-18, 1e18
_LARGEST_VARIANCE = 1e4  # of a log coefficient; what nothing pins down has about ten
_LEAST_SD, _MOST_SD = 1e-4, 3.0  # of a log latency: a factor of 20 either way says nothing
_PAST_LAWS = ("prefill",)


class Prediction(NamedTuple):
    """A latency with its 80 % interval [s], and whether it lies beyond what was measured."""

    low: Floats
    mid: Floats
    high: Floats
    beyond_domain: Any


@dataclass(frozen=True)
class CalibratedLaw:
    """A fitted law, what it was fitted to, and how well it did where it was not.

    Args:
        where: What the rows have in common: kernel, dtypes, head width, ...
        near_sd: Of the log latency where measured shapes are near, after the correction.
        domain: Least and most of each axis.
        errors: Median and 90th percentile by hold-out.
    """

    where: Mapping[str, str]
    fitted: Fitted
    near_sd: float
    residual: LocalResidual
    domain: Mapping[str, tuple[float, float]]
    errors: Mapping[str, tuple[float, float]]

    @property
    def holds(self) -> bool:
        """Whether it missed little of what was held out at random; not where nothing was."""
        median, p90 = self.errors.get("random", (math.inf, math.inf))
        return median <= HOLDS_MEDIAN and p90 <= HOLDS_P90


@dataclass(frozen=True)
class Calibration:
    """The laws of one device and engine (or of our own backends), and where they come from.

    Args:
        overheads: Of the Transformers library's ``generate`` beside the model's calls: ``first_s``
            until the first token, ``step_s`` for each next. Empty where they were not measured.
    """

    name: str
    device: str
    engine: str
    source: Mapping[str, str]
    laws: Mapping[str, CalibratedLaw]
    overheads: Mapping[str, float] = field(default_factory=dict)


def predict(
    calibration: Calibration, law_key: str, shapes: Columns, *, extra_sd: float = 0.0
) -> Prediction:
    """Latencies of some shapes by one law, the nearer what was measured the more exact.

    Args:
        shapes: Columns as the law takes them: batch, q_len, kv_len, q_heads, kv_heads, head_dim,
            window (0 for none) and kv_size [bytes an element]; m, n, k and size; ranks and bytes.
        extra_sd: Of the log latency, for what the law was not measured with.

    Raises:
        UsageError: No such law.
    """
    law = calibration.laws.get(law_key)
    if law is None:
        raise UsageError(
            f"calibration {calibration.name!r} has no law {law_key!r}",
            nearest(law_key, list(calibration.laws)),
        )
    columns = {name: np.asarray(column, dtype=float) for name, column in shapes.items()}
    if law.fitted.law.phase in ("prefill", "decode"):
        columns = attention_columns(columns, law.fitted.law.phase)
    places = coordinates(law.fitted.law, columns)
    beyond = doublings_beyond(law, columns)
    support = law.residual.support(places) * (beyond == 0)
    mid = law.fitted.latency_s(columns) * np.exp(law.residual.at(places))
    far_variance = law.fitted.log_sd(columns) ** 2
    variance = support * law.near_sd**2 + (1 - support) * far_variance
    sd = np.sqrt(variance + (WIDER_BEYOND * beyond) ** 2 + extra_sd**2)
    return Prediction(mid * np.exp(-Z80 * sd), mid, mid * np.exp(Z80 * sd), beyond > 0)


def doublings_beyond(law: CalibratedLaw, columns: Columns) -> Floats:
    """How many doublings each shape lies beyond the domain, all axes added up."""
    total = np.zeros(len(next(iter(columns.values()))))
    for axis, (low, high) in law.domain.items():
        size = np.maximum(columns[axis], 1e-9)
        total += np.maximum(np.log2(low / size), 0.0) + np.maximum(np.log2(size / high), 0.0)
    if law.fitted.law.phase in _PAST_LAWS and "kv_len" in columns:
        total += np.maximum(np.log2(columns["kv_len"] / columns["q_len"]), 0.0)
    return np.where(total > 1e-9, total, 0.0)


def find_law(
    calibration: Calibration, law: str, wanted: Mapping[str, str]
) -> tuple[str, float] | None:
    """The key of the law that is nearest to what is wanted, and the ``extra_sd`` for the rest.

    Args:
        wanted: As in ``where``: ``{"q_dtype": "bf16", "head_dim": "d128", "sharing": "gqa"}``. What
            differs costs :data:`OTHER_KIND` each; head widths by their doublings; a dtype more.

    Returns:
        None where the calibration holds nothing of this law.
    """
    best: tuple[float, int, str] | None = None
    for key, one in calibration.laws.items():
        if one.fitted.law.phase != law:
            continue
        away = sum(
            _distance(name, value, one.where.get(name, "")) for name, value in wanted.items()
        )
        rank = (away, -one.fitted.num_points, key)
        if best is None or rank < best:
            best = rank
    return None if best is None else (best[2], OTHER_KIND * math.sqrt(best[0]))


def _distance(name: str, wanted: str, found: str) -> float:
    if wanted == found:
        return 0.0
    if name in ("head_dim", "ranks") and wanted[1:].isdigit() and found[1:].isdigit():
        return abs(math.log2(int(wanted[1:]) / int(found[1:])))
    return 4.0 if "dtype" in name or name == "kernel" else 1.0


def calibration_named(name: str) -> Calibration:
    """A shipped calibration, the user's own, or a file.

    Raises:
        UsageError: None of that name, or one with a wrong value.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else find_profile(KIND, name)
    if path is None:
        known = list_profiles(KIND)
        raise UsageError(
            f"unknown calibration {name!r}", nearest(name, known, "attnprof show calibrations")
        )
    return read_calibration(path)


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file, every key and number checked.

    Raises:
        UsageError: Another format version, a key that is missing or unknown, or nonsense.
    """
    content = read_yaml(path)
    if content.get("format") != FORMAT:
        raise UsageError(
            f"{path} has format {content.get('format')!r}, this version reads {FORMAT}",
            "fit it again: attnprof fit RUN --output FILE",
        )
    fields = Fields(content, str(path))
    fields.count("format")
    device = fields.table("hardware")
    source = {str(key): str(value) for key, value in fields.table("source").items()}
    laws = fields.table("laws")
    if not laws:
        raise fields.wrong("laws", "at least one law")
    name = fields.text("name")
    if name != Path(name).name or "\\" in name or name.startswith("."):
        raise UsageError(f"{path}: name is {name!r}", "write a name, not a path")
    found = Calibration(
        name=name,
        device=fields.text("device"),
        engine=fields.text("engine"),
        source=source,
        laws={key: _law_of(f"{path}: law {key}", law, device) for key, law in laws.items()},
        overheads=_overheads_of(path, content, fields),
    )
    fields.done()
    return found


def _overheads_of(path: Path, content: Mapping[str, Any], fields: Fields) -> dict[str, float]:
    if "overheads" not in content:
        return {}
    listed = Fields(fields.table("overheads"), f"{path}: overheads")
    found = {name: listed.number(name, low=0.0, high=LONGEST_OVERHEAD_S) for name in OVERHEADS}
    listed.done()
    return {name: value or 0.0 for name, value in found.items()}


def _law_of(where: str, content: Any, device: dict[str, Any]) -> CalibratedLaw:
    if not isinstance(content, dict):
        raise UsageError(f"{where} is no mapping", "write its coefficients under it")
    fields = Fields(content, where)
    law = LAWS[fields.one_of("law", tuple(LAWS))]
    overlap = fields.number("overlap", low=1.0, high=16.0, needed=False)
    if overlap is not None:
        law = replace(law, overlap=overlap)
    own = {"flops_per_s": fields.number("flops_per_s", low=1e6)}
    cache_bytes = fields.number("cache_bytes", needed=False)
    if cache_bytes is not None:
        own["cache_bytes"] = cache_bytes
    facts = Fields({**device, **own}, where)
    coefficients = _rows_of(where, _lines_of(where, fields, "coefficients"), law.names, 4)
    for name, (value, low, high, share) in zip(law.names, coefficients, strict=True):
        if not _SMALLEST <= low <= value <= high <= _LARGEST or not 0 <= share <= 1.001:
            raise UsageError(
                f"{where}: {name} is {value:g} in [{low:g}, {high:g}], share {share:g}",
                "write value, low, high and share, the value within its interval",
            )
    covariance = _covariance(where, fields.text("covariance"), len(law.names))
    fitted = Fitted(
        law=law,
        hardware=Hardware(
            flops_per_s=_needed(facts, "flops_per_s"),
            bytes_per_s=_needed(facts, "bytes_per_s"),
            cache_bytes=facts.number("cache_bytes") or 0.0,
            num_units=_needed(facts, "num_units"),
            link_bytes_per_s=facts.number("link_bytes_per_s", low=1e3, needed=False),
        ),
        coefficients=coefficients[:, 0],
        covariance=covariance,
        residual_sd=fields.number("residual_sd", low=_LEAST_SD, high=_MOST_SD) or 0.0,
        largest_shares=coefficients[:, 3],
        num_points=fields.count("num_points") or 0,
        low=coefficients[:, 1],
        high=coefficients[:, 2],
    )
    facts.done()
    domain = {
        axis: (float(row[0]), float(row[1]))
        for axis, row in zip(
            law.axes,
            _rows_of(where, _lines_of(where, fields, "domain"), law.axes, 2),
            strict=True,
        )
    }
    for axis, (low, high) in domain.items():
        if not 0 < low <= high <= _LARGEST:
            raise UsageError(f"{where}: domain of {axis} is {low:g} to {high:g}", "write low high")
    errors = _lines_of(where, fields, "errors")
    error_rows = _rows_of(where, errors, tuple(errors), 2)
    for name, (median, p90) in zip(errors, error_rows, strict=True):
        if not 0 <= median <= p90:
            raise UsageError(
                f"{where}: error {name} is {median:g}, 90 % below {p90:g}",
                "write the median, then what nine in ten are below",
            )
    kept = CalibratedLaw(
        where={str(key): str(value) for key, value in fields.table("where").items()},
        fitted=fitted,
        near_sd=fields.number("near_sd", low=_LEAST_SD, high=_MOST_SD) or 0.0,
        residual=_residual(where, fields.text("residuals", default="none"), len(law.axes)),
        domain=domain,
        errors={
            name: (float(row[0]), float(row[1]))
            for name, row in zip(errors, error_rows, strict=True)
        },
    )
    fields.done()
    return kept


def _needed(fields: Fields, key: str) -> float:
    value = fields.number(key, low=0.5, high=_LARGEST)
    assert value is not None, "fields refuse what is missing"
    return value


def _lines_of(where: str, fields: Fields, key: str) -> dict[str, str]:
    """What stands after the first word of each line of a text; a text is read faster than keys."""
    found: dict[str, str] = {}
    for line in fields.text(key, default="none").splitlines():
        name, _, rest = line.strip().partition(" ")
        if line.strip() == "none":
            continue
        if name in found:
            raise UsageError(f"{where}: {key} has {name!r} twice", "keep one of them")
        found[name] = rest
    return found


def _rows_of(where: str, table: dict[str, str], names: Sequence[str], num: int) -> Floats:
    """The numbers under each name, all finite; no name more and none less."""
    for name in table:
        if name not in names:
            raise UsageError(f"{where}: unknown key {name!r}", nearest(str(name), tuple(names)))
    rows = []
    for name in names:
        if name not in table:
            raise UsageError(f"{where}: {name} is missing", "fit it again: attnprof fit RUN")
        row = _numbers(where, name, table[name])
        if len(row) != num:
            raise UsageError(f"{where}: {name} has {len(row)} numbers", f"write {num} of them")
        rows.append(row)
    return np.array(rows).reshape(len(names), num)


def _numbers(where: str, name: str, text: Any) -> list[float]:
    try:
        values = [float(word) for word in str(text).split()]
    except ValueError:
        values = [math.nan]
    if not all(math.isfinite(value) for value in values):
        raise UsageError(f"{where}: {name} is {text!r}", "write plain numbers, blanks between")
    return values


def _covariance(where: str, text: str, size: int) -> Floats:
    """From the rows of its lower triangle."""
    values = _numbers(where, "covariance", text)
    if len(values) != size * (size + 1) // 2:
        raise UsageError(
            f"{where}: covariance has {len(values)} numbers",
            f"write the lower triangle of {size} rows",
        )
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size)] = values
    matrix = matrix + np.tril(matrix, -1).T
    if np.abs(matrix).max() > _LARGEST_VARIANCE:
        raise UsageError(f"{where}: covariance is over {_LARGEST_VARIANCE:g}", "fit the law again")
    if (np.diag(matrix) < 0).any() or np.linalg.eigvalsh(matrix).min() < -1e-2 * matrix.max():
        raise UsageError(f"{where}: covariance is none", "fit the law again")
    return matrix


def _residual(where: str, text: str, num_axes: int) -> LocalResidual:
    """Places in tenths of a doubling and log residuals in thousandths, one cell after another."""
    values = [] if text == "none" else _numbers(where, "residuals", text)
    if len(values) % (num_axes + 1):
        raise UsageError(f"{where}: residuals do not come in {num_axes + 1}", "fit the law again")
    table = np.array(values).reshape(-1, num_axes + 1)
    if len(table) and np.abs(table[:, -1]).max() > 5000:
        raise UsageError(f"{where}: a residual is over 5", "fit the law again")
    if len(table) and np.abs(table[:, :-1]).max() > 10 * math.log2(_LARGEST):
        raise UsageError(f"{where}: a residual lies beyond every shape", "fit the law again")
    return LocalResidual(table[:, :-1] / 10, table[:, -1] / 1000)


def calibration_text(calibration: Calibration) -> str:
    """The content of its file."""
    hardware = next(iter(calibration.laws.values())).fitted.hardware
    lines = [
        f"# {line}"
        for line in (
            "Laws of latency, each t = sum of coefficients times terms; attnprof show calibrations "
            "explains.",
            "A coefficient: value, low and high of its 95 % interval, its largest share of a "
            "latency.",
            "An error: median and 90th percentile of what was held out. A domain: least and most.",
            "A residual: place in tenths of a doubling along each axis of the domain, then its "
            "log in thousandths.",
        )
    ]
    lines += [
        f"format: {FORMAT}",
        f"name: {_quoted(calibration.name)}",
        f"device: {_quoted(calibration.device)}",
        f"engine: {_quoted(calibration.engine)}",
        "source:",
        *(f"  {key}: {_quoted(value)}" for key, value in calibration.source.items()),
        "hardware:",
        f"  bytes_per_s: {_plain(hardware.bytes_per_s)}",
        f"  cache_bytes: {_plain(hardware.cache_bytes)}",
        f"  num_units: {_plain(hardware.num_units)}",
    ]
    if hardware.link_bytes_per_s is not None:
        lines.append(f"  link_bytes_per_s: {_plain(hardware.link_bytes_per_s)}")
    if calibration.overheads:
        lines.append("overheads:")
        lines += [f"  {key}: {_plain(value)}" for key, value in calibration.overheads.items()]
    lines.append("laws:")
    for key, law in calibration.laws.items():
        lines += _law_lines(key, law, hardware.cache_bytes)
    return "\n".join(lines) + "\n"


def _law_lines(key: str, law: CalibratedLaw, cache_bytes: float) -> list[str]:
    fitted = law.fitted
    low = fitted.coefficients if fitted.low is None else fitted.low
    high = fitted.coefficients if fitted.high is None else fitted.high
    rows = zip(fitted.law.names, fitted.coefficients, low, high, fitted.largest_shares, strict=True)
    triangle = fitted.covariance[np.tril_indices(len(fitted.coefficients))]
    cells = np.column_stack([law.residual.places * 10, law.residual.residuals * 1000])
    where = ", ".join(f"{name}: {_quoted(value)}" for name, value in law.where.items() if value)
    lines = [
        f"  {_quoted(key)}:",
        f"    law: {fitted.law.name}",
        *(
            [f"    overlap: {_plain(fitted.law.overlap)}"]
            if fitted.law.overlap != LAWS[fitted.law.name].overlap
            else []
        ),
        f"    where: {{{where}}}",
        f"    flops_per_s: {_plain(fitted.hardware.flops_per_s)}",
        *(
            [f"    cache_bytes: {_plain(fitted.hardware.cache_bytes)}"]
            if fitted.hardware.cache_bytes != cache_bytes
            else []
        ),
        f"    num_points: {fitted.num_points}",
        "    coefficients: |",
        *(
            f"      {name} {value:.4g} {least:.4g} {most:.4g} {share:.2f}"
            for name, value, least, most, share in (
                (n, v, min(lo, v) * (1 - 1e-3), max(hi, v) * (1 + 1e-3), s)
                for n, v, lo, hi, s in rows
            )
        ),
        f"    residual_sd: {_plain(min(fitted.residual_sd, _MOST_SD))}",
        f"    near_sd: {_plain(min(law.near_sd, _MOST_SD))}",
        "    errors: |" if law.errors else "    errors: none",
        *(f"      {name} {one:.4f} {two:.4f}" for name, (one, two) in law.errors.items()),
        "    domain: |",
        *(f"      {axis} {least:.6g} {most:.6g}" for axis, (least, most) in law.domain.items()),
        f"    covariance: '{' '.join(f'{value:.3g}' for value in triangle)}'",
    ]
    if len(cells):
        packed = " ".join(f"{value:.0f}" for value in cells.ravel())
        lines.append(f"    residuals: '{packed}'")
    return lines


def _plain(value: float) -> str:
    """A number as YAML reads it: with a point and a signed exponent."""
    text = f"{value:.5g}"
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def band_90(prediction: Prediction) -> tuple[Floats, Floats]:
    """The ends of the 90 % interval of a prediction. [s]"""
    widened = Z90 / Z80
    return (
        prediction.mid * (prediction.low / prediction.mid) ** widened,
        prediction.mid * (prediction.high / prediction.mid) ** widened,
    )
