"""An estimate -> the words on whether it serves what was asked for, and on what load it costs."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from attnprof import units
from attnprof.capacity.latency import Interval
from attnprof.prices import UNSTATED

if TYPE_CHECKING:
    from attnprof.estimate import Estimate

NOT_SAFELY = ", not safely"

Row = tuple[str, str, str]


def why_not(found: "Estimate") -> str:
    """In a line why an estimate's answer is no; empty where it is yes."""
    if found.is_yes:
        return ""
    if not found.plan.fits:
        gpus = f"{found.deployment.num_gpus} x {found.gpu.title}"
        return f"no: {found.deployment.model.name} does not fit on {gpus}"
    if found.serves_users is False and found.settings["users_served"] == found.num_served:
        users = f"{found.settings['users']:,} users of {_context(found)}"
        return f"no: {found.num_served:,} of {users} fit at once"
    return f"no: {served_words(found)}"


def served_words(found: "Estimate") -> str:
    """How many of those who were asked for are served, and within which limits."""
    users, served = found.settings["users"], found.num_served
    who = f"{served:,}" if served else "none"
    if users is not None:
        who = f"{served:,} of {units.counted(users, 'user')}"
    return who if found.slo is None else f"{who} {_within(found)}"


def _within(found: "Estimate") -> str:
    assert found.slo is not None
    return f"{'safely ' if found.slo.is_safe else ''}within {found.slo.limits.words}"


def sequences_words(found: "Estimate") -> str:
    """What sequences at once are: where replicas hold whole ones, how many each of them does."""
    replicas, words = found.deployment.dp, "all of full length"
    if replicas == 1 or not found.plan.fits:
        return words
    each = int(found.plan.max_concurrency / replicas)
    return f"{words}; {replicas:,} replicas hold {each:,} whole ones each"


def fullest_words(found: "Estimate") -> str:
    """Of several replicas, how many sequences the one has that times are of; else empty."""
    replicas = found.deployment.dp
    if replicas == 1 or not found.plan.fits:
        return ""
    each = -(-found.settings["batch_size"] // replicas)
    return f" ({each:,} on the fullest of {replicas:,} replicas)"


def _context(found: "Estimate") -> str:
    return units.tokens(found.settings["users_len"])


def loads(found: "Estimate", and_: str = ", ") -> str:
    """Of what prompts, and answers where there are any, times and costs are."""
    prompts = f"prompts of {units.tokens(found.settings['prompt_len'])}"
    if not found.writes_tokens:
        return prompts
    return f"{prompts}{and_}answers of {units.tokens(found.settings['output_len'])}"


def users_rows(found: "Estimate") -> list[Row]:
    """Whether the users that were asked for are served, by memory and by the limits."""
    settings, slo = found.settings, found.slo
    users = settings["users"]
    if users is None:
        return []
    what = f"{units.counted(users, 'user')} of {_context(found)}"
    answer = "yes" if found.is_yes else f"no, {found.num_served:,}"
    if slo is None:
        fit = f"{settings['users_served']:,} fit at once"
        return [(what, answer, fit if found.is_yes else "so many fit at once")]
    basis = f"{settings['users_served']:,} fit; {slo.batch_size:,} {_within(found)}"
    if not slo.is_safe and found.is_yes and slo.safe_batch_size < users:
        answer += NOT_SAFELY
        basis += f", safely {slo.safe_batch_size:,}"
    typed = settings["prompt_len"] + settings["output_len"]
    if settings["users_len"] != typed:  # memory for full contexts, times for the lengths
        basis += f" ({loads(found)})"
    return [(what, answer, basis)]


def limits_rows(found: "Estimate") -> list[Row]:
    """What holds the limits of latency that were asked for."""
    slo = found.slo
    if slo is None:
        return []
    users = units.counted(slo.prompt_users, "user")
    decides = "safely: by the upper ends of the intervals"
    if slo.is_safe:
        decides += ", which decide"
    output: list[Row] = []
    if found.writes_tokens:
        held = f"all {slo.batch_size:,} at once" if slo.batch_size else "none is held"
        output.append(("  output then", interval(slo.output_tokens_per_s, rate), held))
    return [
        (
            f"most at once within {slo.limits.words}",
            f"{slo.max_batch_size:,}, safely {slo.safe_batch_size:,}",
            f"{loads(found)}; {decides}",
        ),
        *output,
        ("  longest prompt", units.counted(slo.max_prompt_len, "token"), f"for {users}"),
    ]


def binding_row(found: "Estimate") -> Row:
    """What keeps the deployment from serving more; of a latency, which limit it is."""
    slo = found.slo
    basis = ""
    if slo is not None and slo.bound_by is not None and found.binding == slo.binding:
        limit = replace(slo.limits, **{"tpot_s" if slo.bound_by == "ttft" else "ttft_s": None})
        basis = limit.words
    return ("limited by", found.binding, basis)


def cost_rows(found: "Estimate") -> list[Row]:
    """What an hour and a million tokens cost, and at which load."""
    cost, slo = found.cost, found.slo
    key, what = "per_million_output_tokens", "cost of a million output tokens"
    if not found.writes_tokens:
        key, what = "per_million_input_tokens", "cost of a million tokens read"
    load = f"for {loads(found)}"
    if found.writes_tokens and cost["batch_size"] is not None:
        within = ""
        if slo is not None:
            within = ", safely within the limits" if slo.is_safe else ", within the limits"
        load = f"at {cost['batch_size']:,} at once{within}, {load}"
    none = "no load is within the limits" if slo is not None and not slo.batch_size else ""
    return [
        ("cost of an hour", _price(found, "per_hour"), _listed(found)),
        (what, _price(found, key), load if cost[key] is not None else none),
    ]


def _price(found: "Estimate", key: str) -> str:
    value = found.cost[key]
    return units.capacity(None) if value is None else f"{value:.3g} {found.cost['currency']}"


def _listed(found: "Estimate") -> str:
    """By whose prices; of a GPU that has none, what to give."""
    name, basis = found.cost["price_list"], found.cost["price_list_is"]
    if name is None:
        return "by --price"
    if found.cost["per_hour"] is None:
        return f"not in list {name}: give --price"
    return f"by list {name}" if basis == UNSTATED else f"by list {name}, {basis}"


def rate(tokens_per_s: float) -> str:
    """Tokens a second for people."""
    digits = f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"
    return f"{digits}/s"


def interval(found: Interval, shown: Callable[[float], str]) -> str:
    """The middle, and in brackets both ends."""
    if found.low is None or found.mid is None or found.high is None:
        return units.seconds(None)
    return f"{shown(found.mid)} ({shown(found.low)} to {shown(found.high)})"
