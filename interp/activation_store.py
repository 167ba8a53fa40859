"""Activations on disk: one forward of the model serves every site, and what learns from them needs no model.

    folder/store.json            sites and widths, lengths of the contexts, the model they came from; written last
    folder/token_ids.bin         int32, all tokens of all contexts in order
    folder/resid_post.3.bin      one file a site: float32 or float16 [token, width], heads side by side

Kept of each context are its tokens from position `skip` on: no padding, and no position 0 where the model parks an
attention sink there (a single vector that would be most of the variance). A folder without ``store.json`` is no store.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from tqdm import tqdm

from interp.atomic import replacing
from interp.errors import FileError, OptionError, PromptError, SiteError, check_choice, nearest
from interp.featurizers.base import flat, site_width
from interp.models.base import HookedModel
from interp.models.runs import Identity
from interp.run_until import run_until
from interp.site import Site
from interp.tokens import Prompts, batches, from_ids

FORMAT, SCHEMA = "interp activations", 1
INDEX, IDS = "store.json", "token_ids.bin"
Precision = Literal["float32", "float16"]


@dataclass(frozen=True, eq=False)
class ActivationStore:
    """Activations of a model at some sites, as files that are read where they are needed.

    Attributes:
        folder: where they are.
        widths: site -> size of a token's vector, all heads together.
        dtype: of the files.
        lengths: tokens of each context, those left out included.
        skip: first positions of each context that are not stored.
        model: which one they came from.
        text: what the contexts are, in words.
    """

    folder: Path
    widths: Mapping[Site, int]
    dtype: str
    lengths: Int64[np.ndarray, " context"]
    skip: int
    model: Identity
    text: str = ""

    @classmethod
    def open(cls, folder: str | Path) -> "ActivationStore":
        """The store that `harvest` left in a folder.

        Raises:
            FileError: none there, damaged, cut short, or of a schema that this version does not know.
        """
        folder = Path(folder)
        try:
            document = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            if document["format"] != FORMAT or document["schema"] != SCHEMA:
                found = f"{document['format']!r}, schema {document['schema']!r}"
                raise FileError(
                    f"{folder} holds {found}; this version reads {FORMAT!r}, schema {SCHEMA}: harvest anew."
                )
            widths = {Site.parse(site): int(width) for site, width in document["widths"].items()}
            check_choice("dtype", document["dtype"], get_args(Precision))
            lengths = np.array(document["lengths"], dtype=np.int64)
            identity, skip = Identity(**document["model"]), int(document["skip"])
            store = cls(folder, widths, document["dtype"], lengths, skip, identity, str(document["text"]))
            store._check_files()
        except FileError:
            raise
        except OSError as error:
            raise FileError(
                f"no activation store can be read at {folder} ({error}); give a folder that harvest finished."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FileError(f"{folder / INDEX} is damaged ({type(error).__name__}: {error}); harvest anew.") from error
        return store

    @property
    def n_tokens(self) -> int:
        """Stored tokens, which are the rows of every site."""
        return int(self._kept.sum())

    @property
    def sites(self) -> tuple[Site, ...]:
        """The stored sites, in forward order."""
        return tuple(self.widths)

    def prompts(self) -> Prompts:
        """The contexts, without texts."""
        ids = np.fromfile(self.folder / IDS, dtype="<i4")
        return from_ids([row.tolist() for row in np.split(ids, np.cumsum(self.lengths)[:-1])])

    def places(self, rows: Sequence[int] | np.ndarray) -> Int64[np.ndarray, "row 2"]:
        """Context and position of stored rows.

        Raises:
            OptionError: rows that the store does not have.
        """
        rows = np.asarray(rows, dtype=np.int64)
        outside = rows[(rows < 0) | (rows >= self.n_tokens)]
        if len(outside):
            raise OptionError(f"rows {outside[:10].tolist()} are not stored; allowed: 0 to {self.n_tokens - 1}.")
        ends = np.cumsum(self._kept)
        contexts = np.searchsorted(ends, rows, side="right")
        return np.stack([contexts, rows - (ends - self._kept)[contexts] + self.skip], 1)

    def site(self, site: Site | str) -> np.memmap:
        """All activations of a site [token, width], mapped from disk and read-only.

        Raises:
            SiteError: a site that is not stored.
        """
        site = self._known(site)
        shape = (self.n_tokens, self.widths[site])
        return np.memmap(self._file(site), dtype=np.dtype(self.dtype).newbyteorder("<"), mode="r", shape=shape)

    def batches(self, site: Site | str, size: int, seed: int = 0) -> Iterator[Float32[Tensor, "size width"]]:
        """Random tokens of a site, `size` at a time and without end.

        Each pass over the store has an order of its own, over all its tokens; passes follow one another without a rest.

        Raises:
            SiteError: a site that is not stored.
            OptionError: more tokens a batch than the store has.
        """
        data = self.site(site)
        if not 1 <= size <= len(data):
            raise OptionError(f"batches of {size} tokens from a store of {len(data)}; allowed: 1 to {len(data)}.")
        return _shuffled(data, size, seed)

    @property
    def _kept(self) -> Int64[np.ndarray, " context"]:
        return np.maximum(self.lengths - self.skip, 0)

    def _known(self, site: Site | str) -> Site:
        site = Site.parse(site)
        if site not in self.widths:
            have = [str(one) for one in self.widths]
            raise SiteError(
                f"{site} is not stored in {self.folder}; allowed: {', '.join(have)}{nearest(str(site), have)}."
            )
        return site

    def _file(self, site: Site) -> Path:
        return self.folder / (str(site).replace("[", ".").rstrip("]") + ".bin")

    def _sizes(self) -> dict[Path, int]:
        """Bytes that each file has when it is whole."""
        item = np.dtype(self.dtype).itemsize
        sizes = {self._file(site): self.n_tokens * width * item for site, width in self.widths.items()}
        return sizes | {self.folder / IDS: 4 * int(self.lengths.sum())}

    def _check_files(self) -> None:
        wrong = [
            f"{path.name} has {found:,} bytes, not {size:,}"
            for path, size in self._sizes().items()
            if (found := path.stat().st_size) != size
        ]
        if wrong:
            raise FileError(f"the activation store {self.folder} is damaged: {'; '.join(wrong)}; harvest anew.")


def harvest(
    model: HookedModel,
    prompts: Any,
    sites: Sequence[Site | str],
    folder: str | Path,
    *,
    dtype: Precision = "float32",
    batch: int = 16,
    text: str = "",
    progress: bool = True,
) -> ActivationStore:
    """Write the activations of prompts at several sites to disk, in one forward a batch.

    A forward ends at the last site wanted. Interrupted, it leaves no store.

    Args:
        prompts: best long and of one length, such as `contexts` gives.
        sites: any but `pattern`.
        folder: made if missing; there must be no store in it.
        dtype: ``"float16"`` halves the size and keeps 3 digits.
        batch: prompts in a forward.
        text: what the prompts are, in words; goes with the store and with what is trained on it.
        progress: show a bar where there is a terminal.

    Raises:
        SiteError: sites that the model does not have, or none.
        PromptError: no token would be stored.
        OptionError: a store in the folder, too little disk space, activations beyond float16, other options.
    """
    check_choice("dtype", dtype, get_args(Precision))
    given, folder = model.check_prompts(prompts), Path(folder)
    wanted = sorted(model.check_sites(sites), key=lambda site: site.order)
    if not wanted or any(site.kind == "pattern" for site in wanted):
        raise SiteError(f"sites are {list(map(str, sites))}; give one at least, and none of kind 'pattern'.")
    widths = {site: site_width(model, site) for site in wanted}
    lengths = given.lengths.cpu().numpy().astype(np.int64)
    store = ActivationStore(folder, widths, dtype, lengths, int(model.has_sink), model.identity, text)
    _check_target(store, batch)
    bar = tqdm(total=store.n_tokens, desc="harvest", unit="token", leave=False, disable=None if progress else True)
    with _written(store) as files, bar:
        np.concatenate([np.array(row, dtype="<i4") for row in given.rows()]).tofile(files[folder / IDS])
        for rows in batches(len(given), batch):
            found = _kept_tokens(model, given[rows], wanted, store)
            for site in wanted:
                found[site].tofile(files[store._file(site)])
            bar.update(len(found[wanted[0]]))
    return ActivationStore.open(folder)


@contextmanager
def _written(store: ActivationStore) -> Iterator[Mapping[Path, BinaryIO]]:
    """The store's files, open; the index joins them when the block ends well, else all of them go."""
    index = store.folder / INDEX
    store.folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            files = {path: stack.enter_context(open(path, "wb")) for path in store._sizes()}
            yield files
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        with replacing(index) as temporary:
            temporary.write_text(json.dumps(_document(store)) + "\n", encoding="utf-8")
    finally:
        if not index.exists():
            for path in store._sizes():
                path.unlink(missing_ok=True)


def _check_target(store: ActivationStore, batch: int) -> None:
    """Raise for whatever would make a harvest fail that can be known before it."""
    if batch < 1:
        raise OptionError(f"batch={batch} prompts in a forward; allowed: 1 and more.")
    if not store.n_tokens:
        raise PromptError(
            f"no prompt has more than {store.skip} token, and the first {store.skip} of each is left out (attention "
            "sink); give longer prompts."
        )
    if (store.folder / INDEX).exists():
        raise OptionError(f"{store.folder} holds an activation store; open it, delete it, or choose another folder.")
    needed = sum(store._sizes().values())
    there = next(path for path in (store.folder, *store.folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise OptionError(
            f"{store.n_tokens:,} tokens at {len(store.widths)} sites in {store.dtype} take {needed / 2**30:.2f} GiB; "
            f"{there} has {free / 2**30:.2f} GiB free: give fewer prompts or sites, dtype='float16', or another folder."
        )


def _document(store: ActivationStore) -> dict[str, Any]:
    return {
        "format": FORMAT, "schema": SCHEMA, "dtype": store.dtype, "skip": store.skip, "tokens": store.n_tokens,
        "widths": {str(site): width for site, width in store.widths.items()}, "model": asdict(store.model),
        "text": store.text, "lengths": store.lengths.tolist(),
    }  # fmt: skip


def _kept_tokens(
    model: HookedModel, prompts: Prompts, sites: Sequence[Site], store: ActivationStore
) -> dict[Site, Float[np.ndarray, "token width"]]:
    """One forward's activations, as they are stored."""
    seen = run_until(model, prompts, sites)
    keep = prompts.mask.clone()
    keep[:, : store.skip] = False
    dtype = getattr(torch, store.dtype)
    kept = {site: flat(seen[site])[keep].to(dtype).cpu() for site in sites}
    beyond = [str(site) for site, x in kept.items() if not x.isfinite().all()]
    if beyond:
        largest = max(float(seen[Site.parse(site)].abs().max()) for site in beyond)
        raise OptionError(
            f"activations at {', '.join(beyond)} reach {largest:.3g}, which {store.dtype} cannot hold; harvest in "
            "dtype='float32', and where they are infinite or NaN load the model in another precision."
        )
    return {site: x.numpy() for site, x in kept.items()}


def _shuffled(data: np.memmap, size: int, seed: int) -> Iterator[Tensor]:
    """Endless batches; what a pass leaves over begins the next batch."""
    rest, epoch = np.empty(0, dtype=np.int64), 0
    while True:
        if len(rest) < size:
            rest = np.concatenate([rest, np.random.default_rng([seed, epoch]).permutation(len(data))])
            epoch += 1
        chosen, rest = rest[:size], rest[size:]
        in_file = np.argsort(chosen)  # reading forward is what disks do well
        found = np.empty((size, data.shape[1]), dtype=np.float32)
        found[in_file] = data[chosen[in_file]]
        yield torch.from_numpy(found)
