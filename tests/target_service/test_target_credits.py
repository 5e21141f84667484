"""Credits are shared equally, spent at arrival, and come back at a request's end."""

import numpy as np

from target_service.credits import CreditBook, Grant
from target_service.request import Cost, cost_of


def test_a_stream_alone_may_spend_everything():
    book = CreditBook(num_slots=4, num_pages=100)
    book.open(1)
    assert book.grant(1) == Grant(4, 100)


def test_a_request_spends_and_gives_back():
    book = CreditBook(num_slots=4, num_pages=100)
    book.open(1)
    assert book.spend(1, Cost(1, 30))
    assert book.grant(1) == Grant(4, 100), "the router has counted the spending itself"
    book.give_back(1, Cost(1, 30))
    assert book.grant(1) == Grant(5, 130)


def test_a_submission_past_the_credits_is_refused_and_its_cost_comes_back():
    book = CreditBook(num_slots=1, num_pages=100)
    book.open(1)
    assert not book.spend(1, Cost(1, 101))
    assert book.grant(1) == Grant(2, 201)
    assert book.spend(1, Cost(1, 10))
    assert not book.spend(1, Cost(1, 10))


def test_a_share_falls_when_another_stream_joins_and_rises_when_it_goes():
    book = CreditBook(num_slots=4, num_pages=100)
    book.open(1)
    assert all(book.spend(1, Cost(1, 20)) for _ in range(3))
    book.open(2)
    assert book.grant(1) == Grant(3, 60), "it holds more than its half"
    assert book.grant(2) == Grant(1, 40), "what is free is all that it can have"
    assert not book.spend(1, Cost(1, 20))
    book.close(2)
    assert book.grant(1) == Grant(4 + 1, 100 + 20)


def test_a_request_of_more_pages_than_a_share_runs_once_its_stream_holds_nothing():
    book = CreditBook(num_slots=4, num_pages=100)
    book.open(1)
    book.open(2)
    assert book.spend(1, Cost(1, 10))
    assert not book.spend(1, Cost(1, 80)), "past its half, while another of its requests runs"
    book.give_back(1, Cost(1, 10))
    assert book.spend(1, Cost(1, 80))


def test_more_streams_than_slots_take_turns():
    book = CreditBook(num_slots=1, num_pages=100)
    book.open(1)
    book.open(2)
    assert book.spend(1, Cost(1, 10))
    assert book.grant(2).slots == 0
    book.give_back(1, Cost(1, 10))
    assert book.spend(2, Cost(1, 10))


def test_random_work_never_grants_more_than_there_is():
    rng = np.random.default_rng(0)
    book = CreditBook(num_slots=8, num_pages=64)
    held: dict[int, list[Cost]] = {}
    spent = {}
    for step in range(2000):
        if not held or (len(held) < 4 and rng.random() < 0.05):
            book.open(step)
            held[step], spent[step] = [], (0, 0)
            continue
        stream = int(rng.choice(list(held)))
        if rng.random() < 0.03:
            for cost in held.pop(stream):
                book.give_back(stream, cost)
            book.close(stream)
        elif held[stream] and rng.random() < 0.5:
            book.give_back(stream, held[stream].pop())
        else:
            cost = Cost(1, int(rng.integers(1, 30)))
            if book.spend(stream, cost):
                held[stream].append(cost)
            spent[stream] = (spent[stream][0] + 1, spent[stream][1] + cost.pages)
        costs = [cost for costs in held.values() for cost in costs]
        assert len(costs) <= 8
        assert sum(cost.pages for cost in costs) <= 64
        for number in held:
            grant = book.grant(number)
            assert grant.slots >= spent[number][0]
            assert grant.pages >= spent[number][1]


def test_the_cost_is_that_of_the_prompt_the_output_and_the_largest_tree():
    assert cost_of(prompt_len=10, max_tokens=6, context_length=100, page_size=16) == Cost(1, 5)
    assert cost_of(prompt_len=10, max_tokens=6000, context_length=100, page_size=16) == Cost(1, 11)
