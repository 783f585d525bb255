"""How hard randomised tests search: one dial, RAYPRIVACY_TEST_EFFORT, which `make test-all` turns to 4.

A test under hypothesis has no number of examples of its own, but that of the profile: "quick" at effort 1, "thorough"
above; "failing" finds that a test fails, and does not ask how little it takes. Where one example costs a tenth of a
second or more, the test takes `COSTLY`. Other searches, by the second or by the round, multiply with `EFFORT`.
"""

import os

from hypothesis import Phase, settings

EFFORT = int(os.environ.get("RAYPRIVACY_TEST_EFFORT", "1"))

settings.register_profile("quick", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=100 * max(EFFORT, 4), deadline=None, print_blob=True)
settings.register_profile(
    "failing", max_examples=50, deadline=None, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("quick" if EFFORT == 1 else "thorough")

COSTLY = settings(max_examples=settings().max_examples // 4)
