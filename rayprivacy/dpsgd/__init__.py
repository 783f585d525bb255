"""DP-SGD: sampled users, clipped gradients, keyed noise, and the engines that step with them."""
