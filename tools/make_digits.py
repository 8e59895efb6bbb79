"""Write netcl/data/digits.npz from scikit-learn's copy of the UCI digits. Run: python tools/make_digits.py

Needs scikit-learn. The data are those of netcl.data.datasets.digits, where their source and licence stand.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).resolve().parents[1] / "netcl" / "data" / "digits.npz"


def main() -> None:
    """Pixels and labels as bytes."""
    found = load_digits()
    images, labels = found.images.astype(np.uint8), found.target.astype(np.uint8)
    assert images.shape == (1797, 8, 8) and (images == found.images).all()
    np.savez_compressed(TARGET, images=images, labels=labels)
    print(f"{TARGET}: {len(labels)} images, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
