"""Positional encodings: the sinusoid table, a learned table, rotation.

B batch, T length, H heads, D d_model, K d_head.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitransformer.errors import DataError

INITIAL_POSITIONS = 64  # of the sinusoid table


def sinusoid_table(
    length: int, d_model: int, dtype: torch.dtype | None = None
) -> Float[Tensor, "{length} {d_model}"]:
    """Return PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same).

    Vaswani et al. (2017), section 3.5.
    """
    angles = position_angles(torch.arange(length), d_model, dtype)  # [T, D/2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def position_angles(
    positions: Int[Tensor, " length"], width: int, dtype: torch.dtype | None = None
) -> Float[Tensor, "length half_width"]:
    """Return pos / 10000^(2i/width) for every pair i of dimensions."""
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=dtype)
    frequencies = 10000.0 ** (-pairs / width)
    return positions[:, None] * frequencies


def rotate(
    states: Float[Tensor, "batch heads length d_head"], positions: Int[Tensor, " length"]
) -> Float[Tensor, "batch heads length d_head"]:
    """Rotate each pair of dimensions by its position's angle, so that q·k depends on distance.

    RoFormer: Su et al. (2021), section 3.2.2.
    """
    angles = position_angles(positions, states.shape[-1])  # [T, K/2]
    cosine, sine = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
    even, odd = states[..., 0::2], states[..., 1::2]
    rotated = (even * cosine - odd * sine, even * sine + odd * cosine)
    return torch.stack(rotated, dim=-1).flatten(-2)


class SinusoidalPositions(nn.Module):
    """The sinusoid table, which is extended for longer sentences."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(0, d_model), persistent=False)

    def forward(self, start: int, stop: int) -> Float[Tensor, "length d_model"]:
        if stop > len(self.table):
            length = max(2 * stop, INITIAL_POSITIONS)
            with torch.inference_mode(False):  # training may use a table made in evaluation
                self.table = sinusoid_table(length, self.table.shape[1]).to(self.table)
        return self.table[start:stop]


class LearnedPositions(nn.Module):
    """One trained vector per position, up to max_length positions; `init_weights` draws them."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, d_model))

    def forward(self, start: int, stop: int) -> Float[Tensor, "length d_model"]:
        if stop > len(self.table):
            raise DataError(
                f"a sentence needs {stop} positions, model.positional_encoding: learned has "
                f"{len(self.table)}; raise model.max_length and train again, or shorten it"
            )
        return self.table[start:stop]
