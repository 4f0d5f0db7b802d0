"""An output of latent attention -> whether it is right: by the expanded form, in float64."""

import math
from dataclasses import dataclass

import torch

from attnprof.measured import Check
from attnprof.workload import Workload
from attnprof.workloads.places import Place
from attnprof.workloads.reference import (
    TURN_ROUNDINGS,
    Head,
    Units,
    compared_heads,
    double,
    first_query,
    head_scale,
    reference_device,
    units_of,
)


@dataclass(frozen=True, kw_only=True)
class MlaGiven:
    """What a call of latent attention was given.

    Either ``entries``, latents and turned keys of all tokens that any query sees, or ``heads``,
    their keys and values where these are cached. ``new`` are the last tokens' entries as they
    came, whose keys are not turned yet, and ``rounded`` as a latent cache stores them in fewer
    bits, turned. ``exact`` is the same before it did.
    """

    q: torch.Tensor
    weight: torch.Tensor
    new: torch.Tensor
    entries: torch.Tensor | None = None
    heads: tuple[torch.Tensor, torch.Tensor] | None = None
    sinks: torch.Tensor | None = None
    rounded: torch.Tensor | None = None
    rounds: bool = False  # whether a cache stores tokens in another dtype than the arithmetic's
    exact: "MlaGiven | None" = None


def latent_held_against_reference(
    workload: Workload, given: MlaGiven, output: torch.Tensor, seed: int, place: Place
) -> Check:
    """Compare ``output`` with attention to keys and values that are expanded in float64.

    The absorbed form gives the same, as (q·W)·c = q·(W·c), so it is held against this too. To the
    bound of :func:`~attnprof.workloads.reference.compared_heads` come what each form rounds: keys
    and values made from the latent, or queries taken to the latent and what is read from it.
    """
    units = units_of(workload.dtype)
    held = given.heads[0] if given.entries is None and given.heads else given.entries
    assert held is not None

    def head_at(b: int, h: int, rows: torch.Tensor) -> Head:
        return _head(workload, given, place, units, b, h, rows)

    return compared_heads(
        workload, head_at, output, seed, num_keys=held.shape[2], sinks=given.sinks
    )


def _head(
    workload: Workload, given: MlaGiven, place: Place, units: Units, b: int, h: int,
    rows: torch.Tensor,
) -> Head:  # fmt: skip
    rank = workload.kv_lora_rank
    assert rank is not None and workload.rope_head_dim is not None
    where = reference_device(given.q)
    plain_dim = workload.head_dim - workload.rope_head_dim
    raw = double(given.q[b, h].index_select(0, rows.to(given.q.device)), where)
    positions = rows.to(where) + first_query(workload)
    turned = place.turned(raw[:, plain_dim:], positions, workload.kv_len)
    queries = torch.cat((raw[:, :plain_dim], turned), dim=1)
    weight = double(given.weight[h], where)
    keys, values, latents = _keys_and_values(workload, given, place, b, h, weight)
    exact = None
    if given.exact is not None:
        exact = _keys_and_values(workload, given.exact, place, b, h, weight)[:2]

    scale = head_scale(workload)
    turns = TURN_ROUNDINGS * units.turned * bool(place.turns)
    turn_squares = 2 * turns**2 * (turned.square() @ keys[:, plain_dim:].square().T)
    sizes = latents.square() @ weight.square().T  # of keys and values that are made
    made = units.dtype + math.sqrt(rank) * units.sums
    if workload.mla == "expanded":
        key_squares = queries[:, :plain_dim].square() @ sizes[:, :plain_dim].T
        score_error = scale * (made**2 * key_squares + turn_squares).sqrt()
        return Head(
            queries=queries, keys=keys, values=values, exact=exact, score_error=score_error,
            output_error=lambda probs: made * (probs.square() @ sizes[:, plain_dim:]).sqrt(),
        )  # fmt: skip
    query_sizes = queries[:, :plain_dim].square() @ weight[:plain_dim].square()
    taken = units.dtype + (math.sqrt(plain_dim) + math.sqrt(rank)) * units.sums
    score_squares = taken**2 * (query_sizes @ latents.square().T) + turn_squares

    def output_error(probs: torch.Tensor) -> torch.Tensor:
        """Of what is read from the latent, rounded, and taken to the values."""
        read = (probs @ latents).square() * units.dtype**2
        summed = (probs.square() @ latents.square()) * (
            units.dtype**2 + len(latents) * units.sums**2
        )
        by_rank = rank * units.sums**2 * (probs @ latents).square()
        return ((read + summed + by_rank) @ weight[plain_dim:].square().T).sqrt()

    return Head(
        queries=queries, keys=keys, values=values, exact=exact,
        score_error=scale * score_squares.sqrt(), output_error=output_error,
    )  # fmt: skip


def _keys_and_values(
    workload: Workload, given: MlaGiven, place: Place, b: int, h: int, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values of a head, and the latents that are expanded in the call (zeros where they
    were before); of new tokens from their entries, where no cache rounds these."""
    assert workload.kv_lora_rank is not None
    rank, where = workload.kv_lora_rank, weight.device
    plain_dim = weight.shape[0] - workload.value_dim
    new = double(given.new[b, 0], where)
    num_new = len(new)
    positions = torch.arange(workload.kv_len - num_new, workload.kv_len, device=where)
    new = torch.cat((new[:, :rank], place.turned(new[:, rank:], positions, workload.kv_len)), 1)
    if given.entries is not None:
        entries = double(given.entries[b, 0], where)
        if given.rounded is not None:
            new = double(given.rounded[b, 0], where)
        entries = torch.cat((entries[: len(entries) - num_new], new))
        latents = entries[:, :rank]
        made = latents @ weight.T
        return torch.cat((made[:, :plain_dim], entries[:, rank:]), 1), made[:, plain_dim:], latents
    assert given.heads is not None
    keys, values = (double(tensor[b, h], where) for tensor in given.heads)
    latents = torch.zeros(len(keys), rank, dtype=torch.float64, device=where)
    if not given.rounds:
        made = new[:, :rank] @ weight.T
        old = len(keys) - num_new
        keys = torch.cat((keys[:old], torch.cat((made[:, :plain_dim], new[:, rank:]), 1)))
        values = torch.cat((values[:old], made[:, plain_dim:]))
        latents[old:] = new[:, :rank]
    return keys, values, latents
