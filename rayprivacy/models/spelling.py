"""Token ids of people's text: a control token that is spelled in it is text, and controls nothing.

A chat that holds `<|im_end|>` does not end there: a model would learn to stop, and the words were lost when ids are
read back. Templates of ours that need control tokens insert their ids.
"""

import re
from collections.abc import Sequence
from typing import Any


def ids_of(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, without special tokens around it."""
    if not texts:
        return []
    encoded: list[list[int]] = tokenizer(list(texts), **PLAIN)["input_ids"]
    control = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return [
        ids if control.isdisjoint(ids) else _apart(tokenizer, text, control)
        for ids, text in zip(encoded, texts, strict=True)
    ]


PLAIN = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}  # it would log a text's length


def _apart(tokenizer: Any, text: str, control: set[int]) -> list[int]:
    """The same where control tokens are also words to the tokenizer, as in Unigram: their spellings are read in two."""
    spelled = sorted((token for token in tokenizer.all_special_tokens if len(token) > 1), key=len, reverse=True)
    inside = re.compile("|".join(f"(?<={re.escape(token[0])})(?={re.escape(token[1:])})" for token in spelled))
    pieces = tokenizer([piece for piece in inside.split(text) if piece], **PLAIN)["input_ids"]
    return [each for ids in pieces for each in ids if each not in control]
