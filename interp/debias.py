"""SHIFT: take out of a classifier the features that a judge calls irrelevant to its task.

    1  train a probe on ambiguous texts, in which label and attribute say the same
    2  score every feature for the probe's margin on some of these texts (zero baseline)
    3  show a judge the features with the largest scores; never an error term
    4  put those judged irrelevant to 0 at all positions, each site's error term kept as it runs
    5  train a new probe on the same texts, read from the model so changed (optional)

Nothing but ambiguous texts enters these steps. Attributes are used for the report, and by baselines that say so.

Source: Marks et al. 2024 (arXiv 2403.19647), section 4.
"""

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from interp.atomic import one_error, replacing
from interp.card_making import circuit_cards
from interp.cards import FeatureCard, load_cards, save_cards
from interp.circuit import Circuit, Score, ScoreHeader
from interp.circuit_files import load_circuit, save_circuit
from interp.classifier import TextClassifier, residual_site, train_classifier
from interp.classifier_files import load_classifier, save_classifier
from interp.debias_baselines import BASELINES, Row, baseline_rows, by_attribute
from interp.debias_parts import (
    PooledTexts,
    ShiftSettings,
    accuracies,
    by_site,
    examples_of,
    ranked_rows,
    scored_features,
    upstream,
    with_removed,
)
from interp.errors import InterpWarning, OptionError, TaskError
from interp.featurizers.base import Featurizer
from interp.judges import Judge, as_judge
from interp.labelled.base import BiasedData
from interp.models.base import HookedModel
from interp.probes import ProbeSettings, train_probe
from interp.site import Site
from interp.table import Table
from interp.tokens import Prompts
from interp.verdicts import Verdict, save_verdicts
from interp.welch import student_t


@dataclass(frozen=True, eq=False)
class ShiftCandidates:
    """What a judge decides on: steps 1 to 3.

    Attributes:
        classifier: the original one.
        circuit: every feature and error term with its score; kept are the features to judge.
        cards: of these, the largest score first.
        settings: how they were found.
    """

    classifier: TextClassifier
    circuit: Circuit
    cards: tuple[FeatureCard, ...]
    settings: ShiftSettings

    def save(self, folder: str | Path) -> Path:
        """Write ``original/`` (the classifier), ``circuit/``, ``cards.json`` and ``settings.json``."""
        folder = Path(folder)
        save_classifier(self.classifier, folder / "original")
        save_circuit(self.circuit, folder / "circuit")
        save_cards(self.cards, folder / "cards.json")
        with replacing(folder / "settings.json") as temporary:
            temporary.write_text(json.dumps(asdict(self.settings), indent=1) + "\n", encoding="ascii")
        return folder

    @classmethod
    def load(cls, folder: str | Path, model: HookedModel) -> "ShiftCandidates":
        """Read what `save` wrote.

        Raises:
            FileError, ModelError: files that are damaged, or of another model.
        """
        folder = Path(folder)
        with one_error(folder, "candidates"):
            settings = json.loads((folder / "settings.json").read_bytes())
            used = ShiftSettings(**{**settings, "probe": ProbeSettings(**settings["probe"])})
        classifier = replace(load_classifier(folder / "original", model), batch=used.batch)
        return cls(classifier, load_circuit(folder / "circuit"), tuple(load_cards(folder / "cards.json")), used)


@dataclass(frozen=True, eq=False)
class ShiftResult:
    """A debiased classifier, and how well it does.

    Attributes:
        debiased: the original with the irrelevant features taken out.
        retrained: the same with a new probe, or None.
        table: a row for each method: label, attribute, worst (accuracies), worst_group, judged, removed, and what of
            the data it uses that SHIFT does not.
        groups: the accuracy of each method in each group.
        verdicts: the judge's.
    """

    candidates: ShiftCandidates
    debiased: TextClassifier
    retrained: TextClassifier | None
    table: Table
    groups: Table
    verdicts: tuple[Verdict, ...]

    @property
    def classifier(self) -> TextClassifier:
        """The one to use: retrained where that was asked for."""
        return self.retrained or self.debiased

    @property
    def circuit(self) -> Circuit:
        """The candidates' circuit with the verdicts as a column ``irrelevant`` (1, 0, NaN where nothing was said)."""
        circuit = self.candidates.circuit
        said = {one.node: float(one.verdict == "irrelevant") for one in self.verdicts if one.verdict}
        values = np.array([said.get(label, np.nan) for label in circuit.nodes.labels])
        header = ScoreHeader("nodes", "selection", False, method="judge")
        return replace(circuit, scores={**circuit.scores, "irrelevant": Score(header, values)})

    def save(self, folder: str | Path) -> Path:
        """Write ``classifier/`` (`load_classifier` reads it), ``verdicts.jsonl``, ``table.csv``, ``groups.csv``, and
        what `ShiftCandidates.save` writes, the circuit with the verdicts."""
        folder = Path(folder)
        replace(self.candidates, circuit=self.circuit).save(folder)
        save_classifier(self.classifier, folder / "classifier")
        save_verdicts(self.verdicts, folder / "verdicts.jsonl")
        self.table.to_csv(folder / "table.csv")
        self.groups.to_csv(folder / "groups.csv")
        return folder


def shift_candidates(
    model: HookedModel,
    data: BiasedData,
    featurizers: Any,
    layer: int | str | Site,
    settings: ShiftSettings | None = None,
    **cards: Any,
) -> ShiftCandidates:
    """The features that a classifier leans on most, with cards for a judge: steps 1 to 3.

    Args:
        featurizers: dictionaries, or `coordinates`, at sites up to the classifier's.
        layer: whose ``resid_post``, averaged over tokens, the classifier reads.
        cards: options of `feature_cards`, such as ``top`` contexts.

    Raises:
        SiteError: a featurizer after that layer.
        OptionError: no feature with such a score.
    """
    settings = settings or ShiftSettings()
    site = residual_site(model, layer)
    given = upstream(model, featurizers, site)
    classifier = train_classifier(
        model, data.train, site, settings=settings.probe, length=settings.length, batch=settings.batch,
        seed=settings.seed,
    )  # fmt: skip
    circuit = scored_features(classifier, examples_of(data.train, settings), given, settings)
    circuit = _kept(circuit, settings)
    made = circuit_cards(model, circuit, given, classifier.prompts(data.train.texts), batch=settings.batch, **cards)
    return ShiftCandidates(classifier, circuit, tuple(made), settings)


def _kept(circuit: Circuit, settings: ShiftSettings) -> Circuit:
    """The circuit cut to the features that a judge is shown."""
    values, ranked = next(iter(circuit.scores.values())).values, ranked_rows(circuit)
    lowest = 0.0 if settings.at_least is None else settings.at_least
    chosen = ranked[values[ranked] >= lowest][: settings.n_features]
    if not len(chosen):
        raise OptionError(
            f"no feature has a score of at least {lowest} logits (the largest is {float(np.nanmax(values)):.3g}); "
            "lower at_least, or set it to None and give n_features."
        )
    kept = np.zeros(len(circuit.nodes), dtype=bool)
    kept[chosen] = True
    return replace(circuit, kept_nodes=kept)


def shift(
    model: HookedModel,
    data: BiasedData,
    featurizers: Any,
    judge: Any,
    layer: int | str | Site | None = None,
    settings: ShiftSettings | None = None,
    *,
    candidates: ShiftCandidates | None = None,
    retrain: bool = True,
    baselines: Sequence[str] = BASELINES,
    progress: bool = True,
) -> ShiftResult:
    """Take out of a classifier what a judge calls irrelevant, and report what that does to each group.

    Args:
        data: ambiguous training texts; everything else in it is for the report and the baselines.
        featurizers: dictionaries, or `coordinates`, at sites up to the classifier's.
        judge: a `Judge`, a function of a `FeatureCard` that says ``"irrelevant"``, ``"relevant"`` or ``"unsure"``, or
            the path of a file of verdicts.
        layer: whose ``resid_post``, averaged over tokens, the classifier reads.
        candidates: what `shift_candidates` found, so that it is not computed again; then `layer` is not needed, and
            settings are theirs.
        retrain: also train a new probe on the changed model.
        baselines: those to report, of `BASELINES`; those that the data cannot give are left out.
        progress: show a bar where there is a terminal.

    Raises:
        OptionError: neither layer nor candidates, an unknown baseline, something that is no judge.
        TaskError: verdicts for other cards than those shown.

    Warns:
        InterpWarning: nothing judged irrelevant, or everything, or features that nobody judged (these stay).

    Example:
        data = interp.biographies(400)
        dictionaries = [interp.load_dictionary("sae/resid_post.3")]
        result = interp.shift(model, data, dictionaries, interp.TokenSetJudge(data.words), layer=3)
        result.classifier.predict(["..."])
    """
    checked = as_judge(judge)
    checked.check()
    if unknown := [name for name in baselines if name not in BASELINES]:
        raise OptionError(f"baselines {unknown} are not known; allowed: {', '.join(BASELINES)}.")
    if candidates is None and layer is None:
        raise OptionError("layer is None; give the layer whose residual the classifier reads, or candidates.")
    start = candidates or shift_candidates(model, data, featurizers, layer, settings)  # type: ignore[arg-type]
    settings, original = start.settings, start.classifier
    given = upstream(model, featurizers, original.site)
    reference = examples_of(data.train, settings)
    _check_candidates(start, original.prompts(reference.texts), given)
    verdicts = _checked_verdicts(checked, start.cards)
    irrelevant = {one.node for one in verdicts if one.verdict == "irrelevant"}
    units = by_site((Site.parse(card.site), card.unit) for card in start.cards if card.node in irrelevant)
    debiased = with_removed(original, given, units, settings, reference)
    plain = PooledTexts(original, (data.train, data.test, data.held_out, data.balanced))
    edited = PooledTexts(debiased, (data.train if retrain else None, data.test, data.held_out)) if units else plain
    told = (len(start.cards), len(irrelevant), checked.control)
    rows = [
        Row("original", accuracies(lambda part: original.probe(plain.of(part)), data)),
        Row("SHIFT", accuracies(lambda part: debiased.probe(edited.of(part)), data), *told),
    ]
    retrained = _retrained(debiased, edited, data, settings) if retrain else None
    if retrained is not None:
        new = retrained.probe
        rows.append(Row("SHIFT + retrain", accuracies(lambda part: new(edited.of(part)), data), *told))
    with tqdm(baselines, disable=None if progress else True, desc="baselines", unit="baseline", leave=False) as names:
        for name in names:
            rows += baseline_rows(name, start.classifier, data, given, settings, plain, len(irrelevant))
    return ShiftResult(start, debiased, retrained, *_tables(rows), verdicts)


def _retrained(
    debiased: TextClassifier, edited: PooledTexts, data: BiasedData, settings: ShiftSettings
) -> TextClassifier:
    """The classifier with a new probe, trained on ambiguous texts as the changed model reads them."""
    probe = train_probe(edited.of(data.train), data.train.labels, settings.probe, seed=settings.seed)
    return replace(debiased, probe=probe)


def skyline_scores(candidates: ShiftCandidates, data: BiasedData, featurizers: Any) -> dict[str, float]:
    """The score of every card's feature for the attribute, on balanced training texts: what a `SkylineJudge` needs.

    Raises:
        TaskError: the data have no balanced training texts.
    """
    if data.balanced is None:
        raise TaskError(
            "these data have no balanced training texts, which skylines need; give BiasedData(balanced=...)."
        )
    classifier, settings = candidates.classifier, candidates.settings
    given = upstream(classifier.model, featurizers, classifier.site)
    about = examples_of(by_attribute(data.balanced, data.aligned), settings)
    circuit = scored_features(classifier, about, given, settings)
    shown = {card.node for card in candidates.cards}
    values = next(iter(circuit.scores.values())).values
    return {label: float(value) for label, value in zip(circuit.nodes.labels, values, strict=True) if label in shown}


def over_seeds(tables: Sequence[Table], level: float = 0.95) -> Table:
    """The reports of several seeds as one: means, and t-intervals of the mean over seeds.

    Args:
        tables: `ShiftResult.table` of each.
        level: of the intervals.

    Returns:
        method, seeds, and for each of label, attribute, worst: mean, low, high (NaN with one seed); removed (mean).

    Raises:
        OptionError: no table, or a level outside 0 to 1.
    """
    if not tables or not 0 < level < 1:
        raise OptionError(f"{len(tables)} tables, level={level}; give at least one table and a level between 0 and 1.")
    methods = list(dict.fromkeys(row["method"] for table in tables for row in table.rows()))
    columns: dict[str, list[Any]] = {}
    for method in methods:
        rows = [row for table in tables for row in table.rows() if row["method"] == method]
        told: dict[str, Any] = {"method": method, "seeds": len(rows)}
        for what in ("label", "attribute", "worst"):
            told |= dict(
                zip((what, f"{what}_low", f"{what}_high"), _interval([r[what] for r in rows], level), strict=True)
            )
        told["removed"] = float(np.mean([row["removed"] for row in rows]))
        for name, value in told.items():
            columns.setdefault(name, []).append(value)
    return Table(
        {name: np.array(values, dtype=object if name == "method" else None) for name, values in columns.items()}
    )


def _interval(values: Sequence[float], level: float) -> tuple[float, float, float]:
    """Mean and t-interval."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return mean, float("nan"), float("nan")
    half = float(student_t((1 + level) / 2, np.array([n - 1.0]))[0] * np.std(values, ddof=1) / n**0.5)
    return mean, mean - half, mean + half


def _check_candidates(start: ShiftCandidates, examples: Prompts, featurizers: Sequence[Featurizer]) -> None:
    """Raise unless candidates were found on these examples, with these featurizers.

    Raises:
        TaskError, OptionError: with the cure.
    """
    if start.circuit.provenance.token_ids != tuple(map(tuple, examples.rows())):
        raise TaskError(
            "the candidates were found on other texts than this data's training texts; give the same data, or find "
            "candidates anew."
        )
    described = {one.key: one for one in featurizers}
    if lacking := [key for key in start.circuit.nodes.featurizers if key not in described]:
        raise OptionError(f"the candidates are features of {', '.join(lacking)}, which are not given; give them too.")
    sites = {one.site for one in featurizers}
    if foreign := sorted({card.site for card in start.cards if Site.parse(card.site) not in sites}):
        raise OptionError(f"the cards show features at {', '.join(foreign)}, where no featurizer is given; give them.")


def _checked_verdicts(judge: Judge, cards: Sequence[FeatureCard]) -> tuple[Verdict, ...]:
    """The judge's verdicts on the cards, with a warning where they decide nothing."""
    verdicts = tuple(judge(cards))
    if [one.node for one in verdicts] != [card.node for card in cards]:
        raise TaskError(
            f"judge {judge.name!r} gave {len(verdicts)} verdicts for {len(cards)} cards, or other nodes than theirs; a "
            "judge returns one a card, in their order."
        )
    said = [one.verdict for one in verdicts]
    silent, out = said.count(None), said.count("irrelevant")
    told = []
    if silent:
        told.append(f"{silent} of {len(said)} features have no verdict and stay in")
    if out == len(said):
        told.append(f"all {out} features shown are judged irrelevant, so little may be left of the classifier")
    elif not out:
        told.append(f"none of {len(said)} features is judged irrelevant, so the classifier stays as it is")
    if told:
        warnings.warn(f"judge {judge.name!r}: {'; '.join(told)}.", InterpWarning, stacklevel=3)
    return verdicts


def _tables(rows: Iterable[Row]) -> tuple[Table, Table]:
    """The report, and accuracies by group."""
    rows = list(rows)
    worst = [row.found.worst for row in rows]
    table = Table(
        {
            "method": np.array([row.method for row in rows], dtype=object),
            "label": np.array([row.found.label for row in rows]),
            "attribute": np.array([row.found.attribute for row in rows]),
            "worst": np.array([accuracy for _, accuracy in worst]),
            "worst_group": np.array([group for group, _ in worst], dtype=object),
            "judged": np.array([row.judged for row in rows]),
            "removed": np.array([row.removed for row in rows]),
            "uses": np.array([row.uses for row in rows], dtype=object),
        }
    )
    methods = np.array([row.method for row in rows], dtype=object)
    names = list(rows[0].found.groups)
    groups = {name: np.array([row.found.groups[name] for row in rows]) for name in names}
    return table, Table({"method": methods, **groups})
