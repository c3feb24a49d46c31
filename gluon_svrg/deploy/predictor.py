"""Runs the model of a model directory."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg._mxnet import reason_of
from gluon_svrg.arguments import check_integer
from gluon_svrg.deploy.card import Card, InputSpec, Model, check_batch, read_model
from gluon_svrg.deploy.compiled import Compiled
from gluon_svrg.deploy.difference import difference_of, scale_of
from gluon_svrg.deploy.images import Image, is_one, read_images
from gluon_svrg.deploy.int8 import warn_of_overflow
from gluon_svrg.deploy.trace import rebuild
from mxnet import autograd
from mxnet.base import MXNetError
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

_logger = logging.getLogger(__name__)

_STATIC = {"static_alloc": True, "static_shape": True}


class Prediction(NamedTuple):
    """A class of a sample.

    Attributes
    ----------
    name : str
        The name of the class; its index if the model has no names.
    probability : float
        In [0, 1].
    """

    name: str
    probability: float


class Predictor:
    """Runs a model that :func:`~gluon_svrg.deploy.export` wrote.

    It needs neither gluoncv nor the class of the network. On the CPU, operators are fused by
    MXNet's own oneDNN backend. Batches are split at `batch_size` and padded to 1, 4, 16, ...
    samples, so that few shapes are planned, each when it is first needed; samples have to be
    independent of each other, as they are in prediction.

    It may be called from several threads; the calls run one after another.

    ``Predictor(directory)`` is :meth:`load`, which describes the arguments.

    Attributes
    ----------
    card : dict
        The contents of ``model.json``: see :func:`~gluon_svrg.deploy.read_card`.
    model : Model
        The graph and its parameters as they were read.
    ctx : Context
        The context on which it runs.
    backend : str or None
        The backend that fused the graph; None for the plain graph.
    batch_size : int
        The greatest number of samples that are computed at once.
    check_finite : bool
        Whether NaN and infinities in an input are an error.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        ctx: mx.Context | None = None,
        backend: str | None = "auto",
        batch_size: int = 64,
        check_finite: bool = True,
        operators: Collection[str] = (),
    ) -> None:
        self.batch_size = check_integer(
            "batch_size", batch_size, 1, "larger batches are split into batches of this size"
        )
        self.check_finite = check_finite
        self.model = model if isinstance(model, Model) else read_model(model, operators)
        self.card = self.model.card
        self.ctx = _check_context(ctx, self.card["precision"])
        # cpu(0) and cpu(1) are the same memory, but a graph needs all its arrays on one context.
        self._params = {n: array.as_in_context(self.ctx) for n, array in self.model.params.items()}
        self.backend, self._symbol = self._fused(backend)
        self._structure = self.card["outputs"]["structure"]
        self._compiled: dict[int, Compiled] = {}
        self._lock = threading.Lock()
        _PREDICTORS.add(self)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        ctx: mx.Context | None = None,
        backend: str | None = "auto",
        batch_size: int = 64,
        check_finite: bool = True,
        operators: Collection[str] = (),
    ) -> Predictor:
        """Read a model directory, and verify its checksums.

        Parameters
        ----------
        directory : path
            A directory that ``export`` or ``quantize`` wrote.
        ctx : Context, optional
            The context on which it runs; ``mx.cpu()`` by default. An int8 model runs on the CPU
            only.
        backend : str or None, default 'auto'
            The subgraph backend of MXNet that fuses operators; None for the plain graph.
            ``'auto'``: on the CPU in float32 ``'MKLDNN'``, unless its outputs differ from those of
            the plain graph, which is logged; otherwise the plain graph.
        batch_size : int, default 64
            The greatest number of samples that are computed at once.
        check_finite : bool, default True
            Whether NaN and infinities in an input are an error. Without the check MXNet's ReLU and
            pooling drop NaN, so that the outputs look like those of a sample; False is for
            networks that use them, such as an infinite mask.
        operators : collection of str, optional
            Operators of MXNet that the graph may have beside those that are known to check what
            they are given, for a model of people whom you trust. ``export`` says if a model needs
            some.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong, a file is missing or was changed, or a later version of
            gluon_svrg wrote it.

        Warns
        -----
        UserWarning
            If an int8 model is loaded on a CPU without VNNI, on which it may be far off.
        """
        model = read_model(directory, operators)
        if model.card["precision"] == "int8":
            warn_of_overflow(f"the model {os.fspath(directory)!r}")
        return cls(model, ctx, backend, batch_size, check_finite)

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{spec['name']} {spec['dtype']} {tuple(spec['shape'])}" for spec in self.card["inputs"]
        )
        shapes = ", ".join(str(tuple(shape)) for shape in self.card["outputs"]["shapes"])
        return f"<{type(self).__name__} of {inputs} -> {shapes} per sample, on {self.ctx}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Predictor cannot be pickled, because MXNet's graphs cannot: load the model "
            "directory in each process"
        )

    def __call__(self, *inputs: NumPyArray | NDArray) -> Any:
        """Return the outputs of the network, as :meth:`predict`."""
        return self.predict(*inputs)

    def predict(self, *inputs: NumPyArray | NDArray) -> Any:
        """Return the outputs of the network.

        Parameters
        ----------
        *inputs : numpy.ndarray or NDArray
            One for each input, normalised as in training: a batch (N, ...), or a single sample
            without the batch axis. Floats are cast to the model's float dtype, integers to its
            integer dtype.

        Returns
        -------
        numpy.ndarray, or nested tuples and lists of them
            Nested as the network nests its outputs; without the batch axis for a single sample.

        Raises
        ------
        TypeError, ValueError
            If an input has the wrong type, dtype or shape, or, with `check_finite`, NaN or
            infinities, also those that a number becomes in the dtype of the model.
        """
        arrays, is_sample = checked_inputs(self.card, inputs)
        if self.check_finite:
            _check_finite(self.card, arrays, is_sample)
        outputs = self._run(arrays, len(arrays[0]))
        if is_sample:
            outputs = [output[0] for output in outputs]
        return outputs[0] if self._structure == "array" else rebuild(self._structure, iter(outputs))

    def predict_images(self, images: Image | Iterable[Image], resize: bool = False) -> Any:
        """Return the outputs of the network for images: ``predict(read_images(images))``.

        For a single image (a path, or an array of fewer than four axes) the outputs have no batch
        axis. Parameters and errors: see :meth:`read_images`.
        """
        batch = self.read_images(images, resize)
        return self.predict(batch[0] if is_one(images) else batch)

    def read_images(self, images: Image | Iterable[Image], resize: bool = False) -> NumPyArray:
        """Return images as a batch for :meth:`predict`, normalised as the card says.

        Parameters
        ----------
        images : path, uint8 array, or sequence of them
            JPEG and PNG files (these need the extra ``deploy``: Pillow), or pixels of (height,
            width, channels), or (height, width) for grey images.
        resize : bool, default False
            Whether images of another size are resized (bilinear; the aspect ratio is not kept)
            or refused.

        Returns
        -------
        numpy.ndarray
            (N, channels, height, width), float32.

        Raises
        ------
        TypeError, ValueError
            If an image has the wrong type, mode or size, or cannot be read, or the model was
            exported without normalization.
        ImportError
            If Pillow is needed, to read a file or to resize an image, and not installed.
        """
        if self.card["normalization"] is None:
            raise ValueError(
                "the model was exported without normalization, so its input cannot be made of "
                "pixels: export it with normalization=(mean, std), or give predict() the input"
            )
        shape = tuple(self.card["inputs"][0]["shape"])
        return read_images(images, shape, self.card["normalization"], resize)

    def classes(self, *inputs: NumPyArray | NDArray, top: int = 1) -> list[Any]:
        """Return the most probable classes, the most probable first.

        Parameters
        ----------
        *inputs : numpy.ndarray or NDArray
            As for :meth:`predict`.
        top : int, default 1
            The number of classes.

        Returns
        -------
        list of list of Prediction
            One list per sample; for a single sample without the batch axis, its list alone.

        Raises
        ------
        TypeError, ValueError
            As :meth:`predict`; if `top` is not a positive integer up to the number of classes, or
            the model does not have one output with one number per class, or one number and the
            names of two classes.
        """
        top = check_integer("top", top, 1, "the number of classes that are returned")
        shapes = self.card["outputs"]["shapes"]
        if shapes == [[1]] and len(self.card["class_names"] or ()) != 2:
            raise ValueError(
                "the model has one output with one number and not two class names, which may be a "
                "regression or the score of one of two classes: use predict(), or export it with "
                "class_names=[negative, positive]"
            )
        if self._structure != "array" or len(shapes[0]) != 1:
            raise ValueError(
                f"the model has outputs of the shapes {[tuple(shape) for shape in shapes]} per "
                "sample, which are not classes: use predict()"
            )
        count = len(self.card["class_names"] or range(shapes[0][0]))
        if top > count:
            raise ValueError(f"top is {top}, the model has {count} classes: ask for fewer")
        outputs = self.predict(*inputs)
        if outputs.ndim == 1:
            return self._best(outputs[None], top)[0]
        return self._best(outputs, top)

    def _best(self, outputs: NumPyArray, top: int) -> list[list[Prediction]]:
        probabilities = probabilities_of(self.card, outputs)
        names = self.card["class_names"] or [str(i) for i in range(outputs.shape[1])]
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        return [
            [Prediction(names[i], float(row[i])) for i in indices]
            for row, indices in zip(probabilities, order, strict=True)
        ]

    def _run(self, arrays: list[NumPyArray], count: int) -> list[NumPyArray]:
        with self._lock, autograd.pause(train_mode=False):
            if count <= self.batch_size:
                return self._run_once(arrays, count)
            parts = [
                self._run_once(
                    [array[start : start + self.batch_size] for array in arrays],
                    min(self.batch_size, count - start),
                )
                for start in range(0, count, self.batch_size)
            ]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    def _run_once(self, arrays: list[NumPyArray], count: int) -> list[NumPyArray]:
        try:
            return self._graph_for(count)(arrays)
        except MXNetError as e:
            raise ValueError(
                f"MXNet cannot run the model ({reason_of(e)}): export the network again"
            ) from e

    def _graph_for(self, count: int) -> Compiled:
        """Return the graph of the smallest planned batch that holds `count` samples."""
        size = 1
        while size < count:
            size *= 4
        size = min(size, self.batch_size)
        if size not in self._compiled:
            check_batch(self.model, size)
            self._compiled[size] = self._compile(self._symbol, size)
        return self._compiled[size]

    def _compile(self, symbol: Symbol, size: int) -> Compiled:
        return Compiled(symbol, self._params, self.card["inputs"], size, ctx=self.ctx, **_STATIC)

    def _fused(self, backend: str | None) -> tuple[str | None, Symbol]:
        """Return the backend that fused the graph, and the graph."""
        if backend is not None and not isinstance(backend, str):
            raise TypeError(f"backend must be 'auto', a backend's name or None, got {backend!r}")
        plain = self.model.symbol
        if backend is None or self.card["precision"] == "int8":  # int8 was fused when it was made
            return None, plain
        if backend != "auto":
            return backend, _fused_by(backend, plain)
        if self.ctx.device_type != "cpu" or self.card["precision"] != "float32":
            return None, plain
        try:
            fused = plain.optimize_for("MKLDNN")
            if fused.tojson() == plain.tojson():
                return None, plain
            difference = self._difference(plain, fused)
        except MXNetError as e:
            _logger.warning("the plain graph is used: MKLDNN cannot fuse it: %s", reason_of(e))
            return None, plain
        if not difference <= 1e-4:
            _logger.warning(
                "the plain graph is used: fused by MKLDNN its outputs differ by %.2g", difference
            )
            return None, plain
        return "MKLDNN", fused

    def _difference(self, plain: Symbol, fused: Symbol) -> float:
        """Return how far the outputs of two graphs are apart, relative to the greatest."""
        arrays = random_inputs(self.card, 1)
        with autograd.pause(train_mode=False):
            one, other = (self._compile(symbol, 1)(arrays) for symbol in (plain, fused))
        return max(difference_of(b, a) / scale_of(a) for a, b in zip(one, other, strict=True))


_PREDICTORS: weakref.WeakSet[Predictor] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked process: a thread that has a lock there is not there to give it back."""
    for predictor in list(_PREDICTORS):
        predictor._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


def probabilities_of(card: Card, outputs: NumPyArray) -> NumPyArray:
    """Return the probability of each class, float64, from the outputs of a classifier.

    Parameters
    ----------
    card : dict
        Its card.
    outputs : numpy.ndarray of shape (N, K) or (N, 1)
        Scores or probabilities, as the card's ``from_logits`` says. With one number for two classes
        it is that of the second; a score of 0 is the first's, as in scikit-learn.
    """
    values = outputs.astype("float64")
    is_binary = values.shape[1] == 1 and len(card["class_names"] or ()) == 2
    if card["from_logits"]:
        if is_binary:
            values = np.concatenate([np.zeros_like(values), values], axis=1)
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
    return np.concatenate([1 - values, values], axis=1) if is_binary else values


def _check_finite(card: Card, arrays: Sequence[NumPyArray], is_sample: bool) -> None:
    """Raise ValueError if an input has NaN or infinities in the dtype of the model."""
    for spec, array in zip(card["inputs"], arrays, strict=True):
        dtype = np.dtype(spec["dtype"])
        if dtype.kind != "f":
            continue
        with np.errstate(over="ignore"):
            cast = array.astype(dtype, copy=False)
        if np.isfinite(cast).all():
            continue
        position = tuple(int(i[0]) for i in np.nonzero(~np.isfinite(cast)))
        value, shown = array[position], position[1:] if is_sample else position
        too_large = f", which {dtype} cannot hold" if np.isfinite(value) else ""
        raise ValueError(
            f"{spec['name']} has {value} at {shown}{too_large}: replace such numbers as in "
            "training, or load the model with check_finite=False"
        )


def _fused_by(backend: str, plain: Symbol) -> Symbol:
    try:
        fused = plain.optimize_for(backend)
    except MXNetError as e:
        raise ValueError(
            f"backend {backend!r} cannot be used ({reason_of(e)}): leave it out, or give "
            "None for the plain graph"
        ) from e
    # MXNet only prints a line if it does not know the backend.
    if fused.tojson() == plain.tojson():
        raise ValueError(
            f"backend {backend!r} changes nothing in the graph: MXNet has none of that name, or "
            "none for these operators; leave it out, or give None for the plain graph"
        )
    return fused


def checked_inputs(
    card: Card, inputs: Sequence[NumPyArray | NDArray]
) -> tuple[list[NumPyArray], bool]:
    """Return a batch for each input of the model, and whether `inputs` are a single sample.

    Raises
    ------
    TypeError, ValueError
        If an input has the wrong type, dtype or shape.
    """
    specs = [
        (spec["name"], tuple(spec["shape"]), np.dtype(spec["dtype"])) for spec in card["inputs"]
    ]
    if len(inputs) != len(specs):
        raise TypeError(
            f"the model takes {len(specs)} inputs ({', '.join(name for name, _, _ in specs)}), got "
            f"{len(inputs)}: give one array for each"
        )
    arrays = [_as_array(x, *spec) for x, spec in zip(inputs, specs, strict=True)]
    is_sample = arrays[0].ndim == len(specs[0][1])
    if is_sample:
        arrays = [array[None] for array in arrays]
    count = len(arrays[0])
    if any(
        len(array) != count or array.ndim != len(spec[1]) + 1
        for array, spec in zip(arrays, specs, strict=True)
    ):
        raise ValueError(
            f"all inputs need the same batch axis, got the shapes {[x.shape for x in inputs]}: "
            "give the same number of samples for each input"
        )
    return arrays, is_sample


def random_inputs(card: Card, count: int) -> list[NumPyArray]:
    """Return `count` samples for each input.

    If those of the export were integers, whatever the dtype, they are integers of their range:
    such as tokens. Others are standard normal, or zeros for an integer dtype.
    """
    random = np.random.default_rng(0)

    def values(spec: InputSpec) -> NumPyArray:
        shape = (count, *spec["shape"])
        if "integers" in spec:
            low, high = spec["integers"]
            return random.integers(low, high, shape, endpoint=True).astype(spec["dtype"])
        if np.dtype(spec["dtype"]).kind == "f":
            return random.standard_normal(shape).astype(spec["dtype"])
        return np.zeros(shape, spec["dtype"])

    return [values(spec) for spec in card["inputs"]]


def _as_array(x: object, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NumPyArray:
    """Return `x` as a NumPy array; raises if it does not have this shape and kind of dtype."""
    if isinstance(x, NDArray):
        x = x.asnumpy()
    if not isinstance(x, np.ndarray):
        raise TypeError(
            f"{name} must be a NumPy array or an NDArray, got a {type(x).__name__}: give images "
            "and image files to predict_images()"
        )
    if x.dtype != dtype and x.dtype.kind != dtype.kind and x.dtype.kind + dtype.kind != "ui":
        raise TypeError(
            f"{name} must be {dtype}, got {x.dtype}: convert it as the training data was, or give "
            "pixels to predict_images(), which normalises them"
        )
    if x.shape[1:] != shape and x.shape != shape:
        raise ValueError(
            f"{name} must have the shape {('N', *shape)} or {shape}, got {x.shape}: give it in "
            "the shape of the training data"
        )
    if x.shape[:1] == (0,):
        raise ValueError(f"{name} has no sample, its shape is {x.shape}: give at least one")
    if dtype.kind in "ui" and x.dtype != dtype:
        least, greatest = np.iinfo(dtype).min, np.iinfo(dtype).max
        if x.size and (x.min() < least or x.max() > greatest):
            raise ValueError(
                f"{name} has numbers from {x.min()} to {x.max()}, {dtype} holds {least} to "
                f"{greatest}: give numbers like those of the training data"
            )
    return x


def _check_context(ctx: object, precision: str) -> mx.Context:
    if ctx is None:
        return mx.cpu()
    if not isinstance(ctx, mx.Context):
        raise TypeError(f"ctx must be a Context, got {ctx!r}: give mx.cpu(), or leave it out")
    if precision == "int8" and ctx.device_type != "cpu":
        raise ValueError(
            f"ctx is {ctx}, an int8 model runs on the CPU only: give mx.cpu(), or load the "
            "float32 model"
        )
    if ctx.device_type == "gpu" and ctx.device_id >= mx.context.num_gpus():
        raise ValueError(
            f"ctx is {ctx}, MXNet sees {mx.context.num_gpus()} GPUs here: give mx.cpu(), or leave "
            "it out"
        )
    return ctx
