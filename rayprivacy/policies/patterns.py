"""The pattern policy: typed values such as numbers, dates and addresses are sensitive, as a detector finds them.

The detectors are those of sanitisers (`sanitize.entities`). Names of people are words like others to a pattern, and so
they stay.
"""

from collections.abc import Iterable, Sequence

from rayprivacy.core.artifacts import digest_json
from rayprivacy.policies.policy import Piece, Policy, Row, text_of, touched
from rayprivacy.sanitize.entities import Detector, detector_of


class PatternPolicy(Policy):
    """Hides the values of some kinds that a detector, `patterns` or `presidio`, finds."""

    def __init__(self, detector: str, kinds: Sequence[str], kept: Iterable[str] = ()) -> None:
        self._detector: Detector = detector_of(detector, kinds)
        super().__init__(digest_json(["patterns-1", self._detector.name, sorted(kinds)]), kept)

    def hides(self, words: str) -> bool:
        """See `Policy`."""
        return bool(self._detector.find(words))

    def hits(self, pieces: Sequence[Piece], row: Row) -> set[int]:
        """See `Policy`."""
        text, places = text_of(pieces)
        return touched(places, [(span.start, span.end) for span in self._detector.find(text)])
