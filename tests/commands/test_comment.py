"""The pull request's comment, against a server on loopback that speaks GitHub's API of issue comments."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pipeline.commands import comment
from pipeline.core.errors import InputError, ProviderError
from pipeline.project.versions.diff.markdown_page import LIMIT, MARK

Listed = dict[str, Any]


@dataclass
class GitHub:
    """Comments of one pull request, and what was asked."""

    comments: list[Listed] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    failures: list[int] = field(default_factory=list)
    """Statuses for the next requests."""
    read_only: bool = False
    odd: Any = None
    """What to answer instead of what was asked."""
    url: str = ""

    def say(self, kind: str, body: str) -> None:
        self.comments.append({"id": 100 + len(self.comments), "user": {"type": kind}, "body": body})

    def answer(self, method: str, target: str, body: Listed | None) -> tuple[int, Any]:
        parts = urlsplit(target)
        self.asked.append(f"{method} {parts.path}")
        if self.failures:
            return self.failures.pop(0), {"message": "down"}
        if self.odd is not None:
            return 200, self.odd
        if method != "GET" and self.read_only:
            return 403, {"message": "Resource not accessible by integration"}
        if method == "GET" and parts.path == "/repos/o/r/issues/7/comments":
            query = {key: int(value[0]) for key, value in parse_qs(parts.query).items()}
            start = query["per_page"] * (query["page"] - 1)
            return 200, self.comments[start : start + query["per_page"]]
        if method == "POST" and parts.path == "/repos/o/r/issues/7/comments" and body is not None:
            self.say("Bot", body["body"])
            return 201, {"html_url": "https://example.org/new"}
        if method == "PATCH" and body is not None:
            known = next(item for item in self.comments if parts.path == f"/repos/o/r/issues/comments/{item['id']}")
            known["body"] = body["body"]
            return 200, {"html_url": "https://example.org/old"}
        return 404, {"message": "Not Found"}


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    state = GitHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            state.tokens.add(self.headers["authorization"])
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, found = state.answer(self.command, self.path, json.loads(sent) if sent else None)
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = serve

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    for name, value in {"GITHUB_API_URL": state.url, "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t"}.items():
        monkeypatch.setenv(name, value)
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def put(folder: Path, text: str) -> None:
    (folder / "comment.md").write_text(f"{MARK}\n{text}\n")
    comment.main([str(folder / "comment.md"), "--number", "7"])


def test_the_comment_is_posted_once_and_then_kept_up_to_date_on_whatever_page_it_is(
    github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(230):
        github.say("User", f"{MARK} quoted by a person" if number == 3 else "talk")
    put(tmp_path, "first")
    assert "posted https://example.org/new" in capsys.readouterr().out
    put(tmp_path, "second, with ünïcode")
    assert "updated https://example.org/old" in capsys.readouterr().out
    assert [item["body"] for item in github.comments[230:]] == [f"{MARK}\nsecond, with ünïcode\n"]
    assert github.comments[3]["body"] == f"{MARK} quoted by a person", "a person's comment is not ours"
    assert github.asked.count("GET /repos/o/r/issues/7/comments") == 6
    assert github.tokens == {"Bearer t"}


def test_without_a_token_or_the_right_it_says_so_and_is_no_failure(
    github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    github.read_only = True
    put(tmp_path, "text")
    assert "this token may not: posting: HTTP 403: Resource not accessible by integration" in capsys.readouterr().out
    monkeypatch.delenv("GITHUB_TOKEN")
    github.asked.clear()
    put(tmp_path, "text")
    assert "not commented: no GITHUB_TOKEN" in capsys.readouterr().out
    assert github.asked == []


def test_a_server_in_trouble_is_asked_again_and_never_gets_two_comments(
    github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comment, "_PAUSE", 0)
    github.failures = [502, 500]
    put(tmp_path, "text")
    assert len(github.comments) == 1
    github.failures = [502] * 3
    with pytest.raises(ProviderError, match="after 3 tries: GitHub, listing comments: HTTP 502: down"):
        put(tmp_path, "text")


@pytest.mark.parametrize("odd", [{"message": "a portal"}, "text", 7])
def test_a_server_that_is_no_github_is_named(
    github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: Any
) -> None:
    monkeypatch.setattr(comment, "_PAUSE", 0)
    github.odd = odd
    with pytest.raises(ProviderError, match=r"listing comments: the answer is no list: .*GITHUB_API_URL"):
        put(tmp_path, "text")


def test_comments_in_another_shape_are_passed_over(github: GitHub, tmp_path: Path) -> None:
    github.comments = [7, {}, {"user": "bot", "body": MARK}, {"user": {"type": "Bot"}, "body": None}]  # type: ignore[list-item]
    put(tmp_path, "text")
    assert github.comments[-1]["body"].startswith(MARK)


@pytest.mark.parametrize(
    ("text", "says"), [("hello", "the first line must be"), (MARK + "x" * LIMIT, "GitHub takes 65,536")]
)
def test_what_is_no_comment_of_ours_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "comment.md").write_text(text)
    with pytest.raises(InputError, match=says):
        comment.main([str(tmp_path / "comment.md"), "--number", "7"])


def test_a_repository_must_be_named(github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "o")
    with pytest.raises(InputError, match="OWNER/NAME"):
        put(tmp_path, "text")
    assert github.asked == []
