"""Every optimizer repeats to the bit: on a ResNet-20, with an evaluation after each epoch."""

import mxnet as mx
import pytest
import repeatability

pytestmark = [pytest.mark.full, pytest.mark.long]

EPOCHS = 2


@pytest.mark.parametrize("optimizer", repeatability.optimizers())
def test_every_optimizer_repeats(optimizer):
    one, other = (repeatability.train(optimizer, EPOCHS) for _ in range(2))
    assert one == other


def test_mxnets_nag_does_not():
    def optimizer():
        return mx.optimizer.NAG(learning_rate=0.1, wd=1e-2, momentum=0.9)

    assert len({repeatability.train(optimizer(), EPOCHS) for _ in range(5)}) > 1


def test_every_optimizer_repeats_on_two_workers(tmp_path):
    names = [n for n in repeatability.optimizers() if n not in repeatability.NOT_ON_WORKERS]
    results = repeatability.run([*names, *names], workers=2, folder=tmp_path, epochs=EPOCHS)
    assert results.keys() == set(names)
    assert [name for name, hashes in results.items() if " " in hashes] == []
