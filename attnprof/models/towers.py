"""Parameters of the towers that see or hear, and of what joins them to a language model."""

from collections.abc import Callable

from attnprof.models.config import Config


def _linear(rows: int, columns: int, bias: bool = True) -> int:
    return rows * columns + rows * bias


def _block(width: int, inner: int, *, bias: bool = True, gated: bool = False, norm: int = 2) -> int:
    """A transformer block: four square projections, a feed-forward block, two norms."""
    attention = 4 * _linear(width, width, bias)
    up = (2 if gated else 1) * _linear(inner, width, bias)
    return attention + up + _linear(width, inner, bias) + 2 * norm * width


def siglip_params(vision: Config) -> int:
    """SigLIP's encoder, with its pooling head unless the configuration takes it away."""
    width, inner = vision.count("hidden_size"), vision.count("intermediate_size")
    patch = vision.count("patch_size")
    total = _linear(width, vision.count("num_channels", 3) * patch * patch)
    positions = vision.get("num_patches")
    total += width * (positions or (vision.count("image_size") // patch) ** 2)
    total += vision.count("num_hidden_layers") * _block(width, inner) + 2 * width
    if vision.flag("vision_use_head", True):
        total += width + 4 * _linear(width, width) + 2 * width
        total += _linear(inner, width) + _linear(width, inner)
    return total


def clip_params(vision: Config) -> int:
    """CLIP's image encoder."""
    width, inner = vision.count("hidden_size"), vision.count("intermediate_size")
    patch = vision.count("patch_size")
    patches = (vision.count("image_size") // patch) ** 2
    total = width + vision.count("num_channels", 3) * patch * patch * width
    total += (patches + 1) * width + 4 * width
    return total + vision.count("num_hidden_layers") * _block(width, inner)


def pixtral_params(vision: Config) -> int:
    """Pixtral's encoder: Llama's block without a causal mask."""
    width, patch = vision.count("hidden_size"), vision.count("patch_size")
    total = width * vision.count("num_channels", 3) * patch * patch + width
    block = _block(width, vision.count("intermediate_size"), bias=False, gated=True, norm=1)
    return total + vision.count("num_hidden_layers") * block


def whisper_params(audio: Config) -> int:
    """Whisper's encoder, as Qwen2-Audio and Voxtral have it."""
    width = audio.count("hidden_size", audio.get("d_model"))
    inner = audio.count("intermediate_size", audio.get("encoder_ffn_dim"))
    layers = audio.count("num_hidden_layers", audio.get("encoder_layers"))
    total = _linear(width, 3 * audio.count("num_mel_bins")) + _linear(width, 3 * width)
    total += audio.count("max_source_positions") * width + 2 * width
    return total + layers * (_block(width, inner) - width)  # keys have no bias


def _gemma3(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    return siglip_params(vision) + vision.count("hidden_size") * (hidden_size + 1)


def _gemma4(config: Config, hidden_size: int) -> int | None:
    """Gemma-4's encoder of images; that of sound, in the small ones, is not known here."""
    if isinstance(config.get("audio_config"), dict):
        return None
    if not isinstance(config.get("vision_config"), dict):
        return 0
    vision = config.section("vision_config")
    width, inner = vision.count("hidden_size"), vision.count("intermediate_size")
    heads, head_dim = vision.count("num_attention_heads"), vision.count("head_dim")
    kv_heads = vision.count("num_key_value_heads", heads)
    block = 2 * width * head_dim * (heads + kv_heads) + 3 * width * inner + 2 * head_dim
    total = vision.count("num_hidden_layers") * (block + 4 * width)
    total += 2 * vision.count("position_embedding_size") * width
    return total + width * 3 * vision.count("patch_size") ** 2 + hidden_size * width


def _paligemma(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    joined = config.count("projection_dim", hidden_size)
    return siglip_params(vision) + _linear(joined, vision.count("hidden_size"))


def _llava(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    width = vision.count("hidden_size")
    bias = config.flag("multimodal_projector_bias", True)
    tower = pixtral_params(vision) if vision.model_type == "pixtral" else clip_params(vision)
    return tower + _linear(hidden_size, width, bias) + _linear(hidden_size, hidden_size, bias)


def _llava_next(config: Config, hidden_size: int) -> int:
    return _llava(config, hidden_size) + hidden_size


def _mistral3(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    width = vision.count("hidden_size")
    merged = width * config.count("spatial_merge_size", 2) ** 2
    bias = config.flag("multimodal_projector_bias")
    projector = width + width * merged + _linear(hidden_size, width, bias)
    return pixtral_params(vision) + projector + _linear(hidden_size, hidden_size, bias)


def _qwen2_vl(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    width = vision.count("embed_dim", vision.get("hidden_size"))
    out = vision.count("hidden_size")
    inner = int(width * vision.share("mlp_ratio", 4))
    return (
        _qwen_patches(vision, width)
        + vision.count("depth") * _block(width, inner)
        + _qwen_merger(vision, width, out, norm=2 * width)
    )


def _qwen2_5_vl(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    width, out = vision.count("hidden_size"), vision.count("out_hidden_size", hidden_size)
    block = _block(width, vision.count("intermediate_size"), gated=True, norm=1)
    merger = _qwen_merger(vision, width, out, norm=width)
    return _qwen_patches(vision, width) + vision.count("depth") * block + merger


def _qwen3_vl(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    width, out = vision.count("hidden_size"), vision.count("out_hidden_size", hidden_size)
    total = _qwen_patches(vision, width) + width
    total += vision.count("num_position_embeddings") * width
    total += vision.count("depth") * _block(width, vision.count("intermediate_size"))
    total += _qwen_merger(vision, width, out, norm=2 * width)
    merged = width * vision.count("spatial_merge_size", 2) ** 2
    taps = len(vision.items("deepstack_visual_indexes") or ())
    return total + taps * _qwen_merger(vision, width, out, norm=2 * merged)


def _qwen_patches(vision: Config, width: int) -> int:
    channels = vision.count("in_channels", vision.get("in_chans", 3))
    frames = vision.count("temporal_patch_size", 2)
    return width * channels * frames * vision.count("patch_size") ** 2


def _qwen_merger(vision: Config, width: int, out: int, norm: int) -> int:
    merged = width * vision.count("spatial_merge_size", 2) ** 2
    return norm + _linear(merged, merged) + _linear(out, merged)


def _llama4(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    width, inner = vision.count("hidden_size"), vision.count("intermediate_size")
    patch = vision.count("patch_size")
    patches = (vision.count("image_size") // patch) ** 2
    total = width + (patches + 1) * width + width * 3 * patch * patch + 4 * width
    total += vision.count("num_hidden_layers") * _block(width, inner)
    joined = vision.count("projector_input_dim")
    total += joined * inner + vision.count("projector_output_dim") * joined
    return total + hidden_size * vision.count("vision_output_dim")


def _mllama(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    width, inner = vision.count("hidden_size"), vision.count("intermediate_size")
    patch = vision.count("patch_size")
    rows = (vision.count("image_size") // patch) ** 2 + 1
    tiles = vision.count("max_num_tiles", 4)
    ratios = len(vision.items("supported_aspect_ratios") or [0] * 8) + 1
    total = width + width * 3 * patch * patch + 1 + rows * width + 4 * width
    total += ratios * tiles * rows * width + 2 * (1 + ratios * tiles * width)
    block = _block(width, inner) - 4 * width  # the projections of attention have no biases
    total += vision.count("num_hidden_layers") * block
    total += vision.count("num_global_layers") * (block + 2)
    return total + _linear(hidden_size, vision.count("vision_output_dim"))


def _qwen2_audio(config: Config, hidden_size: int) -> int:
    audio = config.section("audio_config")
    return whisper_params(audio) + _linear(hidden_size, audio.count("hidden_size", 1280))


def _audioflamingo(config: Config, hidden_size: int) -> int:
    audio = config.section("audio_config")
    bias = config.flag("projector_bias", True)
    projector = _linear(hidden_size, audio.count("hidden_size"), bias)
    return whisper_params(audio) + projector + _linear(hidden_size, hidden_size, bias)


def _voxtral(config: Config, hidden_size: int) -> int:
    audio = config.section("audio_config")
    projector = hidden_size * audio.count("intermediate_size") + hidden_size * hidden_size
    return whisper_params(audio) + projector


def _fuyu(config: Config, hidden_size: int) -> int:
    patch = config.count("patch_size")
    return _linear(hidden_size, patch * patch * config.count("num_channels", 3))


def _modernvbert(config: Config, hidden_size: int) -> int:
    vision = config.section("vision_config")
    factor = config.count("pixel_shuffle_factor", 4) ** 2
    return siglip_params(vision) + hidden_size * vision.count("hidden_size") * factor


TOWERS: dict[str, Callable[[Config, int], int | None]] = {
    "audioflamingo3": _audioflamingo,
    "fuyu": _fuyu,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "llama4": _llama4,
    "llava": _llava,
    "llava_next": _llava_next,
    "mistral3": _mistral3,
    "mllama": _mllama,
    "modernvbert": _modernvbert,
    "musicflamingo": _audioflamingo,
    "paligemma": _paligemma,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_audio": _qwen2_audio,
    "qwen2_vl": _qwen2_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "voxtral": _voxtral,
}
TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")


def tower_params(config: Config, architecture: str, hidden_size: int) -> int | None:
    """Parameters of a model's towers and projectors: 0 without any, None where they are unknown.

    A class that is the language model alone (``ForCausalLM``) has none.
    """
    if config.model_type in TOWERS:
        alone = "CausalLM" in architecture and config.model_type != "fuyu"
        return 0 if alone else TOWERS[config.model_type](config, hidden_size)
    nested = {
        key
        for key, value in config.values.items()
        if key.endswith("_config") and isinstance(value, dict) and "model_type" in value
    }
    return None if (nested | set(config.nested_types)) - set(TEXT_SECTIONS) else 0
