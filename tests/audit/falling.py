"""Bugs in noise that falls by a public schedule."""

from mutation import Mutation

_FALLING = "tests/release/test_falling.py"

FALLING = (
    Mutation(
        "charge_of_the_first_level",
        "noise that falls is charged like that of its first level throughout",
        "release/step_mechanism.py",
        "self._one(sigma)",
        "self._one(self.noise_multiplier)",
        f"{_FALLING}::test_every_step_is_charged_the_noise_that_it_draws",
    ),
    Mutation(
        "levels_of_their_first_steps",
        "a level has the noise that the schedule gives its first step, and later steps cost less than they should",
        "accounting/schedule.py",
        "(self.factor(end - 1), end - begin)",
        "(self.factor(begin), end - begin)",
        "tests/accounting/test_schedule.py::test_levels_are_few_whole_chunks_and_never_above_the_rule",
    ),
    Mutation(
        "workers_and_their_root",
        "noise / N for each worker is priced as noise / sqrt N, and the other way round",
        "accounting/decay.py",
        '2 if per_worker == "sqrt-n" else',
        '2 if per_worker == "n" else',
        "tests/accounting/test_epsilon_calculators.py::test_edpsgd_as_the_paper_prints_it_and_as_it_is",
    ),
    Mutation(
        "charge_of_the_whole_level",
        "a chunk is charged one step of each level that it is in, however many it has",
        "release/step_mechanism.py",
        "shared // self.bands)",
        "1)",
        f"{_FALLING}::test_chunks_together_are_charged_the_levels_and_nothing_twice",
    ),
)
