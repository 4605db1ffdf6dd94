"""The model that a config asks for: built, or only counted, before any of it takes memory."""

from minitransformer.model.encoder_decoder import EncoderDecoder
from minitransformer.model.recurrence import GATES
from minitransformer.model.recurrent import Recurrent
from minitransformer.model.transformer import Transformer
from minitransformer.settings import ModelConfig


def new_model(
    config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int, pad_id: int
) -> EncoderDecoder:
    """A freshly initialised model of the kind that the config names."""
    kinds: dict[str, type[Transformer] | type[Recurrent]] = {
        "transformer": Transformer,
        "recurrent": Recurrent,
    }
    return kinds[config.kind].from_config(
        config,
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        pad_id=pad_id,
    )


def parameter_count(config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int) -> int:
    """The size of `new_model`, shared weights counted once."""
    inside = {"transformer": inside_transformer, "recurrent": inside_recurrent}[config.kind](config)
    width = config.d_model
    places = 2 * config.max_length * width if config.position == "learned" else 0
    tables = {"none": source_vocab_size + target_vocab_size, "target": source_vocab_size, "all": 0}
    head = target_vocab_size * (head_width(config) + config.head_bias)
    return inside + places + tables[config.share_embeddings] * width + head


def head_width(config: ModelConfig) -> int:
    """How many numbers the head reads: [context ; state] are two states side by side."""
    is_joined = config.kind == "recurrent" and config.attention != "none"
    return config.d_model * (2 if is_joined and not config.attention_output else 1)


def inside_transformer(config: ModelConfig) -> int:
    """What lies between embeddings and head."""
    width, bias = config.d_model, int(config.bias)
    attention = (3 + config.attention_output) * (width * width + bias * width)
    feed_forward = 2 * width * config.d_ff + bias * (config.d_ff + width) if config.d_ff else 0
    norm = (1 + bias) * width
    # A norm goes with each block, and where norms come before blocks, with each end.
    layer_norm = norm if config.norm != "none" else 0
    blocks_of_encoder, blocks_of_decoder = 1 + (config.d_ff > 0), 2 + (config.d_ff > 0)
    encoder = config.num_encoder_layers * (
        attention + feed_forward + blocks_of_encoder * layer_norm
    )
    decoder = config.num_decoder_layers * (
        2 * attention + feed_forward + blocks_of_decoder * layer_norm
    )
    return encoder + decoder + (2 * norm if config.norm == "pre" else 0)


def inside_recurrent(config: ModelConfig) -> int:
    """What lies between embeddings and head."""
    directions = 1 + config.bidirectional

    def recurrence(width: int) -> int:
        return GATES[config.cell] * width * (config.d_model + width + 2 * config.bias)

    encoder = config.num_encoder_layers * directions * recurrence(config.d_model // directions)
    decoder = config.num_decoder_layers * recurrence(config.d_model)
    matrices = {"none": 0, "dot": 0, "multiplicative": 1}[config.attention]
    matrices += 2 * (config.attention != "none" and config.attention_output)
    return encoder + decoder + matrices * config.d_model**2
