"""Matrix products with float32 sums, for operands of any precision.

A sum over a batch that is rounded to bfloat16 on the way can exceed the clipping norm by far more than one example's
rounding error: the running sum, not the example, sets the size of the error. So every sum over positions or units is
accumulated and returned in float32. Operands in lower precision are multiplied as they are on a GPU (products of two
bfloat16 numbers are exact in float32), and are copied to float32 elsewhere.
"""

import torch
from torch import Tensor


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """[units, n, m] times [units, m, k] in float32."""
    with torch.autocast(left.device.type, enabled=False):
        if dtype := operand_dtype(left, right):
            return torch.bmm(left.to(dtype), right.to(dtype), out_dtype=torch.float32)
        return torch.bmm(left.float(), right.float())


def add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """[n, m] times [m, k] in float32, added in place to `total` if there is one."""
    with torch.autocast(left.device.type, enabled=False):
        if dtype := operand_dtype(left, right):
            low = torch.mm(left.to(dtype), right.to(dtype), out_dtype=torch.float32)
            return low if total is None else total.add_(low)
        left, right = left.float(), right.float()
        return torch.mm(left, right) if total is None else total.addmm_(left, right)


def operand_dtype(left: Tensor, right: Tensor) -> torch.dtype | None:
    """What both operands are rounded to before they are multiplied; None for float32."""
    if not left.is_cuda:
        return None
    return next((side.dtype for side in (left, right) if side.dtype != torch.float32), None)
