"""Where a token stands: the sinusoid table, a learned table, rotation, or nothing.

B batch, T length, H heads, D d_model, K d_head.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitransformer.errors import DataError

FIRST_PLACES = 1024  # of the sinusoid table; a sentence that needs more makes it grow


def sinusoid_table(
    length: int, d_model: int, dtype: torch.dtype | None = None
) -> Float[Tensor, "{length} {d_model}"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = the cosine of the same."""
    angles = position_angles(torch.arange(length), d_model, dtype)  # [T, D/2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def position_angles(
    positions: Int[Tensor, " length"], width: int, dtype: torch.dtype | None = None
) -> Float[Tensor, "length half_width"]:
    """pos / 10000^(2i/width) for every pair i of dimensions."""
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=dtype)
    frequencies = 10000.0 ** (-pairs / width)
    return positions[:, None] * frequencies


def rotate(
    states: Float[Tensor, "batch heads length d_head"], positions: Int[Tensor, " length"]
) -> Float[Tensor, "batch heads length d_head"]:
    """Turn each pair of dimensions by its position's angle, so that q·k depends on distance."""
    angles = position_angles(positions, states.shape[-1])  # [T, K/2]
    cosine, sine = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
    even, odd = states[..., 0::2], states[..., 1::2]
    turned = (even * cosine - odd * sine, even * sine + odd * cosine)
    return torch.stack(turned, dim=-1).flatten(-2)


class SinusoidalPositions(nn.Module):
    """Rows of the sinusoid table, which grows when a longer sentence comes."""

    table: Tensor

    def __init__(self, *, d_model: int, max_length: int) -> None:
        super().__init__()
        length = min(max_length, FIRST_PLACES)
        self.register_buffer("table", sinusoid_table(length, d_model), persistent=False)

    def forward(self, start: int, stop: int) -> Float[Tensor, "length d_model"]:
        if stop > len(self.table):
            with torch.inference_mode(False):  # training may use what an evaluation made
                self.table = sinusoid_table(2 * stop, self.table.shape[1]).to(self.table)
        return self.table[start:stop]


class LearnedPositions(nn.Module):
    """One trained vector per place, up to max_length places."""

    def __init__(self, *, d_model: int, max_length: int, std: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_length, d_model) * std)

    def forward(self, start: int, stop: int) -> Float[Tensor, "length d_model"]:
        if stop > len(self.table):
            raise DataError(
                f"a sentence needs {stop} places, model.position: learned has {len(self.table)}; "
                "raise model.max_length and train again, or shorten it"
            )
        return self.table[start:stop]
