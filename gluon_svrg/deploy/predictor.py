"""Runs the model of a model directory."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_integer
from gluon_svrg.deploy.engine import choose
from gluon_svrg.deploy.images import Image, is_single_image, read_images
from gluon_svrg.deploy.inputs import InputCheck
from gluon_svrg.deploy.model_dir import Card, Model, read_model
from gluon_svrg.deploy.mxnet_engine import MXNetEngine
from gluon_svrg.deploy.numerics import warn_of_overflow
from gluon_svrg.deploy.trace import rebuild
from mxnet.ndarray import NDArray


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

    It needs neither gluoncv nor the class of the network. On the CPU, onnxruntime runs the model if
    it is installed, the directory has an ONNX file, and both give the same outputs; otherwise
    MXNet does, with operators fused by its own oneDNN backend. Batches are split at `batch_size`;
    for MXNet they are padded to 1, 4, 16, ... samples, so that few shapes are planned, each when
    it is first needed. Samples have to be independent of each other, as they are in prediction.

    It may be called from several threads. The calls run one after another by MXNet, and at the
    same time by onnxruntime.

    ``Predictor(directory)`` is :meth:`load`, which describes the arguments.

    Attributes
    ----------
    card : dict
        The contents of ``model.json``: see :func:`~gluon_svrg.deploy.read_card`.
    model : Model
        The graph and its parameters as they were read.
    ctx : Context
        The context on which it runs.
    engine : str
        What runs the model: ``'mxnet'`` or ``'onnxruntime'``.
    engine_reason : str
        Why it was chosen.
    backend : str or None
        The backend of MXNet that fused the graph; None for the plain graph, and for onnxruntime.
    batch_size : int
        The greatest number of samples that are computed at once.
    check_finite : bool
        Whether NaN and infinities in an input are an error; it may be changed.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        ctx: mx.Context | None = None,
        backend: str | None = "auto",
        batch_size: int = 64,
        check_finite: bool = True,
        operators: Collection[str] = (),
        engine: str = "auto",
    ) -> None:
        self.batch_size = check_integer(
            "batch_size", batch_size, 1, "larger batches are split into batches of this size"
        )
        self.model = (
            model
            if isinstance(model, Model)
            else read_model(model, operators, with_onnx=engine != "mxnet")
        )
        self.card = self.model.card
        self._check = InputCheck(self.card, check_finite)
        self.ctx = _check_context(ctx, self.card["precision"])
        self._engine, self.engine_reason = choose(
            engine, self.model, self.ctx, backend, self.batch_size, check_finite
        )
        self.engine = "mxnet" if isinstance(self._engine, MXNetEngine) else "onnxruntime"
        self.backend = self._engine.backend if isinstance(self._engine, MXNetEngine) else None
        self._structure = self.card["outputs"]["structure"]

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        ctx: mx.Context | None = None,
        backend: str | None = "auto",
        batch_size: int = 64,
        check_finite: bool = True,
        operators: Collection[str] = (),
        engine: str = "auto",
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
            Operators of MXNet that the graph may have in addition to those that are known to check
            their inputs. Use it only for a model from people you trust. ``export`` says if a model
            needs some.

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong, a file is missing or was changed, or a later version of
            gluon_svrg wrote it; if `engine` is ``'onnxruntime'``, which cannot run the model or
            gives other outputs than MXNet.
        ImportError
            If `engine` is ``'onnxruntime'``, which is not installed.

        Warns
        -----
        UserWarning
            If an int8 model is loaded on a CPU without VNNI, on which it may be far off.
        """
        model = read_model(directory, operators, with_onnx=engine != "mxnet")
        if model.card["precision"] == "int8":
            warn_of_overflow(f"the model {os.fspath(directory)!r}")
        return cls(model, ctx, backend, batch_size, check_finite, engine=engine)

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{spec['name']} {spec['dtype']} {tuple(spec['shape'])}" for spec in self.card["inputs"]
        )
        shapes = ", ".join(str(tuple(shape)) for shape in self.card["outputs"]["shapes"])
        return (
            f"<{type(self).__name__} of {inputs} -> {shapes} per sample, on {self.ctx} by "
            f"{self.engine}>"
        )

    @property
    def check_finite(self) -> bool:
        """Whether NaN and infinities in an input are an error."""
        return self._check.finite

    @check_finite.setter
    def check_finite(self, value: bool) -> None:
        self._check.finite = value

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Predictor cannot be pickled, because its graph cannot: load the model "
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
        arrays, is_sample = self._check(inputs)
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
        return self.predict(batch[0] if is_single_image(images) else batch)

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
        if count <= self.batch_size:
            return self._engine(arrays)
        parts = [
            self._engine([array[start : start + self.batch_size] for array in arrays])
            for start in range(0, count, self.batch_size)
        ]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


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
