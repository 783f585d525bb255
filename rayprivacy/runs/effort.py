"""How much a stage computes: floating-point operations of one of a few kernels, from public numbers alone.

A plan declares it for its stages (`Stage.efforts`), so that `rayprivacy plan` can say how long they will take
(`runs.estimate`). It is a guess for people, and nothing depends on it. How many users a corpus has is private, so work
that grows with them is declared for each user, and multiplied by a public guess (`Plan.users`).
"""

from dataclasses import dataclass
from typing import Literal

from rayprivacy.generation.engines import ONNX, has_onnx

# What `runs.kernels` times. In the model's number format: a trunk over whole rows, over one token of many texts, and
# forwards and backwards. In float32: sampling by the quickest engine, one large product, and many small ones.
Kernel = Literal["encode", "decode", "train", "sample", "product", "batched"]
MODEL_KERNELS: tuple[Kernel, ...] = ("encode", "decode", "train")
FULL = 0.5  # how long a private text is taken to be, of the tokens that a recipe keeps of it


@dataclass(frozen=True)
class Effort:
    """Some work of a stage.

    Attributes:
        kernel: what most of it is like.
        flops: floating-point operations; of each user where `users` is set.
        users: whether there is so much for each private user.
        processes: among how many processes it can be divided at most.
        threads: whether each process uses all cores of its machine; otherwise one, as actors do.
    """

    kernel: Kernel
    flops: float
    users: bool = False
    processes: int = 1
    threads: bool = True


def sampling_kernel(engine: str) -> Kernel:
    """What sampling by an engine is like; `auto` is taken to find a model that ONNX Runtime takes, if it is installed.

    It computes in float32, whatever the model's format is.
    """
    return "sample" if engine == ONNX or (engine == "auto" and has_onnx()) else "decode"
