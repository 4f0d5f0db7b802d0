"""The header of a GGUF file -> the model in it: each tensor's own type, and so its exact bytes.

The ``gguf`` package says which types there are and how large their blocks; the header is walked
here, because that package's reader wants the whole file and reads the vocabulary word by word.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from attnprof.errors import UsageError, to_install
from attnprof.models.families import FAMILIES, Pattern
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, Matrix, Mixer, ModelSpec, Quantization, Role

MAX_TENSORS = 1_000_000
MAX_KEYS = 100_000
MAX_TEXT = 64 * 1024**2
SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
TEXT, ARRAY = 8, 9
FIX = "fetch the file again; this is no whole GGUF file"
FAMILY_OF = {"gemma3": "gemma3_text", "gpt-oss": "gpt_oss", "gemma3n": "gemma3n_text"}
ROLES: tuple[tuple[str, Role], ...] = (
    ("_exps", "experts"),
    ("_shexp", "shared_experts"),
    ("ffn_gate_inp", "router"),
    ("ffn_", "ffn"),
    ("ssm_", "mixer"),
    ("attn_", "attention"),
    ("indexer", "attention"),
)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a header: its extents, fastest first, and the bytes it takes."""

    name: str
    extents: tuple[int, ...]
    num_elements: int
    num_bytes: int


class _Reader:
    """Reads the header's values in order, and never past the end of the file."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size

    def take(self, count: int) -> bytes:
        if count > MAX_TEXT or count > self.size - self.file.tell():
            raise UsageError(
                f"{self.path}: {count} bytes are claimed at {self.file.tell()} of {self.size}", FIX
            )
        return self.file.read(count)

    def number(self, layout: str) -> Any:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return value

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A value; of a long array only its length, as ``range(length)``."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise UsageError(f"{self.path}: a value has the unknown type {kind}", FIX)
        item_kind, length = self.number("<I"), self.number("<Q")
        if item_kind in SCALARS:
            width = struct.calcsize(SCALARS[item_kind])
            if length > 4096:
                self.skip(width * length)
                return range(length)
            return [self.number(SCALARS[item_kind]) for _ in range(length)]
        if item_kind != TEXT or length * 8 > self.size:
            raise UsageError(f"{self.path}: an array claims {length} items", FIX)
        for _ in range(length):
            self.skip(self.number("<Q"))
        return range(length)

    def skip(self, count: int) -> None:
        if count > self.size - self.file.tell():
            raise UsageError(
                f"{self.path}: {count} bytes are claimed at {self.file.tell()} of {self.size}", FIX
            )
        self.file.seek(count, 1)


def read_header(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """The values and the tensors of a header.

    Raises:
        UsageError: The gguf package is missing, the file is cut off or no GGUF file, or its
            header claims what the file cannot hold.
    """
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGUF_MAGIC
    except ImportError:
        raise UsageError("reading a GGUF file takes the gguf package", to_install("gguf")) from None
    sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            reader = _Reader(path, file, size)
            if size < 24 or reader.number("<I") != GGUF_MAGIC:
                raise UsageError(f"{path} is no GGUF file", "give a file that begins with GGUF")
            version = reader.number("<I")
            if version not in (2, 3):
                raise UsageError(f"{path} has GGUF version {version}", "expected 2 or 3")
            num_tensors, num_keys = reader.number("<Q"), reader.number("<Q")
            if num_tensors > min(MAX_TENSORS, size // 24) or num_keys > min(MAX_KEYS, size // 12):
                raise UsageError(
                    f"{path}: its header claims {num_tensors} tensors and {num_keys} values, "
                    f"the file has {size} bytes",
                    FIX,
                )
            values = {}
            for _ in range(num_keys):
                key = reader.text()
                values[key] = reader.value(reader.number("<I"))
            tensors = [_tensor(reader, sizes) for _ in range(num_tensors)]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give another file") from None
    return values, tensors


def _tensor(reader: _Reader, sizes: dict[int, tuple[int, int]]) -> Tensor:
    name = reader.text()
    rank = reader.number("<I")
    if not 1 <= rank <= 8:
        raise UsageError(f"{reader.path}: tensor {name[:80]!r} has {rank} dimensions", FIX)
    extents = tuple(reader.number("<Q") for _ in range(rank))
    kind = reader.number("<I")
    reader.number("<Q")  # where its data begins
    if kind not in sizes:
        raise UsageError(f"{reader.path}: tensor {name[:80]!r} has the unknown type {kind}", FIX)
    elements = 1
    for extent in extents:
        elements *= extent
    block, block_bytes = sizes[kind]
    if elements < 1 or extents[0] % block or elements > 10**15:
        raise UsageError(f"{reader.path}: tensor {name[:80]!r} has extents {extents}", FIX)
    return Tensor(name, extents, elements, elements // block * block_bytes)


def read_gguf(path: Path) -> ModelSpec:
    """The model in a GGUF file; parameters and bytes are those of its tensors, exactly.

    Raises:
        UsageError: As :func:`read_header`, or the values lack what a decoder needs.
    """
    values, tensors = read_header(path)
    architecture = str(values.get("general.architecture", ""))

    def value(key: str, default: Any = None) -> Any:
        return values.get(f"{architecture}.{key}", default)

    def count(key: str, default: int | None = None) -> int:
        found = value(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < 10**9:
            raise UsageError(f"{path}: {architecture}.{key} is {found!r}", FIX)
        return found

    hidden_size, num_layers = count("embedding_length"), count("block_count")
    if num_layers > 10_000:
        raise UsageError(f"{path}: {architecture}.block_count is {num_layers}", FIX)
    blocks: list[list[Tensor]] = [[] for _ in range(num_layers)]
    outer = Parts()
    for tensor in tensors:
        head, _, rest = tensor.name.partition(".")
        block_index, _, leaf = rest.partition(".")
        if head == "blk" and block_index.isdigit() and int(block_index) < num_layers:
            blocks[int(block_index)].append(Tensor(leaf, *_rest(tensor)))
        else:
            _add(outer, tensor, _outer_role(tensor.name), 1)
    experts = value("expert_used_count", 1)
    layers = []
    for index, block in enumerate(blocks):
        parts = Parts()
        for tensor in block:
            _add(parts, tensor, _role(tensor.name), experts if isinstance(experts, int) else 1)
        names = {tensor.name.split(".")[0] for tensor in block}
        parts.attention = _attention(value, count, index, names, architecture)
        parts.mixer = _mixer(value, block)
        layers.append(parts.layer())
    vocab_size = next((m.out_features for m in outer.matrices if m.role == "embedding"), 0)
    has_head = any(matrix.role == "head" for matrix in outer.matrices)
    return ModelSpec(
        name=str(values.get("general.name") or path.stem),
        model_type=architecture,
        architecture=f"gguf {architecture}",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        layers=tuple(layers),
        outer=tuple(outer.matrices),
        outer_vector_params=outer.vectors,
        tied_embeddings=not has_head,
        max_position_embeddings=value("context_length"),
        rotary_dim=value("rope.dimension_count", 0),
        quantization=_mean_quantization(tensors),
        stored_weight_bytes=sum(tensor.num_bytes for tensor in tensors),
        source=str(path),
    )


def _mean_quantization(tensors: list[Tensor]) -> Quantization | None:
    """The mean width of the matrices, None where they are plain; the sum of all is exact anyway."""
    matrices = [tensor for tensor in tensors if len(tensor.extents) > 1]
    elements = sum(tensor.num_elements for tensor in matrices)
    bits = 8 * sum(tensor.num_bytes for tensor in matrices) / max(1, elements)
    return Quantization("gguf", bits, skipped_roles=frozenset()) if 0 < bits < 15 else None


def _rest(tensor: Tensor) -> tuple[tuple[int, ...], int, int]:
    return tensor.extents, tensor.num_elements, tensor.num_bytes


def _role(name: str) -> Role:
    return next((role for mark, role in ROLES if mark in name), "other")


def _outer_role(name: str) -> Role:
    if name.startswith(("token_embd.", "per_layer_token_embd", "position_embd")):
        return "embedding"
    return "head" if name == "output.weight" else "other"


def _add(parts: Parts, tensor: Tensor, role: Role, active: int) -> None:
    """A tensor as a matrix, a stack of experts' matrices, or a vector."""
    extents = tensor.extents
    if len(extents) == 1 or not tensor.name.endswith(".weight") or "conv" in tensor.name:
        parts.vector(tensor.num_elements)
        return
    stack = extents[2] if len(extents) > 2 else 1
    kv = tensor.name.startswith(("attn_k.", "attn_v."))
    parts.matrices.append(
        Matrix(
            tensor.name.removesuffix(".weight"),
            role,
            extents[1],
            extents[0],
            stack,
            min(active, stack),
            "kv_heads" if kv else "split",
        )
    )


def _attention(
    value: Any, count: Any, index: int, names: set[str], architecture: str
) -> Attention | None:
    """What layer ``index`` attends with, None for one that has no keys."""

    def per_layer(key: str, default: Any) -> Any:
        found = value(key, default)
        if isinstance(found, list):
            return found[index] if index < len(found) else default
        return found

    if not names & {"attn_k", "attn_qkv", "attn_kv_a_mqa"}:
        return None
    num_heads = per_layer("attention.head_count", 0) or count("attention.head_count")
    num_kv_heads = per_layer("attention.head_count_kv", num_heads) or num_heads
    head_dim = count("attention.key_length", count("embedding_length") // num_heads)
    v_head_dim = count("attention.value_length", head_dim)
    latent = value("attention.kv_lora_rank", 0)
    if "attn_kv_a_mqa" in names and latent:
        rope = count("rope.dimension_count", 64)
        head_dim = count("attention.key_length_mla", head_dim)
        v_head_dim = count("attention.value_length_mla", v_head_dim)
        return Attention(
            "mla", num_heads, num_heads, head_dim, v_head_dim,
            kv_lora_rank=latent, rope_head_dim=rope,
        )  # fmt: skip
    window_len = value("attention.sliding_window")
    if isinstance(window_len, int) and window_len > 0 and _slides(value, index, architecture):
        head_dim = count("attention.key_length_swa", head_dim)
        v_head_dim = count("attention.value_length_swa", v_head_dim)
        return Attention("sliding", num_heads, num_kv_heads, head_dim, v_head_dim, window_len)
    return Attention("full", num_heads, num_kv_heads, head_dim, v_head_dim)


def _slides(value: Any, index: int, architecture: str) -> bool:
    """Whether layer ``index`` has the window: as the file says, else as its family does."""
    stated = value("attention.sliding_window_pattern")
    if isinstance(stated, list):
        return bool(stated[index]) if index < len(stated) else False
    family = FAMILIES.get(FAMILY_OF.get(architecture, architecture))
    pattern = family.pattern if family is not None else None
    if isinstance(stated, int) and stated > 0:
        pattern = Pattern(stated)
    if pattern is None:
        return True
    return index % pattern.period != pattern.full_at % pattern.period


def _mixer(value: Any, block: list[Tensor]) -> Mixer | None:
    """The recurrent part of a layer, from the file's values of its state."""
    convolution = next((t for t in block if t.name.startswith("ssm_conv1d.weight")), None)
    if convolution is None:
        return None
    kernel, channels = convolution.extents[0], convolution.extents[-1]
    inner, state = value("ssm.inner_size", 0), value("ssm.state_size", 0)
    num_heads = value("ssm.time_step_rank", 0)
    if any(t.name.startswith("ssm_x.") for t in block):
        return Mixer("mamba", inner, 1, state, channels, kernel - 1)
    heads = max(1, num_heads)
    if any("beta" in t.name or "ba" in t.name for t in block):
        return Mixer("gated_delta_net", heads, inner // heads, state, channels, kernel - 1)
    return Mixer("mamba2", heads, inner // heads, state, channels, kernel - 1)
