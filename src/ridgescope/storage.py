"""Saved results: `result.json` for what a person reads, `arrays.safetensors` for the arrays. There is no pickle.

The JSON holds the checksum of the array file, so that files of two saves are never mixed. Both files are written under
temporary names and then renamed, so that an interrupted save is never mistaken for a result.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as pack_arrays

from .certificate import Certificate, DataCheck
from .errors import FileProblem
from .feature import Checks, Feature, Plane, Round, Shape
from .forecast import Forecast
from .response import Response
from .result import Extraction
from .stop import StopReason
from .stored_forms import FORM_ARRAYS, GATE_ARRAYS, RESPONSE_ARRAYS, form_of, form_to_json, gate_of, gate_to_json
from .structure import Kind, Structure

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", Certificate, Round, Forecast, DataCheck)
FORMAT = 2
"""Version that `save` writes. It is raised when a name that older versions need is removed, not for additions."""
GATED_FORMAT = 3
"""Version of results with gated features, which older versions would evaluate without their second terms."""
READABLE = (1, 2, 3)
"""Versions that `load` reads. In version 1 the certificate has `scale` for `std` and `met` for `verdict`."""
_JSON, _ARRAYS = "result.json", "arrays.safetensors"
_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (float, int), "str": (str,)}
"""Python types that are accepted in JSON for each declared type of a field."""
_SCALARS = ("radius", "queries", "diagnosis", "stopped", "deterministic", "dropped", "seed", "version", "command")
"""Fields of `Extraction` that are plain numbers or texts."""
_UNIT_ROUNDING = 1e-9
"""Largest deviation from 1 of the length of a direction: far more than rounding, far less than what matters."""
_CHECKS = ("radius", "asked", "predicted", "position", "feature")
"""Arrays of `Checks`."""


def save(found: Extraction, folder: Path) -> Path:
    """Write `found` into `folder`, which is created if necessary, and return the folder."""
    arrays: dict[str, np.ndarray[Any, Any]] = {
        n: np.array(getattr(found, n)) for n in ("bias", "slope", "center", "scale")
    }
    for i, f in enumerate(found.features):
        arrays[f"feature.{i}.direction"] = f.direction
        arrays[f"feature.{i}.band"] = f.band
        arrays[f"feature.{i}.coefficients"] = f.response.coefficients
        arrays[f"feature.{i}.kinks"] = f.response.kinks
        arrays[f"feature.{i}.kink_weights"] = f.response.kink_weights
        if f.gate is not None:
            arrays |= {f"feature.{i}.gate.{name}": getattr(f.gate, name) for name in GATE_ARRAYS}
            arrays |= {f"feature.{i}.gate.gain.{name}": getattr(f.gate.gain, name) for name in RESPONSE_ARRAYS}
        if f.form is not None:
            arrays |= {f"feature.{i}.form.{name}": getattr(f.form, name) for name in FORM_ARRAYS}
    for i, plane in enumerate(found.planes):
        arrays[f"plane.{i}.basis"] = plane.basis
        arrays[f"plane.{i}.power"] = plane.power
    if found.checks is not None:
        arrays |= {f"checks.{name}": getattr(found.checks, name) for name in _CHECKS}
    packed = pack_arrays({name: np.array(a, order="C") for name, a in arrays.items()})
    text = {
        "format": "ridgescope",
        "format_version": GATED_FORMAT if any(f.gated for f in found.features) else FORMAT,
        "arrays_sha256": hashlib.sha256(packed).hexdigest(),
        **{name: getattr(found, name) for name in _SCALARS},
        "stop": found.stop.value,
        "queries_by_stage": dict(found.queries_by_stage),
        "certificate": asdict(found.certificate),
        "history": [asdict(r) for r in found.history],
        "features": [
            {
                "angle_error": f.angle_error,
                "strength": f.strength,
                "shape": _shape_to_json(f.shape),
                "form": form_to_json(f.form),
                "gate": gate_to_json(f.gate),
            }
            for f in found.features
        ],
        "structure": _structure_to_json(found.structure),
        "forecast": asdict(found.forecast) if found.forecast is not None else None,
        "data_check": asdict(found.data_check) if found.data_check is not None else None,
        "planes": [{"step": p.step, "round": p.round} for p in found.planes],
    }
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / _ARRAYS, packed)
    _replace(folder / _JSON, (json.dumps(_encode(text), indent=1) + "\n").encode())
    return folder


def load(folder: str | Path) -> Extraction:
    """Load a result that `Extraction.save` or `ridgescope extract --out` wrote.

    Parameters
    ----------
    folder
        The folder with `result.json` and `arrays.safetensors`.

    Returns
    -------
    Extraction
        The result as it was saved, to the bit, except for `asked`, which is not saved, and `oracle`.

    Raises
    ------
    FileProblem
        If a file is missing, truncated, edited, not a result, or of a format version that this version cannot read.

    Examples
    --------
    >>> found.save("out")
    >>> rs.load("out").predict(X)
    """
    folder = Path(folder)
    text = _read_json(folder / _JSON)
    arrays = _read_arrays(folder / _ARRAYS, str(text.get("arrays_sha256")))
    try:
        return _rebuild(_decode(text), arrays)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as problem:
        raise FileProblem(
            f"{folder / _JSON} does not describe a complete result ({type(problem).__name__}: {problem}); "
            "it was edited or damaged after saving. Save the extraction again."
        ) from problem


def _read(path: Path, remedy: str = "") -> bytes:
    """Return the content of a regular file; a device or a pipe, whose content may have no end, is not read."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise FileProblem(f"cannot read {path}: it is a device or a pipe, not a file.{remedy}")
        return path.read_bytes()
    except OSError as problem:
        raise FileProblem(f"cannot read {path}: {problem.strerror}.{remedy}") from problem


def _read_json(path: Path) -> dict[str, Any]:
    """Return the parsed result.json; raise `FileProblem` if it is not a result of a readable version."""
    raw = _read(path, " `load` takes the folder that `save` wrote.")
    try:
        text = json.loads(raw)
    except (ValueError, RecursionError) as problem:
        raise FileProblem(
            f"{path} is not complete JSON ({problem}); it is truncated or not a saved result."
        ) from problem
    if not isinstance(text, dict) or text.get("format") != "ridgescope":
        raise FileProblem(f'{path} is not a ridgescope result (no "format": "ridgescope" in it).')
    version = text.get("format_version")
    if type(version) is not int or version not in READABLE:
        raise FileProblem(
            f"{path} has format version {version!r}; this ridgescope reads versions "
            f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}. Load it with the version that wrote it, "
            "or save it again."
        )
    return text


def _read_arrays(path: Path, checksum: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays by name; raise `FileProblem` if the file does not have the checksum."""
    raw = _read(path)
    if hashlib.sha256(raw).hexdigest() != checksum:
        raise FileProblem(
            f"{path} ({len(raw):,} bytes) is not the file that {_JSON} was saved with: truncated "
            "or replaced. Restore both files of the folder together, or save the extraction again."
        )
    try:
        return load_arrays(raw)
    except (SafetensorError, ValueError, KeyError) as problem:
        raise FileProblem(f"{path} is not a safetensors file ({problem}).") from problem


def _rebuild(text: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> Extraction:
    """Return the result from its JSON and its arrays; raise `ValueError` or the like if they do not fit together."""
    _check_types(arrays)
    dim, p = len(arrays["center"]), arrays["bias"].shape
    if arrays["center"].shape != (dim,) or len(p) > 1 or 0 in (dim, *p):
        raise ValueError(f"center {arrays['center'].shape} and bias {p} are not those of a function")
    if arrays["slope"].shape != (dim, *p) or arrays["scale"].shape != (dim,):
        raise ValueError(f"slope {arrays['slope'].shape} and scale {arrays['scale'].shape} do not fit {dim} inputs")
    radius = float(text["radius"])
    features = []
    for i, words in enumerate(text["features"]):
        part = {
            name: arrays[f"feature.{i}.{name}"]
            for name in ("direction", "band", "coefficients", "kinks", "kink_weights")
        }
        if part["direction"].shape != (dim,) or part["coefficients"].shape[1:] != p:
            raise ValueError(f"feature {i} does not fit {dim} inputs and outputs {p}")
        length = float(np.linalg.norm(part["direction"]))
        if not abs(length - 1.0) <= _UNIT_ROUNDING:
            raise ValueError(f"the direction of feature {i} has length {length:.9g}, not 1")
        response = Response(radius, part["coefficients"], part["kinks"], part["kink_weights"])
        features.append(
            Feature(
                direction=part["direction"],
                response=response,
                angle_error=float(words["angle_error"]),
                strength=float(words["strength"]),
                shape=_shape_from_json(words["shape"]),
                band=part["band"],
                form=form_of(words.get("form"), arrays, i, p),
                gate=gate_of(words.get("gate"), arrays, i, radius),
            )
        )
    planes = tuple(
        Plane(
            arrays[f"plane.{i}.basis"], arrays[f"plane.{i}.power"], float(w["step"]), _int64("round", int(w["round"]))
        )
        for i, w in enumerate(text["planes"])
    )
    checks = Checks(*(arrays[f"checks.{name}"] for name in _CHECKS)) if "checks.radius" in arrays else None
    if checks is not None and {getattr(checks, name).shape for name in _CHECKS} != {(checks.radius.size,)}:
        raise ValueError("the certificate's queries have columns of different lengths")
    if any(plane.basis.shape != (2, dim) or plane.power.ndim != 2 for plane in planes):
        raise ValueError(f"a plane does not lie in {dim} dimensions")
    return Extraction(
        features=tuple(features),
        bias=arrays["bias"],
        slope=arrays["slope"],
        center=arrays["center"],
        scale=arrays["scale"],
        certificate=_typed(Certificate, _certificate_words(text)),
        history=tuple(_typed(Round, {"failure": "", **r}) for r in text["history"]),
        queries_by_stage={str(k): _int64(str(k), int(v)) for k, v in text["queries_by_stage"].items()},
        planes=planes,
        checks=checks,
        stop=_stop_reason(text),
        structure=_structure_from_json(text.get("structure")),
        forecast=_typed(Forecast, text["forecast"]) if text.get("forecast") is not None else None,
        data_check=_typed(DataCheck, text["data_check"]) if text.get("data_check") is not None else None,
        **_scalars(Extraction, {"command": "", **text}, _SCALARS),
    )


def _certificate_words(text: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of the certificate, with the field names of version 1 replaced by the present ones."""
    words = dict(text["certificate"])
    if text["format_version"] == 1:
        words["std"] = words.pop("scale")
        words["verdict"] = "met" if words.pop("met") is True else "not met"
    missing = {f.name: f.default for f in fields(Certificate) if f.default is not MISSING}
    words = {**missing, **words}
    if words["verdict"] not in ("met", "not met", "undecided"):
        raise ValueError(f"verdict is {words['verdict']!r}")
    return words


def _structure_to_json(structure: Structure | None) -> dict[str, Any] | None:
    """Return the JSON of the structure, or None where there is none."""
    if structure is None:
        return None
    words = {"verdict": structure.verdict, "kind": structure.kind.value, "sentence": structure.sentence}
    return {**words, "evidence": dict(structure.evidence)}


def _structure_from_json(words: dict[str, Any] | None) -> Structure | None:
    """Return the structure of a saved result; None where none was saved."""
    if words is None:
        return None
    if words["verdict"] not in ("exact", "approximate", "unknown") or not isinstance(words["sentence"], str):
        raise ValueError(f"structure is {words!r}")
    evidence = {str(name): float(value) for name, value in words["evidence"].items()}
    return Structure(words["verdict"], Kind(words["kind"]), evidence, words["sentence"])


def _stop_reason(text: dict[str, Any]) -> StopReason:
    """Return the saved reason. Files without one hold only a sentence, whose first words give some reasons."""
    if "stop" in text:
        return StopReason(text["stop"])
    beginnings = {
        "Certified": StopReason.CERTIFIED,
        "Budget exhausted": StopReason.BUDGET,
        "Interrupted": StopReason.INTERRUPTED,
    }
    return next(
        (reason for words, reason in beginnings.items() if text["stopped"].startswith(words)), StopReason.UNKNOWN
    )


def _check_types(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Raise unless every array has the type that `save` writes, and those that define the function are finite."""
    for name, array in arrays.items():
        expected = "float32" if name.endswith(".power") else "int64" if name == "checks.feature" else "float64"
        if array.dtype != expected:
            raise TypeError(f"{name} is of type {array.dtype}, not {expected}")
        if not (name.startswith(("checks.", "plane.")) or name.endswith(".band") or np.isfinite(array).all()):
            raise ValueError(f"{name} holds a number that is not finite")
    if not (arrays["scale"] > 0).all():
        raise ValueError(f"scale is {arrays['scale'].tolist()}, which is not positive")


def _typed(kind: type[T], words: dict[str, Any]) -> T:
    """Return a dataclass of plain numbers and texts from its JSON."""
    return kind(**_scalars(kind, words, [f.name for f in fields(kind)]))


def _scalars(kind: type[DataclassInstance], words: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the named numbers and texts; raise `TypeError` for one that is not of the type that `kind` declares."""
    declared = {f.name: str(f.type) for f in fields(kind)}
    for name in names:
        if not isinstance(words[name], _TYPES[declared[name]]) or (
            isinstance(words[name], bool) and declared[name] != "bool"
        ):
            raise TypeError(f"{name} is {words[name]!r}, which is not of type {declared[name]}")
        if declared[name] == "int":
            _int64(name, words[name])
    return {name: float(words[name]) if declared[name] == "float" else words[name] for name in names}


def _int64(name: str, value: int) -> int:
    """Return the value; raise `ValueError` if it needs more than 64 bits, which no count does."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is a number of {value.bit_length()} bits")
    return value


def _shape_to_json(shape: Shape | None) -> dict[str, Any] | None:
    """Return a shape as JSON values."""
    if shape is None:
        return None
    parameters = {name: float(value) for name, value in shape.parameters.items()}
    return {"name": shape.name, "parameters": parameters, "formula": shape.formula, "r2": shape.r2}


def _shape_from_json(words: dict[str, Any] | None) -> Shape | None:
    """Return a shape from its JSON values."""
    if words is None:
        return None
    parameters = {str(k): float(v) for k, v in words["parameters"].items()}
    return Shape(str(words["name"]), parameters, str(words["formula"]), float(words["r2"]))


def _encode(value: Any) -> Any:
    """Return JSON values, with infinities and NaN, which JSON does not have, as {"float": "inf"}."""
    if isinstance(value, dict):
        return {k: _encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _decode(value: Any) -> Any:
    """Return what `_encode` was given, with lists in place of tuples."""
    if isinstance(value, dict):
        if set(value) == {"float"} and isinstance(value["float"], str):
            return float(value["float"])
        return {k: _decode(v) for k, v in value.items()}
    return [_decode(v) for v in value] if isinstance(value, list) else value


def _replace(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it to `path`."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # it may be a link to another file, which must not be written
    with partial.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
