"""A recovery log gives the files of its newest primary, wherever others crashed and whatever they append.

Hosts take the log over from each other. Each does random file operations, whose appends may be delayed. When
a host is replaced, its delayed appends are lost, or arrive before or after the hand-off. Afterwards it may
continue as a zombie: fenced or, as before Gazette had registers, not.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_spark.client import AppendOptions
from gazette_spark.consumer.recoverylog import Player, RecordedFiles, Recorder
from gazette_spark.consumer.recoverylog.hints import hints_from_bytes, hints_to_json
from gazette_spark.errors import RecorderFencedError
from gazette_spark.protocol import recoverylog_pb2 as pr
from tests.rig.examples import examples
from tests.rig.recovery_log import MemoryAppend, MemoryJournals, MemoryService, files_below

LOG = "recovery/log"
NAMES = ["a", "b", "folder/c"]

Files = dict[str, bytes]


@dataclass(frozen=True)
class Change:
    """A file operation; an impossible one is left out."""

    kind: str
    name: str
    other: str
    offset: int
    content: bytes


@dataclass(frozen=True)
class Reign:
    changes: tuple[Change, ...]
    repeats: bool
    """Whether the first append is done twice, as if its response was lost."""
    held: tuple[Change, ...]
    """Changes made while the host's appends are held back."""
    fate: str
    """Fate of the held appends: lost, early, late, or done just before the hand-off is appended."""
    hints: str
    """Hints of the next player: none, those of the recorder, or those of the last player."""
    fenced: bool
    """Whether the held and later appends of the host check the author."""


changes = st.builds(
    Change,
    kind=st.sampled_from(["create", "create", "write", "write", "rename", "link", "remove"]),
    name=st.sampled_from(NAMES),
    other=st.sampled_from(NAMES),
    offset=st.integers(0, 20),
    content=st.binary(max_size=30),
)
reigns = st.builds(
    Reign,
    changes=st.lists(changes, max_size=6).map(tuple),
    repeats=st.booleans(),
    held=st.lists(changes, max_size=4).map(tuple),
    fate=st.sampled_from(["lost", "early", "race", "late"]),
    hints=st.sampled_from(["none", "recorded", "recovered"]),
    fenced=st.booleans(),
)


@dataclass
class Host:
    recorder: Recorder
    service: MemoryService
    recovered: pr.FSMHints
    files: dict[str, bytearray]
    """Content by path; links to the same file share the object."""
    committed: list[MemoryAppend] = field(default_factory=list)
    marks: list[tuple[MemoryAppend, Files]] = field(default_factory=list)
    """Last append of each change, with the files after it."""

    def change(self, step: Change) -> None:
        real, model = RecordedFiles(self.recorder), self.files
        match step.kind:
            case "create":
                real.create(step.name).close()
                model[step.name] = bytearray()
            case "write" if step.name in model:
                with real.open(step.name) as file:
                    file.seek(step.offset)
                    file.write(step.content)
                content = model[step.name]
                if step.content:
                    content.extend(bytes(max(0, step.offset - len(content))))
                content[step.offset : step.offset + len(step.content)] = step.content
            case "rename" if step.name in model and model[step.name] is not model.get(step.other):
                real.rename(step.name, step.other)
                model[step.other] = model.pop(step.name)
            case "link" if step.name in model and step.other not in model:
                real.link(step.name, step.other)
                model[step.other] = model[step.name]
            case "remove" if step.name in model:
                real.remove(step.name)
                del model[step.name]
        assert files_below(self.recorder.directory) == self.snapshot()
        if self.service.released is not None:
            self.marks.append((self.service.released, self.snapshot()))

    def snapshot(self) -> Files:
        return {name: bytes(content) for name, content in self.files.items()}

    def durable(self) -> list[Files]:
        """Return the files after each change that is in the log."""
        return [files for append, files in self.marks if append in self.committed]


class Machine:
    def __init__(self, root: Path, seed: int) -> None:
        self._root = root
        self._made = 0
        self._random = random.Random(seed)
        self.journals = MemoryJournals(pieces=self._random, max_piece=200)
        self._zombies: list[Host] = []
        self.primary = self._take_over(pr.FSMHints(log=LOG), dict)

    def run(self, reign: Reign) -> None:
        old = self.primary
        old.service.repeats = reign.repeats
        for change in reign.changes:
            self._change(change)
        hints = {"none": None, "recorded": old.recorder.build_hints(0), "recovered": old.recovered}[
            reign.hints
        ]
        old.service.held = True
        for change in reign.held:
            self._change(change)
        self._replace(old, reign, hints or pr.FSMHints(log=LOG))

    def _change(self, change: Change) -> None:
        self.primary.change(change)
        for zombie in self._zombies[-2:]:
            zombie.change(change)

    def _replace(self, old: Host, reign: Reign, hints: pr.FSMHints) -> None:
        if not reign.fenced:
            old.recorder.disable_register_checks()
            for append in old.service.waiting:
                append.options = AppendOptions(LOG)
        match reign.fate:
            case "lost":
                old.service.waiting.clear()
            case "early":
                old.service.flush()
            case "race":
                self.journals.before_hand_off = old.service.flush
        began = self._began

        def expected() -> Files:
            durable = old.durable()
            return durable[-1] if durable else began

        self.primary = self._take_over(hints, expected)
        old.service.held = False
        old.service.flush()
        if reign.fenced:
            assert isinstance(old.recorder.barrier().exception(0), RecorderFencedError)
        self._zombies.append(old)

    def _take_over(self, hints: pr.FSMHints, expected: Callable[[], Files]) -> Host:
        """Play the log on a new host, which has to find the files."""
        self._made += 1
        player = Player(self.journals.client(), kept(hints), self._root / str(self._made))
        author = self._random.randrange(1, 1 << 32)
        player.inject_handoff(author)
        recovered = player.play()
        self._began = expected()
        assert files_below(recovered.directory) == self._began
        service = MemoryService(self.journals)
        recorder = Recorder(LOG, recovered.fsm, author, recovered.directory, service.as_client())
        links: dict[int, bytearray] = {}
        files = {
            path.removeprefix("/"): links.setdefault(fnode, bytearray(self._began[path.removeprefix("/")]))
            for path, fnode in recovered.fsm.links.items()
        }
        host = Host(recorder, service, recovered.hints, files)
        service.on_commit = host.committed.append
        return host


def kept(hints: pr.FSMHints) -> pr.FSMHints:
    """Return hints after they were stored and read back."""
    assert hints_from_bytes(hints.SerializeToString(), "key") == hints
    return hints_from_bytes(hints_to_json(hints), "key")


LAST = Reign((), repeats=False, held=(), fate="late", hints="recovered", fenced=True)
WRITE = Change("write", "a", "a", 0, b"zombie")
CREATE = Change("create", "a", "a", 0, b"")
OTHER = Change("create", "folder/c", "a", 0, b"")
TO_B = Change("rename", "a", "b", 0, b"")
WRITE_B = Change("write", "b", "a", 0, b"b")
OTHER_TO_A = Change("rename", "folder/c", "a", 0, b"")
# A file is deleted between two segments of hints, and another file gets its path.
DELETES = Reign((CREATE, TO_B, CREATE, WRITE_B, OTHER_TO_A), False, (), "late", "none", fenced=True)


@settings(max_examples=examples(12))
@given(st.lists(reigns, max_size=4), st.integers(0, 1000))
@example([Reign((CREATE,), False, (WRITE, WRITE, WRITE), "late", "none", fenced=False)], 1)
@example([Reign((CREATE,), False, (WRITE,), "race", "recorded", fenced=True)], 1)
@example([Reign((OTHER,), False, (), "late", "none", fenced=True), DELETES], 1)
@example([LAST, Reign((CREATE, WRITE), True, (), "late", "recorded", fenced=True)], 1)
def test_the_newest_primary_has_the_files(plan: list[Reign], seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        machine = Machine(Path(root), seed)
        for reign in [*plan, LAST, LAST]:
            machine.run(reign)
