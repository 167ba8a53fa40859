"""interp: which parts of a transformer carry a behaviour, exactly and fast, on unmodified Hugging Face models.

    model + task -> method -> Circuit -> evaluate / compare / view / save

Names are loaded when first used, so importing this package is quick and loads no backend and no plotting.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.activation_store import ActivationStore as ActivationStore
    from interp.activation_store import harvest as harvest
    from interp.boolean.circuits import Counting as Counting
    from interp.boolean.circuits import count_candidates as count_candidates
    from interp.boolean.circuits import enumerate_circuits as enumerate_circuits
    from interp.boolean.formulas import boolean_formulas as boolean_formulas
    from interp.boolean.groundings import groundings as groundings
    from interp.boolean.known import known_mlp as known_mlp
    from interp.boolean.mappings import find_mappings as find_mappings
    from interp.boolean.network import SmallMlp as SmallMlp
    from interp.boolean.network import gate_answers as gate_answers
    from interp.boolean.network import truth_table as truth_table
    from interp.boolean.sampling import sample_circuits as sample_circuits
    from interp.boolean.training import MlpTraining as MlpTraining
    from interp.boolean.training import train_boolean as train_boolean
    from interp.boolean.training import train_mlps as train_mlps
    from interp.candidate_nodes import candidates as candidates
    from interp.card_making import circuit_cards as circuit_cards
    from interp.card_making import feature_cards as feature_cards
    from interp.cards import FeatureCard as FeatureCard
    from interp.cards import load_cards as load_cards
    from interp.cards import save_cards as save_cards
    from interp.circuit import Circuit as Circuit
    from interp.circuit_algebra import coarsen as coarsen
    from interp.circuit_algebra import from_layer as from_layer
    from interp.circuit_export import to_graphml as to_graphml
    from interp.circuit_export import to_networkx as to_networkx
    from interp.circuit_files import load_circuit as load_circuit
    from interp.circuit_files import save_circuit as save_circuit
    from interp.circuit_ops import bar_errors as bar_errors
    from interp.circuit_ops import grow as grow
    from interp.circuit_ops import prune as prune
    from interp.circuit_ops import threshold as threshold
    from interp.circuit_ops import top_n as top_n
    from interp.classifier import TextClassifier as TextClassifier
    from interp.classifier import classifier_task as classifier_task
    from interp.classifier import train_classifier as train_classifier
    from interp.classifier_files import load_classifier as load_classifier
    from interp.classifier_files import save_classifier as save_classifier
    from interp.cluster_search import circuit_overlap as circuit_overlap
    from interp.cluster_search import cluster_circuits as cluster_circuits
    from interp.clusters import choose_n_clusters as choose_n_clusters
    from interp.clusters import cluster as cluster
    from interp.clusters import cluster_stability as cluster_stability
    from interp.comparison import compare as compare
    from interp.control_runs import crossed_concepts as crossed_concepts
    from interp.control_runs import subspace_controls as subspace_controls
    from interp.curves import circuit_areas as circuit_areas
    from interp.curves import faithfulness_curve as faithfulness_curve
    from interp.debias import ShiftCandidates as ShiftCandidates
    from interp.debias import ShiftResult as ShiftResult
    from interp.debias import over_seeds as over_seeds
    from interp.debias import shift as shift
    from interp.debias import shift_candidates as shift_candidates
    from interp.debias import skyline_scores as skyline_scores
    from interp.debias_baselines import BASELINES as BASELINES
    from interp.debias_parts import ShiftSettings as ShiftSettings
    from interp.dictionary_scores import scr as scr
    from interp.dictionary_scores import tpp as tpp
    from interp.errors import InterpError as InterpError
    from interp.errors import InterpWarning as InterpWarning
    from interp.evaluate import completeness as completeness
    from interp.evaluate import faithfulness as faithfulness
    from interp.evaluate import faithfulness_of_complement as faithfulness_of_complement
    from interp.evaluate import minimality as minimality
    from interp.evaluate import necessity as necessity
    from interp.evaluate import sufficiency as sufficiency
    from interp.featurizers.autoencoder import Autoencoder as Autoencoder
    from interp.featurizers.base import Featurizer as Featurizer
    from interp.featurizers.dictionary import Dictionary as Dictionary
    from interp.featurizers.files import load_dictionary as load_dictionary
    from interp.featurizers.files import pretrained_dictionary as pretrained_dictionary
    from interp.featurizers.files import save_dictionary as save_dictionary
    from interp.featurizers.linear import coordinates as coordinates
    from interp.featurizers.linear import orthonormal as orthonormal
    from interp.featurizers.linear import principal_components as principal_components
    from interp.featurizers.quality import dictionary_quality as dictionary_quality
    from interp.featurizers.quality import with_quality as with_quality
    from interp.featurizers.token_features import token_dictionary as token_dictionary
    from interp.featurizers.training import train_dictionary as train_dictionary
    from interp.gate_classes import gate_table as gate_table
    from interp.gate_classes import hard_circuit as hard_circuit
    from interp.gate_classes import modularity as modularity
    from interp.gate_settings import FitEngine as FitEngine
    from interp.gate_settings import GateSettings as GateSettings
    from interp.gate_transfer import leave_one_out as leave_one_out
    from interp.gate_validation import Baselines as Baselines
    from interp.gate_validation import ablation_curve as ablation_curve
    from interp.gate_validation import compare_rankings as compare_rankings
    from interp.gate_validation import head_rankings as head_rankings
    from interp.gate_validation import mediation_agreement as mediation_agreement
    from interp.gradient_vectors import Projection as Projection
    from interp.group_lattice import lattice as lattice
    from interp.hypernet.files import load_hyperdas as load_hyperdas
    from interp.hypernet.files import save_hyperdas as save_hyperdas
    from interp.hypernet.interchange import HyperDas as HyperDas
    from interp.hypernet.readout import mean_projectors as mean_projectors
    from interp.hypernet.readout import selections as selections
    from interp.hypernet.readout import subspace_overlaps as subspace_overlaps
    from interp.hypernet.settings import HyperDasSettings as HyperDasSettings
    from interp.identifiability import identifiability_report as identifiability_report
    from interp.identifiability_parts import Bars as Bars
    from interp.interchange.circuits import subspace_basis as subspace_basis
    from interp.interchange.examples import Counterfactuals as Counterfactuals
    from interp.interchange.exchanges import BoundlessSubspace as BoundlessSubspace
    from interp.interchange.exchanges import FullVector as FullVector
    from interp.interchange.exchanges import Subspace as Subspace
    from interp.interchange.from_task import task_counterfactuals as task_counterfactuals
    from interp.interchange.known import known_variables as known_variables
    from interp.interchange.placing import AtRoles as AtRoles
    from interp.interchange.ravel import known_prompts as known_prompts
    from interp.interchange.ravel import ravel as ravel
    from interp.interchange.ravel import read_ravel as read_ravel
    from interp.interchange.ravel_toy import toy_ravel as toy_ravel
    from interp.interchange.registry import counterfactuals as counterfactuals
    from interp.interchange.scores import score_interchange as score_interchange
    from interp.interchange.states import Resumption as Resumption
    from interp.interchange.states import states_of as states_of
    from interp.interchange.training import Keeping as Keeping
    from interp.interchange.training import TrainSettings as TrainSettings
    from interp.intervention import Add as Add
    from interp.intervention import Edit as Edit
    from interp.intervention import Mean as Mean
    from interp.intervention import Patch as Patch
    from interp.intervention import Resample as Resample
    from interp.intervention import Scale as Scale
    from interp.intervention import Zero as Zero
    from interp.judges import CallableJudge as CallableJudge
    from interp.judges import HumanJudge as HumanJudge
    from interp.judges import Judge as Judge
    from interp.judges import LLMJudge as LLMJudge
    from interp.judges import RandomJudge as RandomJudge
    from interp.judges import SkylineJudge as SkylineJudge
    from interp.judges import TokenSetJudge as TokenSetJudge
    from interp.labelled.base import BiasedData as BiasedData
    from interp.labelled.base import Labelled as Labelled
    from interp.labelled.bias_in_bios import bias_in_bios as bias_in_bios
    from interp.labelled.biographies import biographies as biographies
    from interp.labelled.gap import gap as gap
    from interp.labelled.planted import planted as planted
    from interp.labelled.registry import biased_data as biased_data
    from interp.labelled.splitting import biased as biased
    from interp.labelled.tables import read_labelled as read_labelled
    from interp.mediation import mediate as mediate
    from interp.methods.acdc import acdc as acdc
    from interp.methods.attribution import attribute as attribute
    from interp.methods.contrastive_gating import gate_contrastive as gate_contrastive
    from interp.methods.contrastive_gating import same_items as same_items
    from interp.methods.das import das as das
    from interp.methods.edge_patching import patch_edges as patch_edges
    from interp.methods.edges import attribute_edges as attribute_edges
    from interp.methods.features import attribute_features as attribute_features
    from interp.methods.features import connect_features as connect_features
    from interp.methods.features import error_shares as error_shares
    from interp.methods.features import feature_circuit as feature_circuit
    from interp.methods.gating import gate as gate
    from interp.methods.gating import gate_strengths as gate_strengths
    from interp.methods.hyperdas import hyperdas as hyperdas
    from interp.methods.hyperdas import hyperdas_circuit as hyperdas_circuit
    from interp.methods.hyperdas import train_hyperdas as train_hyperdas
    from interp.methods.patching import patch as patch
    from interp.methods.path_patching import path_patch as path_patch
    from interp.metrics import metric as metric
    from interp.models.base import HookedModel as HookedModel
    from interp.models.families import Point as Point
    from interp.models.families import SiteMap as SiteMap
    from interp.models.load import load as load
    from interp.models.random_copy import random_copy as random_copy
    from interp.models.runs import Shape as Shape
    from interp.nodes import Node as Node
    from interp.nodes import Nodes as Nodes
    from interp.predicted import predicted_contexts as predicted_contexts
    from interp.probes import ProbeSettings as ProbeSettings
    from interp.readouts import attention_patterns as attention_patterns
    from interp.readouts import direct_logit_attribution as direct_logit_attribution
    from interp.readouts import logit_lens as logit_lens
    from interp.recall import auroc as auroc
    from interp.recall import roc_curve as roc_curve
    from interp.run_circuit import run_circuits as run_circuits
    from interp.site import Site as Site
    from interp.smallest import find_alternatives as find_alternatives
    from interp.smallest import smallest_circuit as smallest_circuit
    from interp.sources import GaussianNoise as GaussianNoise
    from interp.sweep import Engine as Engine
    from interp.tasks import Pair as Pair
    from interp.tasks import Task as Task
    from interp.tasks import make_task as make_task
    from interp.tasks import task as task
    from interp.text import contexts as contexts
    from interp.tokens import Prompts as Prompts
    from interp.vectors import context_vectors as context_vectors
    from interp.verdicts import Verdict as Verdict
    from interp.verdicts import combined_verdicts as combined_verdicts
    from interp.verdicts import judge_agreement as judge_agreement
    from interp.verdicts import load_verdicts as load_verdicts
    from interp.verdicts import save_verdicts as save_verdicts
    from interp.verification import bound_missed as bound_missed
    from interp.verification import verify as verify
    from interp.view.cards import view_cards as view_cards
    from interp.view.clusters import view_clusters as view_clusters
    from interp.view.serve import card_server as card_server
    from interp.view.serve import serve_cards as serve_cards

_WHERE = {
    "interp.activation_store": "ActivationStore harvest",
    "interp.boolean.circuits": "Counting count_candidates enumerate_circuits",
    "interp.boolean.formulas": "boolean_formulas",
    "interp.boolean.groundings": "groundings",
    "interp.boolean.known": "known_mlp",
    "interp.boolean.mappings": "find_mappings",
    "interp.boolean.network": "SmallMlp gate_answers truth_table",
    "interp.boolean.sampling": "sample_circuits",
    "interp.boolean.training": "MlpTraining train_boolean train_mlps",
    "interp.candidate_nodes": "candidates",
    "interp.card_making": "circuit_cards feature_cards",
    "interp.cards": "FeatureCard load_cards save_cards",
    "interp.circuit": "Circuit",
    "interp.circuit_algebra": "coarsen from_layer",
    "interp.circuit_export": "to_graphml to_networkx",
    "interp.circuit_files": "load_circuit save_circuit",
    "interp.circuit_ops": "bar_errors grow prune threshold top_n",
    "interp.classifier": "TextClassifier classifier_task train_classifier",
    "interp.classifier_files": "load_classifier save_classifier",
    "interp.cluster_search": "circuit_overlap cluster_circuits",
    "interp.clusters": "choose_n_clusters cluster cluster_stability",
    "interp.comparison": "compare",
    "interp.control_runs": "crossed_concepts subspace_controls",
    "interp.curves": "circuit_areas faithfulness_curve",
    "interp.debias": "ShiftCandidates ShiftResult over_seeds shift shift_candidates skyline_scores",
    "interp.debias_baselines": "BASELINES",
    "interp.debias_parts": "ShiftSettings",
    "interp.dictionary_scores": "scr tpp",
    "interp.errors": "InterpError InterpWarning",
    "interp.evaluate": "completeness faithfulness faithfulness_of_complement minimality necessity sufficiency",
    "interp.featurizers.autoencoder": "Autoencoder",
    "interp.featurizers.base": "Featurizer",
    "interp.featurizers.dictionary": "Dictionary",
    "interp.featurizers.files": "load_dictionary pretrained_dictionary save_dictionary",
    "interp.featurizers.linear": "coordinates orthonormal principal_components",
    "interp.featurizers.quality": "dictionary_quality with_quality",
    "interp.featurizers.token_features": "token_dictionary",
    "interp.featurizers.training": "train_dictionary",
    "interp.gate_classes": "gate_table hard_circuit modularity",
    "interp.gate_settings": "FitEngine GateSettings",
    "interp.gate_transfer": "leave_one_out",
    "interp.gate_validation": "Baselines ablation_curve compare_rankings head_rankings mediation_agreement",
    "interp.gradient_vectors": "Projection",
    "interp.group_lattice": "lattice",
    "interp.hypernet.files": "load_hyperdas save_hyperdas",
    "interp.hypernet.interchange": "HyperDas",
    "interp.hypernet.readout": "mean_projectors selections subspace_overlaps",
    "interp.hypernet.settings": "HyperDasSettings",
    "interp.identifiability": "identifiability_report",
    "interp.identifiability_parts": "Bars",
    "interp.interchange.circuits": "subspace_basis",
    "interp.interchange.examples": "Counterfactuals",
    "interp.interchange.exchanges": "BoundlessSubspace FullVector Subspace",
    "interp.interchange.from_task": "task_counterfactuals",
    "interp.interchange.known": "known_variables",
    "interp.interchange.placing": "AtRoles",
    "interp.interchange.ravel": "known_prompts ravel read_ravel",
    "interp.interchange.ravel_toy": "toy_ravel",
    "interp.interchange.registry": "counterfactuals",
    "interp.interchange.scores": "score_interchange",
    "interp.interchange.states": "Resumption states_of",
    "interp.interchange.training": "Keeping TrainSettings",
    "interp.intervention": "Add Edit Mean Patch Resample Scale Zero",
    "interp.judges": "CallableJudge HumanJudge Judge LLMJudge RandomJudge SkylineJudge TokenSetJudge",
    "interp.labelled.base": "BiasedData Labelled",
    "interp.labelled.bias_in_bios": "bias_in_bios",
    "interp.labelled.biographies": "biographies",
    "interp.labelled.gap": "gap",
    "interp.labelled.planted": "planted",
    "interp.labelled.registry": "biased_data",
    "interp.labelled.splitting": "biased",
    "interp.labelled.tables": "read_labelled",
    "interp.mediation": "mediate",
    "interp.methods.acdc": "acdc",
    "interp.methods.attribution": "attribute",
    "interp.methods.contrastive_gating": "gate_contrastive same_items",
    "interp.methods.das": "das",
    "interp.methods.edge_patching": "patch_edges",
    "interp.methods.edges": "attribute_edges",
    "interp.methods.features": "attribute_features connect_features error_shares feature_circuit",
    "interp.methods.gating": "gate gate_strengths",
    "interp.methods.hyperdas": "hyperdas hyperdas_circuit train_hyperdas",
    "interp.methods.patching": "patch",
    "interp.methods.path_patching": "path_patch",
    "interp.metrics": "metric",
    "interp.models.base": "HookedModel Shape",
    "interp.models.families": "Point SiteMap",
    "interp.models.load": "load",
    "interp.models.random_copy": "random_copy",
    "interp.nodes": "Node Nodes",
    "interp.predicted": "predicted_contexts",
    "interp.probes": "ProbeSettings",
    "interp.readouts": "attention_patterns direct_logit_attribution logit_lens",
    "interp.recall": "auroc roc_curve",
    "interp.run_circuit": "run_circuits",
    "interp.site": "Site",
    "interp.smallest": "find_alternatives smallest_circuit",
    "interp.sources": "GaussianNoise",
    "interp.sweep": "Engine",
    "interp.tasks": "Pair Task make_task task",
    "interp.text": "contexts",
    "interp.tokens": "Prompts",
    "interp.vectors": "context_vectors",
    "interp.verdicts": "Verdict combined_verdicts judge_agreement load_verdicts save_verdicts",
    "interp.verification": "bound_missed verify",
    "interp.view.cards": "view_cards",
    "interp.view.clusters": "view_clusters",
    "interp.view.serve": "card_server serve_cards",
}
_NAMES = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    value = getattr(importlib.import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
