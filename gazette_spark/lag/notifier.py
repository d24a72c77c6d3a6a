"""Notices about groups in trouble, by Burrow's rules, to a command or a webhook.

An *incident* of a group begins when its verdict reaches the threshold, and ends when it is below it again. A
notice is sent at the begin, and again every ``send_interval_s`` unless ``send_once`` is set; and at the end
if ``send_close`` is set. All notices of an incident have its id. No notice is sent for a group that is no
longer known.
"""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from gazette_spark.errors import OptionError
from gazette_spark.lag.burrow_json import group_json
from gazette_spark.lag.rules import GroupStatus, Status

log = logging.getLogger("gazette_spark.lag")

SEND_TIMEOUT_S = 10
"""Timeout of a command or a webhook, in seconds."""

MAX_WAITING = 100
"""Maximum number of notices that wait for a sender. Further ones are dropped with a warning."""


@dataclass(frozen=True, slots=True)
class NotifyOptions:
    """The conditions for notices. The defaults are Burrow's.

    Raises:
        OptionError: an option is invalid.
    """

    threshold: Status = Status.WARN
    """Mildest verdict on a group that sends a notice: WARN or ERR."""
    send_interval_s: int = 60
    send_once: bool = False
    send_close: bool = False

    def __post_init__(self) -> None:
        if self.threshold not in (Status.WARN, Status.ERR):
            raise OptionError("threshold", self.threshold.name, "WARN or ERR")
        if self.send_interval_s < 1:
            raise OptionError("send-interval", str(self.send_interval_s), "1 second or more")


@dataclass(frozen=True, slots=True)
class Notice:
    """The content of a notice."""

    incident: str
    started_ms: int
    now_ms: int
    closed: bool
    verdict: GroupStatus
    alarms: Sequence[str] = ()
    """Thresholds that are exceeded."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for a command's stdin or a webhook's body."""
        return {
            "id": self.incident,
            "event": "close" if self.closed else "open",
            "started_ms": self.started_ms,
            "now_ms": self.now_ms,
            "alarms": list(self.alarms),
            "status": group_json(self.verdict, show_all=False),
        }


@dataclass(frozen=True, slots=True)
class Incident:
    """A group in trouble, and the time of the last notice."""

    id: str
    started_ms: int
    sent_ms: int


def next_incident(
    incident: Incident | None,
    verdict: GroupStatus,
    now_ms: int,
    options: NotifyOptions,
    *,
    new_id: Callable[[], str],
    alarms: Sequence[str] = (),
) -> tuple[Incident | None, Notice | None]:
    """Return a group's incident after a verdict, and the notice that is due.

    An alarm begins an incident like a verdict at the threshold.
    """
    if verdict.status == Status.NOTFOUND:
        return None, None
    if verdict.status < options.threshold and not alarms:
        if incident is None or not options.send_close:
            return None, None
        return None, Notice(incident.id, incident.started_ms, now_ms, closed=True, verdict=verdict)
    if incident is None:
        incident = Incident(new_id(), now_ms, now_ms)
    elif options.send_once or 0 <= now_ms - incident.sent_ms < options.send_interval_s * 1000:
        return incident, None
    else:
        incident = Incident(incident.id, incident.started_ms, now_ms)
    return incident, Notice(
        incident.id, incident.started_ms, now_ms, closed=False, verdict=verdict, alarms=alarms
    )


Sender = Callable[[Notice], None]


class Notifier:
    """Follows the incidents of all groups. For one thread.

    Args:
        options: The conditions for notices.
        senders: Called with each notice. A failure is logged and does not affect other senders.
        new_id: Returns a new id for an incident.
    """

    def __init__(
        self,
        options: NotifyOptions,
        senders: Sequence[Sender],
        *,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._options = options
        self._senders = senders
        self._new_id = new_id
        self._incidents: dict[str, Incident] = {}

    def __repr__(self) -> str:
        return f"Notifier({self._options}, incidents={sorted(self._incidents)})"

    def observe(self, verdict: GroupStatus, now_ms: int, alarms: Sequence[str] = ()) -> None:
        """Update a group's incident with a verdict and its raised alarms, and send due notices."""
        before = self._incidents.pop(verdict.group, None)
        incident, notice = next_incident(
            before, verdict, now_ms, self._options, new_id=self._new_id, alarms=alarms
        )
        if incident is not None:
            self._incidents[verdict.group] = incident
        if notice is not None:
            for sender in self._senders:
                _try(sender, notice)


def _try(sender: Sender, notice: Notice) -> None:
    try:
        sender(notice)
    except (OSError, subprocess.SubprocessError, httpx.HTTPError) as error:
        kind = type(error).__name__
        log.warning("notice not sent group=%s sender=%r error=%s", notice.verdict.group, sender, kind)


class BackgroundSender:
    """Sends notices with another sender, one after the other on a separate thread. Callers do not wait.

    Args:
        sender: The sender that does the work. Its failures are logged.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._waiting: queue.Queue[Notice] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._send, name="lag-notices", daemon=True)

    def __repr__(self) -> str:
        return repr(self._sender)

    def __call__(self, notice: Notice) -> None:
        """Queue a notice. For one thread."""
        if self._thread.ident is None:
            self._thread.start()
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            group = notice.verdict.group
            log.warning("notice dropped, %d are waiting group=%s sender=%r", MAX_WAITING, group, self)

    def _send(self) -> None:
        while True:
            notice = self._waiting.get()
            try:
                _try(self._sender, notice)
            except Exception:
                log.exception("notice not sent group=%s sender=%r", notice.verdict.group, self)


@dataclass(frozen=True, slots=True)
class CommandSender:
    """Runs a command, without a shell, with a notice on its stdin. An exit code other than 0 is a failure."""

    arguments: tuple[str, ...]

    def __call__(self, notice: Notice) -> None:
        """Run the command once."""
        content = json.dumps(notice.to_json()).encode()
        subprocess.run(
            self.arguments, input=content, check=True, timeout=SEND_TIMEOUT_S, stdout=subprocess.DEVNULL
        )


@dataclass(frozen=True)
class WebhookSender:
    """Posts a notice to a URL, which may be secret and is never shown. Status 400 or more is a failure."""

    url: str

    def __repr__(self) -> str:
        return f"WebhookSender({httpx.URL(self.url).host})"

    def __call__(self, notice: Notice) -> None:
        """Post the notice once, without following redirects."""
        answer = httpx.post(self.url, json=notice.to_json(), timeout=SEND_TIMEOUT_S, follow_redirects=False)
        answer.raise_for_status()
