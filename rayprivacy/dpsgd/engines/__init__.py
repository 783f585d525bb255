"""Engines that take the steps of DP-SGD: plain PyTorch and ZeRO, with the noise of every coordinate added once."""
