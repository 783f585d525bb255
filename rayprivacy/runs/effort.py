"""How much a stage computes: floating-point operations of one of a few kernels, from public numbers alone.

A plan declares it for its stages (`Stage.efforts`), and `rayprivacy plan` estimates from it how long they will take
(`runs.estimate`); nothing else depends on it. How many users a corpus has is private, so work that grows with them is
declared for each user, and multiplied by a public guess (`Plan.users`).
"""

import math
from dataclasses import dataclass
from typing import Literal

from rayprivacy.generation.engines import ONNX, has_onnx

# In the model's number format: a trunk over whole rows, over one token of many texts, and forwards and backwards. In
# float32: sampling by ONNX Runtime, one large product, and many small ones.
Kernel = Literal["encode", "decode", "train", "sample", "product", "batched"]
SHARED, MOST_THREADS = 0.7, 16  # of a core that each further thread of one process adds, and threads that add something
FULL = 0.5  # how long a private text is taken to be, of the tokens that a recipe keeps of it


@dataclass(frozen=True)
class Effort:
    """Some work of a stage.

    Attributes:
        kernel: what most of it is like.
        flops: floating-point operations, of each user where `users` is set; not a number where that is not known.
        users: whether there is that much for each private user.
        processes: the largest number of processes that can share it.
        threads: whether each process uses all cores of its machine; otherwise one, as actors do.
    """

    kernel: Kernel
    flops: float
    users: bool = False
    processes: int = 1
    threads: bool = True

    def flops_per_core(self, cpus: int, nodes: int, users: float) -> float:
        """Operations of each core, where machines of `cpus` cores share the work."""
        threads = 1 + SHARED * (min(cpus, MOST_THREADS) - 1)
        shared = min(self.processes, nodes) * threads if self.threads else min(self.processes, cpus * nodes)
        return self.flops * (users if self.users else 1) / shared


UNKNOWN = Effort("product", math.nan)


def sampling_kernel(engine: str) -> Kernel:
    """The kernel whose speed an engine's sampling has. For `auto`, assume that an installed fast engine can convert the
    model.
    """
    return "sample" if engine == ONNX or (engine == "auto" and has_onnx()) else "decode"
