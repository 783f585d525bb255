"""Where a teacher actor computes: on a CPU, or on its share of a GPU. No Ray in here.

On a GPU torch is held to kernels that give the same bits again (it refuses an operation that has none). That a teacher
depends on its own shard alone, to the last bit, is then as true there as on one thread of a CPU. Bits differ between
kinds of GPU, as they do between kinds of processor.
"""

import os

import torch

from rayprivacy.core.errors import ClusterError


def prepared_device(*, gpu: bool) -> torch.device:
    """The device of this process, which from now on computes the same bits again.

    Args:
        gpu: whether this process was given a share of a GPU.

    Raises:
        ClusterError: torch finds no GPU here.
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
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it torch refuses products
    torch.use_deterministic_algorithms(True)
    return torch.device("cuda")
