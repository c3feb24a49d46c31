from mxnet.contrib import amp as amp, quantization as quantization
