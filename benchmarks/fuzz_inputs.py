"""What the fuzz feeds to the ledger: numbers, texts and files that somebody may type, send, or find on a bad disk."""

import json
import random
from pathlib import Path
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, -0.0, 1, -1, 2, 3, 7, 100, 2**31, 2**53, 2**53 + 1, 2**64, 10**400, -(10**400)),
    *(0.5, 1.0, 1.5, 20.0, 1e-6, 1e-300, 5e-324, 1e-100, 1e100, 1e300, 0.1 + 0.2, 0.9999999999999999),
    *(float("nan"), float("inf"), float("-inf"), True, False, None, "3", "nan", "", [], {}, [1.0], "poisson"),
)
TYPED = (
    *("0", "-0", "1", "2", "10", "1000", "1e6", "-1", "-3.5", "0.5", "0.01", "1e-6", "1e-5", "1e-300", "1e300"),
    *("nan", "NaN", "inf", "-inf", "Infinity", "1e400", "-1e400", "1" + "0" * 400, "9" * 5000, "0x10", "1_000"),
    *("", " ", "three", "1,5", "٣", "½", "1e", "--", "-", "None", "true", "1\x00", "\udcff", "💥", "1\n2"),
)
WORDS = (
    *("chat", "gdp", "zcdp", "rdp", "pld", "metric", "user", "record", "phrase", "central", "selective"),
    *("metric-local", "add-or-remove", "replace", "geometric", "poisson", "run-0", "nobody", "", "x" * 300, "a b"),
    *("../..", "'; DROP TABLE entries; --", "{}", "%s%n", "\x1b[31m", "\udcff", "zero\x00byte", "٣", "💥"),
)
ENCODINGS = ("utf-8", "utf-16", "utf-16-le", "latin-1", "utf-8-sig", "utf-32", "utf-7")
EVENTS: tuple[dict[str, Any], ...] = (
    {"kind": "gaussian", "noise_multiplier": 20.0},
    {"kind": "laplace", "noise_multiplier": 20.0},
    {"kind": "thresholded-gaussian", "noise_multiplier": 20.0, "delta": 1e-7},
    {"kind": "poisson-sampled-gaussian", "sampling_probability": 0.01, "noise_multiplier": 1.0},
    {"kind": "self-composed", "count": 10, "event": {"kind": "gaussian", "noise_multiplier": 20.0}},
    {"kind": "composed", "events": [{"kind": "gaussian", "noise_multiplier": 9.0}, {"kind": "non-private"}]},
    {"kind": "repeat-and-select", "mean": 3.0, "shape": 1.0, "event": {"kind": "gaussian", "noise_multiplier": 20.0}},
    {
        "kind": "mixture-of-gaussians",
        "standard_deviation": 2.0,
        "sensitivities": [0.0, 1.0],
        "sampling_probs": [0.9, 0.1],
    },
    {"kind": "metric-local", "epsilon": 1.0, "diameter": 1.5, "tokens": 10},
    {"kind": "non-private"},
)


def event(chance: random.Random) -> Any:
    """A valid event with a few changes, or none."""
    made = json.loads(json.dumps(chance.choice(EVENTS)))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        made = changed(chance, made)
    for _ in range(chance.choice((0, 0, 0, 1, 9))):
        made = {"kind": "self-composed", "count": chance.choice((1, 2, 5)), "event": made}
    return made


def changed(chance: random.Random, value: Any) -> Any:
    """The value with one thing in it replaced, dropped, doubled or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        fate = chance.random()
        if fate < 0.1:
            return {name: part for name, part in value.items() if name != key}
        if fate < 0.2:
            return value | {chance.choice(WORDS): chance.choice(NUMBERS)}
        return value | {key: changed(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        index = chance.randrange(len(value))
        return [*value[:index], changed(chance, value[index]), *value[index + chance.choice((0, 1)) :]]
    if isinstance(value, float) and chance.random() < 0.5:
        return value * 10 ** chance.uniform(-8, 8)
    return chance.choice((*NUMBERS, *WORDS, *EVENTS))


def noise(chance: random.Random, data: bytes) -> bytes:
    """Bytes cut short, with flipped bits, doubled, or none of it."""
    fate = chance.random()
    if fate < 0.25:
        return data[: chance.randrange(len(data) + 1)]
    if fate < 0.35:
        return data + data
    if fate < 0.8 and data:
        flipped = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    return data


def text_file(chance: random.Random, path: Path, text: str) -> Path:
    """A file of this text, in whatever encoding, perhaps damaged."""
    data = text.encode(chance.choice(ENCODINGS), errors="replace")
    path.write_bytes(noise(chance, data) if chance.random() < 0.5 else data)
    return path
