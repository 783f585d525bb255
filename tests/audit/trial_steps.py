"""Bugs in what is tried on public tokens before the first charge, and in what is taken away from losses."""

from mutation import Mutation

_FILE = "dpsgd/independence.py"
_TRIALS = "tests/dpsgd/test_trial_steps.py"
_MIXES = f"{_TRIALS}::test_a_loss_that_mixes_rows_when_somebody_stands_out_is_refused"
_KEEPS = f"{_TRIALS}::test_a_loss_that_keeps_something_or_draws_is_refused"
_STEPS = f"{_TRIALS}::test_what_is_accepted_takes_a_step_and_one_unit_moves_it_by_its_bound"
_UNITS, _MICRO = "bookkeeping-lora-kept-float32", "microbatches-lora-kept-bfloat16"

TRIAL_STEPS = (
    Mutation(
        "companions_all_alike",
        "the company in which a unit is tried holds nobody who stands out",
        _FILE,
        "in companies[: 1 if easy_alone else 2]:",
        "in companies[:0]:",
        f"{_MIXES}[_outliers_down-{_UNITS}]",
    ),
    Mutation(
        "nobody_tried_alone",
        "a unit is not tried alone, nor among others like it",
        _FILE,
        "    trial.compare_with_alone(",
        "    few or trial.compare_with_alone(",
        f"{_MIXES}[_no_repeats-{_UNITS}]",
    ),
    Mutation(
        "norms_without_losses",
        "norms of gradients are compared and losses are not, so that others may turn a gradient round",
        _FILE,
        "values[0].detach().double()[:, None], squared]",
        "0 * values[0].detach().double()[:, None], squared]",
        f"{_MIXES}[_sign_of_the_batch-{_UNITS}]",
    ),
    Mutation(
        "one_copy_for_all_trials",
        "all batches of the trial are computed by one copy of the loss, which keeps what the first one showed it",
        "dpsgd/fresh_loss.py",
        "cast(Callable[[Any, Batch], Tensor], cloudpickle.loads(self._pickle))",
        "self.__dict__.setdefault('kept', cloudpickle.loads(self._pickle))  # type: ignore[no-any-return]",
        f"{_KEEPS}[share_of_the_first-{_MICRO}]",
    ),
    Mutation(
        "one_seed_for_all_trials",
        "all batches of the trial draw the same numbers, so that dropout and random masks are not seen",
        _FILE,
        "with seeded(seed, next(model.parameters()).device):",
        "with seeded(0, next(model.parameters()).device):",
        f"{_KEEPS}[one_mask_for_all-{_MICRO}]",
    ),
    Mutation(
        "micro_batches_not_tried",
        "what a loss or a model keeps from one micro-batch to the next is not looked for, and the certificate says so",
        "dpsgd/engines/engine.py",
        "        told(check_micro_batches(model, losses, tokens, at_once, gradients))",
        "        told('what was tried on public tokens is nothing')",
        f"{_KEEPS}[running_mean-{_MICRO}]",
    ),
    Mutation(
        "units_not_tried",
        "nothing is tried where units are clipped, and nothing says so",
        "dpsgd/engines/engine.py",
        "        told(check_independence(model, losses, tokens, at_once, gradients, clipping, training.max_records))",
        "        pass",
        f"{_STEPS}[{_UNITS}]",
    ),
    Mutation(
        "opacus_in_evaluation_mode",
        "Opacus records nothing of a model in evaluation mode, and the first step with a user is refused",
        "dpsgd/opacus_gradients.py",
        "            module.training = True",
        "            module.training = module.training",
        f"{_STEPS}[opacus-full-kept-float32]",
    ),
    Mutation(
        "gradients_lost",
        "what a loss reads outside of the model's modules is left out of the gradient in silence",
        _FILE,
        "        if not off <=",
        "        if off < 0 and not off <=",
        f"{_TRIALS}::test_a_gradient_that_would_be_lost_is_refused[_penalty-{_UNITS}]",
    ),
    Mutation(
        "experts_shared",
        "a mixture of experts is clipped by units that share its experts",
        _FILE,
        "    if experts > 1:",
        "    if experts > 1000:",
        f"{_TRIALS}::test_experts_are_refused_unless_a_batch_holds_one_unit[bookkeeping-64]",
    ),
    Mutation(
        "rates_of_the_config",
        "dropout whose rate a model reads from its config stays on",
        "models/trainable.py",
        "            _no_rates(config)",
        "            pass",
        "tests/models/test_trainable.py::test_no_rate_of_any_family_draws_in_any_mode[falcon]",
    ),
    Mutation(
        "loss_that_keeps_its_copy",
        "a loss is one object for all batches, and may keep what it has seen",
        "dpsgd/fresh_loss.py",
        "            return self.copy()(model, batch)",
        "            return self.__dict__.setdefault('kept', self.copy())(model, batch)",
        f"{_TRIALS}::test_a_loss_is_a_copy_for_every_batch_under_the_same_seeds",
    ),
)
