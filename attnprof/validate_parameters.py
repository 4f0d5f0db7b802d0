"""A file of configurations with known parameter counts -> each count beside what we make of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.json_lines import read_json_lines
from attnprof.models.build import build_model
from attnprof.models.meta_count import count_params

FORMAT = 1
CLASS_OF_HEAD = {
    "causal": "ForCausalLM",
    "masked": "ForMaskedLM",
    "seq2seq": "ForConditionalGeneration",
    "speech": "ForConditionalGeneration",
    "image_text": "ForConditionalGeneration",
    "base": "Model",
}


@dataclass(frozen=True)
class ParameterRow:
    """One configuration: what was counted here, and what is reported."""

    id: str
    predicted: int | None
    reported: int
    note: str

    @property
    def relative_error(self) -> float | None:
        if self.predicted is None:
            return None
        return (self.predicted - self.reported) / self.reported

    @property
    def is_outside(self) -> bool:
        return self.predicted != self.reported

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "term": "num_params",
            "predicted": self.predicted,
            "reported": self.reported,
            "relative_error": self.relative_error,
            "outside": self.is_outside,
            "note": self.note,
        }


def validate_parameters(path: Path) -> list[ParameterRow]:
    """Count every configuration of a JSON Lines file.

    Each line holds ``model_type``, ``num_params``, ``config`` and, where the configuration names
    no class, ``head``: causal, masked, seq2seq or speech.

    Raises:
        UsageError: The file is unreadable, or a line of it is no such configuration.
    """
    rows = []
    for number, line in read_json_lines(path, "configuration"):
        where = f"{path}, line {number}"
        config, reported = line.get("config"), line.get("num_params")
        if not isinstance(config, dict) or not isinstance(reported, int) or reported < 1:
            raise UsageError(
                f"{where} lacks a config or num_params",
                "give lines of model_type, num_params, config",
            )
        values = dict(config)
        values.setdefault("model_type", line.get("model_type"))
        head = str(line.get("head") or "")
        if not values.get("architectures") and head in CLASS_OF_HEAD:
            values["architectures"] = [CLASS_OF_HEAD[head]]
        name = str(line.get("id") or f"{values['model_type']} {head}".strip())
        rows.append(_row(name, values, reported, where))
    if not rows:
        raise UsageError(f"{path} holds no configuration", "give a JSON Lines file of them")
    return rows


def _row(name: str, values: dict[str, Any], reported: int, where: str) -> ParameterRow:
    try:
        spec = build_model(values, where, name, ask_library=True)
    except UsageError as error:
        return ParameterRow(name, count_params(values), reported, error.problem)
    note = "" if spec.exact and spec.library_params is None else "; ".join(spec.notes)
    return ParameterRow(name, spec.num_params, reported, note)


def to_json(rows: list[ParameterRow]) -> dict[str, Any]:
    """The document of ``validate parameters --format json``, format 1."""
    return {
        "format": FORMAT,
        "rows": [row.to_json() for row in rows],
        "num_exact": sum(not row.is_outside for row in rows),
        "num_rows": len(rows),
    }
