"""Importing the package: quick, silent, light; its public names are a list that changes on purpose only."""

import subprocess
import sys
from pathlib import Path

import interp

PUBLIC = """
Add Circuit Edit Engine GaussianNoise HookedModel InterpError InterpWarning Mean Node Nodes Pair Patch Point Prompts
Resample Scale Shape Site SiteMap Task Zero attention_patterns candidates direct_logit_attribution faithfulness
faithfulness_curve grow load load_circuit logit_lens make_task metric patch prune run_circuits save_circuit task
threshold to_graphml to_networkx top_n attribute attribute_edges bound_missed circuit_areas faithfulness_of_complement
minimality necessity path_patch sufficiency verify patch_edges acdc mediate completeness auroc roc_curve gate
gate_contrastive GateSettings same_items hard_circuit gate_table modularity ablation_curve mediation_agreement
head_rankings compare_rankings Baselines leave_one_out FitEngine gate_strengths load_dictionary save_dictionary
pretrained_dictionary coordinates orthonormal principal_components Dictionary Featurizer harvest ActivationStore
train_dictionary dictionary_quality with_quality contexts FeatureCard save_cards load_cards feature_cards
circuit_cards view_cards attribute_features feature_circuit bar_errors from_layer connect_features error_shares
predicted_contexts context_vectors Projection cluster choose_n_clusters cluster_stability cluster_circuits
circuit_overlap view_clusters TextClassifier train_classifier classifier_task save_classifier load_classifier shift
shift_candidates ShiftCandidates ShiftResult skyline_scores over_seeds ShiftSettings BASELINES ProbeSettings Judge
CallableJudge TokenSetJudge HumanJudge LLMJudge RandomJudge SkylineJudge Verdict load_verdicts save_verdicts Labelled
BiasedData biased_data read_labelled biased biographies planted gap bias_in_bios serve_cards scr tpp token_dictionary
card_server judge_agreement combined_verdicts Autoencoder subspace_basis Counterfactuals task_counterfactuals
known_variables known_prompts ravel read_ravel toy_ravel counterfactuals score_interchange Resumption states_of
Keeping TrainSettings AtRoles BoundlessSubspace FullVector Subspace load_hyperdas save_hyperdas HyperDas
mean_projectors selections subspace_overlaps HyperDasSettings das hyperdas hyperdas_circuit train_hyperdas random_copy
crossed_concepts subspace_controls
SmallMlp truth_table gate_answers
MlpTraining train_boolean train_mlps
Counting count_candidates enumerate_circuits
sample_circuits
groundings
boolean_formulas
find_mappings
known_mlp
compare lattice Bars identifiability_report find_alternatives smallest_circuit coarsen
""".split()


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)


def test_the_public_names_are_these() -> None:
    assert sorted(PUBLIC) == interp.__all__


def test_every_public_name_loads() -> None:
    assert all(getattr(interp, name) is not None for name in interp.__all__)
    assert set(interp.__all__) <= set(dir(interp))


def test_no_public_name_is_that_of_a_module_which_would_take_its_place_once_imported() -> None:
    modules = {path.stem for path in Path(interp.__file__).parent.iterdir()}
    assert not modules & set(interp.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    try:
        interp.pathc  # noqa: B018
    except AttributeError as error:
        assert "pathc" in str(error)
    else:
        raise AssertionError("a name that does not exist was found")


def test_importing_is_silent_and_loads_no_backend_and_no_plotting() -> None:
    heavy = ("torch", "transformers", "plotly", "transformer_lens", "nnsight", "pandas", "networkx")
    done = run(f"import interp, sys; assert not [m for m in {heavy} if m in sys.modules]")
    assert done.stdout == done.stderr == ""


def test_importing_adds_little_to_torch() -> None:
    code = "import torch, time; t = time.perf_counter(); import interp; print(time.perf_counter() - t)"
    assert float(run(code).stdout) < 0.3
