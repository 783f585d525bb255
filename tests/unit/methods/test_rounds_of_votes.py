"""Each round is a charge and a draw of its own, also where the same is asked and answered as it was before."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rayprivacy.core.keys import Key
from rayprivacy.core.private import Private, digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.seqpate import method
from rayprivacy.methods.seqpate.plan import plan_run
from rayprivacy.methods.seqpate.public_side import Round
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.models.features import Queries
from rayprivacy.release.gate import Asked, Gate, VoteManifest
from rayprivacy.runs.context import RunContext

TEACHERS, QUERIES, ROUNDS = 5, 4, 3


def test_rounds_with_equal_answers_are_charged_and_drawn_one_by_one(tmp_path, monkeypatch):
    """Its teachers answer, and none of them has learnt from anything: all sums are zero."""
    votes = {"queries": QUERIES * ROUNDS, "rounds": ROUNDS, "top_k": 3}
    privacy = {"account": "sums", "composition": "gdp"}
    recipe = SeqPateRecipe.parse({"teachers": {"count": TEACHERS}, "votes": votes, "privacy": privacy})
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    cap = Budget(recipe.privacy.epsilon, recipe.privacy.delta)
    ledger.create_account("sums", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, cap)
    context = SimpleNamespace(
        recipe=recipe,
        plan=plan_run(recipe),
        gate=Gate(ledger, "sums", Key.for_tests()),
        run=SimpleNamespace(public=lambda name: tmp_path / name),
        stage=lambda name: nullcontext(),
        counter=lambda name: lambda done: None,
        asked=lambda question: Asked(digest_json("corpus"), question),
        _charged=lambda event: None,
    )
    context.release_votes = partial(RunContext.release_votes, context)
    ones, drawn = torch.ones(QUERIES, 3), list[bytes]()
    queries = Queries(ones, ones.long(), ones.bool(), ones, torch.zeros(QUERIES, 2).long())
    sums = Private(np.zeros((QUERIES, 3), dtype=np.int64))
    teachers: Any = SimpleNamespace(vote=lambda *_: (sums, VoteManifest(tuple(range(TEACHERS)))))
    backbone: Any = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=dict, special_tokens_map={}))
    spec: Any = SimpleNamespace(workspace=SimpleNamespace(recipe="these teachers"))
    student: Any = SimpleNamespace(model=lambda: None)
    monkeypatch.setattr(method.public_side, "pseudo_rows", lambda *_: None)
    monkeypatch.setattr(method.public_side, "round_queries", lambda *_: queries)
    monkeypatch.setattr(method, "_distilled", lambda *given: drawn.append(given[4].value.tobytes()))
    monkeypatch.setattr(Round, "of", staticmethod(lambda number, student: Round(number, f"{number}-student")))
    for number in range(ROUNDS):
        Round.of(number, student).rows(context.run).write_bytes(b"the same sentences")

    def ask():
        asking = method._Asking(context, backbone, [], spec, teachers)  # type: ignore[arg-type]
        for number in range(ROUNDS):
            asking.round(number, student, None)  # type: ignore[arg-type]

    ask()
    assert len(set(drawn)) == len(ledger.charges_of("sums", recipe.release_id)) == ROUNDS
    ask()  # a resumed run asks again, and is answered as before
    assert drawn[ROUNDS:] == drawn[:ROUNDS]
    assert len(ledger.charges_of("sums", recipe.release_id)) == ROUNDS
