"""How many parameters a config asks for, known before any of them takes memory."""

from minitransformer.settings import ModelConfig


def parameter_count(config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int) -> int:
    """The size of `Transformer.from_config`, shared weights counted once."""
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
    ends = 2 * norm if config.norm == "pre" else 0
    places = 2 * config.max_length * width if config.position == "learned" else 0
    tables = {
        "none": source_vocab_size + 2 * target_vocab_size,
        "target": source_vocab_size + target_vocab_size,
        "all": target_vocab_size,
    }[config.share_embeddings]
    head_bias = target_vocab_size * config.head_bias
    return encoder + decoder + ends + places + tables * width + head_bias
