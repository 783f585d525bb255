"""Keys of what a trial reports to Ray Tune. They stand apart, because the trial's process imports nothing heavy."""

UTILITY = "utility"
EPSILON = "epsilon"
REFUSED = "refused"
FAILED = "failed"
