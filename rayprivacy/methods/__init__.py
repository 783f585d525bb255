"""Methods: each composes the parts into one algorithm that reads like the paper's box. None imports another."""
