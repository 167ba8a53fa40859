"""Provenance is plain JSON, whole, and grows by operations."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from interp.errors import CircuitError
from interp.provenance import Provenance, installed_versions


def test_values_become_plain_json_and_are_not_the_callers():
    parameters = {"steps": (1, 2), "grid": np.array([0.5, 1.0]), "n": np.int64(3), 7: {"deep": [None, True]}}
    made = Provenance(method="eap", parameters=parameters, token_ids=[[1, 2], [3]])
    parameters["steps"] = ()
    assert made.parameters == {"steps": [1, 2], "grid": [0.5, 1.0], "n": 3, "7": {"deep": [None, True]}}
    assert made.token_ids == ((1, 2), (3,))
    again = Provenance(**json.loads(json.dumps(asdict(made))))
    assert again == made


def test_values_without_json_are_named_together():
    with pytest.raises(CircuitError) as raised:
        Provenance(parameters={"a": object(), "b": [1, {2}]}, task_parameters={"c": b"x"})
    message = str(raised.value)
    assert "provenance.parameters.a is a object" in message
    assert "provenance.parameters.b[1] is a set ({2}), which JSON cannot hold" in message
    assert "provenance.task_parameters.c is a bytes" in message


def test_operations_are_added_and_the_rest_stays():
    first = Provenance(method="eap", seed=3)
    second = first.after("top_n", n=3).after("prune")
    assert first.operations == ()
    assert second.operations == ({"operation": "top_n", "n": 3}, {"operation": "prune"})
    assert (second.method, second.seed) == ("eap", 3)


def test_versions_are_filled_in():
    assert Provenance().versions == installed_versions()
    assert installed_versions()["numpy"] == np.__version__
    assert Provenance(versions={"numpy": "1"}).versions == {"numpy": "1"}
