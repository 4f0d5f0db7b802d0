"""The headers of safetensors files -> the exact bytes of a model's weights."""

import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.models.config import read_json
from attnprof.models.spec import ModelSpec

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
SHARD = re.compile(r"-\d{5}-of-(\d{5})\.safetensors$")
MAX_SHARDS = 1000
LEAST_BITS, MOST_BITS = 1, 80
"""Bits of files a parameter: fewer is a part of a model, more another one."""
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
}  # fmt: skip


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors that the header of one file lists, each checked.

    Raises:
        UsageError: The file is cut off, no safetensors file, or its header contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length_bytes = file.read(8)
            if len(length_bytes) < 8:
                raise UsageError(f"{path} ends after {size} bytes", "fetch the file again")
            (length,) = struct.unpack("<Q", length_bytes)
            if length > MAX_HEADER_BYTES or length + 8 > size:
                raise UsageError(
                    f"{path}: its header claims {length} bytes, the file has {size}",
                    "fetch the file again; this is no whole safetensors file",
                )
            header = json.loads(file.read(length))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give another file") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: its header is not JSON", "fetch the file again") from None
    if not isinstance(header, dict):
        raise UsageError(f"{path}: its header is no mapping", "fetch the file again")
    tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
    for name, tensor in tensors.items():
        _check(path, name, tensor, size - 8 - length)
    return tensors


def _check(path: Path, name: str, tensor: Any, data_bytes: int) -> None:
    """One tensor: its shape, dtype and place in the file must agree."""
    where = f"{path}: tensor {name[:80]!r}"
    if not isinstance(tensor, dict):
        raise UsageError(f"{where} is no mapping", "fetch the file again")
    dtype, shape, offsets = tensor.get("dtype"), tensor.get("shape"), tensor.get("data_offsets")
    if dtype not in BITS:
        raise UsageError(f"{where} has dtype {dtype!r}", f"expected one of {', '.join(BITS)}")
    if not isinstance(shape, list) or not all(
        isinstance(extent, int) and extent >= 0 for extent in shape
    ):
        raise UsageError(f"{where} has shape {str(shape)[:60]}", "fetch the file again")
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise UsageError(f"{where} has data_offsets {str(offsets)[:60]}", "fetch the file again")
    start, end = offsets
    elements = 1
    for extent in shape:
        elements *= extent
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= data_bytes):
        raise UsageError(
            f"{where} lies at {start}..{end} of {data_bytes} bytes", "fetch the file again"
        )
    if elements * BITS[dtype] != (end - start) * 8:
        raise UsageError(
            f"{where}: shape {shape} of {dtype} is not {end - start} bytes", "fetch the file again"
        )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: those its index names, else all in the folder."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return _all_shards(sorted(folder.glob("*.safetensors")))
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and name == Path(name).name for name in weight_map.values()
    ):
        raise UsageError(f"{index}: weight_map names no files", "fetch the file again")
    return [folder / name for name in sorted(set(weight_map.values()))]


def _all_shards(files: list[Path]) -> list[Path]:
    """The files, with those whose numbers are missing: ``-00001-of-00003`` has three."""
    found = set(files)
    for file in files:
        if (shard := SHARD.search(file.name)) is not None:
            stem, count = file.name[: shard.start()], min(int(shard[1]), MAX_SHARDS)
            found |= {
                file.with_name(f"{stem}-{number:05d}-of-{shard[1]}.safetensors")
                for number in range(1, count + 1)
            }
    return sorted(found)


def with_stored_bytes(spec: ModelSpec, path: Path) -> ModelSpec:
    """The model with the exact bytes of its weights, from the file or the folder's files.

    Where shards are missing, the index's own total is used, and said so.
    """
    if path.is_file() and SHARD.search(path.name):
        path = path.parent  # one of several files is no model
    files = [path] if path.is_file() else weight_files(path)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        index = path / "model.safetensors.index.json"
        total = read_json(index).get("metadata") if index.is_file() else None
        stored = total.get("total_size") if isinstance(total, dict) else None
        if not isinstance(stored, int) or stored < 1:
            raise UsageError(f"{path} lacks {missing[0]}", "fetch all of the model's files")
        note = "weight bytes are the index's total: not all shards are here"
        _check_total(path, stored, spec)
        return replace(spec, stored_weight_bytes=stored, notes=(*spec.notes, note))
    stored = 0
    for file in files:
        tensors = read_header(file)
        stored += sum(t["data_offsets"][1] - t["data_offsets"][0] for t in tensors.values())
    _check_total(path, stored, spec)
    return replace(spec, stored_weight_bytes=stored)


def _check_total(path: Path, stored: int, spec: ModelSpec) -> None:
    """Raise :class:`UsageError` where the files cannot be those of the configuration's model."""
    bits = 8 * stored / max(1, spec.num_params)
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise UsageError(
            f"{path}: its tensors hold {stored} bytes, its config.json makes "
            f"{spec.num_params} parameters",
            "fetch all of the model's files, and the config.json that belongs to them",
        )
