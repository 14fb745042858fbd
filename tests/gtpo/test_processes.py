"""The end of a process among several: nothing that it had to say or to close is lost, whatever its threads do."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import atexit, sys, threading, time
from gtpo.run.environment import end_process
threading.Thread(target=time.sleep, args=(600,)).start()  # Python's own end would wait for it
atexit.register(print, "closed")
print("said")
end_process()
"""


def test_exit_handlers_run_and_nothing_is_waited_for(root):
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "said\nclosed\n", "")
