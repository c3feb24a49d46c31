from mxnet.contrib import amp as amp
from mxnet.contrib import quantization as quantization
