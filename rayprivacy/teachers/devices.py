"""Where a teacher actor computes: on a CPU, or on its share of a GPU. No Ray in here.

That a teacher depends on its own shard alone, to the last bit, is as true on a GPU as on one thread of a CPU: see
`models.repeatable`.
"""

import torch

from rayprivacy.core.errors import ClusterError
from rayprivacy.models.repeatable import repeatable


def prepared_device(*, gpu: bool) -> torch.device:
    """The device of this process, which from now on computes the same bits again.

    A process that was given a share of a GPU is refused where torch finds none.
    """
    # One thread: the order of floating-point sums must not depend on how many cores a node happens to have.
    torch.set_num_threads(1)
    if not gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ClusterError(
            "resources.gpus_per_actor is set and torch finds no GPU on a node: install torch with CUDA there, or leave"
            " the key out."
        )
    return repeatable(torch.device("cuda"))
