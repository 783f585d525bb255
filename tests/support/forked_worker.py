"""What Ray starts in place of its `default_worker.py`: it has the server of `zygote.py` fork one, and waits for it."""

import os
import sys
import sysconfig

from zygote import fork

script = os.path.join(sysconfig.get_path("purelib"), "ray", "_private", "workers", "default_worker.py")
sys.exit(abs(fork([script, *sys.argv[1:]], None, os.environ, os.getcwd(), [1, 2]).wait()))
