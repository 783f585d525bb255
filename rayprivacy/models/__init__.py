"""Public models: loading a base, packing text into rows, trunk features, head adapters. No Ray."""

import logging

# Where DeepSpeed is installed, transformers imports it, and it warns on standard output that there is no GPU. It is
# told which device it gets where it is used (`dpsgd.engines.zero`), and nothing else of a run needs it.
logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in str(record.msg))
