"""Wikipedia passages about people: the domain is the label, the gender of the pronouns the attribute.

From GAP (Webster et al. 2018, arXiv 1810.05201), as a file of rows with `text`, `gender` (F or M), `domain` (academic,
music, politics, screen, sport) and `n_keywords`, the number of words that told the domain: the more, the surer.

How far a probe at resid_post[8] of SmolLM2-135M leans on gender depends on the domains (accuracy of the worst group
after ambiguous and after balanced training, two seeds): screen and sport from two keywords .94 .94 against .94 .97, so
hardly at all; screen and politics from one keyword .54 .46 against .83 .78.
"""

from pathlib import Path

from interp.labelled.base import BiasedData, Pair
from interp.labelled.gender import GENDER_WORDS
from interp.labelled.splitting import biased
from interp.labelled.tables import read_labelled

CONCEPTS = {
    "screen": "film movie television actor director drama episode series cinema role",
    "sport": "team season league championship coach tournament match cup medal player",
    "music": "album song band singer opera concert guitar recording record tour",
    "politics": "election parliament minister party senator governor president congress vote campaign",
    "academic": "university professor research science doctorate institute theory journal scholar academy",
}
"""Words of each domain, for the concept-bottleneck baseline."""


def gap(
    path: str | Path,
    *,
    classes: Pair = ("screen", "sport"),
    n_keywords: int = 2,
    together: tuple[int, int] | None = None,
    test: float | int = 0.5,
    balanced: float | int = 0.5,
    seed: int = 0,
) -> BiasedData:
    """Passages of two domains; in the ambiguous part each domain has one gender (0 is M, 1 is F).

    Args:
        path: the file of passages.
        classes: two domains.
        n_keywords: fewest words that tell a passage's domain.
        together, test, balanced, seed: see `biased`.

    Raises:
        FileError, TaskError, OptionError: as `read_labelled` and `biased`.
    """
    data = read_labelled(
        path,
        label="domain",
        attribute="gender",
        classes=classes,
        values=("M", "F"),
        at_least={"n_keywords": n_keywords},
    )
    concepts = [word for name in classes for word in CONCEPTS.get(name, name).split()]
    return biased(
        data, together=together, test=test, balanced=balanced, words=GENDER_WORDS, concepts=concepts, seed=seed
    )
