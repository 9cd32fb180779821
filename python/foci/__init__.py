# SPDX-License-Identifier: Apache-2.0
"""Attention whose geometry you choose and whose focus you can measure.

    o = foci.attend(q, k, v)                                     # as scaled_dot_product_attention
    o = foci.attend(q, k, v, metric="layer-change", v_prev=v_of_the_layer_below)
    print(foci.measure(q, k, v).summary())                       # how many keys a row looks at
    print(foci.measure_model(model, x).summary())                # the same of every layer, and more
    layer = foci.nn.Attention(192, 3, metric="key-covariance")

A metric says how near a query and a key are, a weighting turns that into weights. docs/python.md
is the guide; one page per mechanism lies beside it.
"""
from ._library import load as _load

__version__: str = _load().foci

from . import nn
from ._call import How
from ._ops import check_settings
from ._settings import Settings
from .attention import attend
from .model_statistics import LayerStatistics, ModelStatistics, measure_model
from .statistics import Statistics, measure

__all__ = [
    "How",
    "LayerStatistics",
    "ModelStatistics",
    "Settings",
    "Statistics",
    "__version__",
    "attend",
    "check_settings",
    "measure",
    "measure_model",
    "nn",
]
