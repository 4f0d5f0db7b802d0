"""The values of a configuration -> a model, through the builder of its family."""

from typing import Any

from attnprof.models.config import Config
from attnprof.models.decoders import build_decoder
from attnprof.models.encoders import ENCODERS, build_encoder
from attnprof.models.families import FAMILIES, SAME_SHAPE
from attnprof.models.spec import ModelSpec


def build_model(values: dict[str, Any], where: str) -> ModelSpec:
    model_type = values["model_type"]
    like = SAME_SHAPE.get(model_type, model_type)
    config = Config(values, where, model_type, like)
    architecture = values["architectures"][0]
    if like in ENCODERS:
        return build_encoder(config, ENCODERS[like], architecture)
    return build_decoder(config, FAMILIES[like], architecture)
