"""Question answering: a DP-SGD generator of passages, and questions with answers and evidence about what it wrote."""
