"""Importing this declares the records of all ops, which netcl.autograd needs; `import netcl` loads fewer."""

import netcl.ops  # noqa: F401
from netcl.ops.attend import op as _attend  # noqa: F401
from netcl.ops.convolution import op as _convolution  # noqa: F401
from netcl.ops.losses import records as _losses  # noqa: F401
from netcl.ops.normalization import records as _normalization  # noqa: F401
from netcl.ops.pooling import op as _pooling  # noqa: F401
