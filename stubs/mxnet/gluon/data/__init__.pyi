from mxnet.gluon.data import vision as vision
from mxnet.gluon.data.dataloader import DataLoader as DataLoader
from mxnet.gluon.data.dataset import (
    ArrayDataset as ArrayDataset,
    Dataset as Dataset,
    SimpleDataset as SimpleDataset,
)
from mxnet.gluon.data.sampler import (
    BatchSampler as BatchSampler,
    RandomSampler as RandomSampler,
    Sampler as Sampler,
    SequentialSampler as SequentialSampler,
)
