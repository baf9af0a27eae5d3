"""The rank-one members of a space that nearly fills the symmetric tensors, where other vectors nearly are some.

F is nearly one everywhere then: the power method of `rank_one` hardly moves, and there is no complement of the known
members to start from. Gauss–Newton steps lead to the true members from most vectors, and a false member has a far
larger 1 − F than a true one, unless that is weak.
"""

from __future__ import annotations

import numpy as np

from ..geometry import random_directions
from .rank_one import MEMBERS, RankOnes, Space, distinct, members

_STARTS = 1024  # random vectors in a round of Gauss–Newton steps: about one in a hundred leads to a given member
_ENTRIES = 4_000_000  # numbers in memory at once while vectors are polished, 32 MB
_ROUNDS = 6  # most such rounds; the second is mostly the last
_NEARLY = 16.0  # multiple of the 1 − F of the last member that the rank has room for, up to which others are kept, too
_FALSE = 4  # one of these is allowed for so many true ones; empirical, as is the multiple: of 50 targets one had more


def members_and_others(space: Space, rng: np.random.Generator, *, accept: float) -> RankOnes:
    """Return as many members as the space has dimensions, best first, and those that fit nearly as well as the last."""
    rank = space.rank
    found = members(space, rng, accept=accept, extra=rank)
    known, inside = found.vectors, found.inside
    count = min(_STARTS, _ENTRIES // (space.basis.shape[1] * space.width))
    for _ in range(_ROUNDS):
        ends, value = space.polish(random_directions(count, space.width, rng))
        good = value >= accept
        new, score = distinct(ends[good], value[good], same=MEMBERS.same, known=known)
        known, inside, before = np.concatenate([known, new]), np.concatenate([inside, score]), inside[:rank]
        order = np.argsort(-inside, kind="stable")
        known, inside = known[order], inside[order]
        if np.array_equal(inside[:rank], before):  # none of the best was missing
            break
    others = int(np.sum(1.0 - inside[rank:] <= _NEARLY * (1.0 - inside[rank - 1 : rank]).max(initial=0.0)))
    keep = rank + min(others, rank // _FALSE)
    return RankOnes(known[:keep], inside[:keep], found.rounds)
