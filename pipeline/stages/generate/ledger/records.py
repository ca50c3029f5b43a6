"""Typed rows of the ledger's tables and queries. Money is in whole picodollars (1e-12 USD)."""

from typing import NamedTuple


class Charge(NamedTuple):
    """An amount that counts against a cap."""

    pico: int
    """Picodollars."""
    tokens: int
    """Completion tokens."""

    def most(self, other: "Charge") -> "Charge":
        """Return the higher amount of both for each part."""
        return Charge(max(self.pico, other.pico), max(self.tokens, other.tokens))


NO_CHARGE = Charge(0, 0)


class RequestRecord(NamedTuple):
    """A row of `requests`: a request that is about to be sent, with the most that it can cost."""

    id: int
    key: str
    dataset: str
    purse: str
    run: int
    """0 for an answer that another ledger paid for."""
    most_pico: int
    most_tokens: int
    written_at: float | None = None
    """Seconds since the epoch."""


class ResultRecord(NamedTuple):
    """A row of `results` without its id: how a request ended."""

    attempt: int
    """Id of the request."""
    state: str
    """answer, restored, spoilt, failed, uncertain or dropped; `migrations` explains them."""
    charge_pico: int
    charge_tokens: int
    kind: str
    """`ok`, or a short code of the failure."""
    message: str
    requests: int = 1
    """Number of requests that the row represents."""
    cost_pico: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    status: int | None = None
    """HTTP status."""
    provider: str | None = None
    model: str | None = None
    policy: str | None = None
    """Why the answer lies outside the provider policy."""
    sent_at: float | None = None
    """Seconds since the epoch."""
    seconds: float | None = None
    """Time from sending the request to the last byte of the answer."""
    generation: str | None = None
    """Id under which the router knows a request of unknown cost."""


class BodyRecord(NamedTuple):
    """A row of `bodies`: the bytes that were received for a result."""

    id: int
    """Id of the result."""
    sha256: bytes
    body: bytes


class GenerationRecord(NamedTuple):
    """A row of `noted`: the router's id of a request whose answer is still on its way."""

    attempt: int
    generation: str


class RouterBill(NamedTuple):
    """The router's statement about one request."""

    cost_pico: int
    prompt_tokens: int | None
    completion_tokens: int | None
    provider: str | None
    model: str | None


class Settlement(NamedTuple):
    """How a request ended, with the bytes that were received."""

    result: ResultRecord
    body: bytes | None

    def as_latest(self) -> "LatestAttempt":
        """Return the settlement in the form in which `queries.latest_attempts` would read it back."""
        result = self.result
        unknown = result.cost_pico is None
        return LatestAttempt(
            id=result.attempt,
            state=result.state,
            kind=result.kind,
            message=result.message,
            provider=result.provider,
            model=result.model,
            policy=result.policy,
            body=self.body,
            requests=1,
            cost_pico=result.cost_pico or 0,
            uncertain=int(unknown),
            uncertain_pico=result.charge_pico if unknown else 0,
            prompt_tokens=result.prompt_tokens,
            completion_tokens=result.completion_tokens,
            sent_at=result.sent_at,
            seconds=result.seconds,
        )


class LatestAttempt(NamedTuple):
    """The last request for a key, or the one that settled it, with the sums over all requests for that key."""

    id: int
    state: str
    kind: str | None
    message: str | None
    provider: str | None
    model: str | None
    policy: str | None
    body: bytes | None
    requests: int
    """Requests for the key, over all runs."""
    cost_pico: int
    """Known cost of the key, over all runs."""
    uncertain: int
    """Requests of unknown cost for the key."""
    uncertain_pico: int
    """Most that those requests can have cost."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    sent_at: float | None = None
    seconds: float | None = None

    @property
    def answered(self) -> bool:
        """Whether this is the key's answer; otherwise it is the key's last failure."""
        return self.state in ("answer", "restored")

    @property
    def settled(self) -> bool:
        """Whether the key is not asked again: it has an answer, or a whole, paid answer that cannot be used."""
        return self.answered or self.state == "spoilt"


class StoredAnswer(NamedTuple):
    """A settled key with its body, as `store export` writes it."""

    key: str
    sha256: bytes
    body: bytes
    dataset: str
    purse: str
    requests: int
    cost_pico: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    provider: str | None
    model: str | None
    policy: str | None
    sent_at: float | None
    seconds: float | None
