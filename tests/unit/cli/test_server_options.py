"""Options of servers, and the signals that end them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gazette_spark.cli.main import main

SERVERS = (["broker", "serve"], ["consumer", "serve", "gazette_spark.consumer.examples.word_count:WordCount"])

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


@pytest.mark.parametrize("command", SERVERS, ids=["broker", "consumer"])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--auth-keys", "!"], "option '--auth-keys': got a key at index 0 that is not base64"),
        (["--tls-cert", __file__, "--tls-key", __file__], "option 'tls': got"),
    ],
)
def test_malformed_keys_and_certificates_are_wrong_usage(
    command: list[str], options: list[str], problem: str
) -> None:
    answer = CliRunner().invoke(main, [*command, *options])
    assert (answer.exit_code, problem in answer.stderr) == (2, True)
