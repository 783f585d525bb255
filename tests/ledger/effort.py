"""How long randomised tests go on searching: RAYPRIVACY_TEST_EFFORT=10 makes ten times the default."""

import os

EFFORT = int(os.environ.get("RAYPRIVACY_TEST_EFFORT", "1"))
