"""The results of a run -> columns with their types: a Parquet file, a pandas frame."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.errors import CannotMeasureError, UsageError, to_install
from attnprof.files import replacing
from attnprof.records import read_header
from attnprof.render import Table, csv_value
from attnprof.report import run_tables
from attnprof.run_header import command_of, device_name

if TYPE_CHECKING:
    import pandas as pd

PARQUET_FILE = "results.parquet"

# What a name says of its values: how many of something, as a whole number; yes or no; else a
# quantity, which ends with its unit, or a text.
_COUNTS = ("_len", "_bytes", "_tokens", "_dim", "_rank", "_heads", "_layers", "_out", "_in")
_WHOLE = ("batch_size", "tensor_parallel", "hidden_size")
_LISTS = ("samples_s",)
_YES_OR_NO = ("checkpointing", "sink_logits")
_QUANTITIES = ("_s", "flops", "mfu", "mbu", "bytes_moved", "_error", "softcap")
_HALVES = re.compile(r"[\ud800-\udfff]")  # of surrogate pairs, which Arrow takes for no text
_PANDAS_TYPES = {"int64": "Int64", "double": "float64", "bool": "boolean", "string": "string"}


def column_type(key: str) -> str:
    """The type of a column of the results, by Arrow's name.

    >>> [column_type(key) for key in ("kv_len", "median_s", "sink_logits", "backend")]
    ['int64', 'double', 'bool', 'string']
    """
    if key in _YES_OR_NO:
        return "bool"
    if key.startswith("num_") or key in _WHOLE or key.endswith(_COUNTS):
        return "int64"
    return "double" if key.endswith(_QUANTITIES) and key not in _LISTS else "string"


def pandas() -> Any:
    """The library.

    Raises:
        CannotMeasureError: It is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise CannotMeasureError(
            "pandas is not installed, and a frame is its", to_install("pandas")
        ) from None
    return pd


def read_frame(run_dir: Path) -> "pd.DataFrame":
    """A row a workload, as in ``results.csv``; what the run was is in the frame's ``attrs``.

    An unknown number is NaN, an unknown count, text, yes or no is ``pandas.NA``.

    Raises:
        UsageError: No run there.
        CannotMeasureError: pandas is not installed.
    """
    pd = pandas()
    (table,) = run_tables(run_dir, tidy=True)
    frame = pd.DataFrame(
        {
            key: pd.Series(values, dtype=_PANDAS_TYPES[column_type(key)])
            for key, values in _columns(table).items()
        }
    )
    frame.attrs.update(_about(run_dir))
    return frame


def write_parquet(run_dir: Path) -> Path:
    """``results.parquet`` beside ``results.csv``: the same rows and columns, each with its type.

    Raises:
        UsageError: No run there, or its folder cannot be written to.
        CannotMeasureError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise CannotMeasureError(
            "pyarrow is not installed, and writes Parquet", to_install("parquet")
        ) from None
    (table,) = run_tables(run_dir, tidy=True)
    columns = _columns(table)
    arrays = [
        pa.array(values, type=pa.type_for_alias(column_type(key)))
        for key, values in columns.items()
    ]
    about = {"attnprof": json.dumps(_about(run_dir))}
    path = run_dir / PARQUET_FILE
    try:
        with replacing(path) as to:
            pq.write_table(pa.table(arrays, names=list(columns), metadata=about), to)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", "make room, or copy the run to your folder"
        ) from None
    return path


def _columns(table: Table) -> dict[str, list[Any]]:
    """The values of each column, each as its type has it; what is unknown is None."""
    return {
        column.key: [_AS[column_type(column.key)](row.get(column.key)) for row in table.rows]
        for column in table.columns
    }


def _text(value: Any) -> str | None:
    """As it is; of flags in one text, and of a list or mapping its words, as in
    ``results.csv``."""
    if value is None:
        return None
    return _HALVES.sub("\ufffd", value) if isinstance(value, str) else csv_value(value)


def _unless_unknown(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else make(value)


_AS: Mapping[str, Callable[[Any], Any]] = {
    "int64": _unless_unknown(int),
    "double": _unless_unknown(float),
    "bool": _unless_unknown(bool),
    "string": _text,
}


def _about(run_dir: Path) -> dict[str, str | None]:
    """What the run was: the command that made it, on what, and when."""
    header = read_header(run_dir)
    return {
        "run": str(run_dir),
        "command": command_of(header),
        "device": device_name(header),
        "started": header.get("started"),
    }
