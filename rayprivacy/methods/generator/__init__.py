"""The DP-SGD generator: a language model fine-tuned on private text, which then writes behind control codes."""
