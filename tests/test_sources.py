"""Noise on the embeddings, ablation values and donors."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import tiny
import torch
from torch import Tensor

from interp.errors import ModelError, OptionError, TaskError
from interp.models.hf import HookedHF
from interp.site import Site
from interp.sources import GaussianNoise, ablation_source, donors, embedding_deviation
from interp.tasks.base import Task
from interp.tokens import from_ids

G2 = tiny.hooked("gpt2")
TASK = tiny.task()


@pytest.mark.parametrize("family, scale", [("gpt2", 1.0), ("llama", 1.0), ("gemma2", 32**0.5), ("opt", 1.0)])
def test_the_deviation_is_that_of_the_key_tokens_as_the_model_scales_them(family: str, scale: float) -> None:
    model = tiny.hooked(family)
    mask = torch.zeros(3, 9, dtype=torch.bool)
    mask[1, 3:6] = mask[0, 2] = True
    weight = model.model.get_input_embeddings().weight.detach()
    expected = scale * float(weight[TASK.clean.ids[mask]].std())
    assert embedding_deviation(model, TASK.clean, mask) == pytest.approx(expected, rel=1e-5)


def test_noise_lies_on_the_roles_tokens_only_and_has_the_scale_asked_for() -> None:
    draws = GaussianNoise("changed", scale=2.0, draws=400, seed=1).sample(G2, TASK)
    noise = torch.stack(draws)
    touched = noise.abs().sum((0, 3)) > 0
    assert touched.nonzero().tolist() == [[0, 2], [1, 3], [1, 5], [2, 2]]
    ids = torch.tensor([3, 30, 95, 7])
    deviation = float(G2.model.transformer.wte.weight[ids].detach().std())
    assert float(noise[:, touched].std()) == pytest.approx(2 * deviation, rel=0.02)
    assert abs(float(noise[:, touched].mean())) < 0.02


def test_noise_is_drawn_from_its_seed_and_differs_between_draws() -> None:
    first, second = GaussianNoise("changed", draws=2, seed=3).sample(G2, TASK)
    assert not torch.equal(first, second)
    again = GaussianNoise("changed", draws=2, seed=3).sample(G2, TASK)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, GaussianNoise("changed", draws=2, seed=4).sample(G2, TASK)[0])
    assert not GaussianNoise("changed", scale=0.0, draws=1).sample(G2, TASK)[0].any()


def by_token(rows: Sequence[Sequence[int]], site: Site, model: HookedHF = G2) -> list[Tensor]:
    """The site's values of each prompt run alone: no padding."""
    return [model.run([list(row)], record=[site])[site][0] for row in rows]


def test_means_are_over_real_tokens_by_position_or_overall() -> None:
    for site in (Site("z", 1), Site("resid_post", 0), Site("neuron", 2)):
        rows = by_token(tiny.RAGGED, site)
        overall = ablation_source(G2, TASK, "mean", [site]).values[site]
        expected = torch.cat(rows).mean(0)
        assert overall.shape[:2] == (1, 9)
        torch.testing.assert_close(overall, expected.expand_as(overall), atol=1e-5, rtol=1e-5)
        placed = ablation_source(G2, TASK, "mean_by_position", [site]).values[site]
        for position in range(9):
            there = torch.stack([row[position] for row in rows if len(row) > position]).mean(0)
            torch.testing.assert_close(placed[0, position], there, atol=1e-5, rtol=1e-5)


def test_where_the_model_has_a_sink_position_0_keeps_a_mean_of_its_own() -> None:
    model = HookedHF(tiny.build("gpt2"))
    model.has_sink = True
    site = Site("resid_post", 1)
    rows = by_token(tiny.RAGGED, site)
    found = ablation_source(model, TASK, "mean", [site]).values[site][0]
    torch.testing.assert_close(found[0], torch.stack([row[0] for row in rows]).mean(0), atol=1e-5, rtol=1e-5)
    rest = torch.cat([row[1:] for row in rows]).mean(0)
    torch.testing.assert_close(found[1:], rest.expand(8, -1), atol=1e-5, rtol=1e-5)


def test_zero_and_resample_and_counterfactual_name_their_values() -> None:
    zero = ablation_source(G2, TASK, "zero", [Site("z", 0), Site("pattern", 1), Site("embed")])
    assert zero.prompts is None and not any(x.any() for x in zero.values.values())
    assert ablation_source(G2, TASK, "counterfactual", [Site("z", 0)]).prompts is TASK.corrupted
    prompts = from_ids(tiny.RAGGED * 2)
    twice = Task("twice", prompts, tiny.answers(prompts), TASK.metric)
    source = ablation_source(G2, twice, "resample", [Site("z", 0)], seed=2)
    assert source.prompts is not None
    assert source.prompts.rows() == [twice.clean.rows()[row] for row in donors(twice.clean, 2)]


def test_donors_are_other_prompts_of_the_same_length_drawn_from_the_seed() -> None:
    prompts = from_ids([[1] * 4, [2] * 5, [3] * 4, [4] * 5, [5] * 4, [6] * 4])
    seen = set()
    for seed in range(40):
        chosen = donors(prompts, seed)
        assert all(row != donor for row, donor in enumerate(chosen))
        assert [int(prompts.lengths[donor]) for donor in chosen] == prompts.lengths.tolist()
        assert chosen == donors(prompts, seed)
        seen.add(chosen[0])
    assert seen == {2, 4, 5}


def test_mistakes_are_named() -> None:
    with pytest.raises(OptionError, match="ablation is 'men'; allowed: .*nearest: 'mean'"):
        ablation_source(G2, TASK, "men", [Site("z", 0)])
    with pytest.raises(OptionError, match="ablation 'mean_by_position' at 'pattern'.*use 'zero'"):
        ablation_source(G2, TASK, "mean_by_position", [Site("z", 0), Site("pattern", 0)])
    with pytest.raises(TaskError, match=r"prompts \[0, 1, 2\] are the only ones of their length"):
        ablation_source(G2, TASK, "resample", [Site("z", 0)])
    with pytest.raises(TaskError, match="has no corrupted prompts"):
        ablation_source(G2, tiny.task(corrupted=None), "counterfactual", [Site("z", 0)])
    with pytest.raises(TaskError, match="noise on role 'subject': task 'tiny' has changed, end"):
        GaussianNoise().sample(G2, TASK)
    with pytest.raises(TaskError, match="role 'nowhere': it has no token"):
        GaussianNoise("nowhere").sample(G2, TASK)
    with pytest.raises(OptionError, match="noise scale=-1.0, draws=10"):
        GaussianNoise("end", scale=-1.0).sample(G2, TASK)


def test_noise_works_on_a_decoder_of_ones_own_when_its_map_names_the_embedding() -> None:
    model, task = tiny.custom(), tiny.task()
    role = next(iter(task.roles))
    noise = GaussianNoise(role, draws=2).sample(model, task)
    assert len(noise) == 2 and all(bool((one != 0).any()) for one in noise)


def test_noise_on_a_map_without_the_embedding_names_the_cure() -> None:
    model = HookedHF(tiny.custom().model, site_map=replace(tiny.MAP, embed=""), shape=tiny.SHAPE)
    task = tiny.task()
    with pytest.raises(ModelError, match=r"token embedding is; give SiteMap\(\.\.\., embed="):
        GaussianNoise(next(iter(task.roles))).sample(model, task)
