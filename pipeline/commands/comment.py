"""`python -m pipeline comment FILE --number N`: one comment on a pull request, posted once and then kept up to date.

It speaks GitHub's API of issue comments, with what a workflow has in its environment: GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_TOKEN.
Without a token, or without the right to comment, as on a fork, it says so and exits 0: the same text is in the job's summary.
"""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import orjson

from pipeline.core.errors import InputError, ProviderError
from pipeline.core.files import read_bytes
from pipeline.core.http import Client, Lost, Reply, Timeouts
from pipeline.project.versions.diff.markdown_page import LIMIT, MARK

_TIMEOUTS = Timeouts(connect=10, read=30, total=60)
_PAGE = 100
"""Comments a page, GitHub's largest."""
_TRIES = 3
_PAUSE = 1.0
"""Seconds before the second try, twice that before the third."""
_NOT_OURS_TO_WRITE = (401, 403, 404)
"""A fork's token may only read, and GitHub hides what a token may not see."""


class _Refused(Exception):  # noqa: N818
    """GitHub does not let this token comment here."""


def read_comment(path: Path) -> str:
    """Text of a comment, as `python -m pipeline diff` wrote it.

    Raises:
        InputError: no text, not ours by its first line, or longer than GitHub takes.

    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; `python -m pipeline diff --out {path}` writes it")
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8") from error
    if not text.startswith(MARK):
        raise InputError(
            f"{path}: the first line must be {MARK!r}, by which the comment is found again; `python -m pipeline diff --out {path}` writes it"
        )
    if len(text) > LIMIT:
        raise InputError(
            f"{path}: {len(text):,} characters, and GitHub takes {LIMIT:,}; `python -m pipeline diff --limit` makes it shorter"
        )
    return text


def _checked(reply: Reply, what: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    if reply.status in _NOT_OURS_TO_WRITE:
        raise _Refused(f"{what}: HTTP {reply.status}: {_message(reply)}")
    if not 200 <= reply.status < 300:
        raise ProviderError(f"GitHub, {what}: HTTP {reply.status}: {_message(reply)}")
    try:
        found = orjson.loads(reply.body)
    except orjson.JSONDecodeError as error:
        raise ProviderError(f"GitHub, {what}: the answer is no JSON: {error}") from error
    if not isinstance(found, kind):
        raise ProviderError(
            f"GitHub, {what}: the answer is no {kind.__name__}: {reply.body[:80]!r}; is GITHUB_API_URL the address of its API?"
        )
    return found


def _message(reply: Reply) -> str:
    try:
        return str(orjson.loads(reply.body)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return reply.body[:200].decode("utf-8", "replace")


async def _find(client: Client, comments: str) -> int | None:
    """Id of our comment: a bot's, with our first line; anybody can write that line, only the bot's own comment is ours."""
    for page in range(1, 1000):
        found = _checked(await client.get(f"{comments}?per_page={_PAGE}&page={page}"), "listing comments", list)
        for comment in (one for one in found if isinstance(one, dict)):
            user, body, known = comment.get("user"), comment.get("body"), comment.get("id")
            if (
                isinstance(user, dict)
                and user.get("type") == "Bot"
                and isinstance(body, str)
                and body.startswith(MARK)
                and isinstance(known, int)
            ):
                return known
        if len(found) < _PAGE:
            break
    return None


async def _put(client: Client, repository: str, number: int, text: str) -> str:
    issues = f"/repos/{repository}/issues"
    known = await _find(client, f"{issues}/{number}/comments")
    body = orjson.dumps({"body": text})
    if known is None:
        posted = _checked(await client.post(f"{issues}/{number}/comments", body), "posting", dict)
        return f"posted {posted.get('html_url', 'a comment')}"
    changed = _checked(await client.patch(f"{issues}/comments/{known}", body), "updating", dict)
    return f"updated {changed.get('html_url', f'comment {known}')}"


async def put(text: str, *, api: str, repository: str, number: int, token: str) -> str:
    """Post the comment, or update the one that is there; return what was done.

    A try that got no answer, or a 5xx, is made again from the start: what the lost one wrote is found by the listing.

    Raises:
        ProviderError: GitHub cannot be reached, or refuses for another reason than missing rights.

    """
    headers = {
        "accept": "application/vnd.github+json",
        "authorization": f"Bearer {token}",
        "x-github-api-version": "2022-11-28",
    }
    async with Client(api, headers=headers, timeouts=_TIMEOUTS, connections=1) as client:
        for left in reversed(range(_TRIES)):
            try:
                return await _put(client, repository, number, text)
            except _Refused as error:
                return f"not commented, since this token may not: {error}"
            except (Lost, ProviderError) as error:
                if not left:
                    raise ProviderError(f"the comment was not written after {_TRIES} tries: {error}") from error
            await asyncio.sleep(_PAUSE * (_TRIES - left))
    raise AssertionError


def main(argv: list[str]) -> None:
    """Comment, or say why not.

    Raises:
        AerieError: the file or the environment is not what it must be, or GitHub cannot be reached.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline comment", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="Markdown, as `python -m pipeline diff --format md` writes it")
    parser.add_argument("--number", type=int, required=True, help="of the pull request")
    arguments = parser.parse_args(argv)
    text = read_comment(arguments.file)
    token = os.environ.get("GITHUB_TOKEN")
    if not token:
        print("not commented: no GITHUB_TOKEN in the environment, as on a fork; the diff is in the job's summary")
        return
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    if repository.count("/") != 1:
        raise InputError(f"GITHUB_REPOSITORY must be OWNER/NAME, as workflows have it; found {repository!r}")
    api = os.environ.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
    print(asyncio.run(put(text, api=api, repository=repository, number=arguments.number, token=token)))
