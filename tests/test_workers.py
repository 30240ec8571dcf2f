from __future__ import annotations

import itertools

import torch

from ihdm.workers import Workers, together


def test_shares_cover_all_things_in_order():
    for n in (0, 1, 5, 100):
        for count in (1, 2, 7):
            shares = [list(Workers(rank, count).share(n)) for rank in range(count)]
            assert list(itertools.chain(*shares)) == list(range(n))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_is_all_of_them(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with together() as workers:
        assert workers.main and workers.count == 1
        part = torch.rand(3, 2)
        assert workers.join(part).equal(part)
        assert workers.agree(True) and not workers.agree(False)
        assert workers.device(torch.device("cpu")) == torch.device("cpu")
