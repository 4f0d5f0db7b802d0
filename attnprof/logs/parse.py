"""A start-up log's text -> the engine, its settings and the figures that it printed."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from attnprof.errors import UsageError
from attnprof.logs.lines import clean_lines
from attnprof.logs.patterns import ENGINES, GPU, SIGNATURES, Combine
from attnprof.units import counted

MAX_ALIKE = 1024
_DIGITS = re.compile(r"\d+")
_SIZES = {"B": 1, "KB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class EngineLog:
    """What a log says: settings as printed, figures in bytes or counts."""

    engine: str
    settings: dict[str, str]
    figures: dict[str, float]
    printed: dict[str, str]
    """Each figure as the log has it, for its rounding."""
    num_lines: int
    outcomes: tuple[str, ...] = ()


def parse_log(text: str) -> EngineLog:
    """Read a start-up log.

    Raises:
        UsageError: No line of an engine that is known here.
    """
    lines = list(clean_lines(text))
    engine = _engine_of(lines)
    patterns, setting_patterns = ENGINES[engine]
    found: dict[str, list[tuple[float, str]]] = {}
    combines: dict[str, Combine] = {}
    settings: dict[str, str] = {}
    outcomes: list[str] = []
    for line in _unlike(lines):
        for pattern in patterns:
            if (match := pattern.regex.search(line)) is not None:
                value = _value(match["value"], pattern.scale)
                found.setdefault(pattern.key, []).append((value, match["value"]))
                combines[pattern.key] = pattern.combine
        for regex in setting_patterns:
            if (match := regex.search(line)) is not None:
                for key, text_found in match.groupdict().items():
                    if text_found not in (None, "None"):
                        settings.setdefault(key, text_found.strip())
        if "gpu" not in settings and (match := GPU.search(line)) is not None:
            settings["gpu"] = match["gpu"].strip()
        if any(word in line for word in ("OutOfMemoryError", "out of memory", "larger than the "
                                         "available KV cache", "No available memory for the cache",
                                         "is larger than the maximum number of tokens",
                                         "less than desired GPU memory utilization")):  # fmt: skip
            outcomes.append(line[:300])
    figures = {key: _combined(values, combines[key]) for key, values in found.items()}
    return EngineLog(
        engine=engine,
        settings=settings,
        figures={key: value for key, (value, _) in figures.items()},
        printed={key: printed for key, (_, printed) in figures.items()},
        num_lines=len(lines),
        outcomes=tuple(dict.fromkeys(outcomes)),
    )


def _unlike(lines: list[str]) -> Iterator[str]:
    """The lines, without those that differ from many before by their digits alone.

    A server's log is mostly the same sentence over and over; no engine prints a figure for more
    ranks than this.
    """
    seen: Counter[str] = Counter()
    for line in lines:
        shape = _DIGITS.sub("0", line)
        seen[shape] += 1
        if seen[shape] <= MAX_ALIKE:
            yield line


def _engine_of(lines: list[str]) -> str:
    votes: Counter[str] = Counter()
    for line in lines:
        for engine, signature in SIGNATURES.items():
            if signature.search(line):
                votes[engine] += 1
    if votes["ollama"] and votes["llama-cpp"]:
        votes["ollama"] += votes["llama-cpp"]
    if not votes:
        raise UsageError(
            f"none of {counted(len(lines), 'line')} is from an engine that is known here",
            "give the start-up log of vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama",
        )
    return votes.most_common(1)[0][0]


def _value(text: str, scale: float) -> float:
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * (_SIZES[unit] if unit else scale)


def _combined(values: list[tuple[float, str]], combine: Combine) -> tuple[float, str]:
    if combine == "sum":
        # A figure that is printed again is another device's only when it differs by line.
        return sum(value for value, _ in values), values[0][1]
    if combine == "first":
        return values[0]
    if combine == "last":
        return values[-1]
    return min(values) if combine == "min" else max(values)


def rounding(log: EngineLog, key: str) -> float:
    """Half of the last digit that the log prints of a figure, in the figure's own unit.

    >>> log = EngineLog("vllm", {}, {"kv": 45.34 * 2**30}, {"kv": "45.34"}, 1)
    >>> rounding(log, "kv") / 2**30
    0.005
    """
    text = log.printed.get(key, "0").split(" ")[0].replace(",", "")
    value = float(text)
    unit = log.figures[key] / value if value else 1.0
    digits = len(text.partition(".")[2])
    return 0.5 * float(10**-digits) * abs(unit) if digits else 0.0
