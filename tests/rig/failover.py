"""Brokers of a cluster fail in six ways under six readers and writers; the results show what each one saw.

Each user is a kind of program that a failover may mislead about where a journal ends. It works in a thread,
step by step, and keeps its position as a program would. An error that a step raises is a *false alarm*: no
byte is ever lost here, because a journal has three replicas and one broker fails at a time. At the end, each
user's data is compared with what was acknowledged.

The source is Spark's reader under a copy of Spark's batch loop, without Spark.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StringType, StructType

from gazette_spark import Client
from gazette_spark._backfill import continued, pinned_options, steps
from gazette_spark._formats.framing import RowRefusal
from gazette_spark._options.source import parse_options
from gazette_spark._options.write import parse_write_options
from gazette_spark._planning.access import open_journals
from gazette_spark._planning.plan import Planner
from gazette_spark._write.producer import TaskProducer
from gazette_spark._write.transaction_journal import commit_transaction
from gazette_spark._write.transactions import Attempt
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.consumer import shard_spec
from gazette_spark.consumer.batch_driver import BatchDriver
from gazette_spark.consumer.spark_shards import SparkShards
from gazette_spark.errors import UnavailableError
from gazette_spark.message import Publisher, read_committed, write_ack_intents
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from gazette_spark.replicated_log import Checkpoint, NoMoreMessageError, Receiver, Writer
from gazette_spark.source import GazetteDataSource
from gazette_spark.testing import MicroBatches
from gazette_spark.testing.micro_batch import Run
from tests.rig.brokers import DeployedBroker
from tests.rig.cluster import ClusterBroker, EmbeddedCluster
from tests.rig.messages import Document
from tests.rig.micro_batches import MemoryEngine, MemoryTable, WordCount
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

log = logging.getLogger(__name__)

LEASE_S = 2
BROKERS = 4
REPLICATION = 3
JOURNALS = 6
LINE = b"a record of fifty bytes, its newline also counted".ljust(49, b".") + b"\n"
SCHEMA = StructType().add("journal", StringType()).add("offset", LongType()).add("_end_offset", LongType())
REFRESH_S = 5
"""Seconds between a member's listings of the store; a joining replica is behind for that long."""

TIMEOUT_S = 120
"""Maximum seconds for a call. After a broker hands over, the other brokers may hold appends for a minute,
the interval at which a primary checks its replicas."""

HELD_S = 5
"""Maximum seconds to wait for an append of lines. Users wait longer."""

Wait = Callable[[float], None]
"""Function that waits for a number of seconds."""

Rows = Counter[tuple[str, int]]
"""Number of times that each record was read, by journal and offset."""


@dataclass
class World:
    """The cluster, its journals of lines, and the lines that it acknowledged."""

    cluster: Cluster
    prefix: str
    refresh_s: int = REFRESH_S
    acknowledged: dict[str, int] = field(default_factory=dict)
    """End offset of the last acknowledged append, by journal."""
    busy: threading.Event = field(default_factory=threading.Event)
    """Event that is set while users may write."""
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.client = self.open_client()
        self.create(*(f"{self.prefix}lines/{number}" for number in range(JOURNALS)))
        self.names = [f"{self.prefix}lines/{number}" for number in range(JOURNALS)]
        for _ in range(10):
            for name in self.names:
                # The last appends stay in the brokers' memory, because their fragment is not full.
                self.append(name, 50)

    @property
    def endpoint(self) -> str:
        """The broker that programs are given; others fail."""
        return self.cluster.endpoint

    def open_client(self) -> Client:
        """Return a client that abandons a silent stream after two seconds."""
        return Client(self.endpoint, timeout_s=TIMEOUT_S, idle_timeout_s=2, connect_timeout_s=30)

    def create(self, *names: str, labels: Mapping[str, str] | None = None) -> None:
        """Create journals with small fragments, so that some bytes are stored and some are not."""
        specs = [
            journal_spec(
                name,
                replication=REPLICATION,
                length=1 << 14,
                refresh_interval_s=self.refresh_s,
                labels=labels or {},
            )
            for name in names
        ]
        self.client.create_journals(*specs)

    def append(self, name: str, lines: int, timeout_s: float = TIMEOUT_S) -> None:
        """Append lines; a retried append may duplicate its lines."""
        self.acknowledged[name] = self.client.append(name, LINE * lines, timeout_s=timeout_s).end

    def options(self) -> dict[str, str]:
        return {
            "brokerAddress": self.endpoint,
            "journals": ",".join(self.names),
            "startingOffsets": "earliest",
            "requestTimeoutMs": str(TIMEOUT_S * 1000),
            "idleTimeoutMs": "2000",
        }

    def lines(self, ends: Mapping[str, int]) -> Rows:
        return Counter((name, at) for name, end in ends.items() for at in range(0, end, len(LINE)))


class User(ABC):
    """A user of the cluster. Its thread calls :meth:`step` until the world is over."""

    writes = False
    """Whether the user appends, except in the quiet time after a failure."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.steps = 0
        self.alarms: list[str] = []

    @abstractmethod
    def step(self) -> None:
        """Do a small piece of work."""

    @abstractmethod
    def found(self) -> tuple[Counter[Any], Counter[Any]]:
        """Return the expected and the actual data, after the last step."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def work(self) -> None:
        while not self.world.over.is_set():
            if self.writes and not self.world.busy.is_set():
                self.world.over.wait(0.05)
                continue
            self.guarded()
            self.world.over.wait(0.02)

    def guarded(self) -> None:
        began = monotonic()
        try:
            self.step()
        except Exception as error:  # noqa: BLE001 - Every error is counted and shown.
            self.alarms.append(f"{type(error).__name__} after {monotonic() - began:.1f} s: {error}")
        self.steps += 1


class Stream(User):
    """A streaming query that restarts after an error, as from its checkpoint."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.query = MicroBatches()
        self._run: Run | None = None

    def step(self) -> None:
        if self._run is None:
            self._run = self.query.start(self._reader, available_now=self.steps % 2 == 1)
        try:
            if not self._run.batch():
                self.close()
        except BaseException:
            self.close()
            raise

    def _reader(self) -> Any:
        return stream_reader(self.world.options())

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.stop()

    def found(self) -> tuple[Counter[Any], Counter[Any]]:
        self.close()
        run = self.query.start(self._reader, available_now=True)
        while run.batch():
            continue
        run.stop()
        expected = self.world.lines(self.world.acknowledged)
        return expected, Counter((row[0], row[1]) for row in self.query.rows())


def stream_reader(options: Mapping[str, str]) -> Any:
    return GazetteDataSource(CaseInsensitiveDict(options)).streamReader(SCHEMA)


def read_batch(options: Mapping[str, str]) -> Rows:
    reader = GazetteDataSource(CaseInsensitiveDict(options)).reader(SCHEMA)
    rows: Rows = Counter()
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    return rows


class Batch(User):
    """Batch queries over all data. One that ends too early has lost records."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.expected: Counter[Any] = Counter()
        self.read: Counter[Any] = Counter()

    def step(self) -> None:
        expected = self.world.lines(dict(self.world.acknowledged))
        rows = read_batch(self.world.options())
        self.expected.update(expected.keys())
        self.read.update({key: count for key, count in rows.items() if count > 1 or key in expected})

    def found(self) -> tuple[Counter[Any], Counter[Any]]:
        self.step()
        return self.expected, self.read

    def close(self) -> None:
        """Do nothing: each query has its own connections."""


class Backfill(User):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.recorded: dict[str, int] = {}
        self.rows: Rows = Counter()

    def step(self) -> None:
        options = self.world.options()
        parsed = parse_options(options, "batch")
        with open_journals(parsed) as journals:
            planner = Planner(journals, parsed)
            begin, end = planner.batch()
            begin, end = continued(begin, end, self.recorded, open_end=True, check_heads=planner.check_heads)
            for low, high in steps(planner, begin, end, 100_000):
                rows = read_batch(pinned_options(options, parsed, low, high))
                self.rows.update(rows)
                self.recorded |= high.read_through

    def found(self) -> tuple[Counter[Any], Counter[Any]]:
        self.step()
        return self.world.lines(self.world.acknowledged), self.rows

    def close(self) -> None:
        """Do nothing: each backfill has its own connections."""


class Rewriter(User):
    """Spark's exactly-once writer: batches of rows, committed by a transaction journal."""

    writes = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.journals = [f"{world.prefix}rows/{short}" for short in "ab"]
        self.transactions = f"{world.prefix}transactions"
        world.create(*self.journals, self.transactions, labels={"content-type": CONTENT_TYPE_NDJSON})
        self.client = world.open_client()
        self.batches = 0

    def step(self) -> None:
        producer = TaskProducer(None, 1_700_000_000_000_000_000 + self.steps)
        for journal in self.journals:
            rows = [f'{{"batch":{self.batches},"row":{row}}}'.encode() for row in range(2)]
            stamped = producer.stamped(pa.array(rows, pa.binary()), journal, "lines")
            assert not isinstance(stamped, RowRefusal)
            self.client.append(journal, b"".join(row + b"\n" for row in stamped.to_pylist()))
        intents = producer.intents()
        commits = {each.journal: each.commit for each in intents}
        rollbacks = {each.journal: each.rollback for each in intents}
        attempt = Attempt("failover", self.batches, "run", commits, rows=4)
        commit_transaction(self.client, self.transactions, attempt, rollbacks)
        self.batches += 1

    def found(self) -> tuple[Counter[Any], Counter[Any]]:
        expected = Counter(
            (journal, batch, row)
            for journal in self.journals
            for batch in range(self.batches)
            for row in (0, 1)
        )
        rows: Counter[Any] = Counter()
        for journal in self.journals:
            with read_committed(self.client, journal) as reader:
                values = [json.loads(bytes(each.message)) for each in reader]
            rows.update((journal, value["batch"], value["row"]) for value in values if "row" in value)
        return expected, rows

    def close(self) -> None:
        self.client.close()


class Log(User):
    writes = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.client = world.open_client()
        name = f"{world.prefix}log"
        spec = journal_spec(name, replication=REPLICATION, refresh_interval_s=world.refresh_s)
        self.writer = Writer(self.client, name, spec=spec)
        self.receiver = Receiver(self.client, self.writer.journal)
        self.committed: Counter[Any] = Counter()
        self.fetched: Counter[Any] = Counter()

    def step(self) -> None:
        entry = uuid.uuid4().bytes
        self.writer.commit_entry(entry)
        self.committed[entry] += 1
        if self.steps % 4 == 3:
            self.receiver.set_offset(self.receiver.offset)
        self._fetch()

    def _fetch(self) -> None:
        with suppress(NoMoreMessageError):
            while True:
                fetched = self.receiver.try_fetch_entry()
                if not isinstance(fetched, Checkpoint):
                    self.fetched[bytes(fetched)] += 1

    def found(self) -> tuple[Counter[Any], Counter[Any]]:
        self._fetch()
        return self.committed, self.fetched

    def close(self) -> None:
        self.receiver.close()
        self.writer.close(abort=True)
        self.client.close()


class Consumer(User):
    """An application that counts words: the host on Spark, with tasks and table in this process."""

    writes = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.client = world.open_client()
        self.source, output = f"{world.prefix}words", f"{world.prefix}totals"
        world.create(self.source, output, labels={"content-type": CONTENT_TYPE_NDJSON})
        self.service = AppendService(self.client)
        options = {"brokerAddress": world.endpoint, "requestTimeoutMs": str(TIMEOUT_S * 1000)}
        self.table = MemoryTable()
        self.engine = MemoryEngine(self.table, WordCount(output), parse_write_options(options))
        self.shards = SparkShards("failover", [shard_spec("counter", [self.source])], self.client)
        self.driver = BatchDriver(self.shards, self.client, 1 << 20)
        self.driver.open(self.engine)
        self.published: Counter[Any] = Counter()

    def step(self) -> None:
        publisher = Publisher(self.service)
        word = f"word-{self.steps}"
        to = (self.source, CONTENT_TYPE_NDJSON)
        publisher.publish_uncommitted(lambda _: to, Document({"text": word}))
        self.service.flush()
        write_ack_intents(self.client, publisher.build_ack_intents())
        self.published[word] += 1
        self._consume()

    def _consume(self) -> None:
        while self.driver.transaction(self.engine):
            continue
        for shard in self.shards.table.list_shards().shards:
            assert [list(each.errors) for each in shard.status] == [[]]

    def found(self) -> tuple[Counter[Any], Counter[Any]]:
        self._consume()
        rows = self.table.state.get("counter", {})
        return self.published, Counter({word: json.loads(text) for (_, word), text in rows.items()})

    def close(self) -> None:
        self.service.close()
        self.client.close()


USERS: dict[str, type[User]] = {
    "stream": Stream,
    "batch": Batch,
    "backfill": Backfill,
    "writer": Rewriter,
    "replicated log": Log,
    "consumer": Consumer,
}


class Cluster(Protocol):
    """Brokers and their failures. The number of brokers is the same before and after each failure."""

    @property
    def endpoint(self) -> str:
        """Address of the broker that programs are given."""

    @property
    def endpoints(self) -> list[str]:
        """Addresses of all running brokers."""

    def kill(self, wait: Wait) -> None:
        """Kill a broker by SIGKILL; another one joins later."""

    def stop(self, wait: Wait) -> None:
        """Stop a broker by SIGSTOP until others have taken over; then resume it."""

    def partition(self, wait: Wait) -> None:
        """Cut a broker off from Etcd or from the others, while clients still reach it."""

    def lease_loss(self, wait: Wait) -> None:
        """Revoke a broker's lease: Etcd considers it gone, while it runs."""

    def member_replaced(self, wait: Wait) -> None:
        """Add a new broker, and then remove another one immediately and permanently."""

    def rolling_upgrade(self, wait: Wait) -> None:
        """Make each broker hand over, end, and return at its address, one after the other."""


HARMS = ("kill", "stop", "partition", "lease_loss", "member_replaced", "rolling_upgrade")
"""Names of the failures, which are methods of a cluster."""


class RealCluster:
    """Gazette's own brokers and Etcd."""

    def __init__(self, deployed: DeployedBroker) -> None:
        self._deployed = deployed
        for _ in range(BROKERS - 1):
            deployed.start_peer()
        self.endpoint = deployed.endpoint

    @property
    def endpoints(self) -> list[str]:
        return self._deployed.brokers

    def _victim(self) -> str:
        return next(each for each in self._deployed.brokers if each != self.endpoint)

    def _replace(self, endpoint: str) -> None:
        """Replace a broker that may already have ended."""
        self._deployed.kill_peer(endpoint)
        self._deployed.start_peer()

    def kill(self, wait: Wait) -> None:
        """Run with three brokers for a while."""
        self._deployed.kill_peer(self._victim())
        wait(LEASE_S + 4)
        self._deployed.start_peer()

    def stop(self, wait: Wait) -> None:
        """Resume it, and replace it: a broker that lost its lease ends."""
        victim = self._victim()
        self._deployed.hang_peer(victim)
        wait(LEASE_S + 4)
        self._deployed.resume_peer(victim)
        wait(2)
        self._replace(victim)

    def partition(self, wait: Wait) -> None:
        """Silence the connections of one more broker to Etcd."""
        with TcpProxy(self._deployed.etcd_url) as proxy:
            victim = self._deployed.start_peer(etcd_url=proxy.endpoint)
            wait(3)
            proxy.to_client = proxy.to_server = Toxics(silent=True)
            wait(LEASE_S + 4)
            proxy.to_client = proxy.to_server = CLEAN
            wait(2)
            self._deployed.kill_peer(victim)
        wait(LEASE_S + 1)

    def lease_loss(self, wait: Wait) -> None:
        victim = self._victim()
        self._deployed.revoke_lease(victim)
        wait(4)
        self._replace(victim)

    def member_replaced(self, wait: Wait) -> None:
        """The new broker starts without data."""
        self._deployed.start_peer()
        wait(2)
        self._deployed.kill_peer(self._victim())
        wait(LEASE_S + 3)

    def rolling_upgrade(self, wait: Wait) -> None:
        for endpoint in self._deployed.brokers:
            self._deployed.retire_peer(endpoint)
            self._deployed.start_peer(port=int(endpoint.rpartition(":")[2]))
            wait(2)


class RigCluster:
    """The embedded brokers of ``tests/rig/cluster.py``: the same failures, without processes and Etcd."""

    def __init__(self, embedded: EmbeddedCluster) -> None:
        self._embedded = embedded
        self.endpoint = embedded.endpoints[0]

    @property
    def endpoints(self) -> list[str]:
        return [each.endpoint for each in self._embedded.brokers if each.is_running]

    def _victim(self) -> ClusterBroker:
        return next(each for each in self._embedded.brokers[1:] if each.is_running)

    def kill(self, wait: Wait) -> None:
        """Run with three brokers for a while."""
        victim = self._victim()
        victim.kill()
        wait(2)
        victim.start()

    def stop(self, wait: Wait) -> None:
        """Let it rejoin when it resumes."""
        victim = self._victim()
        victim.hang()
        wait(1)
        victim.leave()
        wait(1)
        victim.resume()

    def partition(self, wait: Wait) -> None:
        victim = self._victim()
        victim.partition()
        wait(1)
        victim.leave()
        wait(1)
        victim.resume()

    def lease_loss(self, wait: Wait) -> None:
        """The broker drops its replicas, and rejoins."""
        victim = self._victim()
        victim.leave()
        wait(1)
        victim.resume()

    def member_replaced(self, wait: Wait) -> None:
        """A broker leaves immediately, and returns without data."""
        victim = self._victim()
        victim.kill()
        victim.start()
        wait(1)

    def rolling_upgrade(self, wait: Wait) -> None:
        for broker in self._embedded.brokers:
            broker.stop()
            broker.start()
            wait(1)


@dataclass(frozen=True)
class Outcome:
    user: str
    records: int
    lost: int
    doubled: int
    steps: int
    alarms: tuple[str, ...]

    def __str__(self) -> str:
        counts = f"records={self.records} lost={self.lost} doubled={self.doubled} alarms={len(self.alarms)}"
        return "\n  ".join([f"{self.user}: {counts} steps={self.steps}", *self.alarms[:3]])


def fail_over(
    cluster: Cluster, prefix: str, harm: str, *, busy_s: float, refresh_s: int = REFRESH_S
) -> list[Outcome]:
    """Harm a cluster under all users, without appends and then with many; return the results."""
    world = World(cluster, prefix, refresh_s)
    with ExitStack() as stack:
        stack.callback(world.client.close)
        users = {name: kind(world) for name, kind in USERS.items()}
        for user in users.values():
            stack.callback(user.close)
            user.guarded()
        threads = [threading.Thread(target=each.work, name=name, daemon=True) for name, each in users.items()]
        stack.callback(world.over.set)
        for thread in threads:
            thread.start()

        def quietly(seconds: float) -> None:
            world.over.wait(seconds / 2)
            _append_for(world, seconds / 2)

        getattr(cluster, harm)(quietly)
        _append_for(world, busy_s)
        # A later append has succeeded after each abandoned one, so everything before it can be read.
        for name in world.names:
            world.append(name, 1)
        world.over.set()
        for thread in threads:
            thread.join(180)
            assert not thread.is_alive(), f"{thread.name} hangs"
        outcomes = []
        for name, user in users.items():
            began = monotonic()
            expected, found = user.found()
            log.info("finished user=%s in_s=%.1f", name, monotonic() - began)
            lost = sum((expected - found).values())
            doubled = sum((found - expected).values())
            outcomes.append(Outcome(name, sum(found.values()), lost, doubled, user.steps, tuple(user.alarms)))
        return outcomes


def _append_for(world: World, seconds: float) -> None:
    """Append lines to all journals for some time, while the users write."""
    deadline = monotonic() + seconds
    world.busy.set()
    while monotonic() < deadline:
        for name in world.names:
            # An append that waits for a hung broker is abandoned, so that the failure can run its course.
            with suppress(UnavailableError):
                world.append(name, 40, timeout_s=HELD_S)
        world.over.wait(0.1)
    world.busy.clear()
