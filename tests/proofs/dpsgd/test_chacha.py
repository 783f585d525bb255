"""ChaCha20 by OpenSSL and by torch: the known answers of RFC 8439, and the same bits at any place, in any pieces."""

import numpy as np
import pytest
import torch

from rayprivacy.dpsgd import chacha

SECRET = bytes(range(32))
WAYS = {"openssl": chacha.by_openssl, "torch": chacha.by_torch, "whichever": chacha.fill}
PLACES = [0, 1, 1023, 1024, 2**31 - 2, 2**32 - 1, 2**32 - 1025, 2**32, 2**33 - 3, 2**40 + 1, 2**63 - 3000]

# Section 2.3.2 and appendix A.1 of RFC 8439: key, counter, nonce, one block.
ANSWERS = {
    "section 2.3.2": (
        SECRET.hex(),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "vector 1": (
        "00" * 32,
        0,
        "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "vector 2": (
        "00" * 32,
        1,
        "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "vector 3": (
        "00" * 31 + "01",
        1,
        "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "vector 4": (
        "00ff" + "00" * 30,
        2,
        "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "vector 5": (
        "00" * 32,
        0,
        "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
}


def _words(way, first, count, secret=SECRET):
    found = torch.empty(count, chacha.WORDS, dtype=torch.int64)
    WAYS[way](secret, first, found)
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("key", "counter", "nonce", "block"), ANSWERS.values(), ids=ANSWERS)
def test_the_known_answers_of_the_rfc(key, counter, nonce, block, way):
    first = int.from_bytes(counter.to_bytes(4, "little") + bytes.fromhex(nonce), "little")
    assert _words(way, first, 1, bytes.fromhex(key)).numpy().tobytes().hex() == block


def test_the_quarter_round_of_the_rfc():
    rows = [torch.tensor([[word]]) for word in (0x11111111, 0x01020304, 0x9B8D6F43, 0x01234567)]
    rows = [row.to(torch.int32) for row in rows]
    chacha._quarter_rounds(*rows)
    assert [row.item() % 2**32 for row in rows] == [0xEA2A92F4, 0xCB1CF8CE, 0x4581472E, 0x5881C4BB]


@pytest.mark.parametrize("first", PLACES)
def test_both_ways_are_the_same_bits(first):
    assert torch.equal(_words("torch", first, 2100), _words("openssl", first, 2100))


def test_a_long_draw_is_the_same_bits():
    assert torch.equal(_words("torch", 77, 1 << 17), _words("openssl", 77, 1 << 17))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [0, 2**32 - 1024])
def test_any_pieces_are_those_of_the_whole(way, first):
    whole = _words("openssl", first, 2048)
    for cut in (1, 7, 1000, 1023, 1024, 1025, 2047):
        assert torch.equal(_words(way, first, cut), whole[:cut])
        assert torch.equal(_words(way, first + cut, 2048 - cut), whole[cut:])


@pytest.mark.parametrize("way", WAYS)
def test_no_two_blocks_are_equal_also_where_the_counter_begins_anew(way):
    blocks = torch.cat([_words(way, first, 300) for first in (0, 2**32 - 150, 2**33, 2**40)])
    assert len(np.unique(blocks.numpy(), axis=0)) == 1200
    assert len(np.unique(blocks.numpy())) == 1200 * chacha.WORDS
