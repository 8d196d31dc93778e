"""Model catalogs: the measured figures of a family of models, from a YAML file."""

import importlib.resources
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from idn_torch.errors import ScenarioError
from idn_torch.scenario_field import Field, unknown
from idn_torch.scenario_text import load_file

__all__ = ["Catalog", "CatalogModel", "load_catalog"]

SCHEMA = "idn-catalog/1"


@dataclass(frozen=True)
class CatalogModel:
    """One model of a catalog.

    Attributes:
        id: its name.
        accuracy: in [0, 1].
        weights_mb: size of its weights, MB, > 0.
        fps: inferences a second on each GPU of the catalog, > 0.
        assumed: the GPUs on which `fps` is not measured but scaled from another GPU.
    """

    id: str
    accuracy: float
    weights_mb: float
    fps: Mapping[str, float]
    assumed: frozenset[str]


@dataclass(frozen=True)
class Catalog:
    """A family of models and the GPUs they were measured on, in file order."""

    name: str
    gpus: tuple[str, ...]
    models: tuple[CatalogModel, ...]


def load_catalog(path_or_name: str | os.PathLike[str]) -> Catalog:
    """Read a catalog file, `schema: idn-catalog/1`.

    A figure that a model lacks on some GPU is an assumption: its figure on the first GPU listed that it was measured
    on, times the geometric mean of `fps there / fps here` over the models measured on both. `assumed` says where.

    Args:
        path_or_name: path of a .yaml, .yml or .json file, or the name of a catalog that ships with the package
            ("yolov4"): text without a suffix.

    Raises:
        ScenarioError: no such catalog, or a file that does not follow the schema; names the file, model and key.

    Example:
        >>> catalog = load_catalog("yolov4")
        >>> len(catalog.models), catalog.models[0].fps["V100"], sorted(catalog.models[0].assumed)
        (11, 32.0, ['RTX 2070'])
    """
    with _located(path_or_name) as path:
        root = Field(load_file(path), str(path_or_name), torch.float64)
    fields = root.record(("schema", "name", "gpus", "models"))
    fields["schema"].one_of((SCHEMA,))
    gpus = tuple(field.text() for field in fields["gpus"].rows())
    if not gpus or len(set(gpus)) < len(gpus):
        fields["gpus"].fail("must list at least one GPU, each once")
    models: list[CatalogModel] = []
    rows = fields["models"].rows("id")
    for field in rows:
        model = _measured(field, gpus)
        if any(model.id == other.id for other in models):
            field.fail("its id occurs twice; ids must be unique")
        models.append(model)
    if not models:
        fields["models"].fail("must list at least one model")
    ratios = {(there, here): _ratio(models, there, here) for there in gpus for here in gpus}
    complete = tuple(_completed(model, field, gpus, ratios) for model, field in zip(models, rows, strict=True))
    return Catalog(fields["name"].text(), gpus, complete)


@contextmanager
def _located(path_or_name: str | os.PathLike[str]) -> Iterator[Path]:
    """The file of a catalog on disk, for as long as the context lasts."""
    path = Path(path_or_name)
    if path.suffix or len(path.parts) != 1:
        if not path.is_file():
            raise ScenarioError(f"{path}: no such catalog file (looked in {path.absolute().parent})")
        yield path
        return
    try:
        folder = importlib.resources.files("idn_torch.conf") / "catalog"
    except ModuleNotFoundError:  # a checkout that is not installed: conf/ lies beside the package
        folder = Path(__file__).parent.parent / "conf" / "catalog"
    file = folder / f"{path}.yaml"
    if not file.is_file():
        known = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir())
        raise ScenarioError(f"{unknown('catalog', str(path), known)}; or give the path of a .yaml file")
    with importlib.resources.as_file(file) as found:
        yield found


def _measured(field: Field, gpus: tuple[str, ...]) -> CatalogModel:
    """A model with the figures that its row gives."""
    row = field.record(("id", "accuracy", "weights_mb", "fps"))
    rates = row["fps"].record((), gpus)
    fps = {gpu: rate.number(above=0) for gpu, rate in rates.items()}
    return CatalogModel(
        id=row["id"].text(),
        accuracy=row["accuracy"].number(most=1),
        weights_mb=row["weights_mb"].number(above=0),
        fps=fps,
        assumed=frozenset(gpus) - fps.keys(),
    )


def _ratio(models: list[CatalogModel], there: str, here: str) -> float | None:
    """Geometric mean of `fps there / fps here` over the models measured on both; None without any."""
    logs = [math.log(m.fps[there] / m.fps[here]) for m in models if there in m.fps and here in m.fps]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _completed(
    model: CatalogModel, field: Field, gpus: tuple[str, ...], ratios: Mapping[tuple[str, str], float | None]
) -> CatalogModel:
    """The model with a figure on every GPU."""
    fps = {}
    for there in gpus:
        guesses = [model.fps[here] * ratio for here in gpus if here in model.fps and (ratio := ratios[there, here])]
        if there not in model.fps and not guesses:
            field.fail(f"no fps on {there!r}, and none to scale: no model was measured on it and on a GPU of this one")
        fps[there] = model.fps.get(there) or guesses[0]
    return CatalogModel(model.id, model.accuracy, model.weights_mb, MappingProxyType(fps), model.assumed)
