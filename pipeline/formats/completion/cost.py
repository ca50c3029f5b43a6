"""The cost of one answer by the server's own word."""

from typing import Any, NamedTuple

from pipeline.formats.completion.values import dollars, dollars_in_text, mapping


class Cost(NamedTuple):
    """Dollars that the usage of a body states; a ledger turns them into an amount to book."""

    usd: float | None = None
    """The whole cost; None if a part of it is missing, or is not a number."""
    fee_usd: float = 0.0
    """The router's fee, if the bill of the upstream provider is missing."""
    text_usd: float | None = None
    """The whole cost as a numeric text: used only if price x tokens is unknown."""
    own_key: bool = False
    """Whether the upstream provider billed a key of the user's own, so that the router may not know that bill."""


NO_COST = Cost()


def read_cost(usage: dict[str, Any]) -> Cost:
    """Read `cost`, `is_byok` and `cost_details.upstream_inference_cost` as OpenRouter defines them.

    With a key of one's own at the upstream provider (BYOK), `cost` is only the router's fee; the provider's bill comes
    on top. Without `is_byok`, the larger of the two figures counts, since 0 beside a bill cannot be the cost.
    """
    stated, byok = usage.get("cost"), usage.get("is_byok")
    if stated is None and not byok:
        return NO_COST
    upstream = mapping(usage.get("cost_details")).get("upstream_inference_cost")
    if byok is True or str(byok).lower() in ("true", "1"):
        return _own_key(stated, upstream)
    usd = dollars(stated)
    if usd is None:
        return Cost(text_usd=dollars_in_text(stated))
    return Cost(max(usd, dollars(upstream) or 0.0) if byok is None else usd)


def _own_key(stated: Any, upstream: Any) -> Cost:
    """Cost with a key of one's own: the fee and the provider's bill, each of which may be missing."""
    fee, bill = dollars(stated), dollars(upstream)
    if fee is not None and bill is not None:
        return Cost(fee + bill, own_key=True)
    texts = [
        dollars_in_text(value) if number is None else number for value, number in ((stated, fee), (upstream, bill))
    ]
    known = [usd for usd in texts if usd is not None]
    return Cost(None, fee or 0.0, sum(known) if len(known) == len(texts) else None, own_key=True)
