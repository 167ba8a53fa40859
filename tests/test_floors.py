"""The structure of the package: imports point downward, methods stay apart, one place names backends."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "interp"

FLOORS = [
    "errors site tokens table columns atomic tensor_folder provenance nodes edges circuit circuit_ops circuit_algebra "
    "circuit_files circuit_export circuit_import cards verdicts",
    "regions run_values intervention models",
    "metrics recovery scoring score_columns cautions toy tasks origin cells featurizers text text_files "
    "activation_store sweep_plan sweep candidate_nodes sources behaviour coverage feature_nodes feature_values "
    "feature_effects segments feature_edges run_circuit node_sums qk_fix cotangents frozen_norm written graph "
    "run_edges edge_effects known joint_effects welch recall rankings gate_runs gate_stage gate_fit gate_classes "
    "gate_settings run_until labelled probes classifier classifier_files interchange hypernet boolean",
    "methods",
    "verification mediation gate_validation gate_transfer predicted gradient_vectors vectors clusters cluster_search",
    "evaluate curves readouts card_parts card_making judges debias debias_parts debias_baselines dictionary_scores "
    "control_runs overlaps comparison criteria identifiability_parts identifiability smallest group_lattice",
    "view run_folder demo cli cli_parts cli_features cli_shift cli_subspace cli_compare",
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names.split()}


def modules() -> dict[str, Path]:
    return {_name(path): path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, everywhere: bool) -> set[str]:
    """What a file imports: at its top, or `everywhere` in it; type-checking blocks do not count."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    skipped = {id(n) for block in ast.walk(tree) if _is_typing_block(block) for n in ast.walk(block)}
    for node in ast.walk(tree) if everywhere else tree.body:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= set(modules()) else names | {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _is_typing_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_every_module_stands_on_a_floor() -> None:
    homeless = [name for name in modules() if name.split(".")[1] not in FLOOR]
    assert not homeless, f"give these a floor in FLOORS: {homeless}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_downward(name: str) -> None:
    own = FLOOR[name.split(".")[1]]
    inside = [i.split(".")[1] for i in imports(modules()[name], everywhere=True) if i.startswith("interp.")]
    above = [part for part in inside if part in FLOOR and FLOOR[part] > own]
    assert not above, f"{name} imports from floors above it: {above}"


def test_no_module_imports_itself_in_a_circle() -> None:
    known = modules()
    graph = {name: {i for i in imports(path, everywhere=False) if i in known} for name, path in known.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import circle: {' -> '.join([*trail, name])}"
        if name not in done:
            for other in graph[name] - {name}:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_methods_never_import_one_another() -> None:
    for name, path in modules().items():
        if name.startswith("interp.methods."):
            others = [i for i in imports(path, everywhere=True) if i.startswith("interp.methods.") and i != name]
            assert not others, f"{name} imports {others}"


def test_only_models_name_a_backend() -> None:
    backends = ("transformers", "transformer_lens", "nnsight", "interp.models.hf", "interp.models.attention")
    for name, path in modules().items():
        if not name.startswith("interp.models"):
            named = [i for i in imports(path, everywhere=True) if i.startswith(backends)]
            assert not named, f"{name} names a backend: {named}"


def test_no_module_imports_the_package_for_its_names() -> None:
    for name, path in modules().items():
        if not name.startswith("interp.cli"):
            assert "interp" not in imports(path, everywhere=True), f"{name} imports the package itself"
