"""`ag.<op>`: every operation on nodes, with the names and arguments of `netcl.ops`.

The modules here are written by tools/generate_ops.py from the records of ops; netcl/autograd/composed.py holds what is
made of other ops.
"""

from netcl.autograd import composed as _composed
from netcl.autograd.composed import *  # noqa: F403  (each module lists its ops in __all__)
from netcl.autograd.functional import attention as _attention
from netcl.autograd.functional import elementwise as _elementwise
from netcl.autograd.functional import index as _index
from netcl.autograd.functional import loss as _loss
from netcl.autograd.functional import movement as _movement
from netcl.autograd.functional import norm as _norm
from netcl.autograd.functional import pool as _pool
from netcl.autograd.functional import product as _product
from netcl.autograd.functional import reduction as _reduction
from netcl.autograd.functional.attention import *  # noqa: F403
from netcl.autograd.functional.elementwise import *  # noqa: F403
from netcl.autograd.functional.index import *  # noqa: F403
from netcl.autograd.functional.loss import *  # noqa: F403
from netcl.autograd.functional.movement import *  # noqa: F403
from netcl.autograd.functional.norm import *  # noqa: F403
from netcl.autograd.functional.pool import *  # noqa: F403
from netcl.autograd.functional.product import *  # noqa: F403
from netcl.autograd.functional.reduction import *  # noqa: F403
from netcl.autograd.node import OPERATORS as _OPERATORS

_SUBJECTS = (
    _attention, _composed, _elementwise, _index, _loss, _movement, _norm, _pool, _product, _reduction,
)  # fmt: skip
_OPERATORS.update({name: getattr(subject, name) for subject in _SUBJECTS for name in subject.__all__})
