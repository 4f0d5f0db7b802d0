"""What a user calls a model -> its architecture, ready to be built with random weights."""

from typing import Any

from attnprof.errors import UsageError
from attnprof.models.architecture import Architecture
from attnprof.models.architecture_decoders import DECODERS, decoder
from attnprof.models.architecture_encoders import ENCODERS, encoder
from attnprof.models.architecture_seq2seq import SEQ2SEQ, seq2seq
from attnprof.models.config import Config
from attnprof.models.families import SAME_SHAPE
from attnprof.models.load import read_config
from attnprof.models.towers import TEXT_SECTIONS

BUILT_AS = {"kimi_k2": "deepseek_v3", "yi": "llama", "internlm3": "llama", "gemma3": "gemma3_text"}
"""Model types that compute what another one does."""


def architecture_of(model: str) -> Architecture:
    """The architecture of a profile, a ``config.json``, the folder of one, or a hub id.

    Raises:
        UsageError: There is no such model, its file makes no sense, or it cannot be built: the
            error names what can.
    """
    values, where = read_config(model)
    return build_architecture(values, where)


def build_architecture(values: dict[str, Any], where: str) -> Architecture:
    """The architecture that the values of a ``config.json`` describe.

    Args:
        where: What to call the values in an error: the file's path.

    Raises:
        UsageError: As :func:`architecture_of`.
    """
    model_type = values.get("model_type", "")
    kind = BUILT_AS.get(str(model_type), str(model_type))
    config = Config(values, where, str(model_type), SAME_SHAPE.get(str(model_type)))
    section = next((key for key in TEXT_SECTIONS if values.get(key) is not None), None)
    if section is not None:
        config = config.section(section)
        kind = BUILT_AS.get(config.model_type, config.model_type)
    if kind in DECODERS:
        return decoder(config, kind)
    if kind in ENCODERS:
        return encoder(config, kind)
    if kind in SEQ2SEQ:
        return seq2seq(config, kind)
    raise UsageError(
        f"{where}: a model of type {str(model_type)[:80]!r} cannot be built",
        f"give one of: {', '.join(sorted((*DECODERS, *ENCODERS, *SEQ2SEQ)))}",
    )
