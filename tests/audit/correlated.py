"""Bugs in noise that is correlated over steps, and in the groups that go with it."""

from mutation import Mutation

_BANDED = "tests/release/test_banded.py"
_GROUPS = "tests/dpsgd/test_sampler_groups.py"

CORRELATED = (
    Mutation(
        "every_group",
        "units take part whichever group's turn it is, so that one user's windows of noise overlap",
        "dpsgd/sampler.py",
        "open_to = self._group == step % self._groups",
        "open_to = self._group < self._groups",
        f"{_GROUPS}::test_no_unit_takes_part_twice_within_the_bands",
    ),
    Mutation(
        "groups_by_place",
        "units are dealt to groups by their place in the corpus, so that a new one moves others",
        "dpsgd/sampler.py",
        'self._words("dpsgd-groups")[0] % np.uint64(groups)',
        "np.arange(len(units), dtype=np.uint64) % np.uint64(groups)",
        f"{_GROUPS}::test_an_inserted_unit_moves_nobody_else",
    ),
    Mutation(
        "long_columns",
        "the columns of the strategy of correlated noise are longer than 1",
        "release/strategy.py",
        "length = math.sqrt(math.fsum(each * each for each in shape))",
        "length = 1.0",
        f"{_BANDED}::test_no_column_is_longer_than_1_in_exact_arithmetic",
    ),
    Mutation(
        "charge_of_the_mean_rate",
        "an event of correlated noise is charged with rate q, though a user takes part with b q",
        "release/step_mechanism.py",
        "PoissonSampledDpEvent(float(self.sampling_rate),",
        "PoissonSampledDpEvent(float(self.sampling_rate) / self.bands,",
        f"{_BANDED}::test_steps_are_charged_as_one_event_for_every_b_of_them",
    ),
    Mutation(
        "correlation_begins_anew",
        "a resumed run correlates its noise with nothing that came before",
        "dpsgd/correlated_noise.py",
        "for each in range(past.steps, step + 1):",
        "for each in (step,):",
        "tests/dpsgd/test_correlated_noise.py::test_a_restart_goes_on_bit_for_bit",
    ),
    Mutation(
        "independent_but_charged_as_banded",
        "noise is independent, and charged as if it were correlated",
        "dpsgd/engines/noisy_optimizer.py",
        "CorrelatedNoise(noise.noise, noise.mechanism.strategy)",
        "CorrelatedNoise(noise.noise, (1.0,))",
        "tests/statistical/test_banded_noise.py::test_the_noise_of_all_steps_has_the_declared_covariance",
    ),
)
