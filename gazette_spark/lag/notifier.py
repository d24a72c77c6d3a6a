"""Sends notices about groups in trouble to a command, a webhook or a mailbox, by Burrow's rules.

An *incident* of a group begins when its verdict reaches the threshold, and ends when it is below it again. A
notice is sent at the start, again every ``send_interval_s`` unless ``send_once`` is set, and at the end if
``send_close`` is set. All notices of an incident have its id. No notice is sent for a group that is no longer
known.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import smtplib
import ssl
import subprocess
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from string import Template
from typing import Any

import httpx

from gazette_spark.errors import OptionError
from gazette_spark.lag.burrow_json import bad_partitions, group_json
from gazette_spark.lag.rules import GroupStatus, Status

log = logging.getLogger("gazette_spark.lag")

SEND_TIMEOUT_S = 10
"""Timeout of a command or a webhook, in seconds."""

MAX_NAMED = 10
"""Maximum number of journals that the text of a notice names."""

MAX_WAITING = 100
"""Maximum number of notices that wait for a sender. Further ones are dropped with a warning."""


@dataclass(frozen=True, slots=True)
class NotifyOptions:
    """The conditions for notices. The defaults are Burrow's.

    Raises:
        OptionError: an option is invalid.
    """

    threshold: Status = Status.WARN
    """Mildest verdict on a group that starts an incident: WARN or ERR."""
    send_interval_s: int = 60
    send_once: bool = False
    send_close: bool = False
    groups: str = ""
    """Regular expression that must match a part of a group's name; an empty one matches all."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.groups)
        except re.error as error:
            raise OptionError("notify-groups", repr(self.groups), f"a regular expression ({error})") from None
        if self.threshold not in (Status.WARN, Status.ERR):
            raise OptionError("threshold", self.threshold.name, "WARN or ERR")
        if self.send_interval_s < 1:
            raise OptionError("send-interval", str(self.send_interval_s), "1 second or more")


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Notice:
    """The content of a notice."""

    incident: str
    started_ms: int
    now_ms: int
    closed: bool
    verdict: GroupStatus
    alarms: Sequence[str] = ()
    """Alarms that are raised."""

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

    def variables(self) -> dict[str, str]:
        """Return the values that a template may use."""
        journals = [
            f"{part.client_id} {part.status.name}" for part in bad_partitions(self.verdict.partitions)
        ]
        more = [f"and {len(journals) - MAX_NAMED} more"] if len(journals) > MAX_NAMED else []
        return {
            "id": self.incident,
            "event": "close" if self.closed else "open",
            "cluster": self.verdict.cluster,
            "group": self.verdict.group,
            "status": self.verdict.status.name,
            "lag_bytes": str(self.verdict.total_lag),
            "alarms": "; ".join(self.alarms),
            "journals": ", ".join([*journals[:MAX_NAMED], *more]),
            "started": _time_text(self.started_ms),
            "now": _time_text(self.now_ms),
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
    # The group is gone, or has not been read yet. Neither means that it has recovered.
    if verdict.status == Status.NOTFOUND:
        return None, None
    if verdict.status < options.threshold and not alarms:
        # An incident ends without a notice, unless the receiver has requested one.
        if incident is None or not options.send_close:
            return None, None
        return None, Notice(incident.id, incident.started_ms, now_ms, closed=True, verdict=verdict)
    if incident is None:
        incident = Incident(new_id(), now_ms, now_ms)
    # The difference is negative if the clock was set back. Without the check, no notice would be sent until
    # the clock has caught up.
    elif options.send_once or 0 <= now_ms - incident.sent_ms < options.send_interval_s * 1000:
        return incident, None
    else:
        incident = Incident(incident.id, incident.started_ms, now_ms)
    return incident, Notice(
        incident.id, incident.started_ms, now_ms, closed=False, verdict=verdict, alarms=alarms
    )


Sender = Callable[[Notice], None]


class Notifier:
    """Tracks the incidents of all groups and sends notices. Not thread-safe.

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
        # Searched anywhere in the name, as in Burrow's lists.
        if not re.search(self._options.groups, verdict.group):
            return
        # Removed first, so that nothing is stored for a group without an incident.
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
    except (OSError, subprocess.SubprocessError, httpx.HTTPError, smtplib.SMTPException) as error:
        # Only the type, because the texts of these errors may contain the URL of a webhook, which is a
        # secret.
        kind = type(error).__name__
        log.warning("notice not sent group=%s sender=%r error=%s", notice.verdict.group, sender, kind)


class BackgroundSender:
    """Sends notices with another sender on a separate thread, one at a time. Callers do not wait.

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
        """Queue a notice. Not thread-safe."""
        # Started with the first notice, because most monitors never send one.
        if self._thread.ident is None:
            self._thread.start()
        try:
            # A receiver that hangs must not delay the polls, because verdicts would be out of date when they
            # matter most.
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


TEMPLATE_NAMES = tuple(
    Notice("", 0, 0, closed=False, verdict=GroupStatus("", "", Status.OK, 1.0, (), None, 0)).variables()
)
"""Names that a template may use."""


def parse_template(text: str) -> Template:
    """Parse a template, in which each ``${name}`` is replaced by a value of a notice.

    Raises:
        OptionError: the template has an unknown name, or a ``$`` without a name.
    """
    template = Template(text)
    expected = f"${{name}} with one of {', '.join(TEMPLATE_NAMES)}; $$ for a dollar sign"
    if not template.is_valid():
        raise OptionError("template", "a $ without a name", expected)
    # Checked at the start. Otherwise a wrong name would only be noticed with the first incident.
    if unknown := sorted(set(template.get_identifiers()) - set(TEMPLATE_NAMES)):
        raise OptionError("template", f"${{{unknown[0]}}}", expected)
    return template


class _MaskedUrl(httpx.URL):
    """A URL whose text has only the host, because httpx logs the text of each URL at INFO."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/***"


@dataclass(frozen=True)
class WebhookSender:
    """Posts a notice to a URL, which may be secret and is never shown. A status of 400 or more is a failure.

    Args:
        url: URL to post to.
        template: Body of the request in place of the notice's JSON. Values are escaped as in JSON strings.
    """

    url: str
    template: Template | None = None

    def __repr__(self) -> str:
        return f"WebhookSender({httpx.URL(self.url).host})"

    def __call__(self, notice: Notice) -> None:
        """Post the notice once, without following redirects."""
        if self.template is None:
            content = json.dumps(notice.to_json())
        else:
            # Unescaped quotes or line breaks in a value would make the JSON invalid.
            content = self.template.substitute(
                {name: json.dumps(value)[1:-1] for name, value in notice.variables().items()}
            )
        with httpx.Client(timeout=SEND_TIMEOUT_S, follow_redirects=False) as http:
            headers = {"content-type": "application/json"}
            request = http.build_request("POST", self.url, content=content.encode(), headers=headers)
            request.url = _MaskedUrl(request.url)
            http.send(request).raise_for_status()


@dataclass(frozen=True)
class MailSender:
    """Sends a notice as a mail.

    Args:
        host: The mail server.
        port: Its port.
        sender: Address of the sender.
        receivers: Addresses of the receivers.
        user: User name for the server; "" to send without a login.
        password: Its password, which is never shown.
        tls: Whether to encrypt the connection with STARTTLS. Without it, there is no login.
    """

    host: str
    port: int
    sender: str
    receivers: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = True

    def __call__(self, notice: Notice) -> None:
        """Send the mail once."""
        values = notice.variables()
        mail = EmailMessage()
        verdict = "has recovered" if notice.closed else f"is {values['status']}"
        # A header must be one line, and a group's name may contain line breaks.
        mail["Subject"] = " ".join(f"[{values['cluster']}] {values['group']} {verdict}".split())
        mail["From"], mail["To"] = self.sender, ", ".join(self.receivers)
        mail.set_content("\n".join(f"{name}: {value}" for name, value in values.items()))
        with smtplib.SMTP(self.host, self.port, timeout=SEND_TIMEOUT_S) as server:
            if self.tls:
                # The default context checks the server's certificate. Without TLS there is no login, so that
                # the password is never sent unencrypted.
                server.starttls(context=ssl.create_default_context())
                if self.user:
                    server.login(self.user, self.password)
            server.send_message(mail)
