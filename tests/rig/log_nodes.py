"""Nodes that replicate a log over an unreliable network, and are killed and promoted at random.

Each node has a separate connection to the broker, through a proxy. As a secondary it fetches and applies; its
"disk" keeps the applied entries and the offset when it is killed. A node that is elected takes the log over,
fetches the rest, and commits entries until it is fenced: nobody notifies an old primary. The nemesis breaks
connections, loses responses, makes partitions, kills nodes and elects primaries, from a seed.
:mod:`tests.rig.log_history` checks the recorded run.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep

from gazette_spark import Client
from gazette_spark.errors import FetchCancelledError, FetchTimeoutError, GazetteError, LogFencedError
from gazette_spark.replicated_log import Checkpoint, InvalidVersionError, NoMoreMessageError, Receiver, Writer
from gazette_spark.replicated_log._journal import read_records
from tests.rig.log_history import Acknowledged, History, Promotion, Step
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

NODES = 3
SOON = 60.0
COMMIT_S = 1.5
"""Maximum seconds that a primary waits for an entry."""
BURST = 3
"""Number of entries that a primary commits concurrently."""
MIDDLES = 12
"""Number of offsets inside the log at which a new receiver starts, after the run."""

SILENT = Toxics(silent=True)


@dataclass(slots=True)
class Run:
    journal: str
    endpoint: str
    history: History = field(default_factory=History)
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)
    repeats: int = 0
    """Number of repeated records in the journal."""
    failures: list[BaseException] = field(default_factory=list)
    """Errors that ended nodes unexpectedly."""


class Node:
    """A thread that acts as secondary or primary until the run is over."""

    def __init__(self, run: Run, name: str, proxy: TcpProxy, seed: int) -> None:
        self.name = name
        self.proxy = proxy
        self.elected = threading.Event()
        self.killed = threading.Event()
        self.is_primary = False
        self.applied: list[Step] = []
        self.offset = 0
        self._run = run
        self._random = random.Random(seed)
        self._version = 0
        self._entries = 0
        self.thread = threading.Thread(target=self._live, name=name, daemon=True)

    def _live(self) -> None:
        try:
            while not self._run.over.is_set():
                self.killed.clear()
                self.elected.clear()
                client = Client(self.proxy.endpoint, timeout_s=3, connect_timeout_s=SOON)
                # A network failure ends only this life of the node.
                with client, suppress(GazetteError):
                    self._replicate(client)
        except BaseException as error:  # noqa: BLE001 - told at the end of the run
            self._run.failures.append(error)

    def _stops(self) -> bool:
        return self._run.over.is_set() or self.killed.is_set()

    def _replicate(self, client: Client) -> None:
        with Receiver(client, self._run.journal) as receiver:
            if self.offset:
                receiver.set_offset(self.offset)
            while not self._stops():
                try:
                    self.apply(receiver.fetch_entry(0.2, self.elected), receiver)
                except FetchTimeoutError:
                    continue
                except FetchCancelledError:
                    self.elected.clear()
                    if not self.killed.is_set():
                        self._be_primary(client, receiver)

    def apply(self, entry: bytes | Checkpoint, receiver: Receiver) -> None:
        """Apply an entry and record where the log continues, atomically, as in a transaction."""
        step: Step = entry.decode() if isinstance(entry, bytes) else receiver.version
        self.applied.append(step)
        if isinstance(step, int):
            self._version = step
        self.offset = receiver.offset

    def _be_primary(self, client: Client, receiver: Receiver) -> None:
        writer = Writer(client, self._run.journal, timeout_s=COMMIT_S)
        try:
            at = writer.take_over(timeout_s=SOON / 4)
            with suppress(NoMoreMessageError):
                while not self._stops():
                    self.apply(receiver.try_fetch_entry(SOON / 4), receiver)
            if self._stops():
                return
            with self._run.lock:
                self._run.history.promotions.append(Promotion(writer.author, at, tuple(self.applied)))
            self.is_primary = True
            with suppress(LogFencedError):
                self._serve(writer)
        finally:
            self.is_primary = False
            writer.close(abort=True)

    def _serve(self, writer: Writer) -> None:
        version = self._version
        with ThreadPoolExecutor(BURST) as pool:
            while not self._stops():
                for done in [pool.submit(self._commit, writer) for _ in range(BURST)]:
                    done.result()
                if self._random.random() < 0.1:
                    try:
                        with writer.checkpointing(version):
                            version += 1
                    except InvalidVersionError as error:
                        # A checkpoint without a response was made all the same; no other node can have made
                        # it.
                        version = error.actual
                    except LogFencedError:
                        raise
                    except GazetteError:
                        continue

    def _commit(self, writer: Writer) -> None:
        with self._run.lock:
            self._entries += 1
            entry = f"{self.name}-{self._entries}"
        begun = monotonic()
        try:
            writer.commit_entry(entry.encode(), COMMIT_S)
        except LogFencedError:
            raise
        except GazetteError:
            return
        with self._run.lock:
            self._run.history.acknowledged.append(Acknowledged(entry, writer.author, begun, monotonic()))


class Nemesis:
    def __init__(self, run: Run, nodes: list[Node], client: Client, choose: random.Random) -> None:
        self._run = run
        self._nodes = nodes
        self._client = client
        self._choose = choose
        self._acts: list[Callable[[Node], None]] = [
            self._cut,
            self._lose_answer,
            self._lose_answer,
            self._part,
            self._disconnect,
            self._kill,
            self._elect,
            self._elect,
        ]

    def work(self, seconds: float) -> None:
        """Elect a primary, lose one of its responses, elect another; then do random harm."""
        deadline = monotonic() + seconds
        self._elect(self._nodes[0])
        _wait(lambda: self._nodes[0].is_primary)
        self._lose_answer(self._nodes[0])
        self._elect(self._nodes[1])
        _wait(lambda: self._nodes[1].is_primary)
        known = len(self._run.history.acknowledged)
        _wait(lambda: not self._nodes[0].is_primary or self._commits_on(self._nodes[0], known))
        while monotonic() < deadline:
            primaries = [node for node in self._nodes if node.is_primary]
            among = primaries if primaries and self._choose.random() < 0.7 else self._nodes
            self._choose.choice(self._acts)(self._choose.choice(among))
            sleep(self._choose.uniform(0.05, 0.4))

    def _commits_on(self, node: Node, known: int) -> bool:
        """Return whether more of a node's entries were acknowledged since than can have been in progress."""
        since = self._run.history.acknowledged[known:]
        return sum(each.entry.startswith(f"{node.name}-") for each in since) > BURST

    def _cut(self, node: Node) -> None:
        node.proxy.cut()

    def _lose_answer(self, node: Node) -> None:
        """Pass appends on without their responses, break the connection, and wait for the next attempt."""
        node.proxy.to_client = SILENT
        head = self._client.write_head(self._run.journal)
        with suppress(TimeoutError):
            _wait(lambda: self._client.write_head(self._run.journal) > head, 1.0)
        known = len(self._run.history.acknowledged)
        # In this order, or the response may get through.
        node.proxy.cut()
        node.proxy.to_client = CLEAN
        _wait(lambda: not node.is_primary or len(self._run.history.acknowledged) > known)

    def _part(self, node: Node) -> None:
        """Block all traffic for a while without closing connections, so that it arrives late."""
        node.proxy.to_client = node.proxy.to_server = SILENT
        sleep(self._choose.uniform(0.2, 1.0))
        node.proxy.to_client = node.proxy.to_server = CLEAN

    def _disconnect(self, node: Node) -> None:
        node.proxy.down()
        sleep(self._choose.uniform(0.1, 0.5))
        node.proxy.up()

    def _kill(self, node: Node) -> None:
        node.killed.set()
        node.elected.set()  # Ends a fetch immediately.

    def _elect(self, node: Node) -> None:
        node.elected.set()


def _wait(condition: Callable[[], bool], timeout_s: float = SOON) -> None:
    deadline = monotonic() + timeout_s
    while not condition():
        if monotonic() > deadline:
            raise TimeoutError("the nodes did not get there")
        sleep(0.005)


def run_nodes(endpoint: str, journal: str, *, seed: int, seconds: float) -> Run:
    run = Run(journal, endpoint)
    choose = random.Random(seed)
    with ExitStack() as stack:
        client = stack.enter_context(Client(endpoint, timeout_s=SOON))
        Receiver(client, journal).close()
        proxies = [stack.enter_context(TcpProxy(endpoint)) for _ in range(NODES)]
        nodes = [
            Node(run, f"node-{at}", proxy, choose.randrange(1 << 32)) for at, proxy in enumerate(proxies)
        ]
        for node in nodes:
            node.thread.start()
        try:
            Nemesis(run, nodes, client, choose).work(seconds)
        finally:
            run.over.set()
            for node in nodes:
                node.elected.set()
            for node in nodes:
                node.thread.join(SOON)
        assert not any(node.thread.is_alive() for node in nodes), "a node hangs"
        _read_to_the_end(run, nodes, client, choose)
    return run


def _read_to_the_end(run: Run, nodes: list[Node], client: Client, choose: random.Random) -> None:
    """Make each node apply the rest, and start fresh replicas at the beginning and in the middle."""
    fresh = Node(run, "fresh", nodes[0].proxy, 0)
    for node in (fresh, *nodes):
        _drain(run, node, client)
        run.history.replicas[node.name] = node.applied
    records = list(read_records(client, run.journal, 0, client.write_head(run.journal)))
    run.repeats = len(records) - len({record.stamp for record in records})
    for record in choose.sample(records, min(MIDDLES, len(records))):
        middle = Node(run, f"from-{record.begin}", nodes[0].proxy, 0)
        middle.offset = record.begin
        _drain(run, middle, client)
        # A snapshot provides what the replica has not read itself.
        before = fresh.applied[: len(fresh.applied) - len(middle.applied)]
        run.history.replicas[middle.name] = before + middle.applied


def _drain(run: Run, node: Node, client: Client) -> None:
    with Receiver(client, run.journal) as receiver:
        receiver.set_offset(node.offset)
        with suppress(NoMoreMessageError):
            while True:
                node.apply(receiver.try_fetch_entry(SOON), receiver)
