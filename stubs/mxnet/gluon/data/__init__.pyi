from mxnet.gluon.data import vision as vision
from mxnet.gluon.data.dataloader import DataLoader as DataLoader
from mxnet.gluon.data.dataset import (
    ArrayDataset as ArrayDataset,
)
from mxnet.gluon.data.dataset import (
    Dataset as Dataset,
)
from mxnet.gluon.data.dataset import (
    SimpleDataset as SimpleDataset,
)
from mxnet.gluon.data.sampler import (
    BatchSampler as BatchSampler,
)
from mxnet.gluon.data.sampler import (
    RandomSampler as RandomSampler,
)
from mxnet.gluon.data.sampler import (
    Sampler as Sampler,
)
from mxnet.gluon.data.sampler import (
    SequentialSampler as SequentialSampler,
)
