"""A file of serving cases -> each logged figure beside its prediction, and how well they agree."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.json_lines import read_json_lines
from attnprof.serving_cases.case import case_of
from attnprof.serving_cases.terms import Term, rule_terms, terms_of

FORMAT = 1
GROUPS = {
    "weights": ("weights_gib", "weights_mib"),
    "KV relation": (
        "kv_bytes_per_token", "kv_tokens_given_memory", "kv_blocks_given_memory", "concurrency",
        "cpu_blocks", "kv_gib_given_tokens", "kv_bytes_given_tokens", "kv_mib", "kv_gib",
        "state_mib", "state_gib", "block_tokens", "padding_layers", "needed_gib",
        "estimated_max_len", "kv_self_mb", "kv_cross_mb", "kv_gib_sliding_given_tokens",
        "kv_gib_full_given_tokens",
    ),
    "activation": ("activation_gib",),
    "runtime": ("runtime_gib",),
    "graphs": ("graphs_gib",),
    "budget": ("kv_gib_from_parts",),
    "from settings": ("kv_tokens_from_settings", "kv_gib_from_settings"),
    "verdict": ("fits", "starts"),
    "compute buffer": ("graph_mib", "model_gib_from_buffers"),
}  # fmt: skip
LIMITS = {"KV relation": 0.005, "weights": 0.05, "from settings": 0.15, "verdict": 0.0}
"""Beyond these a figure is outside and wants a note."""
_REQUIRED = ("id", "engine", "engine_family", "engine_version", "model", "settings", "reported")


@dataclass(frozen=True)
class ValidationRow:
    """One figure of one case."""

    id: str
    engine_family: str
    architecture_kind: str
    term: str
    group: str
    predicted: float | None
    reported: float
    relative_error: float | None
    note: str

    @property
    def is_outside(self) -> bool:
        limit = LIMITS.get(self.group)
        if limit is None:
            return False
        return self.relative_error is None or abs(self.relative_error) > limit

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "engine_family": self.engine_family,
            "architecture_kind": self.architecture_kind,
            "term": self.term,
            "group": self.group,
            "predicted": self.predicted,
            "reported": self.reported,
            "relative_error": self.relative_error,
            "outside": self.is_outside,
            "note": self.note,
        }


@dataclass(frozen=True)
class Stratum:
    """How well one group of terms agrees over one engine family and architecture kind."""

    engine_family: str
    architecture_kind: str
    group: str
    num_rows: int
    median_error: float
    worst_error: float
    worst_id: str

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Validation:
    """All rows of a file, and the lines of which nothing could be predicted."""

    rows: tuple[ValidationRow, ...]
    skipped: tuple[tuple[str, str], ...]

    def summary(self, *, whole: bool = False, noted: bool = True) -> list[Stratum]:
        """Median and worst error by engine family, kind and group; ``whole`` by group alone.

        Without ``noted``, of the figures alone that nothing is said against: those that the line
        and the rules describe completely.
        """
        strata: dict[tuple[str, str, str], list[ValidationRow]] = {}
        for row in self.rows:
            if row.relative_error is None or (row.note and not noted):
                continue
            family, kind = ("all", "all") if whole else (row.engine_family, row.architecture_kind)
            strata.setdefault((family, kind, row.group), []).append(row)
        return [_stratum(key, rows) for key, rows in sorted(strata.items())]

    def to_json(self) -> dict[str, Any]:
        """The document of ``validate serving-cases --format json``, format 1."""
        return {
            "format": FORMAT,
            "rows": [row.to_json() for row in self.rows],
            "skipped": [{"id": case, "why": why} for case, why in self.skipped],
            "summary": [stratum.to_json() for stratum in self.summary()],
            "overall": [stratum.to_json() for stratum in self.summary(whole=True)],
            "overall_described": [
                stratum.to_json() for stratum in self.summary(whole=True, noted=False)
            ],
        }


def _stratum(key: tuple[str, str, str], rows: list[ValidationRow]) -> Stratum:
    errors = [abs(row.relative_error) for row in rows if row.relative_error is not None]
    worst = max(rows, key=lambda row: abs(row.relative_error or 0.0))
    return Stratum(
        *key, num_rows=len(rows), median_error=statistics.median(errors),
        worst_error=max(errors), worst_id=worst.id,
    )  # fmt: skip


def group_of(term: str) -> str:
    """The group that a term's errors are summed up with."""
    plain = term.split(" ")[0]
    for group, terms in GROUPS.items():
        if plain in terms:
            return group
    return "compute buffer" if plain == "compute_mib" else "other"


def validate_serving_cases(path: Path) -> Validation:
    """Predict every figure of every line of a file of serving cases.

    Raises:
        UsageError: The file is unreadable, or a line lacks what makes it a serving case. A line
            whose values make no sense is skipped, and says why.
    """
    rows: list[ValidationRow] = []
    skipped: list[tuple[str, str]] = []
    for number, line in read_cases(path):
        if not line.get("usable", True):
            skipped.append((str(line["id"]), str(line.get("why") or "kept as unusable")))
            continue
        try:
            case = case_of(line)
            terms = list(rule_terms(line))
            terms += terms_of(case) if case is not None else []
        except UsageError as error:
            skipped.append((str(line["id"]), error.problem))
            continue
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            why = f"line {number} makes no sense: {type(error).__name__}: {error}"
            skipped.append((str(line["id"]), why))
            continue
        if case is None and not terms:
            skipped.append((str(line["id"]), "the configuration is not given"))
        elif not terms:
            skipped.append((str(line["id"]), _why_nothing(line)))
        rows += [_row(line, term) for term in terms]
    if not rows and not skipped:
        raise UsageError(f"{path} holds no serving case", "give a JSON Lines file of them")
    return Validation(tuple(rows), tuple(skipped))


def _why_nothing(line: dict[str, Any]) -> str:
    figures = ", ".join(sorted(line["reported"])) or "nothing"
    return f"no figure with a relation of its own is logged ({figures})"


def _row(line: dict[str, Any], term: Term) -> ValidationRow:
    error = term.relative_error
    if group_of(term.term) == "verdict" and term.predicted is not None:
        error = float(term.predicted != term.reported)  # right or wrong: a share of nothing is none
    return ValidationRow(
        id=str(line["id"]),
        engine_family=str(line["engine_family"]),
        architecture_kind=str(line.get("architecture_kind") or "unspecified"),
        term=term.term,
        group=group_of(term.term),
        predicted=term.predicted,
        reported=term.reported,
        relative_error=error,
        note=term.note,
    )


def read_cases(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """The lines of a file of serving cases with their numbers, each checked.

    Raises:
        UsageError: As :func:`validate_serving_cases`.
    """
    for number, line in read_json_lines(path, "serving case"):
        for key in _REQUIRED:
            if key not in line:
                raise UsageError(f"{path}, line {number}: {key} is missing", f"add {key!r}")
        for key in ("settings", "reported"):
            if not isinstance(line[key], dict):
                raise UsageError(f"{path}, line {number}: {key} is {line[key]!r}", "a mapping")
        for key, default in (("tags", []), ("checks", {}), ("check_strength", ""), ("gpu", ""),
                             ("gpu_count", 1)):  # fmt: skip
            line.setdefault(key, default)
        yield number, line
