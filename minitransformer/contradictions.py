"""Which settings contradict each other, and the words for it."""

from minitransformer.settings import Config, ModelConfig


def contradictions(config: Config) -> list[tuple[list[str], bool, str]]:
    """The settings that can contradict each other: their keys, whether they do, and the words."""
    data, model, training = config.data, config.model, config.training
    places = {"source": data.source, "valid": data.valid, "test": data.test}
    d_head, probes = model.d_model // model.num_heads, config.logging.probes
    has_attention = model.kind == "transformer" or model.attention != "none"
    drops_inside = has_attention and model.inner_dropout > 0
    return [
        *contradictions_of_kind(model),
        (
            ["data.source", "data"],
            not data.source,
            "data.source: name a shipped corpus, a file, or two aligned files as [a.en, a.es]",
        ),
        *(
            (
                [f"data.{name}"],
                isinstance(place, tuple) and len(place) != 2,
                f"data.{name}: aligned files are two, such as [a.en, a.es]; got {len(place)}",
            )
            for name, place in places.items()
        ),
        (
            ["data.columns"],
            len(set(data.columns)) != 2
            or len(data.columns) != 2
            or len({type(column) for column in data.columns}) != 1,
            "data.columns: give two names, such as [en, es], or two numbers, such as [1, 2]",
        ),
        (
            ["data.columns"],
            any(isinstance(column, int) and column < 1 for column in data.columns),
            "data.columns: columns are counted from 1",
        ),
        *(
            (
                [f"data.split_{name}", f"data.{name}"],
                bool(place) and count > 0,
                f"data.split_{name}: data.{name} already names those pairs; set one of the two",
            )
            for name, place, count in (
                ("valid", data.valid, data.split_valid),
                ("test", data.test, data.split_test),
            )
        ),
        (
            ["tokenizer.max_size", "tokenizer.kind"],
            config.tokenizer.kind == "bpe" and not 1 <= config.tokenizer.max_size <= 10**6,
            "tokenizer.max_size: kind bpe needs a size from 1 to 1,000,000, such as 8000; "
            f"got {config.tokenizer.max_size}",
        ),
        (
            ["model.num_heads", "model.d_model"],
            model.kind == "transformer" and model.d_model % model.num_heads != 0,
            f"model.d_model ({model.d_model}) must be divisible by "
            f"model.num_heads ({model.num_heads})",
        ),
        (
            ["model.d_model", "model.position"],
            model.position == "sinusoidal" and model.d_model % 2 != 0,
            f"model.d_model ({model.d_model}) must be even for model.position: sinusoidal",
        ),
        (
            ["model.position", "model.d_model", "model.num_heads"],
            model.kind == "transformer" and model.position == "rotary" and d_head % 2 != 0,
            f"model.d_model / model.num_heads ({d_head}) must be even for model.position: rotary",
        ),
        (
            ["model.share_embeddings", "tokenizer.joint"],
            model.share_embeddings == "all" and not config.tokenizer.joint,
            "model.share_embeddings: all needs tokenizer.joint: true",
        ),
        (
            ["training.warmup_steps", "training.schedule"],
            training.schedule == "inverse_sqrt" and training.warmup_steps == 0,
            "training.warmup_steps: schedule inverse_sqrt needs at least 1",
        ),
        (
            ["training.warmup_steps", "training.steps"],
            training.warmup_steps > training.steps,
            f"training.warmup_steps ({training.warmup_steps}) must not exceed "
            f"training.steps ({training.steps})",
        ),
        (
            ["training.consistency", "model.dropout", "model.inner_dropout"],
            training.consistency > 0 and not model.dropout and not drops_inside,
            "training.consistency compares two passes that dropout makes differ: set model.dropout",
        ),
        (
            ["training.patience", "evaluation.best_metric"],
            training.patience > 0 and config.evaluation.best_metric == "none",
            "training.patience needs a metric to watch: name one as evaluation.best_metric",
        ),
        (
            ["evaluation.average", "training.keep_checkpoints"],
            config.evaluation.average > training.keep_checkpoints,
            f"training.keep_checkpoints ({training.keep_checkpoints}) must be at least "
            f"evaluation.average ({config.evaluation.average})",
        ),
        (
            ["logging.probes"],
            isinstance(probes, tuple) and not all(probe.strip() for probe in probes),
            "logging.probes: a sentence of it is blank",
        ),
    ]


def contradictions_of_kind(model: ModelConfig) -> list[tuple[list[str], bool, str]]:
    """Settings that a model of this kind has no use for."""
    of_transformer = {"num_heads": 1, "d_ff": 0, "norm": "none"}
    of_recurrent = {"cell": "gru", "bidirectional": False, "attention": "dot"}
    is_recurrent = model.kind == "recurrent"
    others = {"recurrent": of_transformer, "transformer": of_recurrent}[model.kind]
    of_other = {"recurrent": "a Transformer's", "transformer": "a recurrent model's"}[model.kind]
    joins = model.attention != "none" and not model.attention_output
    return [
        *(
            (
                [f"model.{name}", "model.kind"],
                getattr(model, name) != neutral,
                f"model.{name} is {of_other}; with model.kind: {model.kind} it must be "
                f"{str(neutral).lower()}; got {str(getattr(model, name)).lower()}",
            )
            for name, neutral in others.items()
        ),
        (
            ["model.position", "model.kind"],
            is_recurrent and model.position == "rotary",
            "model.position: rotary turns the queries of a Transformer; "
            "a recurrent model takes none, sinusoidal or learned",
        ),
        (
            ["model.num_encoder_layers", "model.num_decoder_layers", "model.kind"],
            is_recurrent and model.num_encoder_layers != model.num_decoder_layers,
            f"model.num_encoder_layers ({model.num_encoder_layers}) and model.num_decoder_layers "
            f"({model.num_decoder_layers}) must be equal for model.kind: recurrent: each layer of "
            "the decoder begins where one of the encoder ends",
        ),
        (
            ["model.bidirectional", "model.d_model"],
            is_recurrent and model.bidirectional and model.d_model % 2 != 0,
            f"model.d_model ({model.d_model}) must be even for model.bidirectional: true",
        ),
        (
            ["model.share_embeddings", "model.attention", "model.attention_output", "model.kind"],
            is_recurrent and model.share_embeddings != "none" and joins,
            f"model.share_embeddings: {model.share_embeddings} needs a head as wide as an "
            "embedding, and [context ; state] is twice as wide; set model.attention_output: true",
        ),
    ]
