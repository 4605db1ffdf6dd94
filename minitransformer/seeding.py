"""Random numbers that depend on what is computed, not on what ran before."""

MASK = 2**64 - 1


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several numbers (splitmix64's finisher, chained)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & MASK)) + 0x9E3779B97F4A7C15 & MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state >> 1
