"""The likelihood of every word, given the outcome that replaced it, from the public table.

An attacker knows the table: it is public. Given an outcome y, the words are as likely as prior(x) Pr[M(x) = y] says
(Bayes). In SanText+ a common word that comes out is itself for sure, and a sensitive outcome may have been any word.
"""

import math

import numpy as np

from rayprivacy.sanitize.mechanism import Mechanism, RandomizedResponse, SanText
from rayprivacy.sanitize.table import Ids
from rayprivacy.sanitize.vocabulary import Matrix


def log_likelihoods(mechanism: Mechanism, outcomes: Ids) -> Matrix:
    """ln Pr[M(x) = y] of every word x of the vocabulary, [outcomes, words]."""
    if isinstance(mechanism, RandomizedResponse):
        found = np.full((len(outcomes), mechanism.size), math.log((1 - mechanism.keep_rate) / (mechanism.size - 1)))
        found[np.arange(len(outcomes)), outcomes] = math.log(mechanism.keep_rate)
        return found
    assert isinstance(mechanism, SanText)
    table, words = mechanism.table, len(mechanism.table.vocabulary)
    found = table.distances(outcomes, 0, words)  # distances are symmetric
    found *= -table.epsilon / 2
    found -= table.log_normalisers[None, :words]
    if mechanism.replaced is not None:
        found[:, : table.first] -= mechanism.keep_cost  # a common word is drawn for with probability p
        common = np.flatnonzero(outcomes < table.first)
        found[common] = -np.inf
        found[common, outcomes[common]] = 0.0
    return found


def public_prior(words: int) -> Matrix:
    """ln of 1/rank (Zipf), over a list in the order of frequency, [words]."""
    prior = -np.log(np.arange(1, words + 1, dtype=np.float64))
    return np.asarray(prior - np.log(np.exp(prior).sum()))
