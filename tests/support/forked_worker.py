"""What Ray starts in place of its `setup_worker.py`: the server of `zygote.py` forks the worker, and this waits for it.

Ray's own script imports all of Ray to read one argument, and then starts a shell and one more interpreter. It is left
to do so where the worker's environment is more than variables: another folder, say, or another interpreter.
"""

import argparse
import json
import os
import re
import sys
import sysconfig
from typing import Any

from zygote import fork

RAYS_OWN = os.path.join(sysconfig.get_path("purelib"), "ray", "_private", "workers", "setup_worker.py")


def _set_variables(variables: dict[str, str]) -> None:
    """As Ray does: `${X}` is what X is now, or nothing."""
    for name, value in variables.items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    arguments, worker = parser.parse_known_args()
    context: dict[str, Any] = json.loads(arguments.serialized_runtime_env_context or "{}")
    plain = context.get("py_executable") in (None, sys.executable) and not context.get("override_worker_entrypoint")
    if arguments.language not in (None, "PYTHON") or not plain or context.get("command_prefix"):
        os.execv(sys.executable, [sys.executable, RAYS_OWN, *sys.argv[1:]])
    _set_variables(context.get("env_vars") or {})
    sys.exit(abs(fork(worker, None, os.environ, os.getcwd(), [1, 2]).wait()))


main()
