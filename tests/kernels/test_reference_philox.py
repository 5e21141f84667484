"""The noise is Philox4x32-10 as published, laid out as the op contract says."""

import math

import numpy as np
import pytest
import torch

from kernels.reference.ops import ReferenceOps
from kernels.reference.philox import philox4x32

# From Random123's kat_vectors: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[np.ndarray, ...]:
    return tuple(np.array([int(word, 16)], np.uint64) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_vectors(counter, key, result):
    assert philox4x32(words(counter), words(key)) == words(result)


def test_the_noise_of_a_token_is_one_word_of_its_block():
    seed, position, token = 0x0123456789ABCDEF, 77, 4098
    counter = tuple(np.array([v], np.uint64) for v in (token // 4, position, 0, 0))
    key = (np.array([0x89ABCDEF], np.uint64), np.array([0x01234567], np.uint64))
    word = int(philox4x32(counter, key)[token % 4][0])
    expected = -math.log(-math.log(((word >> 9) + 0.5) * 2.0**-23))
    noise = ReferenceOps().gumbel(np.array([seed], np.uint64), np.array([position]), torch.tensor([token]))
    assert noise.dtype == torch.float32
    assert noise.item() == pytest.approx(expected, rel=1e-5)


def test_noise_does_not_depend_on_how_it_is_asked_for():
    ops = ReferenceOps()
    seeds, positions = np.array([3, 2**64 - 1], np.uint64), np.array([5, 1000], np.int32)
    whole = ops.gumbel(seeds, positions, torch.arange(1024))
    ids = torch.randperm(1024, generator=torch.Generator().manual_seed(0))[:100]
    assert torch.equal(ops.gumbel(seeds, positions, ids), whole[:, ids])
    both = torch.stack((ids, ids.flip(0)))
    assert torch.equal(ops.gumbel(seeds, positions, both), whole.gather(1, both))
    assert torch.equal(ops.gumbel(seeds[1:], positions[1:], torch.arange(512, 1024)), whole[1:, 512:])
    assert torch.equal(ops.gumbel(seeds, positions, torch.arange(3)), whole[:, :3])


def test_noise_of_seeds_on_the_device_is_that_of_their_bit_patterns():
    ops = ReferenceOps()
    seeds, positions = np.array([3, 2**64 - 1, 2**63], np.uint64), np.array([5, 1000, 7], np.int32)
    ids = torch.arange(60).view(3, 20)
    rows = ops.gumbel_rows(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions), ids)
    assert torch.equal(rows, ops.gumbel(seeds, positions, ids))


def test_noise_differs_by_seed_position_and_token():
    ops = ReferenceOps()
    seeds = np.array([1, 1, 2, 1 << 32], np.uint64)
    noise = ops.gumbel(seeds, np.array([0, 1, 0, 0]), torch.arange(64))
    assert len(noise.unique()) == noise.numel()


def test_noise_has_the_moments_of_a_standard_gumbel_and_stays_within_its_bounds():
    noise = ReferenceOps().gumbel(np.array([9], np.uint64), np.array([1]), torch.arange(400_000)).double()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.01)
    assert noise.min() > -2.82
    assert noise.max() < 16.64
