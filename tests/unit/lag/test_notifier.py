"""Notices are sent as Burrow's notifier sends them."""

from __future__ import annotations

import json
import logging
import queue
import smtplib
import socketserver
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import httpx
import pytest

from gazette_spark.errors import OptionError
from gazette_spark.lag.notifier import (
    MAX_WAITING,
    BackgroundSender,
    CommandSender,
    MailSender,
    Notice,
    Notifier,
    NotifyOptions,
    WebhookSender,
    parse_template,
)
from gazette_spark.lag.rules import GroupStatus, Status


def verdict(status: Status) -> GroupStatus:
    return GroupStatus("gazette", "orders", status, 1.0, (), None, 0)


def notices(options: NotifyOptions, *course: tuple[int, Status]) -> list[tuple[int, str, str, int]]:
    """Return (seconds, event, incident, start in seconds) of what is sent for verdicts at some seconds."""
    sent: list[Notice] = []
    numbers = iter("ABC")
    notifier = Notifier(options, [sent.append], new_id=lambda: next(numbers))
    for at, status in course:
        notifier.observe(verdict(status), at * 1000)
    return [
        (each.now_ms // 1000, each.to_json()["event"], each.incident, each.started_ms // 1000)
        for each in sent
    ]


OK, WARN, ERR, NOTFOUND = Status.OK, Status.WARN, Status.ERR, Status.NOTFOUND


def test_an_incident_is_said_again_at_its_interval() -> None:
    options = NotifyOptions(send_interval_s=60)
    course = [(0, OK), (10, WARN), (30, ERR), (70, ERR), (100, WARN), (120, OK), (130, WARN)]
    assert notices(options, *course) == [
        (10, "open", "A", 10),
        (70, "open", "A", 10),
        (130, "open", "B", 130),
    ]


def test_once_is_once_an_incident() -> None:
    options = NotifyOptions(send_once=True)
    course = [(10, WARN), (100, WARN), (200, OK), (300, WARN)]
    assert notices(options, *course) == [(10, "open", "A", 10), (300, "open", "B", 300)]


def test_the_end_is_said_if_asked_for() -> None:
    options = NotifyOptions(send_close=True)
    assert notices(options, (0, OK), (10, WARN), (20, OK), (30, OK)) == [
        (10, "open", "A", 10),
        (20, "close", "A", 10),
    ]


def test_below_the_threshold_nothing_is_said() -> None:
    options = NotifyOptions(threshold=Status.ERR, send_close=True)
    assert notices(options, (0, WARN), (10, ERR), (20, WARN)) == [
        (10, "open", "A", 10),
        (20, "close", "A", 10),
    ]


def test_an_alarm_makes_an_incident() -> None:
    sent: list[Notice] = []
    notifier = Notifier(NotifyOptions(send_close=True), [sent.append])
    notifier.observe(verdict(OK), 1000, ["lag_bytes=7 above 6"])
    notifier.observe(verdict(OK), 2000)
    assert [each.to_json()["alarms"] for each in sent] == [["lag_bytes=7 above 6"], []]
    assert [each.closed for each in sent] == [False, True]


def test_a_group_that_is_not_known_says_nothing() -> None:
    """An unknown group ends an incident silently, because there is nothing to report."""
    assert notices(NotifyOptions(send_close=True), (10, WARN), (20, NOTFOUND), (30, OK)) == [
        (10, "open", "A", 10)
    ]


def test_a_clock_that_is_set_back_does_not_silence_an_incident() -> None:
    """A notice sent in the future counts as sent long ago."""
    assert notices(NotifyOptions(), (1000, WARN), (10, WARN)) == [
        (1000, "open", "A", 1000),
        (10, "open", "A", 1000),
    ]


@pytest.mark.parametrize(
    ("fields", "option"),
    [({"threshold": Status.OK}, "threshold"), ({"send_interval_s": 0}, "send-interval")],
    ids=["threshold below a warning", "no interval"],
)
def test_bad_options_are_refused(fields: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError, match=option):
        NotifyOptions(**fields)


def test_a_command_gets_the_notice_on_stdin(tmp_path: Path) -> None:
    target = tmp_path / "notice.json"
    script = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    CommandSender((sys.executable, "-c", script, str(target)))(Notice("A", 1000, 2000, False, verdict(ERR)))
    found = json.loads(target.read_text())
    assert (found["id"], found["event"], found["status"]["status"]) == ("A", "open", "ERR")


def test_a_sender_that_fails_hinders_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The log must not show the URL, which may contain a secret."""
    sent: list[Notice] = []
    hook = WebhookSender("http://127.0.0.1:9/secret-path")
    notifier = Notifier(NotifyOptions(), [hook, CommandSender(("false",)), sent.append])
    notifier.observe(verdict(WARN), 1000)
    assert len(sent) == 1
    assert [record.message.split(" error=")[1] for record in caplog.records] == [
        "ConnectError",
        "CalledProcessError",
    ]
    assert "secret" not in caplog.text
    assert "secret" not in repr(hook)


def test_nobody_waits_for_a_sender(caplog: pytest.LogCaptureFixture) -> None:
    hangs, sent = threading.Event(), queue.Queue[Notice]()

    def sender(notice: Notice) -> None:
        assert hangs.wait(30)
        sent.put(notice)
        raise ValueError("a defect")

    background = BackgroundSender(sender)
    notifier = Notifier(NotifyOptions(), [background])
    for at in range(MAX_WAITING + 3):
        notifier.observe(replace(verdict(WARN), group=f"group {at}"), 1000)
    dropped = [record for record in caplog.records if record.message.startswith("notice dropped")]
    assert 2 <= len(dropped) <= 3  # The sender may already have the first one.
    hangs.set()
    arrived = [sent.get(timeout=30).verdict.group for _ in range(MAX_WAITING)]
    assert arrived == [f"group {at}" for at in range(MAX_WAITING)]


class Hook(BaseHTTPRequestHandler):
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_error(500)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def posted(notice: Notice, template: Template | None = None, path: str = "") -> dict[str, Any]:
    Hook.bodies.clear()
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(httpx.HTTPStatusError):
            WebhookSender(f"http://127.0.0.1:{server.server_port}/{path}", template)(notice)
        thread.join(10)
    (body,) = Hook.bodies
    return body


def test_a_webhook_gets_the_notice_as_its_body() -> None:
    assert posted(Notice("A", 1, 2, False, verdict(ERR)))["id"] == "A"


def test_the_path_of_a_webhook_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """The library httpx logs the URL of each request."""
    caplog.set_level(logging.DEBUG)
    posted(Notice("A", 1, 2, False, verdict(ERR)), path="secret-path")
    assert "HTTP Request" in caplog.text
    assert "secret" not in caplog.text


def test_a_template_is_the_body_of_a_webhook() -> None:
    """Names are replaced by the notice's values, which cannot break out of the JSON around them."""
    group = replace(verdict(ERR), group='a "b"\n')
    template = parse_template(
        '{"text": "${group} is ${status} since ${started} $${id}", "tags": ["${event}"]}'
    )
    assert posted(Notice("A", 1000, 2000, False, group), template) == {
        "text": 'a "b"\n is ERR since 1970-01-01T00:00:01Z ${id}',
        "tags": ["open"],
    }


@pytest.mark.parametrize(
    ("text", "problem"), [("${grup}", r"got \$\{grup\}; expected"), ("costs 5 $", r"a \$ without a name")]
)
def test_a_template_is_checked_at_the_start(text: str, problem: str) -> None:
    """Otherwise an error would appear only when the first incident begins."""
    with pytest.raises(OptionError, match=problem):
        parse_template(text)


def test_notices_can_be_for_some_groups_only() -> None:
    sent: list[Notice] = []
    notifier = Notifier(NotifyOptions(groups="^shop|orders$"), [sent.append])
    for group in ("shop_clicks", "web_orders", "web_shop"):
        notifier.observe(replace(verdict(ERR), group=group), 1000)
    assert [notice.verdict.group for notice in sent] == ["shop_clicks", "web_orders"]


class MailServer(socketserver.StreamRequestHandler):
    lines: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 test\r\n")
        while line := self.rfile.readline().decode().rstrip("\r\n"):
            self.lines.append(line)
            if line.upper() == "QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            if line.upper() == "DATA":
                self.wfile.write(b"354 go on\r\n")
                while (line := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    self.lines.append(line)
            self.wfile.write(b"250 ok\r\n")


@pytest.mark.parametrize(
    ("closed", "subject"), [(False, "[gazette] a b is ERR"), (True, "[gazette] a b has recovered")]
)
def test_a_mail_says_what_is_wrong(closed: bool, subject: str) -> None:
    MailServer.lines.clear()
    notice = Notice("A", 1000, 2000, closed, replace(verdict(ERR), group="a\nb"), ["lag_bytes=7 above 5"])
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        port = server.server_address[1]
        MailSender("127.0.0.1", port, "lag@example.org", ("ops@example.org",), tls=False)(notice)
        thread.join(10)
    lines = MailServer.lines
    assert {f"Subject: {subject}", "From: lag@example.org", "To: ops@example.org"} <= set(lines)
    assert {"status: ERR", "alarms: lag_bytes=7 above 5"} <= set(lines)


def test_a_mail_is_not_sent_without_encryption_by_default() -> None:
    """A server that cannot encrypt receives neither the password nor the mail."""
    MailServer.lines.clear()
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        sender = MailSender(
            "127.0.0.1", server.server_address[1], "a@example.org", ("b@example.org",), "u", "pw"
        )
        with pytest.raises(smtplib.SMTPNotSupportedError):
            sender(Notice("A", 1, 2, False, verdict(ERR)))
        thread.join(10)
    assert not any("pw" in line or line.startswith(("AUTH", "MAIL")) for line in MailServer.lines)
    assert "pw" not in repr(sender)


def test_a_command_that_does_not_exist_is_a_failure() -> None:
    with pytest.raises((OSError, subprocess.SubprocessError)):
        CommandSender(("/no/such/command",))(Notice("A", 1, 2, False, verdict(ERR)))
