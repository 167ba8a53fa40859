"""Feature cards: what a person, or another judge, needs to see of a feature, as values and as a JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from interp.atomic import replacing
from interp.errors import FileError

FORMAT = "interp feature cards"
SCHEMA = 1
MAX_BYTES = 2**28  # a card of 10 contexts takes about 2**14


@dataclass(frozen=True)
class TokenValue:
    """A token, as text, and a number about it.

    Attributes:
        count: how often it occurs; None where nothing was counted.
    """

    token: str
    value: float
    count: int | None = None


@dataclass(frozen=True)
class Context:
    """A piece of a prompt around the position at which a feature is largest there.

    Attributes:
        prompt: row of the prompt.
        start: position of the first token shown; positions count from the prompt's first real token.
        position: of the maximum.
        tokens: the tokens shown, as text.
        activations: the feature at each of them; None where it is not defined (positions that the featurizer skips).
    """

    prompt: int
    start: int
    position: int
    tokens: tuple[str, ...]
    activations: tuple[float | None, ...]

    @property
    def peak(self) -> int:
        """Where the maximum stands among the tokens shown."""
        return self.position - self.start


@dataclass(frozen=True)
class FeatureCard:
    """One feature, described by when it is active and what it writes.

    Attributes:
        node: text of its node in circuits, such as ``resid_post[3] featurizer sae unit 17``.
        site: where it stands.
        unit: its number within the featurizer.
        n_tokens: how many tokens were looked at: real ones that the featurizer does not skip.
        density: share of them at which the feature is not 0.
        max, mean: of the feature over all of them.
        edges, counts: histogram of the values that are not 0; both empty where there is none.
        contexts: where it is largest, at most one context a prompt, largest first.
        top_tokens: at which it is largest on average, with how often they occur.
        promoted, suppressed: tokens whose logits its direction raises and lowers most, with by how much
            (`interp.readouts.directions`).
        no_lens: why these two are empty, or ''.
        effect: a number from elsewhere, such as its score in a circuit.
    """

    node: str
    site: str
    unit: int
    n_tokens: int
    density: float
    max: float
    mean: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    contexts: tuple[Context, ...]
    top_tokens: tuple[TokenValue, ...]
    promoted: tuple[TokenValue, ...]
    suppressed: tuple[TokenValue, ...]
    no_lens: str = ""
    effect: float | None = None


def save_cards(cards: Sequence[FeatureCard], path: str | Path) -> Path:
    """Write cards as JSON, whole or not at all.

    Returns:
        the path.

    Raises:
        FileError: a number that JSON does not have (NaN, infinity).
    """
    document = {"format": FORMAT, "schema": SCHEMA, "cards": [asdict(card) for card in cards]}
    try:
        text = json.dumps(document, indent=0, allow_nan=False)
    except ValueError as error:
        raise FileError(
            f"these cards cannot be written ({error}); give finite numbers, or None for no effect."
        ) from error
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="ascii")
    return Path(path)


def load_cards(path: str | Path) -> list[FeatureCard]:
    """Read cards that `save_cards` wrote.

    Raises:
        FileError: no cards there, too large, damaged, or of a schema that this version does not know.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise FileError(f"{path} has {size:,} bytes; feature cards take up to {MAX_BYTES:,}: make fewer at a time.")
        document = json.loads(path.read_bytes(), parse_constant=_refuse)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FileError(f"{path} holds no {FORMAT}; give a file that save_cards wrote.")
        if (schema := document.get("schema")) != SCHEMA or isinstance(schema, bool):
            raise FileError(
                f"{path} has schema {schema!r}; this version reads {SCHEMA}: update interp, or make it anew."
            )
        return list(_read(tuple[FeatureCard, ...], document.get("cards"), "cards"))
    except OSError as error:
        raise FileError(f"cannot read feature cards at {path}: {error}; check the path and its permissions.") from error
    except FileError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is damaged ({error}); restore it from a copy, or make it anew.") from error


def _read(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as the type that it must have; ValueError where it has another."""
    options = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if value is None and type(None) in options:
        return None
    kind = options[0]
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        names, hints = {one.name for one in fields(kind)}, get_type_hints(kind)
        if names != value.keys():
            raise ValueError(f"{where} has the entries {sorted(value)}, needed {sorted(names)}")
        return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in names})
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(get_args(kind)[0], one, f"{where}[{place}]") for place, one in enumerate(value))
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    raise ValueError(f"{where} is {value!r:.40}, not {getattr(kind, '__name__', kind)}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of a card")
