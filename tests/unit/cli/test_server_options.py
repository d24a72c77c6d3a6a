"""A server's command ends on a signal, regardless of which thread the kernel delivers it to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, threading, time
from gazette_spark.cli.server_options import EndSignals

ends = EndSignals()
other = threading.Thread(target=time.sleep, args=(300,), daemon=True)
other.start()

def send():
    time.sleep(0.3)  # By then the main thread waits, most likely; if not, the signal is there already.
    signal.pthread_kill(other.ident, int(sys.argv[1]))

assert not ends.wait(0.01), "none has come"
threading.Thread(target=send).start()
assert ends.wait()
assert ends.wait(0.0), "it stays"
print("ended")
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_another_thread_gets_ends_the_wait(signum: signal.Signals) -> None:
    """Python runs signal handlers in the main thread, which would sleep on if it waited for a lock."""
    command = [sys.executable, "-c", PROGRAM, str(int(signum))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
