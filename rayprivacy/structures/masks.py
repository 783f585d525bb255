"""Grammars over the tokens of a model: which texts follow one, and the masks that leave the tokens that can come next.

Two packages do this: xgrammar (the extra `grammar`), and llguidance (the extra `grammar-light`) where it is not
installed. Both read EBNF and JSON Schemas. JSON is written as Python's `json.dumps(..., ensure_ascii=False)` writes it:
a space behind commas and colons, none elsewhere, and keys in the order of the schema.
"""

import json
import re
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from transformers import LogitsProcessor

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.backbone import Documents
from rayprivacy.structures.grammar import Grammar
from rayprivacy.structures.schemas import unenforced
from rayprivacy.structures.trees import names

_SEPARATORS = (", ", ": ")
_OWN_PLACE = re.compile(r"^\[[\d:]+\] \S+: ")


class Matcher(Protocol):
    """A grammar over the tokens of a model."""

    def accepts(self, text: str) -> bool:
        """Whether a text follows the grammar from its first character to its last."""

    def masks(self) -> Any:
        """A processor of logits for one call of `generate`."""


def matcher_of(grammar: Grammar, documents: Documents, vocabulary: int) -> Matcher:
    """The grammar by the package that is installed.

    `vocabulary` is the number of tokens that the model scores, of which its tokenizer may have fewer.
    """
    kind = XgrammarMatcher if _installed("xgrammar") else LlguidanceMatcher
    return kind(grammar, documents, vocabulary)


def check_grammar(grammar: Grammar, key: str) -> None:
    """Refuse rules of a key of the recipe that cannot be read, or that no installed package reads."""
    schema = json.loads(grammar.text) if grammar.kind == "json" else None
    if _installed("xgrammar"):
        fault = unenforced(schema, choices_alone=True) or _xgrammar_fault(grammar)
    elif _installed("llguidance"):
        fault = unenforced(schema, choices_alone=False) or _llguidance_fault(grammar)
    else:
        raise ConfigError(
            "parses.grammar is set, and xgrammar is not installed: run pip install 'rayprivacy[grammar]', or"
            " 'rayprivacy[grammar-light]' for llguidance."
        )
    if fault:
        written = "JSON Schema" if grammar.kind == "json" else "EBNF with a rule 'root'"
        # One line of a package's message, without the time and the place in its own source.
        shown = " ".join(_OWN_PLACE.sub("", fault).split())[:200].rstrip(" .")
        raise ConfigError(f"{key} holds rules that cannot be used ({shown}): give {written}.")


class XgrammarMatcher:
    """A grammar by xgrammar."""

    def __init__(self, grammar: Grammar, documents: Documents, vocabulary: int) -> None:
        self._grammar, self._documents, self._vocabulary = grammar, documents, vocabulary

    @cached_property
    def _compiled(self) -> Any:
        import xgrammar  # an optional package, imported only where it is wanted

        tokenizer = self._documents.tokenizer
        found = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=self._vocabulary, stop_token_ids=[self._documents.end]
        )
        spelt = _spelt(tokenizer, self._vocabulary)
        tokens = xgrammar.TokenizerInfo.from_vocab_and_metadata(spelt, found.dump_metadata())
        return xgrammar.GrammarCompiler(tokens, max_threads=1).compile_grammar(_xgrammar_grammar(self._grammar))

    def accepts(self, text: str) -> bool:
        """Whether a text follows the grammar from its first character to its last."""
        import xgrammar

        matcher = xgrammar.GrammarMatcher(self._compiled)
        return _is_read(self._grammar, text) and matcher.accept_string(text) and matcher.is_completed()

    def masks(self) -> Any:
        """A processor of logits for one call of `generate`."""
        from xgrammar.contrib.hf import LogitsProcessor as Masks

        return Masks(self._compiled)


class LlguidanceMatcher:
    """A grammar by llguidance."""

    def __init__(self, grammar: Grammar, documents: Documents, vocabulary: int) -> None:
        self._grammar, self._documents, self._vocabulary = grammar, documents, vocabulary

    @cached_property
    def _tokens(self) -> Any:
        made = import_module("llguidance.hf").from_tokenizer
        return made(self._documents.tokenizer, n_vocab=self._vocabulary, eos_token=self._documents.end)

    def begun(self) -> Any:
        """A reader of tokens, at the beginning of a text."""
        return import_module("llguidance").LLMatcher(self._tokens, _llguidance_grammar(self._grammar))

    def accepts(self, text: str) -> bool:
        """Whether a text follows the grammar from its first character to its last."""
        reader, tokens = self.begun(), self._documents.ids(text)
        if not _is_read(self._grammar, text) or reader.validate_tokens(tokens) < len(tokens):
            return False
        return bool(reader.consume_tokens(tokens) and reader.is_accepting())

    def masks(self) -> Any:
        """A processor of logits for one call of `generate`."""
        return _Masks(self, self._documents.end)


class _Masks(LogitsProcessor):
    """Rules out, in each text of a batch, the tokens with which the grammar cannot go on."""

    def __init__(self, matcher: LlguidanceMatcher, end: int) -> None:
        self._matcher, self._end, self._readers = matcher, end, list[Any]()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores [texts, vocabulary], with minus infinity for what is ruled out."""
        if self._readers:
            for reader, token in zip(self._readers, input_ids[:, -1].tolist(), strict=True):
                if not reader.is_stopped():
                    reader.consume_token(token)
        else:
            self._readers = [self._matcher.begun() for _ in input_ids]
        allowed = torch.stack([self._allowed(reader, scores.shape[1]) for reader in self._readers])
        return scores.masked_fill(~allowed.to(scores.device), float("-inf"))

    def _allowed(self, reader: Any, tokens: int) -> torch.Tensor:
        """Which tokens may come next, bool [tokens]: behind a complete text the end alone."""
        if reader.is_stopped():
            return torch.arange(tokens) == self._end
        bits = np.unpackbits(np.frombuffer(reader.compute_bitmask(), np.uint8), bitorder="little")
        return torch.from_numpy(bits[:tokens].astype(bool))


def _spelt(tokenizer: Any, vocabulary: int) -> list[bytes | str]:
    """All tokens that a model scores, as text; special ones are empty, or xgrammar would take their names for text."""
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    ordinary = {token: text for text, token in tokenizer.get_vocab().items() if token not in special}
    return [ordinary.get(token, "") for token in range(vocabulary)]


def _is_read(grammar: Grammar, text: str) -> bool:
    """Whether a text is JSON at all, if it should be: strings of bounded length may hold anything with xgrammar."""
    return bool(text) if grammar.kind == "ebnf" else names(text) is not None


def _installed(package: str) -> bool:
    return find_spec(package) is not None


def _xgrammar_grammar(grammar: Grammar) -> Any:
    import xgrammar

    if grammar.kind == "json":
        return xgrammar.Grammar.from_json_schema(grammar.text, any_whitespace=False, separators=_SEPARATORS)
    return xgrammar.Grammar.from_ebnf(grammar.text)


def _xgrammar_fault(grammar: Grammar) -> str:
    try:
        _xgrammar_grammar(grammar)
    except RuntimeError as error:  # the only kind that xgrammar raises for wrong rules, which are public
        return str(error)
    return ""


def _llguidance_fault(grammar: Grammar) -> str:
    try:
        checked = _llguidance_grammar(grammar)
    except Exception as error:  # noqa: BLE001 - it raises the base class for wrong rules, which are public
        return str(error)
    return str(import_module("llguidance").LLMatcher.validate_grammar(checked))


def _llguidance_grammar(grammar: Grammar) -> str:
    matcher = import_module("llguidance").LLMatcher
    if grammar.kind == "json":
        item, key = _SEPARATORS
        written = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
        return str(matcher.grammar_from_json_schema(json.loads(grammar.text), defaults=written))
    lark = import_module("llguidance.gbnf_to_lark").gbnf_to_lark(grammar.text)
    return str(matcher.grammar_from_lark(lark))
