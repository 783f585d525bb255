"""Bugs in clipping and noise by layer."""

from mutation import Mutation

_SCALE = "tests/dpsgd/test_layer_scale.py"

LAYER_SCALES = (
    Mutation(
        "noise_after_un_scaling",
        "noise is of one scale for all layers, while gradients are clipped by layer, as eDP-SGD is printed",
        "dpsgd/engines/noisy_optimizer.py",
        "std *= self._noise.scale_of(fragment.name)",
        "pass",
        f"{_SCALE}::test_the_noise_of_each_layer_has_its_own_scale[None]",
    ),
    Mutation(
        "scales_left_out_of_the_clip",
        "gradients are clipped as they are, while the noise of a small layer is small",
        "dpsgd/clipping.py",
        "        if self.scales:\n",
        "        if False:\n",
        f"{_SCALE}::test_no_unit_is_longer_than_the_norm_after_the_division",
    ),
    Mutation(
        "scales_multiplied",
        "gradients are multiplied by the scales before they are clipped, where they should be divided",
        "dpsgd/clipping.py",
        "squared = squared / torch.tensor",
        "squared = squared * torch.tensor",
        f"{_SCALE}::test_no_unit_is_longer_than_the_norm_after_the_division",
    ),
    Mutation(
        "scales_of_one_rank",
        "ranks clip and add noise by scales of their own",
        "dpsgd/engines/noisy_optimizer.py",
        "hashlib.sha256(scales + layers + probe)",
        "hashlib.sha256(scales + probe)",
        f"{_SCALE}::test_ranks_that_differ_in_their_scales_are_refused",
    ),
)
