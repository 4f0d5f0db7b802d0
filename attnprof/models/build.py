"""The values of a configuration -> a model, through the builder of its family."""

from dataclasses import replace
from typing import Any

from attnprof.errors import UsageError
from attnprof.models.config import Config, library_defaults
from attnprof.models.decoders import build_decoder
from attnprof.models.encoders import ENCODERS, build_encoder
from attnprof.models.families import FAMILIES, LLAMA, SAME_SHAPE, Moe
from attnprof.models.meta_count import count_params
from attnprof.models.odd_decoders import ODD_DECODERS
from attnprof.models.odd_encoders import ODD_ENCODERS
from attnprof.models.quantization import read_quantization
from attnprof.models.seq2seq import SEQ2SEQ, build_seq2seq
from attnprof.models.spec import Layer, Matrix, ModelSpec
from attnprof.models.towers import TEXT_SECTIONS, tower_params

UNCOUNTED_FLAGS = ("add_cross_attention", "is_moe")
DTYPES = {
    "float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "float": "float32",
    "half": "float16",
}  # fmt: skip
NARROW_DTYPES = ("float8", "float4", "int", "uint", "auto")


def build_model(
    values: dict[str, Any], where: str, name: str = "", *, ask_library: bool = False,
    is_whole: bool = False,
) -> ModelSpec:  # fmt: skip
    """The model that the values of a ``config.json`` describe.

    Args:
        where: What to call the values in an error: the file's path.
        name: What to call the model; the last part of ``where`` when it is empty.
        ask_library: Where the family is not known here, let the Transformers library count its
            parameters, in a process of its own, when it is installed.
        is_whole: The values are all of a file, which states its sizes itself: one that is left
            out is an error, and not the default of the model's class. Nested configurations leave
            out what is so by default.

    Raises:
        UsageError: A key is missing, wrong, absurd, or contradicts another one.
    """
    model_type = values.get("model_type", "")
    architectures = values.get("architectures") or []
    if not isinstance(model_type, str):
        raise UsageError(f"{where}: model_type is {model_type!r}", "expected text")
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise UsageError(f"{where}: architectures is {architectures!r}", "expected names")
    if not model_type.isprintable():
        raise UsageError(f"{where}: model_type is {model_type[:80]!r}", "expected a plain name")
    model_type = model_type or _type_of(architectures)
    architecture = architectures[0] if architectures else _default_class(model_type)
    config = Config(values, where, model_type, SAME_SHAPE.get(model_type))
    section = _text_section(config)
    if section is not None and config.says("tie_word_embeddings"):
        section.values["tie_word_embeddings"] = config.flag("tie_word_embeddings")
    spec = _language_model(section or config, architecture)
    if section is not None or model_type == "fuyu":
        spec = _with_towers(spec, config, architecture)
    dtype = values.get("torch_dtype") or values.get("dtype") or section_dtype(section)
    notes = list(spec.notes)
    left_out = (section or config).left_out
    if is_whole and left_out:
        if section is None:
            first = next(iter(left_out))
            raise UsageError(f"{where}: {first} is missing", f"add {first} to it")
        listed = ", ".join(f"{key} {value}" for key, value in left_out.items())
        notes.append(f"left out of the file, so as the model's class has it: {listed}")
    if dtype is None:
        notes.append("the configuration names no dtype: 16-bit weights are assumed")
    library_params = None
    if not spec.exact and ask_library:
        library_params = count_params(values)
        if library_params is not None:
            notes.append("parameters counted by the Transformers library on meta tensors")
    quantized = values.get("quantization_config")
    if quantized is None and section is not None:
        quantized = section.get("quantization_config")
    return replace(
        spec,
        name=name or where.rsplit("/", 1)[-1],
        draft_layers=_draft_layers(section or config, spec),
        dtype=_dtype(dtype, config),
        quantization=read_quantization(quantized, where, spec.num_layers),
        exact=spec.exact or library_params is not None,
        library_params=library_params,
        source=where,
        notes=tuple(notes),
    )


def _dtype(stated: Any, config: Config) -> str:
    """The dtype of what is not quantised; 16 bits where a narrower one, or none, is stated."""
    if stated is None:
        return "float16"
    plain = str(stated).removeprefix("torch.")
    if plain not in DTYPES and not plain.startswith(NARROW_DTYPES):
        raise config.wrong("torch_dtype", stated, f"one of {', '.join(DTYPES)}")
    return DTYPES.get(plain, "bfloat16")


def section_dtype(section: Config | None) -> Any:
    """The dtype that a nested configuration names, None where it names none."""
    return section and (section.get("torch_dtype") or section.get("dtype"))


def _type_of(architectures: list[str]) -> str:
    """The model type that the name of a class begins with: LlamaForCausalLM is of ``llama``."""
    if not architectures:
        return ""
    stem = architectures[0].split("For")[0].removesuffix("Model").removesuffix("LMHead").lower()
    known = {key.replace("-", "").replace("_", ""): key for key in library_defaults()}
    return known.get(stem, known.get(stem + "text", ""))


def _default_class(model_type: str) -> str:
    """The class to assume where none is named: the one that generates or fills in text."""
    if model_type in ENCODERS:
        return "ForMaskedLM"
    return "ForConditionalGeneration" if model_type in SEQ2SEQ else "ForCausalLM"


def _text_section(config: Config) -> Config | None:
    """The language model's own configuration, where it is nested in a larger one."""
    for key in TEXT_SECTIONS:
        if config.values.get(key) is not None:
            section = config.section(key)
            return _text_section(section) or section
    if config.nested_types.get("text_config") and config.get("hidden_size") is None:
        return config.section("text_config")
    return None


def _language_model(config: Config, architecture: str) -> ModelSpec:
    like = SAME_SHAPE.get(config.model_type, config.model_type)
    if like in ENCODERS:
        return build_encoder(config, ENCODERS[like], architecture)
    if like in SEQ2SEQ:
        spec = build_seq2seq(config, SEQ2SEQ[like], architecture)
        if like.startswith("seamless") and not architecture.endswith("TextToText"):
            note = f"of {architecture} only the text's encoder and decoder are counted"
            return replace(spec, exact=False, notes=(note,))
        return spec
    odd = ODD_DECODERS.get(like) or ODD_ENCODERS.get(like)
    if odd is not None:
        return odd(config, architecture)
    if like in FAMILIES:
        spec = build_decoder(config, FAMILIES[like], architecture)
        for key in UNCOUNTED_FLAGS:
            if config.flag(key):
                note = f"what {key} adds is not counted"
                spec = replace(spec, exact=False, notes=(*spec.notes, note))
        return spec
    return _unknown_model(config, architecture)


def _with_towers(spec: ModelSpec, config: Config, architecture: str) -> ModelSpec:
    """The language model with the towers that see or hear for it."""
    params = tower_params(config, architecture, spec.hidden_size)
    spec = replace(spec, model_type=config.model_type, architecture=architecture)
    if params is None:
        note = f"the towers of {config.model_type} are not counted: this is its language model"
        return replace(spec, exact=False, notes=(*spec.notes, note))
    return replace(spec, vision_params=params)


def _unknown_model(config: Config, architecture: str) -> ModelSpec:
    """A family that is not known here, counted as if it were Llama's or Mixtral's shape."""
    family = LLAMA
    if config.get("num_experts"):
        shared = "*n_shared_experts" if config.get("n_shared_experts") else ""
        if config.get("shared_expert_intermediate_size"):
            shared = "shared_expert_intermediate_size"
        family = replace(family, moe=Moe(shared=shared))
    family = replace(family, mla=bool(config.get("kv_lora_rank")))
    kind = config.model_type or "without a model_type"
    try:
        spec = build_decoder(config, family, architecture)
    except UsageError as error:
        raise UsageError(
            f"{error.problem}; its model type {kind} is not known here, and it has not the "
            "shape common to decoders",
            error.fix,
        ) from None
    note = f"model type {kind} is not known here: counted by the shape common to decoders"
    return replace(spec, exact=False, notes=(*spec.notes, note))


def _draft_layers(config: Config, spec: ModelSpec) -> tuple[Layer, ...]:
    """The multi-token-prediction layers: one of the model's own, and what joins two streams."""
    count = config.count("num_nextn_predict_layers", 0, least=0, most=100)
    count = config.count("mtp_num_hidden_layers", count, least=0, most=100)
    attending = [layer for layer in spec.layers if layer.attention is not None]
    if not count or not attending:
        return ()
    last, hidden = attending[-1], spec.hidden_size
    join = Matrix("join", "other", hidden, 2 * hidden)
    layer = replace(
        last, matrices=(*last.matrices, join), vector_params=last.vector_params + 3 * hidden
    )
    return (layer,) * count
