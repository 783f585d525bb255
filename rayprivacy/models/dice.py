"""Random numbers of torch that a public seed fixes.

torch calls its source of random numbers a generator, which is also the name of a method of this package. A check counts
the files that know a method by name, so the word stands here once; and not in `core.dice`, because core does without
torch.
"""

import torch


class Dice:
    """A stream of random numbers; equal seeds give equal streams."""

    def __init__(self, seed: int) -> None:
        self.stream = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers, float32 of this shape."""
        return torch.randn(shape, generator=self.stream, device="cpu")
