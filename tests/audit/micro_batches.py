"""Bugs in clipping the means of micro-batches."""

from mutation import Mutation

_MICRO = "tests/dpsgd/test_microbatches.py"

MICRO_BATCHES = (
    Mutation(
        "sensitivity_of_a_unit",
        "the clipped mean of a micro-batch is taken to move by C, where it may turn round and move by 2C",
        "release/step_mechanism.py",
        "else 2 * self.clipping_norm",
        "else self.clipping_norm",
        "tests/release/test_microbatch.py::test_the_noise_is_scaled_to_the_2c_by_which_one_unit_moves_the_sum",
    ),
    Mutation(
        "micro_batches_by_position",
        "units are cut into micro-batches by their place, so that a new one shifts all that come after it",
        "dpsgd/sampler.py",
        'self._words("dpsgd-microbatches", step)[0] % np.uint64(of_part)',
        "np.arange(len(self._units), dtype=np.uint64) % np.uint64(of_part)",
        f"{_MICRO}::test_an_inserted_user_moves_nobody_else",
    ),
    Mutation(
        "micro_batches_across_parts",
        "a micro-batch takes units of all part files, so that workers hold other micro-batches than one worker",
        "dpsgd/sampler.py",
        "(part, int(within[at]))",
        "(0, int(within[at]))",
        f"{_MICRO}::test_the_assignment_is_the_same_for_any_number_of_workers",
    ),
    Mutation(
        "micro_batches_of_the_first_step",
        "units are in the same micro-batch at every step",
        "dpsgd/sampler.py",
        'self._words("dpsgd-microbatches", step)',
        'self._words("dpsgd-microbatches", 0)',
        f"{_MICRO}::test_users_are_spread_evenly_over_the_micro_batches_of_their_part_and_anew_at_every_step",
    ),
    Mutation(
        "norm_of_the_last_piece",
        "a micro-batch that is larger than memory is clipped by the norm of its last piece",
        "dpsgd/microbatches.py",
        "_squared(each) for each in sums]",
        "_squared(each) for each in found]",
        f"{_MICRO}::test_a_micro_batch_that_does_not_fit_into_memory_is_clipped_once",
    ),
    Mutation(
        "nan_in_a_mean",
        "a micro-batch whose mean is not finite is multiplied by 0, and stays so",
        "dpsgd/microbatches.py",
        "if total is None or share == 0:",
        "if total is None:",
        f"{_MICRO}::test_a_mean_that_is_not_finite_gives_nothing_and_leaves_the_others_alone",
    ),
    Mutation(
        "statistics_past_the_clip",
        "a model with batch normalisation is trained, whose statistics hold what no clip bounds",
        "dpsgd/microbatches.py",
        "        if keeping:",
        "        if False:",
        f"{_MICRO}::test_a_model_that_remembers_what_it_read_is_refused",
    ),
)
