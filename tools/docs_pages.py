"""The code -> the reference pages of the documentation, as MkDocs builds it (a hook of mkdocs.yml).

``python tools/docs_pages.py FOLDER`` writes them, to be read without a build.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import typer.main

import attnprof
from attnprof import api, api_compare, api_grid, drawn
from attnprof.axes import AXES
from attnprof.cli.app import app
from attnprof.cli.examples import EXAMPLES
from attnprof.frames import column_type
from attnprof.render import markdown_escaped, markdown_text
from attnprof.result_keys import RESULT_KEYS
from attnprof.shelf import KINDS, shelf_tables

RESULTS: tuple[type, ...] = (
    api.EstimateResult, api_grid.EstimateGrid, api.SweepResult, api_compare.ComparisonResult,
    api.FitResult, drawn.Drawn,
)  # fmt: skip
"""What the functions of the package give."""

MEANINGS = {
    "workload_id": "the workload, by a name that is the same in all runs and on all machines",
    "device": "the kind of device: cpu, cuda, ...",
    "status": "ok, or why there is no number: unsupported, out_of_memory, timeout, ...",
    "reason": "why there is no number, in words",
    "num_samples": "timed calls that the figures are made from",
    "median_s": "time of a call: the median, on the clock that `clock` names",
    "median_low_s": "lower end of the median's 95 % interval",
    "median_high_s": "its upper end",
    "median_wall_s": "the median of all samples on the wall clock",
    "median_cpu_s": "the median in seconds of all CPU threads together",
    "clock": "wall or cpu: which of the two the figures use",
    "flags": "what to doubt: noisy, contended, throttled, warmup_unsettled, ...",
    "flops": "FLOP that the algorithm needs",
    "bytes_moved": "bytes that the algorithm has to move",
    "achieved_flops_per_s": "`flops` over the time of a call",
    "mfu": "share of the measured matrix product's rate",
    "mbu": "share of the measured copy's rate",
    "weight_bytes": "weights, as allocated",
    "kv_bytes": "KV cache, as allocated",
    "peak_activation_bytes": "most memory of a call beyond weights and cache, measured",
    "peak_rss_bytes": "most memory of the process, on a CPU",
    "theory_kv_bytes": "KV cache by formula",
    "theory_peak_activation_bytes": "peak activation by formula",
    "theory_s": "time of a call by the measured roofs: the larger of compute and memory",
    "model_digest": "digest of the model's configuration, so that a namesake is told apart",
    "rms_error": "error of the output against float64, relative",
    "ttft_s": "prompt to first token, of a generation",
    "median_itl_s": "median gap between two tokens, of a generation",
}
"""The columns of the results that are no axis of a sweep."""

_TYPES = {"int64": "whole number", "double": "number", "bool": "yes or no", "string": "text"}
_UNITS = (("_per_s", "1/s"), ("_s", "s"), ("_bytes", "bytes"), ("bytes_moved", "bytes"),
          ("flops", "FLOP"), ("_len", "tokens"), ("_tokens", "tokens"))  # fmt: skip


def pages() -> dict[str, str]:
    """The Markdown of each page, by its path below ``docs/``."""
    return {
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "reference/names.md": names_page(),
        "reference/results.md": results_page(),
    }


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to those that MkDocs found."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def commands_page() -> str:
    """Every command with its arguments, options and examples."""
    group = typer.main.get_group(app)
    parts = [
        "# Commands\n",
        "Results go to standard output, everything else to standard error. Exit codes: 0 done, or "
        "the answer is yes; 1 the answer is no; 2 the request makes no sense; 3 it cannot be "
        "measured, compared or decided here; 70 a bug, its traceback kept in a file; 130 "
        "interrupted, results kept.\n",
        "`attnprof --install-completion` makes the shell complete commands, options and names.\n",
    ]
    return "\n".join((*parts, *_commands("attnprof", group.commands)))


def _commands(program: str, commands: Any) -> Iterable[str]:
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        if inner:
            yield from _commands(f"{program} {name}", inner)
            continue
        typed_name = f"{program} {name}".removeprefix("attnprof ")
        yield f"## attnprof {typed_name}\n"
        yield f"{_reflowed(inspect.cleandoc(command.help or ''))}\n"
        yield "| Argument or option | What |\n| --- | --- |"
        with command.make_context(name, [], resilient_parsing=True) as context:
            records = [parameter.get_help_record(context) for parameter in command.params]
        for typed, words in filter(None, records):
            yield f"| `{typed.replace('|', ', ')}` | {markdown_escaped(words)} |"
        yield ""
        for what, typed in EXAMPLES.get(typed_name, ()):
            yield f"{what}{'' if what.endswith('?') else ':'}\n\n```sh\n{typed}\n```\n"


def python_page() -> str:
    """The functions of the package, then the results that they give."""
    parts = [
        "# Python\n",
        "`import attnprof` loads nothing else; each function is loaded when it is first asked "
        "for. An expected failure is an `attnprof.errors.AttnprofError`, with `problem` and "
        "`fix`.\n",
    ]
    names = [name for name in attnprof.__all__ if inspect.isfunction(getattr(attnprof, name))]
    for name in names:
        parts.append(f"## attnprof.{name}\n\n{_documented(getattr(attnprof, name), name)}")
    for result in RESULTS:
        parts.append(f"## {result.__name__}\n\n{_docstring(inspect.getdoc(result) or '')}\n")
        parts.append("| Has | What |\n| --- | --- |")
        parts += [f"| `{name}` | {what} |" for name, what in _members(result)]
        parts.append("")
    return "\n".join(parts)


def _documented(function: Callable[..., Any], name: str) -> str:
    signature = inspect.signature(function)
    lines = [f"    {parameter}," for parameter in map(str, signature.parameters.values())]
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        lines.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "    *,")
    gives = str(signature.return_annotation).rpartition(".")[2].strip("'>")
    head = "\n".join((f"{name}(", *lines, f") -> {gives}"))
    head = re.sub(r"\b(pathlib|collections\.abc|attnprof\.\w+)\.", "", head)
    return f"```python\n{head}\n```\n\n{_docstring(inspect.getdoc(function) or '')}\n"


def _docstring(text: str) -> str:
    """A docstring as Markdown: roles are code, sections are lists, examples are blocks."""
    text = re.sub(r":(?:func|meth|class|data):`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    parts: list[str] = []
    for section in re.split(r"\n\n(?=\S)", text):
        head, _, body = section.partition("\n")
        if head in ("Args:", "Raises:", "Source:"):
            title = {"Args:": "Arguments", "Raises:": "Raises"}.get(head, "Source")
            items = re.split(r"\n(?=\S)", textwrap.dedent(body))
            listed = [re.sub(r"^(\w+): ", r"`\1`: ", " ".join(item.split())) for item in items]
            parts.append(f"**{title}**\n\n" + "\n".join(f"- {item}" for item in listed))
        elif section.startswith(">>>"):
            parts.append(f"```pycon\n{section}\n```")
        else:
            parts.append(_reflowed(section))
    return "\n\n".join(parts)


def _reflowed(text: str) -> str:
    """Paragraphs, each in one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _members(result: type) -> Iterable[tuple[str, str]]:
    """Fields with their types, then properties and methods with what they give."""
    if is_dataclass(result):
        for field in fields(result):
            kind = getattr(field.type, "__name__", field.type)
            yield field.name, markdown_escaped(re.sub(r"\b(typing|attnprof\.\w+)\.", "", str(kind)))
    for name, member in inspect.getmembers(result):
        if not name.startswith("_") and (
            isinstance(member, property) or inspect.isfunction(member)
        ):
            words = (inspect.getdoc(member) or "").split("\n\n")[0]
            called = name if isinstance(member, property) else f"{name}()"
            yield called, _docstring(words)


def names_page() -> str:
    """Everything that has a name: what ``attnprof show`` lists."""
    parts = ["# Names\n", "What can be typed by name, as `attnprof show` lists it.\n"]
    for kind in KINDS:
        parts.append(f"## {kind.capitalize()}\n")
        parts += [markdown_text(table) for table in shelf_tables(kind)]
    return "\n".join(parts)


def results_page() -> str:
    """The columns of the results."""
    parts = [
        "# Results\n",
        "A row a workload, as `results.csv`, as `results.parquet` (`attnprof report RUN "
        "--parquet`) and as the frame of `attnprof.read_run`. What is unknown is an empty cell "
        "there, null or NaN here, and never 0. `records.jsonl` has the same keys, and all samples "
        "beside them.\n",
        "| Column | Type | Unit | What |\n| --- | --- | --- | --- |",
    ]
    for key in RESULT_KEYS:
        words = MEANINGS.get(key) or AXES[key].help
        row = (f"`{key}`", _TYPES[column_type(key)], _unit(key), markdown_escaped(words))
        parts.append(f"| {' | '.join(row)} |")
    return "\n".join(parts) + "\n"


def _unit(key: str) -> str:
    return next((unit for ending, unit in _UNITS if key.endswith(ending)), "")


if __name__ == "__main__":
    for page, written in pages().items():
        target = Path(sys.argv[1]) / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(written, encoding="utf-8")
