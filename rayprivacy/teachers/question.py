"""What all teachers are asked together: some queries, the mechanism that sums their ballots, and a name for the two."""

from dataclasses import dataclass, fields
from pathlib import Path

from rayprivacy.core.artifacts import digest_array, digest_json
from rayprivacy.models.queries import Queries
from rayprivacy.release.vote import VoteMechanism


@dataclass(frozen=True)
class Question:
    """One question; everything in it is public.

    Attributes:
        queries: what is asked.
        mechanism: how a distribution becomes a ballot.
        rows: file of the encoded pseudo-sentences that the queries point into; head kinds do without it.
        digest: names the question, so that an actor never adds the votes of one question to those of another.
    """

    queries: Queries
    mechanism: VoteMechanism
    rows: Path | None
    digest: str

    @staticmethod
    def of(queries: Queries, mechanism: VoteMechanism, rows: Path | None = None, asking: int = 0) -> "Question":
        """Name a question by its content.

        Args:
            queries: what is asked.
            mechanism: how a distribution becomes a ballot.
            rows: file of the encoded pseudo-sentences.
            asking: how many questions these actors were asked before; the same one asked again starts from nothing.
        """
        tensors = [digest_array(getattr(queries, field.name).numpy()) for field in fields(queries)]
        return Question(queries, mechanism, rows, digest_json([tensors, mechanism.parameters, str(rows), asking]))
