"""The recipes of detection, segmentation, language and a GAN: they run, and write what they say."""

import csv
import json
import math
import signal

import gan
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import object_detection
import pytest
import segmentation
import word_language_model
from interruption import EXIT_CODE

pytestmark = pytest.mark.full


def written(folder):
    """The names of the files; every picture is one."""
    for path in folder.glob("*.png"):
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    return {path.name for path in folder.iterdir()}


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.long
@pytest.mark.parametrize("more", [[], ["--svrg", "--optimizer", "adam"]], ids=["plain", "svrg"])
def test_object_detection(tmp_path, more):
    small = ["--images", "12", "--test-images", "10", "--epochs", "1", "--batch-size", "8"]
    result = object_detection.main([*small, *more, "--out", str(tmp_path)])
    assert written(tmp_path) == {"detections.png", "curves.png", "history.csv", "result.json"}
    rows = rows_of(tmp_path / "history.csv")
    assert [float(row["samples"]) for row in rows] == [12]
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert 0 <= result["mean average precision"] <= 1


def test_a_detector_that_predicts_the_targets_finds_every_box():
    images = object_detection.generate(20, seed=5)
    anchors = object_detection.anchors_of(object_detection.ANCHOR_SIZES)
    classes, offsets = object_detection.targets_of(images.boxes, anchors)

    def perfect(pixels):
        scores = mx.nd.one_hot(classes, len(object_detection.CLASSES) + 1, on_value=20)
        return scores, offsets.reshape((0, -1))

    found = object_detection.detected(perfect, images.pixels, anchors)
    assert object_detection.mean_average_precision(found, images.boxes) == pytest.approx(1)
    # And one that sees none has none.
    found[..., 0] = -1
    assert object_detection.mean_average_precision(found, images.boxes) == pytest.approx(
        0, abs=1e-6
    )


def test_the_loss_of_detection_is_that_of_a_box_whatever_the_batch():
    # GluonCV's loss of one image, times one, by two images with the same one.
    images = object_detection.generate(1, seed=1)
    anchors = object_detection.anchors_of(object_detection.ANCHOR_SIZES)
    targets = object_detection.targets_of(images.boxes, anchors)
    net = object_detection.SSD()
    net.initialize(mx.init.Xavier())
    processor = object_detection.Detection()
    losses = []
    for copies in (1, 2):
        batch = mx.nd.array(images.pixels.repeat(copies, axis=0))
        labels = tuple(mx.nd.repeat(target, copies, axis=0) for target in targets)
        losses.append(processor._forward(net, (batch, labels))[3][0].mean().asscalar())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("more", [[], ["--svrg", "--aux-weight", "0"]], ids=["plain", "svrg"])
def test_segmentation(tmp_path, more):
    small = ["--images", "12", "--test-images", "8", "--epochs", "1", "--batch-size", "6"]
    result = segmentation.main([*small, *more, "--out", str(tmp_path)])
    assert written(tmp_path) == {"masks.png", "curves.png", "history.csv", "result.json"}
    assert json.loads((tmp_path / "result.json").read_text()) == result
    shares = [result[f"intersection over union, {name}"] for name in segmentation.CLASSES]
    assert result["mean intersection over union"] == pytest.approx(sum(shares) / 3)


def test_both_outputs_count_in_the_loss_of_segmentation_and_ignored_pixels_do_not():
    images = segmentation.generate(3, seed=1)
    rng = np.random.default_rng(0)
    shape = (3, len(segmentation.CLASSES), segmentation.SIZE, segmentation.SIZE)
    outputs = [rng.normal(size=shape).astype("float32") for _ in range(2)]

    def naive(scores):
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        truth = images.classes.astype(int)
        picked = np.take_along_axis(logs, np.maximum(truth, 0)[:, None], axis=1)[:, 0]
        # GluonCV's mean is over all pixels, those with a loss of 0 included.
        return np.where(truth == segmentation.IGNORED, 0, -picked).mean(axis=(1, 2))

    loss = segmentation.BothOutputs(0.5)
    found = loss(tuple(map(mx.nd.array, outputs)), mx.nd.array(images.classes)).asnumpy()
    assert np.allclose(found, naive(outputs[0]) + 0.5 * naive(outputs[1]), rtol=1e-5)
    metric = segmentation.PixelAccuracy()
    metric.update([mx.nd.array(images.classes)], [mx.nd.array(outputs[0])])
    counted = images.classes != segmentation.IGNORED
    assert metric.get()[1] == np.mean((outputs[0].argmax(axis=1) == images.classes)[counted])


@pytest.mark.parametrize("more", [[], ["--svrg"]], ids=["plain", "svrg"])
def test_word_language_model(tmp_path, more):
    small = ["--words", "1500", "--epochs", "2", "--hidden", "8", "--batch-size", "10"]
    result = word_language_model.main([*small, *more, "--out", str(tmp_path)])
    assert written(tmp_path) == {"curves.png", "history.csv", "result.json", "sample.txt"}
    rows = rows_of(tmp_path / "history.csv")
    assert float(rows[1]["validation perplexity"]) == result["validation perplexity"]
    assert result["least perplexity"] < result["validation perplexity"] < 51


def test_the_streams_of_a_text_go_on_from_batch_to_batch():
    batches = word_language_model.batches_of(np.arange(101.0), streams=4, length=10)
    assert len(batches) == 2
    data = np.concatenate([batch[0].asnumpy() for batch in batches])
    label = np.concatenate([batch[1].asnumpy() for batch in batches])
    assert np.array_equal(data, np.arange(100).reshape(4, 25).T[:20])
    assert np.array_equal(label, data + 1)


def test_the_perplexity_of_the_grammar_is_what_its_frequencies_say():
    # A word of the same place and topic is as frequent as its probability.
    text = word_language_model.Writer(3).write(60_000)
    words = [word_language_model.VOCABULARY[int(word)] for word in text.words]
    adjectives = sum(word in word_language_model.ADJECTIVES for word in words)
    articles = words.count("the")
    assert adjectives / articles == pytest.approx(word_language_model.ADJECTIVE, abs=0.01)

    # The choices of a sentence, in nats: a topic, a clause, and of each noun phrase an adjective,
    # a noun and a number; a verb is one of six.
    def entropy(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    phrase = entropy(0.3) + 0.3 * math.log(4) + math.log(4) + math.log(2)
    sentence = entropy(0.15) + 0.15 * math.log(3) + 2 * phrase + math.log(6) + entropy(0.4)
    sentence += 0.4 * (phrase + math.log(6))
    mean = sentence * words.count(".") / len(words)
    assert math.log(text.least_perplexity) == pytest.approx(mean, rel=0.01)


def test_gan(tmp_path):
    small = ["--steps", "30", "--batch-size", "16", "--report-every", "10", "--clusters", "3"]
    result = gan.main([*small, "--out", str(tmp_path)])
    assert written(tmp_path) == {"points.png", "losses.png", "history.csv", "result.json"}
    assert [row["step"] for row in rows_of(tmp_path / "history.csv")] == ["10", "20", "30"]
    assert result["step"] == 30


def test_each_trainer_of_the_gan_moves_its_own_network():
    options = gan.parse(["--optimizer", "sgd", "--lr", "0.1"])
    model = gan.GAN(options)
    real = mx.nd.array(gan.centres_of(8))
    model.points(mx.nd.ones((8, options.noise))), model.discriminator(real)
    before = [weights_of(net) for net in (model.generator, model.discriminator)]
    gan_losses = model.step(real)
    after = [weights_of(net) for net in (model.generator, model.discriminator)]
    assert all(loss.shape == (8,) for loss in gan_losses)
    for old, new in zip(before, after, strict=True):
        assert any(not np.array_equal(a, b) for a, b in zip(old, new, strict=True))
    model.trainers[0].set_learning_rate(0)  # the discriminator's
    model.step(real)
    assert all(map(np.array_equal, after[1], weights_of(model.discriminator)))
    assert not all(map(np.array_equal, after[0], weights_of(model.generator)))


def weights_of(net):
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def test_the_quality_of_generated_points():
    centres = gan.centres_of(4)
    assert gan.quality(centres.repeat(10, axis=0), centres) == (4, 1)
    assert gan.quality(np.zeros((10, 2)), centres) == (0, 0)
    assert gan.quality(
        np.concatenate([centres[[0]].repeat(5, axis=0), np.zeros((5, 2))]), centres
    ) == (1, 0.5)


def test_a_gan_that_diverges_ends_with_a_sentence(tmp_path):
    arguments = ["--steps", "200", "--optimizer", "sgd", "--lr", "1e9", "--report-every", "5"]
    with pytest.raises(SystemExit, match="a loss is not finite at step 5: give a smaller --lr"):
        gan.main([*arguments, "--out", str(tmp_path)])


def test_ctrl_c_ends_the_gan_with_its_report(tmp_path, monkeypatch):
    step, calls = gan.GAN.step, []

    def interrupted(self, real):
        calls.append(real)
        if len(calls) == 25:
            raise KeyboardInterrupt
        return step(self, real)

    monkeypatch.setattr(gan.GAN, "step", interrupted)
    with pytest.raises(SystemExit) as ended:
        gan.main(["--report-every", "10", "--batch-size", "8", "--out", str(tmp_path)])
    assert ended.value.code == EXIT_CODE
    assert [row["step"] for row in rows_of(tmp_path / "history.csv")] == ["10", "20"]
    assert "points.png" in written(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "arguments", "picture"),
    [
        (object_detection, ["--images", "24", "--test-images", "10"], "detections.png"),
        (segmentation, ["--images", "24", "--test-images", "8"], "masks.png"),
        (word_language_model, ["--words", "1500", "--hidden", "8"], "sample.txt"),
    ],
    ids=["object_detection", "segmentation", "word_language_model"],
)
def test_ctrl_c_ends_a_recipe_with_its_report(tmp_path, monkeypatch, recipe, arguments, picture):
    step, calls = gs.GradientUpdateHandler.batch_end, []

    def interrupted(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        step(self, *args, **kwargs)

    monkeypatch.setattr(gs.GradientUpdateHandler, "batch_end", interrupted)
    with pytest.raises(SystemExit) as ended:
        recipe.main([*arguments, "--batch-size", "8", "--epochs", "9", "--out", str(tmp_path)])
    assert ended.value.code == EXIT_CODE
    assert len(calls) == 2
    assert {"result.json", picture} <= written(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        (object_detection, ["--images", "1"], "must be an integer of at least 2, got '1'"),
        (segmentation, ["--aux-weight", "-1"], "must be a number of at least 0, got '-1'"),
        (word_language_model, ["--words", "1000", "--bptt", "100"],
         "--words 1000 are less than two batches of 20 streams of 100 words"),
        (gan, ["--steps", "0"], "must be an integer of at least 1, got '0'"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be(recipe, arguments, message, capsys):
    with pytest.raises(SystemExit):
        recipe.main(arguments)
    assert message in capsys.readouterr().err
