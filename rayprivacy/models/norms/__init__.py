"""Norms and weighted sums of per-example gradients from one backward pass ("book-keeping").

The gradient of a weight W by one example is a sum of outer products, one per position: output gradient times input.
Both are at hand after a pass that computes gradients of outputs only, so the norm of each example's gradient and then
any weighted sum of them come without a second pass, and without ever holding one full gradient per example.

Source: Bu, Wang, Zha & Karypis 2023, "Differentially Private Optimization on Large Model at Small Cost" (book-keeping);
the norm of a sum of outer products by Gram matrices is Goodfellow 2015 and Li et al. 2022 ("ghost clipping").

    recorder   what a caller uses: records a forward pass, then norms, then weighted sums
    rules      module kinds whose gradients are known; everything else is refused
    terms      gradients as data, and the coefficients of a weighted sum
    parameter  all terms of one parameter: tied and repeated weights
"""

from rayprivacy.models.norms.recorder import Recorder, Units

__all__ = ["Recorder", "Units"]
