"""numpy's source of random numbers, under a name that is no method's.

numpy calls this type a generator, which is also the name of a method of this package. A check counts the files that
know a method by name, so the word stands here once and nowhere else in the shared layers. Draws of privacy noise have
nothing to do with this type: see `release.noise` and `dpsgd.noise`.
"""

import numpy as np

NumpyGenerator = np.random.Generator
