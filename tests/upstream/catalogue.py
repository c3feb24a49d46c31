"""Which scripts of other people are run, with which arguments; which are not, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from source import code_of

UNIT_TESTS = [
    "test_gluon.py",
    "test_gluon_batch_processor.py",
    "test_gluon_data.py",
    "test_gluon_estimator.py",
    "test_gluon_event_handler.py",
    "test_gluon_trainer.py",
    "test_loss.py",
    "test_numpy_gluon.py",
    "test_optimizer.py",
    "test_contrib_svrg_module.py",
    "test_contrib_svrg_optimizer.py",
]


class Script(NamedTuple):
    """A script of a checkout and how it is run."""

    path: str
    arguments: tuple[str, ...] = ()
    steps: int = 6
    batch: int = 16
    prelude: str = ""
    modules: tuple[str, ...] = ()  # folders of the checkout
    reason: str = ""  # why it is not run


# A game with one state of four numbers, two actions and a reward of 1, for an example of gym.
_GYM = """
import sys, types, numpy
class _Game:
    action_space = observation_space = None
    def __init__(self):
        self._rng, self._left = numpy.random.RandomState(0), 0
    seed = render = lambda self, *a: None
    def reset(self):
        self._left = 12
        return self._rng.randn(4)
    def step(self, action):
        self._left -= 1
        return self._rng.randn(4), 1.0, self._left == 0, {}
    spec = types.SimpleNamespace(reward_threshold=1e9)
sys.modules["gym"] = types.ModuleType("gym")
sys.modules["gym"].make = lambda name: _Game()
"""


# The files that an example takes out of the archive of MovieLens with a program.
_RATINGS = """
import generated, io, zipfile, pathlib
pathlib.Path("ml-100k").mkdir()
with zipfile.ZipFile(io.BytesIO(generated.movie_lens())) as archive:
    for name in ("u.data", "u1.base", "u1.test"):
        pathlib.Path("ml-100k", name).write_bytes(archive.read("ml-100k/u.data"))
"""

EXAMPLES = [
    Script("gluon/mnist/mnist.py", ("--epochs", "1")),
    Script(
        "gluon/house_prices/kaggle_k_fold_cross_validation.py", steps=12,
        prelude="import generated, pathlib\nfor n in ('train.csv', 'test.csv'):\n"
        "    pathlib.Path(n).write_bytes(generated.FILES[n]())\n",
    ),
    Script(
        "gluon/word_language_model/train.py",
        ("--emsize", "24", "--nhid", "24", "--epochs", "1", "--bptt", "8"),
        batch=20,
    ),
    Script(
        "gluon/image_classification.py",
        ("--model", "squeezenet1.0", "--dataset", "dummy", "--batch-size", "2", "--mode",
         "imperative"), steps=3,
    ),
    Script(
        "gluon/image_classification.py",
        ("--model", "resnet18_v1", "--dataset", "mnist", "--batch-size", "4", "--mode", "hybrid",
         "--use_thumbnail"), steps=3,
    ),
    Script(
        "gluon/dc_gan/dcgan.py",
        ("--dataset", "mnist", "--nepoch", "1", "--batch-size", "4", "--inception_score", ""),
        steps=4,
    ),
    Script(
        "gluon/sn_gan/train.py", ("--epochs", "1", "--batch-size", "4"), steps=4, batch=4,
        prelude="import sys, types; sys.modules['imageio'] = types.ModuleType('imageio')",
    ),
    Script("gluon/actor_critic/actor_critic.py", steps=8, prelude=_GYM),
    Script("gluon/super_resolution/super_resolution.py", ("--epochs", "1"), steps=3),
    Script("gluon/lstm_crf/lstm_crf.py", steps=8),
    Script("gluon/embedding_learning/train.py", reason="needs bottleneck and the data set CUB-200"),
    Script("gluon/tree_lstm/main.py", reason="needs the data set SICK, parsed with Java"),
    Script("gluon/style_transfer/main.py", ("train",), reason="needs the images of COCO"),
    Script("gluon/audio/urban_sounds/train.py", reason="needs librosa and recordings"),
    Script("gluon/lipnet/main.py", reason="needs videos and dlib"),
    Script("restricted-boltzmann-machine/binary_rbm_gluon.py",
           ("--num-epoch", "1", "--num-hidden", "20", "--k", "2", "--no-cuda"), steps=4),
    Script("distributed_training/cifar10_dist.py", reason="needs dist_sync and GPUs"),
    Script("distributed_training-horovod/gluon_mnist.py", reason="needs Horovod"),
    Script("quantization_inc/BERT_MRPC/details.py", reason="needs gluonnlp and Intel's compressor"),
    Script("adversary/adversary_generation.ipynb"),
    Script("bi-lstm-sort/bi-lstm-sort.ipynb"),
    Script("autoencoder/convolutional_autoencoder.ipynb"),
    Script("multi-task/multi-task-learning.ipynb"),
    Script("recommenders/demo1-MF.ipynb", modules=("recommenders",), prelude=_RATINGS),
]  # fmt: skip

TUTORIALS = [
    Script("getting-started/crash-course/4-train.md"),
    Script("getting-started/crash-course/6-use_gpus.md"),
    Script("getting-started/to-mxnet/pytorch.md"),
    Script("getting-started/logistic_regression_explained.md"),
    Script("getting-started/gluon_from_experiment_to_deployment.md"),
    Script("extend/custom_layer.md"),
    Script("packages/gluon/blocks/custom_layer_beginners.md"),
    Script("packages/gluon/blocks/save_load_params.md"),
    Script("packages/gluon/data/datasets.md"),
    Script("packages/gluon/image/info_gan.md"),
    Script("packages/gluon/image/mnist.md"),
    Script("packages/gluon/loss/custom-loss.md"),
    Script("packages/gluon/training/fit_api_tutorial.md"),
    Script("packages/gluon/training/learning_rates/learning_rate_finder.md"),
    Script("packages/gluon/training/learning_rates/learning_rate_schedules.md"),
    Script("packages/gluon/training/trainer.md"),
    Script("packages/ndarray/gotchas_numpy_in_mxnet.md"),
    Script("packages/ndarray/sparse/train_gluon.md"),
    Script("packages/onnx/fine_tuning_gluon.md"),
    Script("packages/optimizer/index.md"),
    Script("performance/backend/amp.md"),
    Script("performance/backend/profiler.md"),
]

_CIFAR = ("--num-epochs", "1", "--num-gpus", "0", "-j", "0", "--batch-size", "4")

GLUONCV = [
    Script("scripts/classification/cifar/train_cifar10.py",
           (*_CIFAR, "--model", "cifar_resnet20_v1", "--mode", "hybrid", "--lr", "0.1")),
    # Without weight decay MXNet's NAG and ours take the same steps.
    Script("scripts/classification/cifar/train_cifar10.py",
           (*_CIFAR, "--model", "cifar_resnet20_v1", "--mode", "hybrid", "--lr", "0.1",
            "--wd", "0")),
    Script("scripts/classification/cifar/train_mixup_cifar10.py",
           (*_CIFAR, "--model", "cifar_resnet20_v1", "--mode", "hybrid", "--lr", "0.1")),
    Script("scripts/gan/wgan/train_wgan.py", reason="needs the images of LSUN"),
    Script("scripts/gan/srgan/train_srgan.py", reason="needs the images of DIV2K"),
    Script("scripts/gan/cycle_gan/train_cgan.py", reason="needs pairs of image folders"),
    Script("scripts/gan/stylegan/train.py", reason="is written for PyTorch's names of GPUs"),
    Script("docs/tutorials/classification/dive_deep_cifar10.py"),
    Script("docs/tutorials/classification/transfer_learning_minc.py"),
    Script("docs/tutorials/detection/train_ssd_voc.py"),
    Script("docs/tutorials/detection/finetune_detection.py"),
    Script("docs/tutorials/segmentation/train_fcn.py"),
    Script("docs/tutorials/segmentation/train_psp.py"),
    Script("docs/tutorials/pose/dive_deep_simple_pose.py"),
    Script("docs/tutorials/action_recognition/dive_deep_tsn_ucf101.py"),
]  # fmt: skip


# Chapters of the book whose steps are long, and how many of them are taken.
FEW_STEPS = {
    "alexnet": 3, "vgg": 3, "nin": 3, "googlenet": 3, "resnet": 3, "densenet": 3, "ssd": 2,
    "fcn": 2, "fine-tuning": 2, "kaggle-dog": 2, "neural-style": 3, "kaggle-cifar10": 3,
    "image-augmentation": 3, "natural-language-inference-bert": 2,
}  # fmt: skip
LARGE_IMAGES = {"fcn", "fine-tuning", "kaggle-dog", "ssd", "alexnet", "vgg", "nin", "googlenet"}


def chapters(book: Path) -> Iterator[Script]:
    """Yield the chapters of the book that make a Trainer for MXNet, by themselves or by its d2l."""
    trains = re.compile(r"gluon\.Trainer\(|d2l\.train\w*\(|(?<!def )\btrain_(?:ch|2d|concise)\w*\(")
    for page in sorted(book.glob("chapter_*/*.md")):
        code = code_of(page)
        if "from mxnet" in code and trains.search(code):
            steps = FEW_STEPS.get(page.stem, 8)
            batch = 4 if page.stem in LARGE_IMAGES else 16
            yield Script(str(page.relative_to(book)), (), steps, batch, modules=(".",))
