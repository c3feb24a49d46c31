"""The helper of large-batch recipes."""

import gluon_svrg as gs
import pytest
from gluon_svrg.optimizer import exclude_from_decay
from mxnet import gluon
from mxnet.gluon import nn, rnn


class Scaled(nn.LayerNorm):
    """A normalisation layer with a parameter of its own."""

    def __init__(self):
        super().__init__(in_channels=4)
        self.slope = self.params.get("slope", shape=(1,))


def make_net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(3), Scaled(), nn.GroupNorm())
    return net


def test_norms_and_biases_have_no_decay_and_the_weights_keep_theirs():
    net = make_net()
    names = exclude_from_decay(net)
    left = {name for name, param in net.collect_params().items() if param.wd_mult != 0}
    assert left == {"net_conv0_weight", "net_dense0_weight"}
    assert names == sorted(set(net.collect_params()) - left)
    assert any(name.endswith("slope") for name in names)


def test_the_biases_of_a_recurrent_layer():
    net = rnn.LSTM(3, input_size=2, prefix="lstm_")
    assert exclude_from_decay(net) == ["lstm_l0_h2h_bias", "lstm_l0_i2h_bias"]


def test_the_names_are_what_lars_takes():
    net = make_net()
    lars = gs.LARS(exempt=exclude_from_decay(net))
    exempt = {name for name in net.collect_params() if lars.is_exempt(name)}
    assert exempt == {name for name, p in net.collect_params().items() if p.wd_mult == 0}


def test_a_trainer_sees_it():
    net = make_net()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), gs.LARS(wd=0.5))
    exclude_from_decay(net)
    by_name = {p.name: trainer.optimizer._get_wd(i) for i, p in enumerate(trainer._params)}
    assert by_name["net_conv0_weight"] == 0.5
    assert by_name["net_conv0_bias"] == by_name["net_batchnorm0_gamma"] == 0.0


@pytest.mark.parametrize("suffix", ["bias", "gamma", "beta"])
def test_by_name_in_a_block_of_ones_own(suffix):
    block = gluon.Block(prefix="mine_")
    block.params.get(suffix, shape=(2,))
    block.params.get("kernel", shape=(2, 2))
    assert exclude_from_decay(block) == [f"mine_{suffix}"]
