"""The stream of ChaCha20 (RFC 8439) as 64-bit words, by OpenSSL on a CPU or by torch on any device: the same bits.

A secret of 32 bytes has one stream of blocks of 64 bytes. Block j is the block function of the RFC for the counter
j mod 2^32 and the nonce j >> 32, lowest byte first: no two blocks are of one counter and nonce.
"""

import torch
from torch import Tensor

from rayprivacy.core.keys import STREAM_BLOCK_BYTES, STREAM_BLOCKS, keystream

WORDS = 8  # of 64 bits in a block
# Some 460 small operations make any number of blocks on a device. OpenSSL has 4 MB of them made and copied before.
_FEW = 1 << 16
_ZEROS = memoryview(bytes(1 << 16))  # what is encrypted; it stays in the processor's cache


def fill(secret: bytes, first: int, words: Tensor) -> None:
    """Set int64 [count, 8], on any device, to blocks [first, first + count); a word is signed, its lower half first."""
    if words.device.type == "cpu":
        by_openssl(secret, first, words)
    elif len(words) > _FEW:
        by_torch(secret, first, words)
    else:
        made = torch.empty(words.shape, dtype=words.dtype, device="cpu")
        by_openssl(secret, first, made)
        words.copy_(made)


def by_openssl(secret: bytes, first: int, words: Tensor) -> None:
    """Set words on the CPU."""
    stream, at = keystream(secret, first), 0
    into = words.numpy().data.cast("B")
    while at < len(into):
        block = first + at // STREAM_BLOCK_BYTES
        if block % STREAM_BLOCKS == 0:  # the counter is used up: the next nonce
            stream = keystream(secret, block)
        left = STREAM_BLOCK_BYTES * (STREAM_BLOCKS - block % STREAM_BLOCKS)
        part = into[at : at + min(left, len(_ZEROS))]
        stream.update_into(_ZEROS[: len(part)], part)
        at += len(part)


def by_torch(secret: bytes, first: int, words: Tensor) -> None:
    """Set words by integer operations, each on all blocks at once, in 200 bytes of memory a block."""
    count, device = len(words), words.device
    state = bytearray(b"expand 32-byte k" + secret + first.to_bytes(16, "little"))
    begun = torch.frombuffer(state, dtype=torch.int32).to(device)[:, None].repeat(1, count)
    low = first % (1 << 64)  # an int64 is its low 32 bits, the counter, and then its high ones
    begun[12:14] = torch.arange(low, low + count, device=device).view(torch.int32).view(count, 2).T
    a, b, c, d = begun.clone().split(4)  # the rows of the RFC's 4 by 4 matrices
    for _ in range(10):
        _quarter_rounds(a, b, c, d)  # of columns
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_rounds(a, b, c, d)  # of diagonals
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    words.view(torch.int32).copy_(torch.cat([a, b, c, d]).add_(begun).T)


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """The quarter rounds of all columns of four rows, in place; what an int32 cannot hold is lost, as it should be."""
    for changed, added, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        changed.add_(added)
        turned.bitwise_xor_(changed)
        # To the left by some bits, which come in again on the right: >> copies the sign, and the mask takes it off.
        low = (turned >> (32 - by)).bitwise_and_((1 << by) - 1)
        torch.add(low, turned, alpha=1 << by, out=turned)
