"""The short names by which a page's address names the stages of a step."""

BLOCKS = {"self_attention": "self", "cross_attention": "cross", "feed_forward": "ff"}
WAYS = {"rightward": "", "leftward": ".back", "joined": ".join"}
AFTER_LAYERS = {"attention": "cross.0", "attention.joined": "join", "attention.output": "narrow"}


def key_of(path: str) -> str:
    """embedding, self.0, self.0.add, cross.1.norm, norm; of a recurrent model read.0, join."""
    _, *parts = path.split(".")
    inside = ".".join(parts)
    if inside in AFTER_LAYERS:
        return AFTER_LAYERS[inside]
    if parts[:1] != ["layers"]:
        return path.rpartition(".")[2]
    number, *names = parts[1:]
    block = names[0] if names else "rightward"  # a decoder's layer has no other way
    if block in WAYS:
        return f"read.{number}{WAYS[block]}"
    name = f"{BLOCKS[block.removesuffix('_residual')]}.{number}"
    if not block.endswith("_residual"):
        return name
    return f"{name}.norm" if names[1:] else f"{name}.add"
